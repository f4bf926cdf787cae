import type { IncomingHttpHeaders } from 'node:http';
import type { BySituation, Situation } from './magic.ts';

// What a simulated vendor, verifier or registry is made of: a table of routes, each a function from a question to an
// answer in that source's own wire format. The server (simulator.ts) does the rest.

/** A question as it reaches one source. */
export interface Question {
  readonly headers: IncomingHttpHeaders;
  readonly query: URLSearchParams;
  /** What stands in the path for a route's `*`. */
  readonly id: string;
  /** Empty if it is not a JSON object. */
  readonly body: Readonly<Record<string, unknown>>;
}

export interface Answer {
  readonly status: number;
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
  /** Before the speed factor; as long as the source usually takes if absent. */
  readonly latencyMs?: number;
}

export function ok(body: unknown): Answer {
  return { status: 200, body };
}

/** `hang`: no answer is ever sent. */
export type Reply = Answer | 'hang';

/** What a source remembers, until it is reset. */
export interface Memory {
  /** What every latency, and every hint when to come back, is divided by. */
  readonly speed: number;
  /** The questions behind jobs, by the id of the job. */
  readonly jobs: Map<string, Question>;
  /** How often it was called with this key before. */
  times(key: string): number;
}

/** Whom or what a question is about, empty if that cannot be read, and what is answered. */
export type Answered = readonly [subject: string, reply: Reply];

export interface Route {
  /** How a question is noted, such as `lookup` or `poll`. */
  readonly operation: string;
  answer(question: Question, memory: Memory): Answered;
}

/** A simulated vendor, verifier or registry. */
export interface Source {
  /** Its path in the simulator, which begins with its id: what the base URL given to production code ends with. */
  readonly base: string;
  /** How long it usually takes, before the speed factor. */
  readonly latencyMs: number;
  /** What callers without the right key are answered; null for those who have it. */
  deny(question: Question, apiKey: string): Answer | null;
  readonly notFound: Answer;
  /** By method and path below `base`: `GET /person/lookup`, `GET /jobs/*`. */
  readonly routes: Readonly<Record<string, Route>>;
}

/** What is answered in place of a result. A limit is met once; what else goes wrong goes wrong every time. */
export function troubleOf(
  troubles: BySituation<Reply>,
  situation: Situation,
  subject: string,
  memory: Memory,
): Reply | undefined {
  return situation === 'limited' && memory.times(`limited ${subject}`) > 0 ? undefined : troubles[situation];
}
