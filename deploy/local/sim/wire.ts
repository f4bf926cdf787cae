import type { IncomingHttpHeaders } from 'node:http';
import type { Finding } from './knowledge.ts';
import type { ByKnown } from './magic.ts';
import type { Contact } from './people.ts';

// A simulated vendor, verifier or registry is a table of routes. Each route is a function from a
// request to a response in the source's own wire format. The server (simulator.ts) does the rest.

/** A simulated vendor, verifier or registry. */
export interface Source {
  /**
   * Its path in the simulator, which begins with its id. The base URL for production code ends with
   * it.
   */
  readonly base: string;
  /** Returns the response for a caller with a wrong key, or null if the key is right. */
  deny(question: Question, apiKey: string): Answer | null;
  /** Routes by method and path below `base`: `GET /person/lookup`, `GET /jobs/*`. */
  readonly routes: Readonly<Record<string, Route>>;
}

export type Route = (question: Question, memory: Memory) => Answered;

/** A request to a source. */
export interface Question {
  readonly headers: IncomingHttpHeaders;
  readonly query: URLSearchParams;
  /** The part of the path that matches the `*` of a route. */
  readonly id: string;
  /** Empty if the request has no JSON object. */
  readonly body: Fields;
}

export type Fields = Readonly<Record<string, unknown>>;

export interface Answer {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

export function ok(body: unknown): Answer {
  return { status: 200, body };
}

/**
 * The subject of a request, empty if it can't be read, and the response. `hang` means that it never
 * responds.
 */
export type Answered = readonly [subject: string, reply: Answer | 'hang'];

/** The state of a source. */
export type Memory = ReturnType<typeof createMemory>;

/** @param speed divides every delay and every hint when to retry */
export function createMemory(speed: number) {
  const counts = new Map<string, number>();
  return {
    speed,
    /** The response for a job, by its id. */
    jobs: new Map<string, () => Answer>(),
    /**
     * Returns the elements of `first` in turn, one for each call with this key, and then always
     * `last`.
     */
    inTurn<T>(key: string, first: readonly T[], last: T): T {
      const count = counts.get(key) ?? 0;
      counts.set(key, count + 1);
      return first[count] ?? last;
    },
  };
}

/**
 * Returns a route for lookups of a person. Intended failures happen here: a hanging vendor never
 * responds, and a rate limit rejects only the first call. Everything else is the same on every
 * call.
 * @param find returns the person, or a response that rejects the request
 * @param instead responses that replace a result
 */
export function aboutPerson(
  find: (question: Question) => Finding | Answer,
  instead: ByKnown<Answer>,
  result: (finding: Finding, question: Question, memory: Memory) => Answer,
): Route {
  return (question, memory) => {
    const finding = find(question);
    if ('status' in finding) return ['', finding];
    const { subject, known } = finding;
    if (known === 'hanging') return [subject, 'hang'];
    const isLimitOver = known === 'limited' && memory.inTurn(`limit ${subject}`, [false], true);
    const replacement = instead[known];
    if (replacement && !isLimitOver) return [subject, replacement];
    return [subject, result(finding, question, memory)];
  };
}

/**
 * Returns a contact from fields that the vendors share, or null if it lacks a name, or both domain
 * and company of the employer.
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
  if (employer.domain === null && employer.company === null) return null;
  return { first, last, ...employer };
}

/** Returns trimmed text, or null if it is empty, missing or of another type. */
export function textOf(value: unknown): string | null {
  if (typeof value !== 'string') return null;
  return value.trim() || null;
}
