import { sleep } from '@temporalio/workflow';
import * as real from '../../workflows/index.ts';
import type {
  BatchInput,
  BatchResult,
  LookupInput,
  LookupResult,
} from '../../workflows/messages.ts';

// The workflows of a next release that don't fit open runs of this one. The workflows that are
// pinned to their version have an additional step at the beginning.

export * from '../../workflows/index.ts';

export async function enrichBatch(input: BatchInput): Promise<BatchResult> {
  await sleep(1);
  return await real.enrichBatch(input);
}

export async function lookUpEmail(input: LookupInput): Promise<LookupResult> {
  await sleep(1);
  return await real.lookUpEmail(input);
}
