import type { Database } from '../db/client.ts';
import { readBatch } from '../db/requests/facts.ts';
import type { BatchFacts, BatchInput } from '../workflows/messages.ts';

/** The activity of the batch's own workflow. */
export function createBatchActivities({ db }: { readonly db: Database }) {
  return {
    /**
     * Reads a batch: its open requests, the webhooks that are due, and how many requests ended how.
     * @throws {Refusal} `batch_missing` for an unknown id
     */
    readBatch: ({ batchId }: BatchInput): Promise<BatchFacts> => readBatch(db, batchId),
  };
}
