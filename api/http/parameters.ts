import type { Request } from '@hapi/hapi';
import { type IdPrefix, idPattern, isId } from '../../db/ids.ts';
import { invalid, type Problem } from '../problems.ts';

// Parameters of path and query, refused in the wording of the 422 catalogue (api/docs/errors.md, Errors).

/** A parameter that was understood, or why it was not. */
export type Parsed<T> = { readonly value: T } | { readonly problem: Problem };

const PREFIXES = { request_id: 'req', batch_id: 'bat', delivery_id: 'msg' } as const satisfies Record<
  string,
  IdPrefix
>;

/** How many items a page of a list may hold. */
export const PAGE = { least: 1, most: 100, usual: 50 } as const;

/** Ten ASCII digits, as the source of a regular expression. */
export const NPI = '^[0-9]{10}$';

/** What cursors look like, as the source of a regular expression; opaque to clients. Of the ledger: two numbers. */
export const LEDGER_PAGE = '^[0-9]{1,15}-[0-9]{1,15}$';
/** Of all others: the digits of the last id. */
export const CURSOR = idPattern('msg').replace('msg_', '');

/**
 * The values of parameters.
 * @param parsed by name, in the order in which problems are reported
 * @throws {ApiError} 422 with every problem at once
 */
export function valuesOf<T extends Readonly<Record<string, unknown>>>(
  parsed: { readonly [Name in keyof T]: Parsed<T[Name]> },
): T {
  const problems: Problem[] = [];
  const values = Object.entries<Parsed<unknown>>(parsed).map(([name, one]) => {
    if ('problem' in one) problems.push(one.problem);
    return [name, 'value' in one ? one.value : null];
  });
  if (problems.length > 0) throw invalid(problems);
  return Object.fromEntries(values);
}

/** The ids in the path, for the log: only what could be an id of ours, because a path may hold anything. */
export function idsIn(request: Request): Readonly<Record<string, string>> {
  // hapi sets no params if the target is not even a path: `OPTIONS *`.
  const params: Request['params'] | null = request.params;
  const given = Object.entries(PREFIXES).map(
    ([name, prefix]) => [name, prefix, String(params?.[name])] as const,
  );
  return Object.fromEntries(given.flatMap(([name, prefix, id]) => (isId(prefix, id) ? [[name, id]] : [])));
}

/** An id in the path, known or not. */
export function pathId(request: Request, name: keyof typeof PREFIXES): Parsed<string> {
  const id = String(request.params[name]);
  const prefix = PREFIXES[name];
  if (isId(prefix, id)) return { value: id };
  const wrong = mismatch(idPattern(prefix));
  const [other] = Object.entries(PREFIXES).find(([, one]) => isId(one, id)) ?? [];
  const msg = other ? `This is a ${other}; a ${name} begins with '${prefix}_'` : wrong.msg;
  return { problem: { loc: ['path', name], ...wrong, msg } };
}

/** `limit`: how many items the page holds at most; 50 if it isn't given. */
function pageLimit({ query }: Request): Parsed<number> {
  const given: unknown = query.limit ?? String(PAGE.usual);
  const isInteger = typeof given === 'string' && /^-?[0-9]+$/.test(given);
  const limit = isInteger ? Number(given) : Number.NaN;
  const wrong = (type: string, msg: string) => ({ problem: { loc: ['query', 'limit'], msg, type } });
  if (!isInteger)
    return wrong('int_parsing', 'Input should be a valid integer, unable to parse string as an integer');
  if (limit < PAGE.least)
    return wrong('greater_than_equal', `Input should be greater than or equal to ${PAGE.least}`);
  if (limit > PAGE.most)
    return wrong('less_than_equal', `Input should be less than or equal to ${PAGE.most}`);
  return { value: limit };
}

/** `limit` and `cursor`, as all lists have them; without a cursor it is the first page. */
export function pageOf(request: Request, pattern = CURSOR) {
  return { limit: pageLimit(request), cursor: queryText(request, 'cursor', pattern) };
}

/** A text in the query; null if it isn't given. */
export function queryText(request: Request, name: string, pattern: string): Parsed<string | null> {
  return optional(request, name, (text) => new RegExp(pattern).exec(text)?.[0], mismatch(pattern));
}

/** One of some words in the query; null if it isn't given. */
export function queryChoice<T extends string>(request: Request, name: string, words: readonly T[]) {
  const wrong = { msg: `Input should be ${choices(words)}`, type: 'literal_error' };
  return optional(request, name, (text) => words.find((word) => word === text), wrong);
}

const RFC_3339 = /^(\d{4}-\d\d-\d\d)T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)$/i;

/** A moment in the query; null if none is given. */
export function queryTime(request: Request, name: string): Parsed<Date | null> {
  const read = (text: string) => {
    // A plus sign that is not encoded arrives as a blank.
    const [time = '', day = ''] = RFC_3339.exec(text.replace(' ', '+')) ?? [];
    // February 30 would be read as March 2.
    const isDay = !Number.isNaN(Date.parse(time)) && new Date(day).toISOString().startsWith(day);
    return isDay ? new Date(time) : undefined;
  };
  const msg = 'Input should be a valid datetime with a time zone, such as 2026-01-05T10:00:00Z';
  return optional(request, name, read, { msg, type: 'datetime_parsing' });
}

/** A parameter of the query that may be left out, but not be given twice. */
function optional<T>(
  request: Request,
  name: string,
  read: (text: string) => T | undefined,
  wrong: Omit<Problem, 'loc'>,
): Parsed<T | null> {
  const given: unknown = request.query[name];
  if (given === undefined) return { value: null };
  const value = typeof given === 'string' ? read(given) : undefined;
  return value === undefined ? { problem: { loc: ['query', name], ...wrong } } : { value };
}

/** `'any', 'professional' or 'personal'` */
export function choices(values: readonly string[]): string {
  const quoted = values.map((value) => `'${value}'`);
  return `${quoted.slice(0, -1).join(', ')} or ${quoted.at(-1)}`;
}

function mismatch(pattern: string): Omit<Problem, 'loc'> {
  return { msg: `String should match pattern '${pattern}'`, type: 'string_pattern_mismatch' };
}
