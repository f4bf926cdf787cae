import type { DataItem } from '../../db/requests/envelope.ts';
import type { BatchStatus } from '../../db/words.ts';
import type { ToolCall } from './tool-call.ts';

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

type Result = Omit<DataItem, 'request_id' | 'email_status'>;

/** Returns the results of batches. Waits until all are final, or until the call's time is over. */
export async function getResults(call: ToolCall, batchIds: readonly string[]) {
  const envelopes = new Map<string, Envelope>();
  const total = () => sum(envelopes, ({ batch }) => batch.total);
  const done = () => sum(envelopes, ({ batch }) => batch.completed_count);
  for (const id of new Set(batchIds)) {
    for (;;) {
      const { body, canGoOn } = await call.look<Envelope>(`/api/v1/batch/${id}`);
      envelopes.set(id, body);
      await call.notify(done(), total(), `${done()} of ${total()} NPIs are final.`);
      if (body.batch.status === 'completed' || !canGoOn) break;
    }
  }
  const results = [...envelopes.values()].flatMap(({ data }) => data.map(shown));
  const count = (status: string) =>
    results.filter((result) => result.status === status).length;
  const completedCount = done();
  const isFinal = completedCount === total();
  return {
    status: isFinal ? 'completed' : 'in-progress',
    total: total(),
    completed_count: completedCount,
    found: count('completed'),
    not_found: count('not_found'),
    failed: count('failed'),
    credits_used: sum(envelopes, ({ usage }) => usage?.credits_used ?? 0),
    results,
  };
}

function sum(
  envelopes: ReadonlyMap<string, Envelope>,
  of: (envelope: Envelope) => number,
): number {
  return [...envelopes.values()].reduce((total, envelope) => total + of(envelope), 0);
}

/** Returns the fields of a result that an assistant needs. */
function shown(item: DataItem): Result {
  const { request_id: _, email_status: __, ...result } = item;
  return result;
}
