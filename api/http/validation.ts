import type Joi from 'joi';
import type { Problem } from '../problems.ts';

// Whatever a request holds is checked by joi schemas; here its findings become the 422 catalogue (api/docs/errors.md, 422).

/**
 * @param place where the value stands in the request
 * @param context what the schema's own rules ask for
 * @returns the value, and every problem in field order: it is good if there are none
 */
export function check<T>(
  place: 'body' | 'query' | 'header',
  schema: Joi.ObjectSchema<T>,
  given: unknown,
  context: object = {},
): { readonly value: T; readonly problems: readonly Problem[] } {
  const { value, error } = schema.validate(given, { abortEarly: false, convert: false, context });
  const details = error?.details ?? [];
  // One entry per invalid field: of a wrong choice joi also says that it isn't a string.
  const fields = details.map(({ path }) => JSON.stringify(path));
  const problems = details
    .filter((_, i) => fields.indexOf(fields[i] ?? '') === i)
    .map(({ path, type: found, context: { limit, value, regex, valids } = {} }) => {
      const [type, text] = FINDINGS[`${path.at(-1)} ${found}`] ??
        FINDINGS[found] ?? ['value_error', 'Input is not valid'];
      const msg = text
        .replace('{limit}', limit)
        .replace('{length}', value?.length)
        .replace('{pattern}', () => regex.source)
        .replace('{choices}', () => choices(valids));
      return { loc: [place, ...path], msg, type };
    });
  return { value, problems };
}

/** What joi finds, worded as pydantic 2 does; with a field's name in front, for that field alone. */
const FINDINGS: Readonly<Record<string, readonly [type: string, msg: string]>> = {
  'any.required': ['missing', 'Field required'],
  'any.only': ['literal_error', 'Input should be {choices}'],
  'string.base': ['string_type', 'Input should be a valid string'],
  'string.empty': ['string_pattern_mismatch', "String should match pattern '^[0-9]{10}$'"],
  'string.pattern.base': ['string_pattern_mismatch', "String should match pattern '{pattern}'"],
  'Idempotency-Key string.pattern.base': [
    'idempotency_key_invalid',
    'Idempotency-Key should have 1 to 255 visible ASCII characters',
  ],
  'url string.empty': ['url_parsing', 'Input should be a valid URL'],
  'url.parsing': ['url_parsing', 'Input should be a valid URL'],
  'url.too_long': ['url_too_long', 'URL should have at most {limit} characters'],
  'url.scheme': ['url_scheme', "URL scheme should be 'https'"],
  'url.userinfo': ['url_userinfo', 'URL should not contain a user name or password'],
  'url.forbidden': ['url_forbidden', 'URL points to an address that deliveries may not reach'],
  'object.base': [
    'model_attributes_type',
    'Input should be a valid dictionary or object to extract fields from',
  ],
  'custom_data object.base': ['dict_type', 'Input should be a valid dictionary'],
  'dict.too_large': ['dict_too_large', 'Dictionary should have at most {limit} bytes as JSON'],
  'dict.too_deep': ['dict_too_deep', 'Dictionary should have at most {limit} levels'],
  'array.base': ['list_type', 'Input should be a valid list'],
  'array.min': ['too_short', 'List should have at least 1 item after validation, not 0'],
  'array.max': ['too_long', 'List should have at most {limit} items after validation, not {length}'],
  'array.sparse': ['string_type', 'Input should be a valid string'],
  'number.base': ['int_parsing', 'Input should be a valid integer, unable to parse string as an integer'],
  'number.min': ['greater_than_equal', 'Input should be greater than or equal to {limit}'],
  'number.max': ['less_than_equal', 'Input should be less than or equal to {limit}'],
  'time.parsing': [
    'datetime_parsing',
    'Input should be a valid datetime with a time zone, such as 2026-01-05T10:00:00Z',
  ],
};

/** `'any', 'professional' or 'personal'` */
export function choices(values: readonly string[]): string {
  const quoted = values.map((value) => `'${value}'`);
  return `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`;
}

/**
 * The members of a body that its schema does not know, as `webhook.mod, npis`: a misspelled one costs what its absence
 * costs (DECISIONS.md, Errors).
 * @returns visible ASCII (percent-encoding, RFC 3986), about 1 KB at most; empty if there are none
 */
export function ignoredFields(schema: Joi.Schema, body: unknown): string {
  let text = '';
  for (const path of unknownMembers(schema, body)) {
    if (text.length > 1000) return `${text}, ...`;
    // Nobody needs more than the beginning of a name.
    const names = path.map((name) => encodeURIComponent(name.slice(0, 40).toWellFormed()) || '""');
    text += (text === '' ? '' : ', ') + names.join('.');
  }
  return text;
}

function unknownMembers(schema: Joi.Schema, value: unknown): string[][] {
  const known = namesOf(schema);
  if (!known || typeof value !== 'object' || value === null || Array.isArray(value)) return [];
  return Object.entries(value).flatMap(([name, member]) =>
    known.includes(name)
      ? unknownMembers(schema.extract(name), member).map((path) => [name, ...path])
      : [[name]],
  );
}

/** The members that an object may have; null for what may have any. */
export function namesOf(schema: Joi.Schema): readonly string[] | null {
  return schema.$_terms.keys?.map(({ key }: { readonly key: string }) => key) ?? null;
}
