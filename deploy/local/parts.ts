import { createWriteStream } from 'node:fs';
import { join } from 'node:path';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { claimPort } from './processes.ts';

/** The running parts of the stack, in the order of their start. */
export class Parts {
  /** Rejects with an OperatorProblem when a process of the stack dies. */
  readonly failed: Promise<never>;
  /** The folder of the log files. */
  readonly logs: string;
  private readonly running = new AsyncDisposableStack();
  private readonly fail: (problem: OperatorProblem) => void;

  constructor(logs: string) {
    const { promise, reject } = Promise.withResolvers<never>();
    // Without this handler, a rejection would end this process if no other code waits for the
    // promise.
    promise.catch(() => {});
    this.failed = promise;
    this.fail = reject;
    this.logs = logs;
  }

  /**
   * Adds a running part.
   * @param stop stops the part
   * @param exited resolves when the part has ended. If that happens before the stack is stopped,
   * `failed` rejects.
   */
  add(name: string, stop: () => Promise<void>, exited?: Promise<string>): void {
    // If the stack was stopped while this part was starting, the part is stopped at once.
    if (this.running.disposed) void stop();
    else this.running.defer(stop);
    void exited?.then((ending) => {
      if (this.running.disposed) return;
      const sentence = `${name} ended unexpectedly (${ending}); see its log in ${this.logs}.`;
      this.fail(new OperatorProblem(sentence));
    });
  }

  async stop(): Promise<void> {
    await this.running.disposeAsync();
  }
}

/** The preferred ports of the servers. If one is taken, another port is used. */
const USUAL = {
  postgres: 5442,
  temporal: 7233,
  ui: 8233,
  simulator: 8090,
  receiver: 8443,
};

/** Chooses the ports of the stack's servers, and claims them. */
export class Ports {
  /** The ports by the name of the server. */
  readonly chosen: Record<string, number>;
  private readonly claims: { release(): void }[] = [];

  /** @param earlier the ports of the previous start, if there was one */
  constructor(earlier: Readonly<Record<string, number>> | undefined) {
    this.chosen = { ...earlier };
  }

  /**
   * Claims a port for a server. It is the port of the previous start, or else the preferred port.
   * If that port is taken, it is any free port.
   */
  async claim(name: keyof typeof USUAL): Promise<number> {
    const preferred = this.chosen[name] ?? USUAL[name];
    const claim = await claimPort(preferred, name).catch(() => claimPort(0, name));
    this.claims.push(claim);
    this.chosen[name] = claim.port;
    return claim.port;
  }

  /**
   * Claims exactly the requested port for the API.
   * @throws {OperatorProblem} if it is taken
   */
  async claimForApi(requested: number): Promise<number> {
    const claim = await claimPort(requested, 'the API', '--port');
    this.claims.push(claim);
    return claim.port;
  }

  release(): void {
    for (const claim of this.claims) claim.release();
  }
}

/** Opens a log file. Returns a function that appends a line to it. */
export function logTo(logs: string, name: string): (line: string) => void {
  const file = createWriteStream(join(logs, `${name}.log`), { flags: 'a' });
  return (line) => file.write(`${line}\n`);
}
