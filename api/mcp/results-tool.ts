import type { DataItem } from '../../db/requests/envelope.ts';
import type { BatchStatus } from '../../db/words.ts';
import { CallFailed } from '../http/call-api.ts';
import TEXTS from './descriptions.json' with { type: 'json' };
import { fillText, type ToolCall, ToolFault } from './tool-call.ts';

/**
 * The most batches whose results one call returns, so that the result of a tool has at most 300
 * NPIs. Some assistants cut longer texts.
 */
export const MAX_BATCHES = 5;

interface Envelope {
  readonly batch: {
    readonly id: string;
    readonly status: BatchStatus;
    readonly total: number;
    readonly completed_count: number;
  };
  readonly usage: { readonly credits_used: number | null } | null;
  readonly data: readonly DataItem[];
}

/** The batches of a call by their ids. */
type Envelopes = Map<string, Envelope>;

export type Results = Awaited<ReturnType<typeof getResults>>;
type Result = Omit<DataItem, 'request_id' | 'email_status'>;

/**
 * Returns the results of batches. Waits until all are final, or until the call's time is over.
 * @throws {ToolFault} if a batch is unknown
 * @throws {CallFailed} if the batches can't be read
 */
export async function getResults(call: ToolCall, batchIds: readonly string[]) {
  const envelopes: Envelopes = new Map();
  // A wrong id must not cost the time of a wait.
  for (const id of new Set(batchIds)) {
    envelopes.set(id, await readBatch(call, id));
    await notify(call, envelopes);
  }
  try {
    for (const id of envelopes.keys()) {
      await waitFor(call, envelopes, id);
    }
  } catch (error) {
    // The results so far must not be lost.
    if (!isPassing(error)) throw error;
  }
  const results: Result[] = [];
  for (const { data } of envelopes.values()) {
    results.push(...data.map(toResult));
  }
  const count = (status: string) =>
    results.filter((result) => result.status === status).length;
  const { total, done, credits } = sumsOf(envelopes);
  return {
    status: done === total ? 'completed' : 'in-progress',
    total,
    completed_count: done,
    found: count('completed'),
    not_found: count('not_found'),
    failed: count('failed'),
    credits_used: credits,
    results,
  };
}

/** Waits until a batch is final, or until it makes no sense to wait for longer. */
async function waitFor(call: ToolCall, envelopes: Envelopes, id: string) {
  while (envelopes.get(id)?.batch.status !== 'completed') {
    const { body, canGoOn } = await call.look<Envelope>(pathOf(id));
    envelopes.set(id, body);
    await notify(call, envelopes);
    if (!canGoOn) return;
  }
}

async function notify(call: ToolCall, envelopes: Envelopes): Promise<void> {
  const { total, done } = sumsOf(envelopes);
  await call.notify(done, total, `${done} of ${total} NPIs are final.`);
}

/** Returns the sums of the batches. */
function sumsOf(envelopes: Envelopes) {
  let total = 0;
  let done = 0;
  let credits = 0;
  for (const { batch, usage } of envelopes.values()) {
    total += batch.total;
    done += batch.completed_count;
    credits += usage?.credits_used ?? 0;
  }
  return { total, done, credits };
}

function pathOf(batchId: string): string {
  return `/api/v1/batch/${batchId}`;
}

async function readBatch(call: ToolCall, id: string): Promise<Envelope> {
  try {
    return await call.get<Envelope>(pathOf(id));
  } catch (error) {
    if (!(error instanceof CallFailed) || error.status !== 404) {
      throw error;
    }
    throw new ToolFault(fillText(TEXTS.faults.batch_not_found, { id }));
  }
}

/** Returns true for an error that ends by itself. */
function isPassing(error: unknown): boolean {
  return error instanceof CallFailed && [429, 503].includes(error.status);
}

/** Returns the fields of a result that an assistant needs. */
function toResult(item: DataItem): Result {
  const { request_id: _, email_status: __, ...result } = item;
  return result;
}
