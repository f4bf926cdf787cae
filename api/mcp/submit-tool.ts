import { hash } from 'node:crypto';
import { hasNpiCheckDigit } from '../../db/providers/npi.ts';
import type { RequestedType } from '../../db/words.ts';
import { CallFailed } from '../http/call-api.ts';
import { MAX_NPIS } from '../http/submit-body.ts';
import { readReport } from './check-tool.ts';
import TEXTS from './descriptions.json' with { type: 'json' };
import { getResults, MAX_BATCHES, type Results } from './results-tool.ts';
import { fillText, type ToolCall, ToolFault, toolText } from './tool-call.ts';

/** The time for one more submit, and for reading the results after it. Both can be slow. */
const RESERVED_S = 20;

export interface SubmitArguments {
  readonly npis: readonly string[];
  readonly type: RequestedType;
  readonly max_credits: number;
  readonly attempt: number;
}

/** The batches of one call, in the order of its NPIs. */
interface Submitted {
  readonly batchIds: readonly string[];
  /** The NPIs that are in no batch yet. */
  readonly missing: readonly string[];
  /** Why they are in no batch. */
  readonly reason: string;
}

/**
 * Submits a list as batches, and waits for the results of the first ones. The Idempotency-Key of
 * each batch depends only on the arguments. So if the process ends in the middle, or the client
 * repeats the call because it got no response, the same call submits what is missing and returns the
 * other batches as they are. A call with the rest of the list has the same keys for its batches.
 * @throws {ToolFault} if the list could cost more than `max_credits`. Then nothing is submitted
 * @throws {CallFailed} if the first batch can't be submitted
 */
export async function submitNpis(call: ToolCall, given: SubmitArguments) {
  const different = [...new Set(given.npis)];
  const { max_credits } = await readReport(call, different);
  const mayCost = max_credits[given.type];
  if (mayCost > given.max_credits) {
    throw tooExpensive(different.length, mayCost, given);
  }
  // A submit would hold credits for them.
  const skipped = different.filter((npi) => !hasNpiCheckDigit(npi));
  const npis = different.filter(hasNpiCheckDigit);
  const submitted = await submitAll(call, npis, given);
  const { batchIds, missing } = submitted;
  let results: Partial<Results> | null = null;
  // If something is missing, the assistant must act now.
  if (missing.length === 0) {
    results = await getFirstResults(call, batchIds);
  }
  const isFinal = results?.status === 'completed';
  return {
    ...results,
    status: isFinal ? 'completed' : 'in-progress',
    batch_ids: batchIds,
    submitted: npis.length - missing.length,
    not_submitted: missing.length,
    skipped,
    may_cost: mayCost,
    next: isFinal ? TEXTS.next.final : nextStep(submitted),
  };
}

function tooExpensive(
  count: number,
  cost: number,
  { type, max_credits: given }: SubmitArguments,
): ToolFault {
  return new ToolFault(fillText(TEXTS.refusal, { count, cost, type, given }));
}

/** Submits as many batches as time, credits, and the rate limit allow. */
async function submitAll(
  call: ToolCall,
  npis: readonly string[],
  given: SubmitArguments,
): Promise<Submitted> {
  const batchIds: string[] = [];
  for (let start = 0; start < npis.length; start += MAX_NPIS) {
    const missing = npis.slice(start);
    if (start > 0 && call.secondsLeft() < RESERVED_S) {
      return { batchIds, missing, reason: TEXTS.faults.time_over };
    }
    try {
      batchIds.push(await submitBatch(call, missing.slice(0, MAX_NPIS), given));
    } catch (error) {
      if (!(error instanceof CallFailed) || start === 0) throw error;
      return { batchIds, missing, reason: toolText(error) };
    }
    const done = Math.min(start + MAX_NPIS, npis.length);
    await notify(call, done, npis.length);
  }
  call.stepsBefore = npis.length;
  return { batchIds, missing: [], reason: '' };
}

/** The part of the response to a submit that is read here. */
interface Batch {
  readonly batch_id: string;
}

/** Returns the id of the batch. */
async function submitBatch(
  call: ToolCall,
  npis: readonly string[],
  { type, attempt }: SubmitArguments,
): Promise<string> {
  const body = { npis, enrichment_email_type: type };
  const key = hash('sha256', JSON.stringify([attempt, body]), 'base64url');
  const headers = { 'idempotency-key': `mcp-${key}` };
  const path = '/api/v1/email/bulk';
  const batch = await call.post<Batch>(path, body, headers);
  return batch.batch_id;
}

async function notify(call: ToolCall, done: number, total: number): Promise<void> {
  // The other half of the steps are the results.
  await call.notify(done, 2 * total, `${done} of ${total} NPIs are submitted.`);
}

/**
 * Returns the results of the first batches, or null if they can't be read now. An error here must not
 * hide the ids of the batches.
 */
async function getFirstResults(
  call: ToolCall,
  batchIds: readonly string[],
): Promise<Partial<Results> | null> {
  try {
    const all = await getResults(call, batchIds.slice(0, MAX_BATCHES));
    if (batchIds.length <= MAX_BATCHES) return all;
    // The sums of some batches would look like those of the list.
    return { results: all.results };
  } catch (error) {
    if (error instanceof CallFailed) return null;
    throw error;
  }
}

/** Returns what to do if not all results are final. */
function nextStep({ batchIds, missing, reason }: Submitted): string {
  const [first] = missing;
  if (first !== undefined) {
    const values = { missing: missing.length, reason, first };
    return fillText(TEXTS.next.submitRest, values);
  }
  if (batchIds.length <= MAX_BATCHES) return TEXTS.next.wait;
  return fillText(TEXTS.next.waitForMany, { most: MAX_BATCHES });
}
