import table from './problems.json' with { type: 'json' };
import type { OperationId } from './routes.ts';

/** One way in which requests fail: a row of problems.json. */
export interface ProblemKind {
  readonly status: number;
  readonly title: string;
  /** Which operations answer so; `unexpected`: none is meant to. */
  readonly at: 'all' | 'keyed' | 'unexpected' | readonly OperationId[];
  /** For the OpenAPI document. */
  readonly description: string;
  /** Headers beside what every answer has. */
  readonly headers?: readonly ('Allow' | 'Retry-After' | 'WWW-Authenticate')[];
  /**
   * Whether such answers carry the headers of the rate limit. `sometimes`: a path that no route takes is nobody's
   * request, and without a valid key there is no quota.
   */
  readonly counted?: 'always' | 'sometimes';
  /** Each stable code with what it says to people; `{name}` is a value given to `problem`, `{name credit}` so many of them. */
  readonly codes: Readonly<Record<string, string>>;
  /** Such values, for the OpenAPI document. */
  readonly example?: Values;
  /** The values are also members of the body. */
  readonly hasMembers?: true;
}

type Values = Readonly<Record<string, string | number>>;

type Name = keyof typeof table;
export type ProblemCode = { [N in Name]: keyof (typeof table)[N]['codes'] }[Name];

/** Every error but the 422: thrown by its code, described in the OpenAPI document, listed in api/docs/errors.md, Errors. */
export const PROBLEMS = table as Readonly<Record<Name, ProblemKind>>;

/** A row of the table for each code. */
const KINDS = new Map(
  Object.values(PROBLEMS).flatMap((kind) => Object.keys(kind.codes).map((code) => [code, kind] as const)),
);

/** An answer that isn't a success. Thrown by handlers and extensions, written by `registerErrors`. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly body: object;
  readonly headers: Readonly<Record<string, string>>;

  constructor(status: number, body: object, headers: Readonly<Record<string, string>> = {}) {
    super(`HTTP ${status}`);
    this.status = status;
    this.body = body;
    this.headers = headers;
  }
}

/** Where each code, and each type of a 422, is explained. */
const HELP_PAGE = '/docs/errors';

/** The header that leads there (RFC 8288). */
function helpLink(code: string, title: string | null = null) {
  return { link: `<${HELP_PAGE}#${code}>; rel="help"${title === null ? '' : `; title="${title}"`}` };
}

/** The answer of one code: application/problem+json (RFC 9457). */
export function problem(
  code: ProblemCode,
  { values, headers }: { readonly values?: Values; readonly headers?: Readonly<Record<string, string>> } = {},
): ApiError {
  const kind = KINDS.get(code) ?? PROBLEMS.InternalError;
  return new ApiError(kind.status, problemBody(kind, code, values), { ...helpLink(code), ...headers });
}

/** The body of one code. */
export function problemBody(kind: ProblemKind, code: string, values: Values = {}) {
  const { status, title, codes, hasMembers } = kind;
  const detail = (codes[code] ?? '').replaceAll(
    /\{(\w+)( \w+)?\}/g,
    (_, name: string, noun = '') => `${values[name]}${noun}${noun === '' || values[name] === 1 ? '' : 's'}`,
  );
  return { type: 'about:blank', title, status, code, detail, ...(hasMembers ? values : {}) };
}

/** One entry of a 422 (api/docs/errors.md, Errors), worded as FastAPI and pydantic 2 word it. */
export interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

/**
 * 422: exactly `{detail: […]}`, every problem at once.
 * @param hint what its words leave unsaid, in plain ASCII without quotes: the title of the link for help
 */
export function invalid(detail: readonly Problem[], hint: string | null = null): ApiError {
  return new ApiError(422, { detail }, helpLink(detail[0]?.type ?? '', hint));
}
