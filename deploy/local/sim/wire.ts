import type { IncomingHttpHeaders } from 'node:http';
import type { Finding } from './knowledge.ts';
import type { ByKnown } from './magic.ts';
import type { Contact } from './people.ts';

// What a simulated vendor, verifier or registry is made of: a table of routes, each a function from a question to an
// answer in that source's own wire format. The server (simulator.ts) does the rest.

/** A simulated vendor, verifier or registry. */
export interface Source {
  /** Its path in the simulator, which begins with its id: what the base URL given to production code ends with. */
  readonly base: string;
  /** What callers without the right key are answered; null for those who have it. */
  deny(question: Question, apiKey: string): Answer | null;
  /** By method and path below `base`: `GET /person/lookup`, `GET /jobs/*`. */
  readonly routes: Readonly<Record<string, Route>>;
}

export type Route = (question: Question, memory: Memory) => Answered;

/** A question as it reaches one source. */
export interface Question {
  readonly headers: IncomingHttpHeaders;
  readonly query: URLSearchParams;
  /** What stands in the path for a route's `*`. */
  readonly id: string;
  /** Empty if it is not a JSON object. */
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

/** Whom or what a question is about, empty if that cannot be read, and what is answered; `hang`: nothing, ever. */
export type Answered = readonly [subject: string, reply: Answer | 'hang'];

/** What a source remembers. */
export type Memory = ReturnType<typeof createMemory>;

/** @param speed what every latency, and every hint when to come back, is divided by */
export function createMemory(speed: number) {
  const counts = new Map<string, number>();
  return {
    speed,
    /** What is answered about a job, by its id. */
    jobs: new Map<string, () => Answer>(),
    /** One of `first` after the other, each time it is called with this key, and then `last` for good. */
    inTurn<T>(key: string, first: readonly T[], last: T): T {
      const count = counts.get(key) ?? 0;
      counts.set(key, count + 1);
      return first[count] ?? last;
    },
  };
}

/**
 * A route that is asked about a person. What goes wrong on purpose goes wrong here: a vendor that hangs never answers,
 * a rate limit is met once, and all else is as it is every time.
 * @param find whom it is about; an answer if the question is refused
 * @param instead what the vendor says in place of a result
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
    const isOver = known === 'limited' && memory.inTurn(`limit ${subject}`, [false], true);
    const trouble = isOver ? undefined : instead[known];
    return [subject, trouble ?? result(finding, question, memory)];
  };
}

/** A contact from the fields that the vendors share; null if a name, or what would name the employer, is missing. */
export function contactOf(
  { first_name, last_name }: Fields,
  domain: unknown,
  company: unknown,
): Contact | null {
  const [first, last] = [textOf(first_name), textOf(last_name)];
  const at = { domain: textOf(domain), company: textOf(company) };
  return first && last && (at.domain ?? at.company) ? { first, last, ...at } : null;
}

/** Trimmed text; null if it is empty, absent or something else. */
export function textOf(value: unknown): string | null {
  return typeof value === 'string' && value.trim() !== '' ? value.trim() : null;
}
