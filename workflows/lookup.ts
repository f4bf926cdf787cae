import { ActivityFailure, CancellationScope, isCancellation, setCurrentDetails } from '@temporalio/workflow';
import type { LookupInput, LookupResult, VendorAnswer } from './messages.ts';
import { asking, refundCredits, settling } from './options.ts';

/**
 * Finds the email of one NPI: asks the vendors one by one until one answer passes our checks, and settles the
 * request once. Whatever goes wrong on the way, the compensation gives the credits back and settles as `failed`.
 */
export async function lookUpEmail(input: LookupInput): Promise<LookupResult> {
  const compensate = (reason: string) =>
    CancellationScope.nonCancellable(() =>
      refundCredits({ requestId: input.requestId, batchId: input.batchId, reason }),
    );
  try {
    const answers = await askVendors(input);
    if (isUnresolved(answers)) return await compensate(answers.at(-1)?.kind ?? 'deadline');
    const { settleRequest } = settling(input.deadline - Date.now());
    const { requestId, batchId } = input;
    return await settleRequest({ requestId, batchId, reason: answers.at(-1)?.reason ?? 'no_source' });
  } catch (error) {
    const result = await compensate(isCancellation(error) ? 'cancelled' : 'lookup_failed');
    if (isCancellation(error)) throw error;
    return result;
  }
}

type Answer = VendorAnswer | { readonly kind: 'deadline'; readonly reason: null };

async function askVendors({ requestId, npi, deadline, vendors }: LookupInput): Promise<Answer[]> {
  const answers: Answer[] = [];
  for (const vendor of vendors) {
    const answer = await askOne(vendor, { requestId, npi }, deadline - Date.now());
    answers.push(answer);
    setCurrentDetails(
      vendors
        .slice(0, answers.length)
        .map((name, i) => line(name, answers[i]))
        .join('\n'),
    );
    if (answer.kind === 'found' || answer.kind === 'stored' || answer.kind === 'settled') break;
    if (answer.kind === 'deadline') break;
  }
  return answers;
}

async function askOne(
  vendor: string,
  request: { requestId: string; npi: string },
  msLeft: number,
): Promise<Answer> {
  if (msLeft <= 0) return { kind: 'deadline', reason: null };
  try {
    return await asking(vendor, request.npi, msLeft).askVendor({ ...request, vendor });
  } catch (error) {
    // Retries are unlimited, so the activity fails only where no further attempt fits before the deadline.
    if (error instanceof ActivityFailure && !isCancellation(error)) return { kind: 'deadline', reason: null };
    throw error;
  }
}

/** `failed`: the deadline passed with a vendor unresolved, or none of those asked could answer. */
function isUnresolved(answers: readonly Answer[]): boolean {
  const last = answers.at(-1);
  if (!last) return false;
  if (last.kind === 'deadline') return true;
  return answers.every(({ kind }) => kind === 'fatal' || kind === 'lost');
}

function line(vendor: string, answer: Answer | undefined): string {
  return `- **${vendor}**: ${answer?.kind ?? ''}${answer?.reason ? ` (${answer.reason})` : ''}`;
}
