/**
 * Why an attempt got no answer. `network` is all that has no code of its own, an answer that is not HTTP included;
 * `blocked` is a target that may not be reached.
 */
export type FailureCode =
  | 'blocked'
  | 'timeout'
  | 'connect_timeout'
  | 'dns'
  | 'refused'
  | 'reset'
  | 'tls'
  | 'network';

/** Ends one delivery attempt; never leaves `post.ts`. */
export class AttemptFailure extends Error {
  override readonly name = 'AttemptFailure';
  readonly code: FailureCode;

  constructor(code: FailureCode) {
    super(`the delivery attempt ended with ${code}`);
    this.code = code;
  }
}

const CODES: Readonly<Record<string, FailureCode>> = {
  ECONNREFUSED: 'refused',
  ECONNRESET: 'reset',
  EPIPE: 'reset',
  ETIMEDOUT: 'connect_timeout',
};

/**
 * Waits for one step of an attempt.
 * @param otherwise the code of the errors that this step alone gives a meaning to
 * @throws {AttemptFailure}
 */
export async function step<T>(work: Promise<T>, otherwise: FailureCode): Promise<T> {
  try {
    return await work;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : '';
    throw new AttemptFailure(code.startsWith('ERR_SSL') ? 'tls' : (CODES[code] ?? otherwise));
  }
}

/** The two time limits of an attempt. What is bound to `signal` is let go when one passes and when the attempt ends. */
export interface Deadline {
  /** Its reason is an `AttemptFailure` with `timeout` or `connect_timeout`. */
  readonly signal: AbortSignal;
  /** Lifts the shorter limit. */
  connected(): void;
  close(): void;
}

export function startDeadline(totalMs: number, connectMs: number): Deadline {
  const controller = new AbortController();
  const expire = (code: FailureCode) => controller.abort(new AttemptFailure(code));
  const total = setTimeout(expire, totalMs, 'timeout');
  const connecting = setTimeout(expire, connectMs, 'connect_timeout');
  return {
    signal: controller.signal,
    connected: () => clearTimeout(connecting),
    close: () => {
      clearTimeout(total);
      clearTimeout(connecting);
      controller.abort();
    },
  };
}
