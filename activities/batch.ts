import type { Database } from '../db/connection/client.ts';
import { readBatch } from '../db/requests/facts.ts';
import type { BatchFacts, BatchInput } from '../workflows/messages.ts';

/** Returns the activity of the batch workflow. */
export function createBatchActivities({ db }: { readonly db: Database }) {
  return {
    /**
     * Reads a batch: its open requests, the webhooks that are due, and the number of requests by
     * status.
     * @throws {Refusal} `batch_missing` for an unknown id
     */
    readBatch: ({ batchId }: BatchInput): Promise<BatchFacts> => readBatch(db, batchId),
  };
}
