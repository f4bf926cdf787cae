import Joi from 'joi';
import type { WantedType, WebhookMode } from '../../db/words.ts';
import { WANTED_TYPES, WEBHOOK_MODES } from '../../db/words.ts';
import type { Problem } from '../http/errors.ts';
import { jsonDepth } from '../http/json-body.ts';

// The bodies of submits (api/README.md, Submitting) as joi schemas, and the translation of joi's findings into the 422
// catalogue (api/README.md, Errors). The OpenAPI document is made from them: `meta({ jsonSchema })` says what a custom
// rule checks (json-schema.ts).

export interface SubmitBody {
  readonly npis: readonly string[];
  readonly wantedType: WantedType;
  readonly webhook: { readonly url: string; readonly mode: WebhookMode } | null;
  readonly customData: string | null;
}

/** What joi cannot see in the parsed value. */
export interface SubmitContext {
  /** The text of `custom_data` as it was sent. */
  readonly customData: string | null;
  /** True for a URL whose literal address or inner name deliveries may not reach. */
  readonly forbids: (url: URL) => boolean;
}

export const MAX_NPIS = 60;
const MAX_CUSTOM_DATA_BYTES = 16 * 1024;
const MAX_CUSTOM_DATA_DEPTH = 32;
const MAX_URL_LENGTH = 2048;

/** 1 to 255 visible ASCII characters, quotes around them allowed (DECISIONS.md, Idempotency-Key). */
export const IDEMPOTENCY_KEY = /^(?:"[!-~]{1,255}"|(?!""$)[!-~]{1,255})$/;

const npi = Joi.string()
  .pattern(/^[0-9]{10}$/)
  .description('National Provider Identifier: 10 ASCII digits.')
  .example('1234567893');

const URL_START = /^[Hh][Tt][Tt][Pp][Ss]:\/\/[^/\\]/;

const url = Joi.string()
  .description(
    'Where deliveries go: https, without user name or password, and not to an address or a name that is not public.',
  )
  .example('https://example.com/hooks/email')
  // The rest of the rule cannot be said in JSON Schema.
  .meta({ jsonSchema: { format: 'uri', pattern: URL_START.source, maxLength: MAX_URL_LENGTH } })
  .custom((text: string, helpers) => {
    if (text.length > MAX_URL_LENGTH) return helpers.error('url.too_long');
    // A parser as lenient as URL drops white space and control characters; what is stored must be what is checked.
    if (!URL.canParse(text) || !text.isWellFormed() || /[\s\p{Cc}]/u.test(text))
      return helpers.error('url.parsing');
    const parsed = new URL(text);
    if (parsed.protocol !== 'https:') return helpers.error('url.scheme');
    // Such a parser also takes `https:///x` for a host x.
    if (!URL_START.test(text)) return helpers.error('url.parsing');
    if (parsed.username !== '' || parsed.password !== '') return helpers.error('url.userinfo');
    return contextOf(helpers).forbids(parsed) ? helpers.error('url.forbidden') : text;
  });

const webhook = Joi.object({
  url: url.required(),
  mode: Joi.string()
    .valid(...WEBHOOK_MODES)
    .empty(null)
    .default('real-time')
    .description(
      '`real-time`: one delivery per NPI as it finishes. `batch`: one when the whole batch completes.',
    ),
})
  .unknown()
  .description('Where results are sent; without it they are polled for.');

const customData = Joi.object()
  .unknown()
  .description(
    `Any JSON object of at most ${MAX_CUSTOM_DATA_BYTES} bytes as sent and ${MAX_CUSTOM_DATA_DEPTH} levels; echoed unchanged in polls and deliveries.`,
  )
  .example({ order: 17 })
  .custom((value: object, helpers) => {
    const text = contextOf(helpers).customData ?? '';
    if (Buffer.byteLength(text) > MAX_CUSTOM_DATA_BYTES) return helpers.error('dict.too_large');
    return jsonDepth(text) > MAX_CUSTOM_DATA_DEPTH ? helpers.error('dict.too_deep') : value;
  });

const common = {
  enrichment_email_type: Joi.string()
    .valid(...WANTED_TYPES)
    .empty(null)
    .default('any')
    .description('A filter: an email of another type is not returned. `any` prefers professional.'),
  webhook: webhook.empty(null),
  custom_data: customData.empty(null),
};

/** `POST /api/v1/email` */
export const singleBody = Joi.object({ npi: npi.required(), ...common }).unknown();

const npis = Joi.array()
  .items(npi)
  .min(1)
  .max(MAX_NPIS)
  .description('One request each, also where an NPI occurs twice.');

/** `POST /api/v1/email/bulk`. Items of a list that is too long are not looked at: reporting them all would stall. */
export const bulkBody = Joi.object({
  npis: Joi.array()
    .when('.', { is: Joi.array().max(MAX_NPIS), then: npis, otherwise: Joi.array().max(MAX_NPIS) })
    .required()
    .meta({ accepts: npis }),
  ...common,
}).unknown();

/**
 * Validates a parsed body.
 * @returns the body in our own terms, or every problem in field order
 */
export function validateSubmit(
  schema: Joi.ObjectSchema,
  body: unknown,
  context: SubmitContext,
): { readonly value: SubmitBody } | { readonly problems: readonly Problem[] } {
  const { value, error } = schema.validate(body, { abortEarly: false, convert: false, context });
  if (error) return { problems: firstPerField(error.details).map(toProblem) };
  return {
    value: {
      // The other name is an unknown field there, which nothing has checked.
      npis: schema === singleBody ? [value.npi] : value.npis,
      wantedType: value.enrichment_email_type,
      webhook: value.webhook ?? null,
      customData: value.custom_data === undefined ? null : context.customData,
    },
  };
}

/** One entry per invalid field (api/README.md, Errors): of a wrong choice joi also says that it is no string. */
function firstPerField(details: readonly Joi.ValidationErrorItem[]): Joi.ValidationErrorItem[] {
  const fields = details.map(({ path }) => JSON.stringify(path));
  return details.filter((_, i) => fields.indexOf(fields[i] ?? '') === i);
}

function toProblem({ path, type, context }: Joi.ValidationErrorItem): Problem {
  const loc = ['body', ...path];
  const field = path.at(-1);
  switch (type) {
    case 'any.required':
      return { loc, msg: 'Field required', type: 'missing' };
    case 'string.base':
      return { loc, msg: 'Input should be a valid string', type: 'string_type' };
    case 'string.empty':
      return field === 'url' ? URL_PARSING(loc) : NOT_AN_NPI(loc);
    case 'string.pattern.base':
      return NOT_AN_NPI(loc);
    case 'any.only':
      return {
        loc,
        msg: `Input should be ${choices(field === 'mode' ? WEBHOOK_MODES : WANTED_TYPES)}`,
        type: 'literal_error',
      };
    case 'url.parsing':
      return URL_PARSING(loc);
    case 'url.too_long':
      return { loc, msg: `URL should have at most ${MAX_URL_LENGTH} characters`, type: 'url_too_long' };
    case 'url.scheme':
      return { loc, msg: "URL scheme should be 'https'", type: 'url_scheme' };
    case 'url.userinfo':
      return { loc, msg: 'URL should not contain a user name or password', type: 'url_userinfo' };
    case 'url.forbidden':
      return { loc, msg: 'URL points to an address that deliveries may not reach', type: 'url_forbidden' };
    case 'object.base':
      return field === 'custom_data'
        ? { loc, msg: 'Input should be a valid dictionary', type: 'dict_type' }
        : { loc, msg: NOT_AN_OBJECT, type: 'model_attributes_type' };
    case 'dict.too_large':
      return {
        loc,
        msg: `Dictionary should have at most ${MAX_CUSTOM_DATA_BYTES} bytes as JSON`,
        type: 'dict_too_large',
      };
    case 'dict.too_deep':
      return {
        loc,
        msg: `Dictionary should have at most ${MAX_CUSTOM_DATA_DEPTH} levels`,
        type: 'dict_too_deep',
      };
    case 'array.base':
      return { loc, msg: 'Input should be a valid list', type: 'list_type' };
    case 'array.min':
      return { loc, msg: 'List should have at least 1 item after validation, not 0', type: 'too_short' };
    case 'array.max':
      return {
        loc,
        msg: `List should have at most ${MAX_NPIS} items after validation, not ${context?.value.length}`,
        type: 'too_long',
      };
    case 'array.sparse':
      return { loc, msg: 'Input should be a valid string', type: 'string_type' };
    default:
      return { loc, msg: 'Input is not valid', type: 'value_error' };
  }
}

const NOT_AN_OBJECT = 'Input should be a valid dictionary or object to extract fields from';
const NOT_AN_NPI = (loc: Problem['loc']): Problem => ({
  loc,
  msg: "String should match pattern '^[0-9]{10}$'",
  type: 'string_pattern_mismatch',
});
const URL_PARSING = (loc: Problem['loc']): Problem => ({
  loc,
  msg: 'Input should be a valid URL',
  type: 'url_parsing',
});

/** `'any', 'professional' or 'personal'` */
function choices(values: readonly string[]): string {
  const quoted = values.map((value) => `'${value}'`);
  return `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`;
}

function contextOf(helpers: Joi.CustomHelpers): SubmitContext {
  return helpers.prefs.context as SubmitContext;
}
