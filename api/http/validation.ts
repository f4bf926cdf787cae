import type { Request } from '@hapi/hapi';
import Joi from 'joi';
import type { LedgerPlace } from '../../db/accounts/ledger.ts';
import type { Period } from '../../db/connection/client.ts';
import { type IdPrefix, idPattern, isId } from '../../db/connection/ids.ts';
import type { BatchFilter } from '../../db/requests/batches.ts';
import pacing from '../../db/requests/pacing.json' with { type: 'json' };
import type { DeliveryFilter } from '../../db/webhooks/log.ts';
import { BATCH_STATUSES, DELIVERY_STATES, TEST_OUTCOMES } from '../../db/words.ts';
import { invalid, type Problem } from '../problems.ts';
import table from './faults.json' with { type: 'json' };

// Joi schemas check the bodies, parameters, and headers of requests. This file translates joi's
// errors into the entries of a 422 response (api/docs/errors.md, 422).

interface Fault {
  /** A stable code for programs. */
  readonly type: string;
  /** The message of pydantic 2, which clients may match. */
  readonly words: string;
  /** A sentence that says what to do. */
  readonly advice: string;
}

/**
 * The entry for each joi error, and for what joi doesn't check. If the key of a joi error begins
 * with the name of a field, the entry applies only to that field.
 */
const FAULTS: Readonly<Record<string, Fault>> = table;

/**
 * Validates a value from a request.
 * @param place the part of the request that the value comes from
 * @param context values that the custom rules of the schema need
 * @returns the value, and all problems in the order of the fields. The value is valid only if there
 * are no problems
 */
export function check<T>(
  place: 'body' | 'query' | 'header',
  schema: Joi.ObjectSchema<T>,
  given: unknown,
  context: object = {},
): { readonly value: T; readonly problems: readonly Problem[] } {
  const { value, error } = schema.validate(given, {
    abortEarly: false,
    convert: false,
    context,
  });
  const details = error?.details ?? [];
  // Keeps only the first problem of each field. For example, for a number where a choice is
  // required, joi reports both the wrong choice and the wrong type.
  const fields = details.map(({ path }) => JSON.stringify(path));
  const problems = details
    .filter((_, i) => fields.indexOf(fields[i] ?? '') === i)
    .map((detail) => problemOf(place, detail));
  return { value, problems };
}

/**
 * Returns the problem for a fault that joi does not find.
 * @param context the values for the placeholders in the fault's texts
 */
export function problemAt(
  loc: Problem['loc'],
  name: keyof typeof table,
  context: Joi.Context = {},
): Problem {
  return problemWith(loc, table[name], context);
}

function problemOf(
  place: string,
  { path, type: found, context = {} }: Joi.ValidationErrorItem,
): Problem {
  // A problem of an item is reported with the name of its list.
  const field = path.findLast((part) => typeof part === 'string') ?? place;
  const fault = FAULTS[`${field} ${found}`] ?? FAULTS[found] ?? table.other;
  return problemWith([place, ...path], fault, context);
}

/** Fills the placeholders in the texts of a fault. */
function problemWith(
  loc: Problem['loc'],
  { type, words, advice }: Fault,
  { limit, value, regex, valids }: Joi.Context,
): Problem {
  const msg = `${words}. ${advice}`
    .replace('{limit}', limit)
    .replace('{length}', value?.length)
    .replace('{pattern}', () => regex.source)
    .replace('{choices}', () => choices(valids));
  return { loc, msg, type };
}

/** Returns text like `'any', 'professional' or 'personal'`. */
function choices(values: readonly string[]): string {
  const quoted = values.map((value) => `'${value}'`);
  if (quoted.length === 1) return String(quoted[0]);
  return `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`;
}

/**
 * Lists the members of a body that its schema does not know, for example `webhook.mod, npis`. They
 * are ignored, so the list helps a client to find a misspelled name (DECISIONS.md, Errors).
 * @returns a header value of about 1 KB at most, with other characters than visible ASCII
 * percent-encoded (RFC 3986). Empty if there are no unknown members
 */
export function ignoredFields(schema: Joi.Schema, body: unknown): string {
  let text = '';
  for (const { path } of unknownMembers(schema, body)) {
    if (text.length > 1000) return `${text}, ...`;
    // Long names are cut. Their beginning is enough to recognize them.
    const names = path.map(
      (name) => encodeURIComponent(name.slice(0, 40).toWellFormed()) || '""',
    );
    text += (text === '' ? '' : ', ') + names.join('.');
  }
  return text;
}

/** Returns a problem for each member of a body that its schema does not know. */
export function unknownFields(schema: Joi.Schema, body: unknown): Problem[] {
  return unknownMembers(schema, body).map(({ path, known }) =>
    problemAt(['body', ...path], 'unknown field', { valids: known }),
  );
}

interface UnknownMember {
  readonly path: readonly string[];
  /** The names that would be known in its place. */
  readonly known: readonly string[];
}

function unknownMembers(schema: Joi.Schema, value: unknown): UnknownMember[] {
  const known = namesOf(schema);
  if (!known || typeof value !== 'object' || value === null || Array.isArray(value))
    return [];
  return Object.entries(value).flatMap(([name, member]) => {
    if (!known.includes(name)) return [{ path: [name], known }];
    const inner = unknownMembers(schema.extract(name), member);
    return inner.map((one) => ({ path: [name, ...one.path], known: one.known }));
  });
}

/** Returns the names of the members that an object may have, or null if it may have any members. */
function namesOf(schema: Joi.Schema): readonly string[] | null {
  return schema.$_terms.keys?.map(({ key }: { readonly key: string }) => key) ?? null;
}

// The parameters in the path, the query, and the headers. The same schemas check them and generate
// their part of the OpenAPI document.

const PREFIXES: Readonly<Record<string, IdPrefix>> = {
  request_id: 'req',
  batch_id: 'bat',
  delivery_id: 'msg',
};

/** Number of items on a page of a list. */
export const PAGE = { least: 1, most: 100, usual: 50 } as const;

/**
 * A regular expression for the cursors of all lists except the ledger. A cursor is the id of the
 * last item on the page, without its prefix. Clients must treat it as opaque.
 */
export const CURSOR = idPattern('msg').replace('msg_', '');
/**
 * A regular expression for the cursors of the ledger. A cursor contains the credits that were
 * available before the last entry of the page, and a letter with a reference to that entry. `h`
 * (hold) and `s` (settlement) are followed by the id of the request without its prefix. `f`
 * (funding) is followed by the entry's number among the organization's grants and adjustments.
 */
export const LEDGER_PAGE = `^[0-9]{1,15}-(?:f[1-9][0-9]{0,8}|[hs]${CURSOR.slice(1, -1)})$`;

/**
 * Returns a schema for text that matches a pattern. Empty text is checked against the pattern too.
 * If the parameter is missing, its value is null.
 */
const matching = (pattern: string) =>
  Joi.string().min(0).pattern(new RegExp(pattern)).default(null);

const RFC_3339 = /^(\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$/i;

const parseTime: Joi.CustomValidator = (given: unknown, helpers) => {
  // Some clients don't percent-encode the plus sign of a time zone, and it arrives as a space.
  const [time = '', day = ''] = RFC_3339.exec(String(given).replace(' ', '+')) ?? [];
  // `Date` would read February 30 as March 2.
  const isDay =
    !Number.isNaN(Date.parse(time)) && new Date(day).toISOString().startsWith(day);
  return isDay ? new Date(time) : helpers.error('time.parsing');
};

const anyTime = Joi.custom(parseTime).meta({
  jsonSchema: { type: 'string', format: 'date-time' },
});
const time = anyTime.default(null);

/**
 * Returns a schema for a whole number in decimal digits. Joi's own conversion would accept `1e1`
 * too.
 */
function wholeNumber(least: number, most: number) {
  return Joi.custom((text: string, helpers) => {
    if (!/^-?[0-9]+$/.test(text)) return helpers.error('number.base');
    const number = Number(text);
    if (number < least) {
      return helpers.error('number.min', { limit: least });
    }
    if (number > most) {
      return helpers.error('number.max', { limit: most });
    }
    return number;
  });
}

const limit = wholeNumber(PAGE.least, PAGE.most)
  .default(PAGE.usual)
  .meta({
    jsonSchema: {
      type: 'integer',
      minimum: PAGE.least,
      maximum: PAGE.most,
      default: PAGE.usual,
    },
  });

/** The largest value of PostgreSQL's type `integer`, which numbers the attempts. */
const MOST_ATTEMPTS = 2_147_483_647;
const before = wholeNumber(1, MOST_ATTEMPTS)
  .default(null)
  .meta({ jsonSchema: { type: 'integer', minimum: 1, maximum: MOST_ATTEMPTS } });

/** Schemas of the parameters that are validated, by their names in openapi/operations.json. */
export const PARAMETERS = {
  /**
   * Accepts 1 to 255 visible ASCII characters, with or without quotes around them
   * (api/docs/lifecycle.md, Idempotency-Key).
   */
  'Idempotency-Key': matching('^(?:"[!-~]{1,255}"|(?!""$)[!-~]{1,255})$'),
  'Test-Outcome': Joi.string()
    .valid(...TEST_OUTCOMES)
    .default(null)
    .meta({ name: 'TestOutcome' }),
  limit,
  before,
  cursor: matching(CURSOR),
  ledger_cursor: matching(LEDGER_PAGE),
  status: Joi.string()
    .valid(...BATCH_STATUSES)
    .default(null),
  status_of_deliveries: Joi.string()
    .valid(...DELIVERY_STATES)
    .default(null),
  since: time,
  until: time,
  npi: matching('^[0-9]{10}$'),
  by: Joi.string().valid('day', 'type').default('day'),
  format: Joi.string().valid('json', 'csv').default('json'),
};

interface Paging {
  readonly limit: number;
  /** The cursor that the client sent, or null for the first page. */
  readonly cursor: string | null;
}

/** Returns the place in the ledger that a cursor points to. */
export function ledgerPlace(cursor: string): LedgerPlace {
  const [available = '', entry = ''] = cursor.split('-');
  const rest = entry.slice(1);
  if (entry.startsWith('f'))
    return { available: Number(available), side: 'funding', ordinal: Number(rest) };
  const side = entry.startsWith('h') ? 'hold' : 'settlement';
  return { available: Number(available), side, requestId: `req_${rest}` };
}

/** Returns the cursor that points to a place in the ledger. */
export function ledgerCursor(place: LedgerPlace): string {
  if (place.side === 'funding') {
    return `${place.available}-f${place.ordinal}`;
  }
  return `${place.available}-${place.side.charAt(0)}${place.requestId.slice('req_'.length)}`;
}

/** The form of a response that can also be a file. */
interface Formatted {
  readonly format: 'json' | 'csv';
}

const { status, since, until, npi, cursor, ledger_cursor, by, format } = PARAMETERS;

/** Schemas of the query parameters of each list. */
export const BATCHES_QUERY = Joi.object<BatchFilter & Paging>({
  status,
  since,
  until,
  npi,
  limit,
  cursor,
});
export const DELIVERIES_QUERY = Joi.object<Paging>({ limit, cursor });
export const ALL_DELIVERIES_QUERY = Joi.object<DeliveryFilter & Paging>({
  status: PARAMETERS.status_of_deliveries,
  since,
  until,
  limit,
  cursor,
});
export const DELIVERY_QUERY = Joi.object<{ readonly before: number | null }>({ before });
export const LEDGER_QUERY = Joi.object<Period & Paging & Formatted>({
  since,
  until,
  limit,
  cursor: ledger_cursor,
  format,
});
export const USAGE_QUERY = Joi.object<
  Period & Formatted & { readonly by: 'day' | 'type' }
>({ since, until, by, format });

/** The body of `POST /api/v1/deliveries/resend`. */
export const resendBody = Joi.object<{ readonly failed_since: Date }>({
  failed_since: anyTime
    .required()
    .description('Sends the deliveries that failed at this time or later.')
    .example('2026-01-05T10:00:00Z'),
})
  .unknown()
  .meta({ name: 'ResendFailed' });

/** The number of NPIs that one free check can have. */
export const MAX_CHECKED = pacing.npisPerCheck;

const checkedNpi = Joi.string().allow('').example('1234567893');

/** The body of `POST /api/v1/check`. */
export const checkBody = Joi.object<{ readonly npis: readonly string[] }>({
  npis: boundedList(
    checkedNpi,
    MAX_CHECKED,
    'The NPIs, each as a text. A text that is not 10 digits is `not_an_npi`, so you can send a column of a file as it is.',
  ),
})
  .unknown()
  .meta({ name: 'Check' });

/**
 * Returns a schema for a list of 1 to `most` items. The items of a longer list are not checked,
 * because reporting many invalid items would block the process.
 */
export function boundedList(item: Joi.Schema, most: number, description: string) {
  const short = Joi.array().max(most);
  const complete = short.items(item).min(1).description(description);
  return Joi.array()
    .when('.', { is: short, then: complete, otherwise: short })
    .required()
    .meta({ accepts: complete });
}

type Ids = Readonly<Record<'request_id' | 'batch_id' | 'delivery_id', string>>;

/**
 * Returns the ids in the path, whether or not they exist.
 * @throws {ApiError} 422 with every problem at once
 */
export function idsOf(request: Request): Ids {
  const problems = idProblems(request);
  if (problems.length > 0) throw invalid(problems);
  return request.params as Ids;
}

/**
 * Returns the ids in the path and the validated query. An unknown parameter is a problem too,
 * because ignoring a misspelled filter would show more than was requested.
 * @throws {ApiError} 422 with every problem at once
 */
export function listedBy<T extends object>(
  request: Request,
  query: Joi.ObjectSchema<T>,
): Ids & T {
  // A parameter that is given twice becomes `a,b`, which no schema accepts.
  const given = Object.entries(request.query).map(([name, value]) => [
    name,
    String(value),
  ]);
  const { value, problems } = check('query', query.unknown(), Object.fromEntries(given));
  const all = [...idProblems(request), ...problems];
  if (isBackward(value)) {
    all.push(problemAt(['query', 'until'], 'period backward'));
  }
  const names = namesOf(query) ?? [];
  // Reports only the first unknown parameter, because there may be thousands.
  const stray = Object.keys(request.query).find((name) => !names.includes(name));
  if (stray !== undefined) {
    all.push(problemAt(['query', stray], 'unknown parameter', { valids: names }));
  }
  if (all.length > 0) throw invalid(all);
  return { ...(request.params as Ids), ...value };
}

/** Returns true if a period ends before it begins. It would be empty, and look like no usage. */
function isBackward(query: object): boolean {
  const { since, until } = query as Partial<Period>;
  return since instanceof Date && until instanceof Date && until < since;
}

function idProblems({ params }: Request): Problem[] {
  return Object.entries(params as Ids).flatMap(([name, id]) => {
    const prefix = PREFIXES[name];
    if (!prefix || isId(prefix, id)) return [];
    const other = idNameOf(id);
    let advice = `Send the complete ${name}, as a response contains it`;
    if (other)
      advice = `This is a ${other}. Send a ${name}, which begins with '${prefix}_'`;
    const msg = `String should match pattern '${idPattern(prefix)}'. ${advice}`;
    return [{ loc: ['path', name], msg, type: 'string_pattern_mismatch' }];
  });
}

/** Returns the name of the parameter that an id belongs to, or undefined if it is not an id. */
export function idNameOf(id: string): string | undefined {
  return Object.entries(PREFIXES).find(([, prefix]) => isId(prefix, id))?.[0];
}

/**
 * Returns the ids in the path for the log. Leaves out values that can't be our ids, because a path
 * may contain anything.
 */
export function idsIn(request: Request): Readonly<Record<string, string>> {
  // hapi sets no params if the target isn't a path, as in `OPTIONS *`.
  const given = Object.entries((request.params as Ids | null) ?? {});
  return Object.fromEntries(
    given.filter(([name, id]) => PREFIXES[name] && isId(PREFIXES[name], id)),
  );
}
