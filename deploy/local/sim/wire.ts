import type { IncomingHttpHeaders } from 'node:http';
import type { Finding } from './knowledge.ts';
import type { ByKnown } from './magic.ts';
import type { Contact } from './people.ts';

// The types and functions that all simulated sources share. A simulated source is a table of
// routes. Each route is a function that returns a response in the format of the source's API. The
// HTTP server is in simulator.ts.

/** A simulated vendor, verifier, or registry. */
export interface Source {
  /** The path of the source in the simulator. It begins with the source's id. */
  readonly base: string;
  /** Returns the response to a caller with a wrong key, or null if the key is correct. */
  deny(request: SimRequest, apiKey: string): SimResponse | null;
  /** Routes by method and path below `base`, such as `GET /person/lookup` or `GET /jobs/*`. */
  readonly routes: Readonly<Record<string, Route>>;
}

export type Route = (request: SimRequest, memory: Memory) => SubjectResponse;

/** A request to a source. */
export interface SimRequest {
  readonly headers: IncomingHttpHeaders;
  readonly query: URLSearchParams;
  /** The part of the path that matches the `*` of a route. */
  readonly id: string;
  /** The JSON object in the body. It is empty if there isn't one. */
  readonly body: Fields;
}

export type Fields = Readonly<Record<string, unknown>>;

export interface SimResponse {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

export function ok(body: unknown): SimResponse {
  return { status: 200, body };
}

/**
 * The subject of a request and the response. The subject is empty if the request can't be read.
 * `hang` means that the source never responds.
 */
export type SubjectResponse = readonly [subject: string, response: SimResponse | 'hang'];

/** The state of a simulated source. */
export type Memory = ReturnType<typeof createMemory>;

/**
 * Returns the initial state of a simulated source.
 * @param speed divides all delays, and all times after which the caller should retry
 */
export function createMemory(speed: number) {
  const counts = new Map<string, number>();
  return {
    speed,
    /** Functions that return the response about a job, by the job's id. */
    jobs: new Map<string, () => SimResponse>(),
    /**
     * The first calls with a key return the elements of `first`, one after the other. All later
     * calls return `last`.
     */
    inTurn<T>(key: string, first: readonly T[], last: T): T {
      const count = counts.get(key) ?? 0;
      counts.set(key, count + 1);
      return first[count] ?? last;
    },
  };
}

/**
 * Returns a route for lookups of a person. It also simulates two failures: a vendor that never
 * responds, and a rate limit that rejects the first call only.
 * @param find returns the vendor's data about the person, or a response that rejects the request
 * @param instead responses that are sent instead of a result, by what the vendor knows
 * @param result returns the response for a person
 */
export function aboutPerson(
  find: (request: SimRequest) => Finding | SimResponse,
  instead: ByKnown<SimResponse>,
  result: (finding: Finding, request: SimRequest, memory: Memory) => SimResponse,
): Route {
  return (request, memory) => {
    const finding = find(request);
    if ('status' in finding) return ['', finding];
    const { subject, known } = finding;
    if (known === 'hanging') return [subject, 'hang'];
    const isLimitOver =
      known === 'limited' && memory.inTurn(`limit ${subject}`, [false], true);
    const replacement = instead[known];
    if (replacement && !isLimitOver) return [subject, replacement];
    return [subject, result(finding, request, memory)];
  };
}

/**
 * Reads a contact from a request. Returns null if the first or the last name is missing, or if the
 * employer has neither a domain nor a company name.
 */
export function contactOf(
  { first_name, last_name }: Fields,
  domain: unknown,
  company: unknown,
): Contact | null {
  const first = textOf(first_name);
  const last = textOf(last_name);
  if (first === null || last === null) return null;
  const employer = { domain: textOf(domain), company: textOf(company) };
  if (employer.domain === null && employer.company === null) {
    return null;
  }
  return { first, last, ...employer };
}

/** Returns the trimmed text, or null if the value is empty, missing, or not text. */
export function textOf(value: unknown): string | null {
  if (typeof value !== 'string') return null;
  return value.trim() || null;
}
