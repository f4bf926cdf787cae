import Joi from 'joi';
import { EMAIL_TYPES, type EmailType } from '../../../db/words.ts';
import { isConfidential } from '../../http/client.ts';
import { type Pointer, parsePointer } from '../../http/fields.ts';
import { VERIFIER_IDS } from '../../verification/verifiers/catalogue.ts';
import { VENDOR_IDS } from '../catalogue.ts';
import type { Need, Verdict } from '../vendor.ts';
import { type JsonObjectTemplate, type JsonTemplate, needOf, placeholdersIn } from './template.ts';

/** A vendor as a file describes it, checked and with its secrets in place; README.md tells what each part is for. */
export interface HttpJsonSource {
  readonly id: string;
  readonly method: 'GET' | 'POST';
  /** With placeholders in its path or query only. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** Null for GET. */
  readonly body: JsonObjectTemplate | null;
  readonly needs: readonly Need[];
  readonly gives: readonly EmailType[];
  readonly cost: number;
  readonly repeat_is_free: boolean;
  /** Whether its license lets us keep an address beyond the lookup that it answers. */
  readonly may_store: boolean;
  readonly timeout_ms: number;
  /** How long a lookup waits for it before it goes on to the next vendor. */
  readonly wait_ms: number;
  /** Over all workers; null for none. */
  readonly limits: Readonly<Record<'per_second' | 'per_minute' | 'daily_credits', number | null>>;
  readonly miss: {
    readonly statuses: readonly number[];
    readonly when: readonly {
      readonly pointer: Pointer;
      readonly equals: string | number | boolean | null;
    }[];
  };
  readonly candidates: {
    /** A list of candidates, or the only one. */
    readonly list: Pointer;
    /** These from one candidate on. */
    readonly email: Pointer;
    readonly type: { readonly pointer: Pointer; readonly values: Words<EmailType> } | null;
    readonly status: { readonly pointer: Pointer; readonly values: Words<Verdict> } | null;
    readonly validated_at: Pointer | null;
  };
  readonly identity: Readonly<Record<'npi' | 'first' | 'last' | 'full' | 'state', Pointer | null>>;
}

/** By the vendor's word in lower case. */
export type Words<Meaning> = Readonly<Record<string, Meaning>>;

/** Everything that is wrong with a file of vendors, each with its place; no secret and no value of it. */
export class SourcesError extends Error {
  override readonly name = 'SourcesError';
}

/**
 * Reads a file of vendors: a JSON list, as in deploy/config/vendors.example.json.
 * @param secretOf what `${VENDOR_NAME}` in a header stands for; undefined if it is not set
 * @throws {SourcesError} naming every problem at once
 */
export function parseSources(
  text: string,
  secretOf: (name: string) => string | undefined,
): readonly HttpJsonSource[] {
  const { value, error } = sourcesSchema(secretOf).validate(parseJson(text), {
    abortEarly: false,
    convert: false,
    errors: { wrap: { label: false } },
    messages: {
      'object.unknown': '{{#label}} is no setting of a vendor',
      'any.required': '{{#label}} is missing',
    },
  });
  if (!error) return value;
  throw sourcesError(error.details.map(({ message }) => message));
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    // The rest of the message quotes the file.
    const place = /\(line \d+ column \d+\)/.exec(String(error))?.[0] ?? '';
    throw sourcesError([`not JSON ${place}`.trim()]);
  }
}

function sourcesError(problems: readonly string[]): SourcesError {
  const lines = problems.map((problem) => `  ${problem}`);
  return new SourcesError(`the file of vendors has ${problems.length} problem(s):\n${lines.join('\n')}`);
}

const VERDICTS: readonly Verdict[] = ['valid', 'catch_all', 'risky', 'invalid', 'unknown'];
const NEEDS: readonly Need[] = ['npi', 'name', 'organization', 'address'];
/** The sources that have a file of their own, and those that are none. */
const TAKEN = [...VENDOR_IDS, ...VERIFIER_IDS, 'nppes', 'import', 'service'];

const pointer = Joi.string()
  .allow('')
  .custom((text: string, helpers) => {
    const parsed = parsePointer(text);
    return (
      parsed ?? helpers.message({ custom: '{{#label}} must be a JSON pointer such as /results/0/email' })
    );
  });

const words = <Meaning extends string>(meanings: readonly Meaning[]) =>
  Joi.object({
    pointer: pointer.required(),
    values: Joi.object()
      .pattern(Joi.string(), Joi.valid(...meanings))
      .required()
      .custom((values: Words<Meaning>) =>
        Object.fromEntries(Object.entries(values).map(([word, meaning]) => [word.toLowerCase(), meaning])),
      ),
  }).default(null);

const url = Joi.string()
  .required()
  .custom((text: string, helpers) => {
    const [one, other] = ['a', 'b'].map((value) => URL.parse(text.replaceAll(/\{[a-z]+\}/g, value)));
    if (!one || !other || !isConfidential(one)) {
      return helpers.message({ custom: '{{#label}} must be an https URL; http is for this machine only' });
    }
    // What is known of a person must never decide which host is called with the vendor's key.
    if (one.origin !== other.origin || one.username || one.password) {
      return helpers.message({ custom: '{{#label}} may have placeholders in its path and query only' });
    }
    const unknown = unknownIn(text);
    return unknown.length > 0 ? noPlaceholder(unknown, helpers) : text;
  });

const body = Joi.object()
  .unknown()
  .required()
  .custom((template: JsonObjectTemplate, helpers) => {
    const unknown = unknownIn(template);
    return unknown.length > 0 ? noPlaceholder(unknown, helpers) : template;
  });

const SECRET = /\$\{([^}]*)\}/g;

const header = (secretOf: (name: string) => string | undefined) =>
  Joi.string().custom((text: string, helpers) => {
    const names = [...text.matchAll(SECRET)].map(([, name = '']) => name);
    // Of all other variables, such as the one with the database's password, a vendor is never told.
    if (!names.every((name) => /^VENDOR_[A-Z0-9_]+$/.test(name))) {
      return helpers.message({ custom: '{{#label}} may name variables that begin with VENDOR_ only' });
    }
    const missing = names.filter((name) => !secretOf(name));
    if (missing.length > 0) {
      return helpers.message({ custom: `{{#label}} needs ${missing.join(', ')}, which is not set` });
    }
    const value = text.replaceAll(SECRET, (_whole, name: string) => secretOf(name) ?? '');
    const sendable = /^[\t\x20-\x7e\x80-\xff]+$/.test(value);
    return sendable ? value : helpers.message({ custom: '{{#label}} is not a value of a header' });
  });

/**
 * The rules of a file of vendors; what passes them is read as well: pointers are parsed, secrets are in place.
 * @param secretOf what `${VENDOR_NAME}` in a header stands for; undefined if it is not set
 */
export function sourcesSchema(secretOf: (name: string) => string | undefined) {
  const source = Joi.object<HttpJsonSource>({
    id: Joi.string()
      .required()
      .invalid(...TAKEN)
      .pattern(/^[a-z][a-z0-9-]{1,30}$/)
      .messages({
        'any.invalid': '{{#label}} is the name of a source of our own',
        'string.pattern.base': '{{#label}} must be 2 to 31 small letters, digits and hyphens',
      }),
    method: Joi.valid('GET', 'POST').default('GET'),
    url,
    headers: Joi.object()
      .pattern(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, header(secretOf))
      .default({}),
    body: Joi.when('method', {
      is: 'POST',
      then: body,
      otherwise: Joi.forbidden(),
    })
      .default(null)
      .messages({ 'any.unknown': '{{#label}} is for the method POST only' }),
    needs: Joi.array()
      .items(Joi.valid(...NEEDS))
      .unique()
      .required()
      .custom(checkNeeds),
    gives: Joi.array()
      .items(Joi.valid(...EMAIL_TYPES))
      .unique()
      .min(1)
      .required(),
    cost: Joi.number().min(0).max(1000).required(),
    repeat_is_free: Joi.boolean().default(false),
    may_store: Joi.boolean().required(),
    timeout_ms: Joi.number().integer().min(1000).max(200_000).default(30_000),
    wait_ms: Joi.number().integer().min(1000).max(900_000).default(60_000),
    limits: Joi.object({
      per_second: Joi.number().integer().min(1).default(null),
      per_minute: Joi.number().integer().min(1).default(null),
      daily_credits: Joi.number().min(0).default(null),
    }).default({ per_second: null, per_minute: null, daily_credits: null }),
    miss: Joi.object({
      statuses: Joi.array().items(Joi.number().integer().min(400).max(499)).default([404]),
      when: Joi.array()
        .items(
          Joi.object({
            pointer: pointer.required(),
            equals: Joi.alternatives(
              Joi.string().allow(''),
              Joi.number(),
              Joi.boolean(),
              Joi.valid(null),
            ).required(),
          }),
        )
        .default([]),
    }).default({ statuses: [404], when: [] }),
    candidates: Joi.object({
      list: pointer.required(),
      email: pointer.required(),
      type: words(EMAIL_TYPES),
      status: words(VERDICTS),
      validated_at: pointer.default(null),
    }).required(),
    identity: Joi.object({
      npi: pointer.default(null),
      first: pointer.default(null),
      last: pointer.default(null),
      full: pointer.default(null),
      state: pointer.default(null),
    })
      .required()
      .custom(checkIdentity),
  });
  return Joi.array<readonly HttpJsonSource[]>().items(source).unique('id').required();
}

/** As a value: in the message itself the braces would be its own placeholders. */
function noPlaceholder(names: readonly string[], helpers: Joi.CustomHelpers) {
  const custom = '{{#label}} has no placeholder {{#names}}';
  return helpers.message({ custom }, { names: names.map((name) => `{${name}}`).join(', ') });
}

function unknownIn(template: JsonTemplate): string[] {
  return placeholdersIn(template).filter((name) => needOf(name) === null);
}

/** `needs` decides whom the vendor is asked about, so it has to list what the URL and the body are made of. */
function checkNeeds(needs: readonly Need[], helpers: Joi.CustomHelpers) {
  const [source] = helpers.state.ancestors;
  const missing = [...placeholdersIn(source.url), ...placeholdersIn(source.body)]
    .map(needOf)
    .filter((need) => need !== null && !needs.includes(need));
  if (missing.length === 0) return needs;
  const custom = '{{#label}} must list {{#missing}}, of which the URL or the body has placeholders';
  return helpers.message({ custom }, { missing: [...new Set(missing)].join(', ') });
}

/** An answer that names nobody cannot be compared with who was asked for, and nothing of it would be accepted. */
function checkIdentity(identity: HttpJsonSource['identity'], helpers: Joi.CustomHelpers) {
  const { npi, first, last, full } = identity;
  if (npi || full || (first && last)) return identity;
  return helpers.message({
    custom: '{{#label}} must point at an NPI, a full name, or a first and a last name',
  });
}
