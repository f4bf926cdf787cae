import { hash } from 'node:crypto';
import { ApplicationFailure } from '@temporalio/common';
import { PRICES } from '../db/accounts/credits.ts';
import { takePlaces } from '../db/accounts/limits.ts';
import { type Balance, isSandbox } from '../db/accounts/organizations.ts';
import type { Database } from '../db/connection/client.ts';
import { markStarted } from '../db/requests/outbox.ts';
import pacing from '../db/requests/pacing.json' with { type: 'json' };
import { type SubmitCommand, submit } from '../db/requests/submit.ts';
import {
  cutPart,
  endUpload,
  findNextPart,
  findNotice,
  finishUpload,
  markNotified,
  type NextPart,
  PART_SUBMIT,
  readLookupHealth,
  recordPart,
} from '../db/uploads/parts.ts';
import type { UploadInput, UploadStep } from '../workflows/messages.ts';
import type { ActivityDeps } from './deps.ts';
import { benignFailure } from './failures.ts';
import { MailFailure } from './mail.ts';
import { testOutcomeOf } from './sandbox.ts';

/**
 * While this many requests of an upload are open, its next part waits, so that all requests have
 * time before their deadlines. Both clients have the same limit, by a link to pacing.json.
 */
const MAX_OPEN = pacing.openNpis;
/** The delay before looking again whether open requests have become final. */
const OPEN_WAIT_MS = 1000;
/** The longest of these delays, so that a stopped upload or a revoked key is soon noticed. */
const MAX_WAIT_MS = 5000;

type UploadDeps = Pick<ActivityDeps, 'db' | 'log' | 'control' | 'rules' | 'mail'>;

/** Returns the activities of the upload workflow. */
export function createUploadActivities(deps: UploadDeps) {
  return {
    /**
     * Submits the next part of an upload as one batch, within the rate limit of its key. It is safe
     * to repeat, because each part has its own Idempotency-Key.
     * @throws {ApplicationFailure} retryable, if the part must wait
     */
    submitNextPart: ({ uploadId }: UploadInput): Promise<UploadStep> =>
      submitNextPart(deps, uploadId),

    /** Stops an upload whose workflow was canceled by an operator. */
    stopUpload: ({ uploadId }: UploadInput): Promise<void> =>
      endUpload(deps.db, uploadId, 'operator'),

    /**
     * Sends the email about the end of an upload, when all submitted NPIs are final. It is sent twice
     * only if the worker dies between the sending and the record.
     * @throws {ApplicationFailure} retryable, if it must wait, or if the mail server fails
     */
    notifyEnd: ({ uploadId }: UploadInput): Promise<void> => notifyEnd(deps, uploadId),
  };
}

async function submitNextPart(deps: UploadDeps, uploadId: string): Promise<UploadStep> {
  const { db, rules } = deps;
  const part = await findNextPart(db, uploadId);
  if (part === null) {
    await finishUpload(db, uploadId);
    return await ended(deps, uploadId);
  }
  // This submit only returns the batch of the earlier one, so it needs no place.
  if (part.isSubmitted) return await submitPart(deps, part);
  if (!part.isKeyActive) {
    await endUpload(db, uploadId, 'key');
    return await ended(deps, part.uploadId);
  }
  await waitForLookups(db, part);
  const key = { keyId: part.apiKeyId, requestsPerMinute: part.requestsPerMinute };
  const places = await takePlaces(db, key, rules.rateWindowMs, 1);
  if (places.taken === 0) throw wait('rate limit', places.freeInMs);
  return await submitPart(deps, part);
}

/**
 * Checks that the lookups of a part can succeed. During an outage, they would only fail at their
 * deadlines. So while lookups fail, the upload submits one NPI at a time, until one succeeds.
 * @throws {ApplicationFailure} retryable, if the part must wait
 */
async function waitForLookups(db: Database, part: NextPart): Promise<void> {
  if (part.open >= MAX_OPEN) throw wait('open requests', OPEN_WAIT_MS);
  const { isFailing, isFresh } = await readLookupHealth(db, part.uploadId);
  if (!isFailing) return;
  if (part.open > 0 || isFresh) {
    throw wait('lookups to succeed', MAX_WAIT_MS);
  }
  if (part.npis.length === 1) return;
  await cutPart(db, part, 1);
  throw wait('a smaller part', 0);
}

async function submitPart(deps: UploadDeps, part: NextPart): Promise<UploadStep> {
  const { db, rules } = deps;
  const outcome = await submit(db, commandFor(part), rules);
  switch (outcome.kind) {
    case 'accepted': {
      const { batchId } = outcome.start;
      const line = { upload_id: part.uploadId, batch_id: batchId };
      deps.log.info({ ...line, organization_id: part.organizationId }, 'batch accepted');
      // The part is recorded first. Otherwise, if the start fails and the customer stops the upload,
      // the results would lack a batch that is charged.
      const step = await submitted(deps, part, batchId);
      if (!outcome.isAdmitted) return step;
      // If the process dies before the start, the reconciler's sweep starts the batch.
      await deps.control.startBatch(outcome.start, 'ALLOW_DUPLICATE');
      await markStarted(db, batchId);
      return step;
    }
    case 'repeated': {
      const { batch_id } = JSON.parse(outcome.response) as { readonly batch_id: string };
      return await submitted(deps, part, batch_id);
    }
    case 'running':
      throw wait('the same submit', OPEN_WAIT_MS);
    case 'mismatch':
      throw new Error('a part of an upload was changed after its submit');
    case 'closed':
      await endUpload(db, part.uploadId, 'key');
      return await ended(deps, part.uploadId);
    case 'insufficient':
      return await spendTheRest(deps, part, outcome);
    default:
      return outcome satisfies never;
  }
}

/**
 * Cuts a part to the NPIs that the available credits suffice for. If they do not even suffice for
 * one NPI, waits for held credits, which may return. Without held credits, stops the upload.
 */
async function spendTheRest(
  deps: UploadDeps,
  part: NextPart,
  { available, held }: Pick<Balance, 'available' | 'held'>,
): Promise<UploadStep> {
  const { db } = deps;
  const payable = Math.floor(available / PRICES[part.requestedType]);
  if (payable > 0) {
    // The part is cut before it is submitted, so that a repeated submit has the same NPIs.
    await cutPart(db, part, payable);
    throw wait('a smaller part', 0);
  }
  // Each try counts toward the rate limit of the key. So the delays grow by the retry policy.
  if (held > 0) throw wait('credits', null);
  await endUpload(db, part.uploadId, 'credits');
  return await ended(deps, part.uploadId);
}

/** Returns the last step of an upload, which says whether to send an email. */
async function ended({ db, mail }: UploadDeps, uploadId: string): Promise<UploadStep> {
  const hasNotice = mail !== null && (await findNotice(db, uploadId)) !== null;
  return hasNotice ? { kind: 'ended', hasNotice } : { kind: 'ended' };
}

async function notifyEnd({ db, mail, log }: UploadDeps, uploadId: string) {
  const notice = await findNotice(db, uploadId);
  // It was deleted, continued, or stopped by a person in the meantime.
  if (mail === null || notice === null) return;
  if (notice.open > 0) throw wait('results', MAX_WAIT_MS);
  try {
    await mail(notice);
  } catch (error) {
    if (!(error instanceof MailFailure)) throw error;
    const { message, isPermanent } = error;
    log.warn({ upload_id: uploadId, why: message }, 'an email was not sent');
    const type = 'Upload.mail';
    throw ApplicationFailure.create({ message, type, nonRetryable: isPermanent });
  }
  await markNotified(db, notice);
}

async function submitted(
  { db }: UploadDeps,
  part: NextPart,
  batchId: string,
): Promise<UploadStep> {
  await recordPart(db, part, batchId);
  return { kind: 'submitted', submitted: part.submitted + 1, parts: part.parts };
}

function commandFor(part: NextPart): SubmitCommand {
  const { organizationId, apiKeyId, npis, requestedType } = part;
  const content = JSON.stringify({ npis, requestedType });
  return {
    organizationId,
    apiKeyId,
    submittedAs: 'bulk',
    npis,
    requestedType,
    webhook: null,
    customData: null,
    outcomes: isSandbox(organizationId) ? npis.map(testOutcomeOf) : null,
    isOutcomeForced: false,
    idempotency: {
      ...PART_SUBMIT,
      key: `${part.uploadId}-${part.position}`,
      fingerprint: hash('sha256', content, 'buffer'),
    },
  };
}

/**
 * Returns the failure that makes Temporal repeat the activity after a delay, or, if it is null, after
 * the delay of the retry policy.
 */
function wait(why: string, delayMs: number | null) {
  let bounded = delayMs;
  if (delayMs !== null) {
    bounded = Math.min(Math.max(delayMs, 100), MAX_WAIT_MS);
  }
  return benignFailure(`waits for ${why}`, 'Upload.waiting', bounded);
}
