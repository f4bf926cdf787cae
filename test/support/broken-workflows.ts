import { sleep } from '@temporalio/workflow';
import * as real from '../../workflows/index.ts';
import type {
  BatchInput,
  BatchResult,
  DeliverInput,
  DeliveryResult,
  LookupInput,
  LookupResult,
  ReverifyResult,
} from '../../workflows/messages.ts';

// The workflows with a change that nobody may deploy: one step more at the beginning, not patched. The replay test
// must catch it.

export async function enrichBatch(input: BatchInput): Promise<BatchResult> {
  await sleep(1);
  return await real.enrichBatch(input);
}

export async function lookUpEmail(input: LookupInput): Promise<LookupResult> {
  await sleep(1);
  return await real.lookUpEmail(input);
}

export async function deliverAgain(input: DeliverInput): Promise<DeliveryResult> {
  await sleep(1);
  return await real.deliverAgain(input);
}

export async function reverify(): Promise<ReverifyResult> {
  await sleep(1);
  return await real.reverify();
}
