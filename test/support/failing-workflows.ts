import * as real from '../../workflows/index.ts';
import type { BatchInput, BatchResult } from '../../workflows/messages.ts';

// Workflows with a fault that fails the task of every batch.

export * from '../../workflows/index.ts';

export async function enrichBatch(input: BatchInput): Promise<BatchResult> {
  if (input.batchId) throw new TypeError('a fault');
  return await real.enrichBatch(input);
}
