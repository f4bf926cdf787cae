import { Tinypool } from 'tinypool';
import { TurnQueue } from '../http/turn-queue.ts';
import type {
  EnrichTask,
  FormTask,
  Inspection,
  InspectTask,
  UploadedFile,
} from './file-reader.ts';

// Runs the functions of file-reader.ts in a thread, so that a large or hostile file does not delay
// requests.

/** The default time limit of a task, without the start of its thread. 5 MB take less than a second. */
const MAX_MS = 5000;
/** The memory limit of the thread. A file of 5 MB needs less than half of it. */
const MAX_HEAP_MB = 256;

export class FilePool {
  /**
   * The queue for this pool. Organizations take turns in it, so that hostile files of one hardly
   * delay the others. Enter it before you read a file into memory.
   */
  readonly turns = new TurnQueue({
    maxRunning: 1,
    maxRunningPerClient: 1,
    maxPerClient: 4,
    maxTotal: 16,
  });
  readonly #maxMs: number;
  readonly #pool = new Tinypool({
    filename: new URL('file-reader.ts', import.meta.url).href,
    runtime: 'worker_threads',
    minThreads: 0,
    maxThreads: 1,
    idleTimeout: 30_000,
    resourceLimits: { maxOldGenerationSizeMb: MAX_HEAP_MB },
  });

  constructor(maxMs = MAX_MS) {
    this.#maxMs = maxMs;
  }

  /**
   * Reads the file of a form.
   * @returns a sentence if the form has no file, or takes too much time or memory
   */
  async readForm(task: FormTask): Promise<UploadedFile | string> {
    try {
      const file = await this.#run<UploadedFile | null>('readForm', task);
      return file ?? 'Choose a CSV file.';
    } catch (error) {
      if (!isTooComplex(error)) throw error;
      return 'The form took too long to read. Send one file of at most 5 MB, and nothing else.';
    }
  }

  /** Reads a file for its draft. A file that takes too much time or memory is unusable. */
  async inspect(task: InspectTask): Promise<Inspection> {
    try {
      return await this.#run('inspect', task);
    } catch (error) {
      if (!isTooComplex(error)) throw error;
      const problem = `${task.file.fileName} is too complex. Split it into smaller files.`;
      return { kind: 'unusable', problem };
    }
  }

  /** Returns the enriched file as CSV. */
  async enrich(task: EnrichTask): Promise<string> {
    return await this.#run('enrich', task);
  }

  close(): Promise<void> {
    return this.#pool.destroy();
  }

  async #run<T>(name: string, task: object): Promise<T> {
    // Starts the thread if it is not running. On a busy machine, this can take longer than the task.
    await this.#pool.run({}, { name: 'ready' });
    return await this.#pool.run(task, { name, signal: AbortSignal.timeout(this.#maxMs) });
  }
}

/** Returns true if the thread was ended because a task took too much time or memory. */
function isTooComplex(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code } = error as NodeJS.ErrnoException;
  return error.name === 'AbortError' || code === 'ERR_WORKER_OUT_OF_MEMORY';
}
