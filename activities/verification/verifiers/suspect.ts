import type { Logger } from 'pino';
import type { Database } from '../../../db/connection/client.ts';
import { missingShare } from '../../../db/lookups/checks.ts';
import { judgment, type VerifierStep } from './verifier.ts';

/** The share of missing mailboxes above which we doubt a verifier. */
const MAX_MISSING_SHARE = 0.6;

/**
 * Returns the result of a self-hosted verifier, or `unknown` if the result is "mailbox missing" and
 * most of the verifier's recent results are the same. Such a verifier contacts mail servers from
 * our IP address. If they reject the address with a permanent 5.7.1, Reacher 0.11.7 reports that
 * the mailbox is missing, and its response does not contain the reply of the mail server.
 */
export async function doubtMissing(
  db: Database,
  log: Logger,
  source: string,
  step: VerifierStep,
): Promise<VerifierStep> {
  if (step.kind !== 'judgment' || step.reason !== 'mailbox_missing') {
    return step;
  }
  const share = await missingShare(db, source);
  if (share === null || share <= MAX_MISSING_SHARE) return step;
  log.warn({ source, share }, 'the verifier reports too many mailboxes as missing');
  return judgment('unknown', 'verifier_suspect');
}
