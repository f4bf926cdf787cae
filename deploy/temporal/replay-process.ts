import { fork } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { OperatorProblem } from '../../db/connection/errors.ts';
import type { Run } from './history.ts';

// Replays runs in a child process (replay-child.ts). An endless loop in a workflow blocks the thread
// that replays it, and with it all timers and signal handlers of that process. Only another process
// can still enforce a time limit and end on a signal.

const CHILD = fileURLToPath(new URL('replay-child.ts', import.meta.url));

interface Replayed {
  /** The SDK's message if the code does not fit the history, or null if it does. */
  readonly misfit: string | null;
  /** True if the code threw an error that failed the workflow task, which is a bug. */
  readonly throws: boolean;
}

/** The child's response to a run. */
export type ChildMessage =
  | Replayed
  | { readonly problem: string }
  | { readonly error: Error };

export interface Checked extends Replayed {
  readonly run: Run;
  /** True if the replay did not end. Such a run has a misfit. */
  readonly hangs: boolean;
}

/**
 * Replays runs one after the other in a child process. If the replay of a run does not end, its
 * process is killed, and the next run gets a new one.
 * @param options.code the bundle of the workflows
 * @param options.limitMs the longest time for one run
 * @throws {OperatorProblem} if `options.code` is not a bundle
 */
export async function* replayInChild(
  options: { readonly code: string; readonly limitMs: number },
  runs: AsyncIterable<Run> | Iterable<Run>,
): AsyncGenerator<Checked> {
  const { code, limitMs } = options;
  let replayer: Replayer | null = null;
  try {
    for await (const run of runs) {
      replayer ??= await Replayer.start(code);
      const checked = await replayer.check(run, limitMs);
      yield checked;
      if (!checked.hangs) continue;
      replayer.kill();
      replayer = null;
    }
  } finally {
    replayer?.kill();
  }
}

/** A child process that replays runs. */
class Replayer {
  private readonly child = fork(CHILD, { serialization: 'advanced' });
  private readonly exited = once(this.child, 'exit').then(() => null);

  private constructor() {
    process.once('exit', this.kill);
  }

  /** Starts a child, and waits until it can replay runs. */
  static async start(code: string): Promise<Replayer> {
    const replayer = new Replayer();
    const ready = await replayer.respond(code);
    if (ready === null)
      throw new Error('the process that replays runs ended at its start');
    return replayer;
  }

  readonly kill = (): void => {
    process.off('exit', this.kill);
    this.child.kill('SIGKILL');
  };

  async check(run: Run, limitMs: number): Promise<Checked> {
    const limit = new AbortController();
    const late = setTimeout(limitMs, 'late' as const, { signal: limit.signal });
    const response = await Promise.race([this.respond(run), late]);
    limit.abort();
    if (response === null) return hanging(run, 'ended its process');
    if (response === 'late') {
      return hanging(run, `did not end within ${limitMs / 1000} s`);
    }
    if ('error' in response) throw response.error;
    if ('problem' in response) {
      throw new OperatorProblem(response.problem);
    }
    return { run, ...response, hangs: false };
  }

  /** Sends a message. Returns the child's response, or null if the child has ended. */
  private async respond(message: string | Run): Promise<ChildMessage | null> {
    const response = once(this.child, 'message').then(([first]) => first as ChildMessage);
    // Sending fails only if the child has ended.
    this.child.send(message, () => {});
    return await Promise.race([response, this.exited]);
  }
}

function hanging(run: Run, end: string): Checked {
  const misfit = [
    `does not fit: its replay ${end}`,
    '  the code probably has an endless loop',
  ].join('\n');
  return { run, misfit, throws: true, hangs: true };
}
