import { fileURLToPath } from 'node:url';
import { launch, type ServerProcess } from '../../deploy/local/processes.ts';
import type { Stack } from './stack.ts';

const WORKER = fileURLToPath(new URL('../../deploy/worker.ts', import.meta.url));
const READY_MS = 60_000;

export interface WorkerProcess extends ServerProcess {
  /** All that it has written. */
  output(): string;
}

/**
 * Workers as the processes they are in production, so that they can be killed.
 * @param settings of the worker, beside what the stack gives it; the sweep runs every second
 */
export function workerProcesses(settings: Readonly<Record<string, string>> = {}) {
  const workers: ServerProcess[] = [];
  return {
    /**
     * Starts one more; it is ready when this resolves.
     * @param own settings of this one
     */
    async start(
      { workerEnvironment }: Pick<Stack, 'workerEnvironment'>,
      own: Readonly<Record<string, string>> = {},
    ): Promise<WorkerProcess> {
      const ready = Promise.withResolvers<void>();
      let output = '';
      const worker = launch({
        name: 'the worker',
        command: process.execPath,
        args: [WORKER],
        env: { ...process.env, ...workerEnvironment, SWEEP_INTERVAL: '1s', ...settings, ...own },
        stopSignal: 'SIGTERM',
        forceSignal: 'SIGKILL',
        onLine: (line) => {
          output += `${line}\n`;
          if (line.includes('"worker ready"')) ready.resolve();
        },
      });
      workers.push(worker);
      const late = () => ready.reject(new Error(`the worker is not ready: ${worker.tail()}`));
      const timeout = setTimeout(late, READY_MS);
      await ready.promise.finally(() => clearTimeout(timeout));
      return { ...worker, output: () => output };
    },
    /** Stops all that were started, killed ones included. */
    async stop(): Promise<void> {
      for (const worker of workers) await worker.stop();
    },
  };
}
