import type { Answered, Reply, SimRequest } from './reply.ts';

export type Answer = Extract<Reply, { kind: 'answer' }>;

/** What every simulated vendor is made with. */
export interface SimOptions {
  /** The key that callers must send. */
  readonly apiKey: string;
  /** What every latency, and every hint when to come back, is divided by. */
  readonly speed: number;
}

export const HANG: Reply = { kind: 'hang' };

/** @param latencyMs before the speed factor */
export function answer(
  status: number,
  body: unknown,
  { latencyMs = 0, headers = {} }: { latencyMs?: number; headers?: Readonly<Record<string, string>> } = {},
): Answer {
  return { kind: 'answer', latencyMs, status, headers, body };
}

/** To a caller without the right key, or on a path the vendor does not have: nothing that is noted as a question. */
export function turnedAway(reply: Reply): Answered {
  return { operation: '', subject: '', reply };
}

/** The body as a JSON object; null where it is none. */
export function jsonObject({ body }: SimRequest): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(body);
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}

export function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Trimmed text; null where it is empty, absent or something else. */
export function text(value: unknown): string | null {
  return typeof value === 'string' && value.trim() !== '' ? value.trim() : null;
}

/** Something that happens once per key, such as a first question meeting a limit. */
export function onceEach(): { first(key: string): boolean; reset(): void } {
  const seen = new Set<string>();
  return {
    first(key) {
      const isFirst = !seen.has(key);
      seen.add(key);
      return isFirst;
    },
    reset: () => seen.clear(),
  };
}
