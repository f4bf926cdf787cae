import { setTimeout } from 'node:timers/promises';
import { type Client, WorkflowExecutionAlreadyStartedError } from '@temporalio/client';
import type { Logger } from 'pino';
import type { BatchStart } from '../db/requests/outbox.ts';
import type { TestEventInput } from '../workflows/messages.ts';
import { startBatch, startTestEvent } from '../workflows/starts.ts';

/** The dependencies of functions that start workflows in Temporal. */
export interface TemporalDeps {
  readonly client: Client;
  /** Name of the enrichment task queue. */
  readonly taskQueue: string;
  /** Returns a sentence that says why Temporal cannot be used, or null if it can. */
  readonly trouble: () => Promise<string | null>;
}

/**
 * After a failed start, the API starts no workflows for this time. The reconciler's sweep starts
 * them instead.
 */
const PAUSE_MS = 5000;

/**
 * Time limit for starting a workflow, so that an outage of Temporal doesn't delay responses. The
 * reconciler's sweep starts the workflow later.
 */
const START_TIMEOUT_MS = 3000;

type Start = (client: Client, taskQueue: string) => Promise<void>;

/**
 * Starts workflows. While Temporal is down, only one request every 5 seconds tries to start its
 * workflow, so other requests don't wait for a time-out. Logs when an outage begins and when it
 * ends.
 */
export class Starter {
  readonly #temporal: TemporalDeps;
  readonly #log: Logger;
  readonly #underWay = new Set<Promise<unknown>>();
  #isAway = false;
  #pausedUntil = 0;

  constructor(temporal: TemporalDeps, log: Logger) {
    this.#temporal = temporal;
    this.#log = log;
  }

  /**
   * Tries to start a workflow by a deadline (milliseconds since the epoch). If the deadline passes,
   * the attempt continues in the background.
   * @returns true if the workflow was started in time. False if it was not, or if no attempt was
   * made because Temporal was down a few seconds ago
   */
  async start(start: Start, deadline = Date.now() + START_TIMEOUT_MS): Promise<boolean> {
    if (this.#isAway && performance.now() < this.#pausedUntil) {
      return false;
    }
    this.#pausedUntil = performance.now() + PAUSE_MS;
    const { client, taskQueue } = this.#temporal;
    const started = client.withDeadline(deadline, () => start(client, taskQueue));
    this.#underWay.add(started);
    void started.catch(() => {}).then(() => this.#underWay.delete(started));
    // This timer is needed because the SDK may exceed the deadline by a second.
    const late = setTimeout(Math.max(1, deadline - Date.now()), 'late', { ref: false });
    try {
      if ((await Promise.race([started, late])) === 'late')
        throw new Error('no response in time');
    } catch (error) {
      this.#pausedUntil = performance.now() + PAUSE_MS;
      // This is not awaited, because finding the reason takes time and the client waits for its
      // response.
      if (!this.#isAway) void this.#logOutage(error);
      this.#isAway = true;
      return false;
    }
    if (this.#isAway) this.#log.info('workflows can be started again');
    this.#isAway = false;
    return true;
  }

  /**
   * Starts a workflow and waits for its result. If it closed before, returns the same result again.
   * @param deadline in milliseconds since the epoch
   * @returns `away` if Temporal did not start it, `late` if there is no result by the deadline, or
   * if the workflow failed
   */
  async execute<T>(
    start: Start,
    workflowId: string,
    deadline: number,
  ): Promise<T | 'away' | 'late'> {
    if (!(await this.start(start))) return 'away';
    const { client } = this.#temporal;
    const handle = client.workflow.getHandle<() => Promise<T>>(workflowId);
    const result = client.withDeadline(deadline, () => handle.result());
    const ended = result.catch(() => 'late' as const);
    this.#underWay.add(ended);
    void ended.then(() => this.#underWay.delete(ended));
    const ms = Math.max(1, deadline - Date.now());
    return await Promise.race([ended, setTimeout(ms, 'late' as const, { ref: false })]);
  }

  async #logOutage(err: unknown): Promise<void> {
    const why = await this.#temporal.trouble().catch(() => null);
    this.#log.error(
      { err, why },
      'workflows cannot be started; the sweep starts them later',
    );
  }

  /**
   * Resolves when no attempt continues in the background. Call it before the connection to Temporal
   * is closed. Otherwise, a retry of the SDK on the closed connection would crash the process.
   */
  async ended(): Promise<void> {
    await Promise.allSettled(this.#underWay);
  }
}

/**
 * Starts the workflow of a new batch. Does nothing if its workflow runs or has already closed.
 * @throws an error if Temporal does not accept it
 */
export async function startNewBatch(
  client: Client,
  taskQueue: string,
  batch: BatchStart,
): Promise<void> {
  await once(startBatch(client, taskQueue, batch, 'REJECT_DUPLICATE'));
}

/** Starts the workflow of a new test event, as `startNewBatch` does. */
export async function startNewTestEvent(
  client: Client,
  taskQueue: string,
  event: TestEventInput,
  timeoutMs: number,
): Promise<void> {
  await once(startTestEvent(client, taskQueue, event, timeoutMs));
}

/** Waits for the start of a workflow, and ignores that it has already closed. */
async function once(started: Promise<void>): Promise<void> {
  try {
    await started;
  } catch (error) {
    if (!(error instanceof WorkflowExecutionAlreadyStartedError)) {
      throw error;
    }
  }
}
