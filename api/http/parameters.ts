import type { Request } from '@hapi/hapi';
import Joi from 'joi';
import { type IdPrefix, idPattern, isId } from '../../db/ids.ts';
import type { BatchFilter } from '../../db/requests/batches.ts';
import { BATCH_STATUSES } from '../../db/words.ts';
import { invalid, type Problem } from '../problems.ts';
import { check, choices, namesOf } from './validation.ts';

// Parameters of path, query and headers. The OpenAPI document is made from the schemas that check them.

const PREFIXES: Readonly<Record<string, IdPrefix>> = {
  request_id: 'req',
  batch_id: 'bat',
  delivery_id: 'msg',
};

/** How many items a page of a list may hold. */
export const PAGE = { least: 1, most: 100, usual: 50 } as const;

/** What cursors look like, as the source of a regular expression; opaque to clients. Of the ledger: two numbers. */
export const LEDGER_PAGE = '^[0-9]{1,15}-[0-9]{1,15}$';
/** Of all others: the digits of the last id. */
export const CURSOR = idPattern('msg').replace('msg_', '');

/** Text of this form, which an empty one has to have too; null if it isn't given. */
const matching = (pattern: string) => Joi.string().min(0).pattern(new RegExp(pattern)).default(null);

const RFC_3339 = /^(\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$/i;

const time = Joi.custom((text: string, helpers) => {
  // A plus sign that is not encoded arrives as a blank.
  const [time = '', day = ''] = RFC_3339.exec(text.replace(' ', '+')) ?? [];
  // February 30 would be read as March 2.
  const isDay = !Number.isNaN(Date.parse(time)) && new Date(day).toISOString().startsWith(day);
  return isDay ? new Date(time) : helpers.error('time.parsing');
})
  .default(null)
  .meta({ jsonSchema: { type: 'string', format: 'date-time' } });

/** joi's own conversion would take `1e1` too. */
const limit = Joi.custom((text: string, helpers) => {
  if (!/^-?[0-9]+$/.test(text)) return helpers.error('number.base');
  if (Number(text) < PAGE.least) return helpers.error('number.min', { limit: PAGE.least });
  return Number(text) > PAGE.most ? helpers.error('number.max', { limit: PAGE.most }) : Number(text);
})
  .default(PAGE.usual)
  .meta({ jsonSchema: { type: 'integer', minimum: PAGE.least, maximum: PAGE.most, default: PAGE.usual } });

/** By their names in openapi/operations.json: those that are not just any text. */
export const PARAMETERS = {
  /** 1 to 255 visible ASCII characters, quotes around them allowed (DECISIONS.md, Idempotency-Key). */
  'Idempotency-Key': matching('^(?:"[!-~]{1,255}"|(?!""$)[!-~]{1,255})$'),
  limit,
  cursor: matching(CURSOR),
  ledger_cursor: matching(LEDGER_PAGE),
  status: Joi.string()
    .valid(...BATCH_STATUSES)
    .default(null),
  since: time,
  until: time,
  npi: matching('^[0-9]{10}$'),
};

interface Paging {
  readonly limit: number;
  /** Null for the first page. */
  readonly cursor: string | null;
}

const { status, since, until, npi, cursor, ledger_cursor } = PARAMETERS;
/** The queries of the lists. */
export const BATCHES_QUERY = Joi.object<BatchFilter & Paging>({ status, since, until, npi, limit, cursor });
export const DELIVERIES_QUERY = Joi.object<Paging>({ limit, cursor });
export const LEDGER_QUERY = Joi.object<Paging>({ limit, cursor: ledger_cursor });

type Ids = Readonly<Record<'request_id' | 'batch_id' | 'delivery_id', string>>;

/**
 * The ids in the path, known or not.
 * @throws {ApiError} 422 with every problem at once
 */
export function idsOf(request: Request): Ids {
  const problems = idProblems(request);
  if (problems.length > 0) throw invalid(problems);
  return request.params as Ids;
}

/**
 * The same with what the query says.
 * @throws {ApiError} 422 with every problem at once; a filter that is not there would show more than was asked for
 */
export function listedBy<T>(request: Request, query: Joi.ObjectSchema<T>): Ids & T {
  // What is given twice is like no value that there is.
  const given = Object.entries(request.query).map(([name, value]) => [name, String(value)]);
  const { value, problems } = check('query', query.unknown(), Object.fromEntries(given));
  const names = namesOf(query) ?? [];
  // The first one: there may be thousands.
  const [stray] = Object.keys(request.query).filter((name) => !names.includes(name));
  const msg = `Extra inputs are not permitted, only ${choices(names)}`;
  const extra = stray === undefined ? [] : [{ loc: ['query', stray], msg, type: 'extra_forbidden' }];
  const all = [...idProblems(request), ...problems, ...extra];
  if (all.length > 0) throw invalid(all);
  return { ...(request.params as Ids), ...value };
}

function idProblems({ params }: Request): Problem[] {
  return Object.entries(params as Ids).flatMap(([name, id]) => {
    const prefix = PREFIXES[name];
    if (!prefix || isId(prefix, id)) return [];
    const [other] = Object.entries(PREFIXES).find(([, one]) => isId(one, id)) ?? [];
    const msg = other
      ? `This is a ${other}; a ${name} begins with '${prefix}_'`
      : `String should match pattern '${idPattern(prefix)}'`;
    return [{ loc: ['path', name], msg, type: 'string_pattern_mismatch' }];
  });
}

/** The ids in the path, for the log: only what could be an id of ours, because a path may hold anything. */
export function idsIn(request: Request): Readonly<Record<string, string>> {
  // hapi sets no params if the target is not even a path: `OPTIONS *`.
  const given = Object.entries((request.params as Ids | null) ?? {});
  return Object.fromEntries(given.filter(([name, id]) => PREFIXES[name] && isId(PREFIXES[name], id)));
}
