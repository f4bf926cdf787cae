import type { Request } from '@hapi/hapi';
import { type IdPrefix, idPattern, isId } from '../../db/ids.ts';
import { invalid, type Problem } from '../problems.ts';

// Parameters of path and query, refused in the wording of the 422 catalogue (api/README.md, Errors).

/** A parameter that was understood, or why it was not. */
export type Parsed<T> = { readonly value: T } | { readonly problem: Problem };

const PREFIXES = { request_id: 'req', batch_id: 'bat', delivery_id: 'msg' } as const satisfies Record<
  string,
  IdPrefix
>;

/** How many items a page of a list may hold. */
export const PAGE = { least: 1, most: 100, usual: 50 } as const;

/** What a cursor to a list of deliveries looks like, as the source of a regular expression; opaque to clients. */
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
  return isId(PREFIXES[name], id)
    ? { value: id }
    : { problem: mismatch(['path', name], idPattern(PREFIXES[name])) };
}

/** `limit`: how many items the page holds at most; 50 if it isn't given. */
export function pageLimit(request: Request): Parsed<number> {
  const loc = ['query', 'limit'];
  const given: unknown = request.query.limit;
  if (given === undefined) return { value: PAGE.usual };
  if (typeof given !== 'string' || !/^-?[0-9]+$/.test(given)) {
    const msg = 'Input should be a valid integer, unable to parse string as an integer';
    return { problem: { loc, msg, type: 'int_parsing' } };
  }
  const limit = Number(given);
  if (limit < PAGE.least) {
    const msg = `Input should be greater than or equal to ${PAGE.least}`;
    return { problem: { loc, msg, type: 'greater_than_equal' } };
  }
  if (limit > PAGE.most) {
    const msg = `Input should be less than or equal to ${PAGE.most}`;
    return { problem: { loc, msg, type: 'less_than_equal' } };
  }
  return { value: limit };
}

/** `cursor`: the id of the last delivery of the page before; null for the first page. */
export function pageCursor(request: Request): Parsed<string | null> {
  const given: unknown = request.query.cursor;
  if (given === undefined) return { value: null };
  const id = `msg_${given}`;
  return typeof given === 'string' && isId('msg', id)
    ? { value: id }
    : { problem: mismatch(['query', 'cursor'], CURSOR) };
}

/** The cursor that `pageCursor` reads. */
export function cursorAfter(deliveryId: string): string {
  return deliveryId.slice('msg_'.length);
}

function mismatch(loc: Problem['loc'], pattern: string): Problem {
  return { loc, msg: `String should match pattern '${pattern}'`, type: 'string_pattern_mismatch' };
}
