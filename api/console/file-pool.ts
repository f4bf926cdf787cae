import type { IncomingMessage } from 'node:http';
import type { Readable } from 'node:stream';
import { buffer } from 'node:stream/consumers';
import { Tinypool } from 'tinypool';
import { ZIP } from '../files/file.ts';
import { CallFailed } from '../http/call-api.ts';
import { TurnQueue } from '../http/turn-queue.ts';
import { problem } from '../problems.ts';
import type {
  FormTask,
  Inspection,
  InspectTask,
  Prepared,
  UploadedFile,
} from './file-reader.ts';

// Runs the functions of file-reader.ts in a thread, so that a large or hostile file does not delay
// requests.

/**
 * The default time limit of a task, without the start of its thread. 5 MB take less than a second,
 * or a few on a busy machine. Each turn has one task.
 */
const MAX_MS = 5000;
/** The memory limit of the thread. A file of 5 MB needs less than half of it. */
const MAX_HEAP_MB = 256;
/** The number of bodies, of up to 5 MB, that may arrive at the same time. */
const MAX_ARRIVING = 8;

export class FilePool {
  /**
   * The queue for this pool. Customers take turns in it, so that hostile files of one hardly delay
   * the others. Enter it before you read a stored file into memory.
   */
  readonly turns = new TurnQueue({
    maxRunning: 1,
    maxRunningPerClient: 1,
    maxPerClient: 2,
    maxTotal: 8,
  });
  /** The requests whose body is arriving, by customer, the oldest first. */
  readonly #arriving = new Map<string, IncomingMessage>();
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
   * Waits for the body of a form, before it has a place in the queue. Slow senders do not keep
   * others from sending: if too many bodies are arriving, the connection of the oldest one is closed.
   * @throws {ApiError} 429 if another body of this customer is arriving
   * @throws {CallFailed} 400 if the visitor disconnects
   */
  async bodyOf(
    customerId: string,
    request: IncomingMessage,
    payload: Readable,
  ): Promise<Buffer<ArrayBuffer>> {
    if (this.#arriving.has(customerId)) {
      throw problem('too_many_files', { wait: 5 });
    }
    const [oldest] = this.#arriving.values();
    if (this.#arriving.size >= MAX_ARRIVING) oldest?.destroy();
    this.#arriving.set(customerId, request);
    try {
      return await buffer(payload);
    } catch {
      throw new CallFailed(400, { detail: 'The file did not arrive. Send it again.' });
    } finally {
      this.#arriving.delete(customerId);
    }
  }

  /** Reads the file of a form. Returns a sentence that says why it can't be used. */
  async receive(task: FormTask): Promise<UploadedFile | string> {
    return await this.#run('receive', task, task.body);
  }

  /** Reads a file for its draft. */
  async inspect(task: InspectTask): Promise<Inspection> {
    return await this.#run('inspect', task, task.file.content);
  }

  /** Prepares a draft for its start. Returns null if it can't be started. */
  async prepare(task: InspectTask): Promise<Prepared | null> {
    return await this.#run('prepare', task, task.file.content);
  }

  close(): Promise<void> {
    return this.#pool.destroy();
  }

  /** @throws {CallFailed} 422 if the task takes too much time or memory */
  async #run<T>(name: string, task: object, bytes: Uint8Array): Promise<T> {
    // Starts the thread if it is not running, and loads the reader of workbooks if it is needed. On a
    // busy machine, this can take longer than the task.
    const { buffer, byteOffset, length } = bytes;
    const hasWorkbook = Buffer.from(buffer, byteOffset, length).includes(ZIP);
    await this.#pool.run({ hasWorkbook }, { name: 'ready' });
    try {
      return await this.#pool.run(task, {
        name,
        signal: AbortSignal.timeout(this.#maxMs),
      });
    } catch (error) {
      if (!isTooComplex(error)) throw error;
      const detail =
        'The file took too long to read. Split it into smaller files, and send one at a time.';
      throw new CallFailed(422, { detail });
    }
  }
}

/** Returns true if the thread was ended because a task took too much time or memory. */
function isTooComplex(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code } = error as NodeJS.ErrnoException;
  return error.name === 'AbortError' || code === 'ERR_WORKER_OUT_OF_MEMORY';
}
