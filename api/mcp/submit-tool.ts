import { hash } from 'node:crypto';
import type { RequestedType } from '../../db/words.ts';
import { CallFailed } from '../http/call-api.ts';
import { readReport } from './check-tool.ts';
import { getResults, MAX_BATCHES } from './results-tool.ts';
import { type ToolCall, ToolFault } from './tool-call.ts';

/** The number of NPIs in a batch. */
const BATCH_SIZE = 60;
/** The time that is kept for reading the results after the submits. */
const RESERVED_S = 5;

export interface SubmitArguments {
  readonly npis: readonly string[];
  readonly type: RequestedType;
  readonly max_credits: number;
  readonly attempt: number;
}

/** The batches of one call, in the order of its NPIs. */
interface Submitted {
  readonly batchIds: readonly string[];
  /** The number of NPIs that are in no batch yet. */
  readonly missing: number;
  /** Why they are in no batch. */
  readonly reason: string;
}

/**
 * Submits a list as batches of 60 NPIs, and waits for the results of the first ones. The
 * Idempotency-Key of each batch depends only on the arguments. So if the process ends in the middle,
 * or the client repeats the call because it got no response, the same call submits what is missing
 * and returns the other batches as they are.
 * @throws {ToolFault} if the list could cost more than `max_credits`. Then nothing is submitted
 * @throws {CallFailed} if the first batch can't be submitted
 */
export async function submitNpis(call: ToolCall, given: SubmitArguments) {
  const npis = [...new Set(given.npis)];
  const { max_credits } = await readReport(call, npis);
  const mayCost = max_credits[given.type];
  if (mayCost > given.max_credits) throw tooExpensive(npis.length, mayCost, given);
  const { batchIds, missing, reason } = await submitAll(call, npis, given);
  // If something is missing, the assistant must act now.
  const results = missing > 0 ? null : await getFirstResults(call, batchIds);
  const isFinal = results?.status === 'completed' && batchIds.length <= MAX_BATCHES;
  return {
    ...results,
    status: isFinal ? 'completed' : 'in-progress',
    batch_ids: batchIds,
    submitted: npis.length - missing,
    not_submitted: missing,
    may_cost: mayCost,
    next: nextStep(batchIds, missing, reason, isFinal),
  };
}

function tooExpensive(
  count: number,
  mayCost: number,
  { type, max_credits }: SubmitArguments,
): ToolFault {
  return new ToolFault(
    `max_credits is ${max_credits}, but the list can cost ${mayCost} (NPIs: ${count}, type: ${type}). ` +
      `Nothing was submitted, and nothing is held. Ask the user, then set max_credits to ${mayCost}, or submit fewer NPIs.`,
  );
}

/** Submits as many batches as time, credits, and the rate limit allow. */
async function submitAll(
  call: ToolCall,
  npis: readonly string[],
  { type, attempt }: SubmitArguments,
): Promise<Submitted> {
  const batchIds: string[] = [];
  const result = (submitted: number, reason: string) => ({
    batchIds,
    missing: npis.length - submitted,
    reason,
  });
  for (let start = 0; start < npis.length; start += BATCH_SIZE) {
    const part = npis.slice(start, start + BATCH_SIZE);
    if (start > 0 && call.secondsLeft() < RESERVED_S) {
      return result(start, 'The time of this call was over.');
    }
    const body = { npis: part, enrichment_email_type: type };
    const key = hash('sha256', JSON.stringify([attempt, body]), 'base64url');
    const headers = { 'idempotency-key': `mcp-${key}` };
    try {
      const path = '/api/v1/email/bulk';
      const batch = await call.post<{ batch_id: string }>(path, body, headers);
      batchIds.push(batch.batch_id);
    } catch (error) {
      if (!(error instanceof CallFailed) || start === 0) throw error;
      return result(start, error.text());
    }
  }
  return result(npis.length, '');
}

/**
 * Returns the results of the first batches, or null if they can't be read now. An error here must not
 * hide the ids of the batches.
 */
async function getFirstResults(call: ToolCall, batchIds: readonly string[]) {
  try {
    return await getResults(call, batchIds.slice(0, MAX_BATCHES));
  } catch (error) {
    if (error instanceof CallFailed) return null;
    throw error;
  }
}

function nextStep(
  batchIds: readonly string[],
  missing: number,
  reason: string,
  isFinal: boolean,
): string {
  if (isFinal) return 'Nothing. All results are final.';
  if (missing > 0) {
    return `${missing} NPIs were not submitted. ${reason} Then call submit_npis again with the same arguments: it submits only what is missing.`;
  }
  const some = batchIds.length > MAX_BATCHES ? `${MAX_BATCHES} of the` : 'the';
  return `Call get_results with ${some} batch_ids, until each is completed.`;
}
