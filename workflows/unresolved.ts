import { ActivityFailure, ApplicationFailure, isCancellation } from '@temporalio/workflow';
import type { VendorAnswer } from './messages.ts';

/** The type of failures that say why a source could not be asked or could not answer yet. */
const SOURCE = 'Source.';

/**
 * The answer of an activity that asks someone. Its retries are unlimited, so it fails only where no further attempt
 * fits into its time; then the last attempt's failure says why.
 * @param msLeft nothing is asked where no time is left
 */
export async function unresolvedUnless(
  ask: () => Promise<VendorAnswer>,
  msLeft = Number.POSITIVE_INFINITY,
): Promise<VendorAnswer> {
  if (msLeft <= 0) return { kind: 'unresolved', reason: 'deadline' };
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof ActivityFailure) || isCancellation(error)) throw error;
    return { kind: 'unresolved', reason: reasonOf(error.cause) };
  }
}

function reasonOf(cause: Error | undefined): string {
  // A time-out carries the last attempt's failure as its own cause.
  const failure = cause instanceof ApplicationFailure ? cause : cause?.cause;
  const type = failure instanceof ApplicationFailure ? failure.type : null;
  return type?.startsWith(SOURCE) ? type.slice(SOURCE.length) : 'deadline';
}
