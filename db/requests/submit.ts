import { sql } from 'drizzle-orm';
import { PRICES } from '../accounts/credits.ts';
import { type Balance, isSandbox } from '../accounts/organizations.ts';
import {
  type Database,
  only,
  run,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { DatabaseError, Refusal, violates } from '../connection/errors.ts';
import { newId } from '../connection/ids.ts';
import { count, countSettled, type Ended } from '../operations/metrics.ts';
import type { creditBalances, requests, webhookDeliveries } from '../schema.ts';
import type { RequestedType, SubmittedAs, TestOutcome, WebhookMode } from '../words.ts';
import {
  claimEntitlements,
  findKnownEmails,
  type KnownEmail,
  type KnownWindows,
} from './entitlements.ts';
import { submitResponse } from './envelope.ts';
import {
  claimIdempotencyKey,
  type EarlierSubmit,
  type IdempotencyKey,
  storeResponse,
} from './idempotency.ts';
import { type BatchStart, mustWait } from './outbox.ts';
import { findStoredSandboxEmails } from './sandbox.ts';

/** A parsed submit, single or bulk. */
export interface SubmitCommand {
  readonly organizationId: string;
  readonly apiKeyId: string;
  readonly submittedAs: SubmittedAs;
  /** 1 to 60 NPIs. The same NPI may occur more than once. */
  readonly npis: readonly string[];
  readonly requestedType: RequestedType;
  readonly webhook: { readonly url: string; readonly mode: WebhookMode } | null;
  /** The JSON text as the client sent it. */
  readonly customData: string | null;
  /** The test outcome of each of `npis`; null if the organization is not a sandbox. */
  readonly outcomes: readonly TestOutcome[] | null;
  /** True if the client asked for the outcome, so that no replay may replace it. */
  readonly isOutcomeForced: boolean;
  readonly idempotency: IdempotencyKey | null;
}

export interface SubmitRules extends KnownWindows {
  readonly lookupTimeoutMs: number;
  readonly idempotencyMs: number;
}

export type SubmitOutcome =
  | {
      readonly kind: 'accepted';
      readonly response: string;
      readonly start: BatchStart;
      /** False if the batch waits for its turn. Then the reconciler starts it. */
      readonly isAdmitted: boolean;
      readonly requests: readonly NewRequest[];
    }
  | EarlierSubmit
  /** Another submit with the same Idempotency-Key was still running after we waited for 5 s. */
  | { readonly kind: 'running' }
  /** The organization was closed after the client was authenticated. */
  | { readonly kind: 'closed' }
  | ({ readonly kind: 'insufficient'; readonly required: number } & Pick<
      Balance,
      'available' | 'held'
    >);

/**
 * The time from the submit to the deadline of a sandbox request with the test outcome `deadline`.
 */
const TEST_DEADLINE_MS = 5000;
/**
 * The time to the deadline of other sandbox requests. It does not depend on the configuration,
 * because a simulated lookup fails only if the client asks for that.
 */
const SANDBOX_DEADLINE_MS = 15 * 60_000;

/** The fields that all requests of a batch share. */
type OfBatch = 'batchId' | 'organizationId' | 'requestedType' | 'cost' | 'acceptedAt';
type NewRequest = Omit<typeof requests.$inferInsert & Ended, OfBatch | 'seconds'>;

/** The fields of a request that waits for a lookup. */
const OPEN = {
  status: 'accepted',
  replayed: false,
  email: null,
  emailType: null,
  emailLastValidatedAt: null,
  suppressionChange: null,
  settledAt: null,
} as const;

/**
 * Thrown to roll the transaction back, so that nothing is stored and the Idempotency-Key stays
 * unused.
 */
class Refused extends Error {
  readonly outcome: SubmitOutcome;
  constructor(outcome: SubmitOutcome) {
    super(outcome.kind);
    this.outcome = outcome;
  }
}

/**
 * Accepts one submit in one transaction. Inserts the batch with its requests and webhook
 * deliveries, and the Idempotency-Key with its response. Requests for which there is a known email
 * are completed at once, and charged unless they are replays. For all other requests, credits are
 * held.
 *
 * Each submit and each settlement first locks the organization's balance. Submits and settlements
 * of one organization therefore run one after the other.
 */
export async function submit(
  db: Database,
  command: SubmitCommand,
  rules: SubmitRules,
): Promise<SubmitOutcome> {
  let claimingKey = false;
  try {
    const outcome = await transaction(db, async (tx) => {
      claimingKey = true;
      const earlier = await claimKey(tx, command, rules);
      claimingKey = false;
      return earlier ?? (await accept(tx, command, rules));
    });
    countSubmit(command, outcome);
    return outcome;
  } catch (error) {
    if (error instanceof Refused) return error.outcome;
    if (claimingKey && error instanceof DatabaseError && error.code === '55P03')
      return { kind: 'running' };
    const isClosed = violates(error, 'batches_of_open_organization');
    if (isClosed) return { kind: 'closed' };
    throw error;
  }
}

async function claimKey(
  tx: Transaction,
  { organizationId, idempotency }: SubmitCommand,
  { idempotencyMs }: SubmitRules,
): Promise<EarlierSubmit | null> {
  if (idempotency === null) return null;
  return await claimIdempotencyKey(tx, organizationId, idempotency, idempotencyMs);
}

async function accept(
  tx: Transaction,
  command: SubmitCommand,
  rules: SubmitRules,
): Promise<SubmitOutcome> {
  const { organizationId, requestedType, submittedAs, npis, idempotency } = command;
  const { at, available, held, suspended } = await lockBalance(tx, organizationId);
  const known = await findStoredEmails(tx, command, at, rules);
  const isSimulated = command.outcomes !== null;
  const timeoutMs = isSimulated ? SANDBOX_DEADLINE_MS : rules.lookupTimeoutMs;
  const batch = newBatch(command, at, timeoutMs);
  const rows = newRequests(command, batch, known);
  const required =
    rows.filter(({ replayed }) => !replayed).length * PRICES[requestedType];
  if (required > available)
    throw new Refused({ kind: 'insufficient', required, available, held });

  const response = submitResponse(batch.id, rows);
  const deliveries = newDeliveries(batch, rows, suspended);
  const isAdmitted = await insertBatch(tx, batch, rows, deliveries);
  const charged = rows.filter(({ settledAt, replayed }) => settledAt && !replayed);
  if (charged.length > 0) {
    await claimEntitlements(tx, organizationId, charged, rules.replayMs);
  }
  if (idempotency) {
    await storeResponse(tx, organizationId, idempotency, response);
  }
  return {
    kind: 'accepted',
    response,
    start: { batchId: batch.id, organizationId, submittedAs, requestedType, npis },
    isAdmitted,
    requests: rows,
  };
}

type LockedBalance = Pick<typeof creditBalances.$inferSelect, 'available' | 'held'> & {
  readonly suspended: boolean;
  readonly at: Date;
};

/**
 * Locks an organization's balance. The time of the submit is read after the lock is acquired, so
 * that the times of an organization's submits are in the order in which they are committed.
 */
async function lockBalance(tx: Transaction, organizationId: string) {
  const [locked] = await run<LockedBalance>(tx)`
    with locked as materialized (
      select b.available, b.held, o.webhooks_suspended as suspended
        from credit_balances b join organizations o on o.id = b.organization_id
       where b.organization_id = ${organizationId}
         for update of b
    )
    select *, clock_timestamp() as at from locked`;
  if (!locked) throw new Refusal('organization_missing');
  return locked;
}

/** Finds the emails that complete requests at submit, by NPI. */
async function findStoredEmails(
  tx: Transaction,
  { organizationId, npis, requestedType, outcomes, isOutcomeForced }: SubmitCommand,
  at: Date,
  rules: SubmitRules,
): Promise<Map<string, KnownEmail>> {
  if (outcomes === null) {
    const asked = { organizationId, npis, requestedType, at, lookupId: null };
    return await findKnownEmails(tx, asked, rules);
  }
  const byNpi = new Map<string, TestOutcome>();
  for (const [index, outcome] of outcomes.entries()) {
    byNpi.set(npis[index] as string, outcome);
  }
  const asked = { organizationId, requestedType, at, outcomes: byNpi };
  return await findStoredSandboxEmails(tx, { ...asked, isOutcomeForced }, rules.replayMs);
}

function newBatch(command: SubmitCommand, at: Date, timeoutMs: number) {
  const {
    organizationId,
    apiKeyId,
    submittedAs,
    requestedType,
    npis,
    webhook,
    customData,
  } = command;
  return {
    id: newId('bat'),
    organizationId,
    apiKeyId,
    submittedAs,
    requestedType,
    total: npis.length,
    webhookUrl: webhook?.url ?? null,
    webhookMode: webhook?.mode ?? null,
    customData,
    createdAt: at,
    deadlineAt: later(at, timeoutMs),
  };
}

type NewBatch = ReturnType<typeof newBatch>;
type NewDelivery = Pick<
  typeof webhookDeliveries.$inferSelect,
  'id' | 'requestId' | 'state'
>;

/** Makes the rows of a batch's requests. A request with a known email is already completed. */
function newRequests(
  { npis, outcomes }: SubmitCommand,
  batch: NewBatch,
  known: ReadonlyMap<string, KnownEmail>,
): NewRequest[] {
  const charged = new Set<string>();
  return npis.map((npi, position) => {
    const testOutcome = outcomes?.[position] ?? null;
    let { deadlineAt } = batch;
    if (testOutcome === 'deadline') {
      deadlineAt = later(batch.createdAt, TEST_DEADLINE_MS);
    }
    const request = { id: newId('req'), position, npi, deadlineAt, testOutcome };
    const result = known.get(npi);
    if (!result) return { ...request, ...OPEN };
    // If the batch contains an NPI twice, the second request is a replay of the first one, which is
    // charged now.
    const replayed = result.replayed || charged.has(npi);
    charged.add(npi);
    return {
      ...request,
      status: 'completed',
      ...result,
      replayed,
      settledAt: batch.createdAt,
    };
  });
}

/**
 * Makes the rows of a batch's webhook deliveries: one per request, one for the batch, or none,
 * depending on the webhook's mode.
 */
function newDeliveries(
  batch: NewBatch,
  rows: readonly NewRequest[],
  isSuspended: boolean,
): NewDelivery[] {
  const state = isSuspended ? 'none' : 'pending';
  const deliveryOf = (requestId: string | null): NewDelivery => ({
    id: newId('msg'),
    requestId,
    state,
  });
  switch (batch.webhookMode) {
    case 'batch':
      return [deliveryOf(null)];
    case 'real-time':
      return rows.map(({ id }) => deliveryOf(id));
    case null:
      return [];
  }
}

function later(at: Date, ms: number): Date {
  return new Date(at.getTime() + ms);
}

/** Counts a committed submit, new or repeated. */
function countSubmit(command: SubmitCommand, outcome: SubmitOutcome): void {
  const { submittedAs: kind, organizationId, requestedType } = command;
  if (outcome.kind === 'repeated') {
    count('npe_submits_total', { kind, result: 'repeat' });
  }
  if (outcome.kind !== 'accepted') return;
  count('npe_submits_total', { kind, result: 'new' });
  const sandbox = isSandbox(organizationId);
  const cost = PRICES[requestedType];
  const words = { requested_type: requestedType, sandbox: String(sandbox) };
  count('npe_requests_submitted_total', words, outcome.requests.length);
  for (const { settledAt, ...request } of outcome.requests) {
    if (!request.replayed && !sandbox)
      count('npe_credits_total', { movement: 'hold' }, cost);
    if (settledAt)
      countSettled({ ...request, organizationId, cost, seconds: 0 }, !request.replayed);
  }
}

/**
 * Inserts a batch with its requests and deliveries. Triggers add the holds and charges to the
 * ledger. It is one statement, because the organization's balance is locked until COMMIT, and a
 * second statement would prolong that by a round trip. Requests and deliveries are passed as one
 * JSON array each, so that the text does not depend on their number and can be prepared.
 *
 * A bulk is admitted if workers have planned nearly all earlier requests of the organization, and
 * all of them for a test key.
 * Otherwise it waits for `admitWaiting`. The rate limit bounds single submits, so they never wait.
 * @returns true if the workflow of the batch may start now
 */
async function insertBatch(
  tx: Transaction,
  batch: NewBatch,
  rows: readonly NewRequest[],
  deliveries: readonly NewDelivery[],
): Promise<boolean> {
  const inserted = await run<{ isAdmitted: boolean }>(tx)`
    with batch as (
      insert into batches
        (id, organization_id, api_key_id, submitted_as, requested_type, total, webhook_url,
         webhook_mode, custom_data, created_at, updated_at, deadline_at, admitted_at)
      values (${batch.id}, ${batch.organizationId}, ${batch.apiKeyId}, ${batch.submittedAs},
              ${batch.requestedType}, ${batch.total}, ${batch.webhookUrl}, ${batch.webhookMode},
              ${batch.customData}, ${batch.createdAt}, ${batch.createdAt}, ${batch.deadlineAt},
              case
                when ${batch.submittedAs} = 'single'
                  or not ${mustWait(sql`${batch.organizationId}`, sql`'infinity'`)}
                then ${batch.createdAt}::timestamptz
              end)
      returning *
    ), delivered as (
      insert into webhook_deliveries
        (id, batch_id, request_id, organization_id, state, created_at)
      select d.id, batch.id, "requestId", batch.organization_id, state, batch.created_at
        from batch, json_to_recordset(${JSON.stringify(deliveries)}::json)
               d (id text, "requestId" text, state text)
    )
    insert into requests
      (id, batch_id, organization_id, position, npi, requested_type, cost, status, replayed,
       email, email_type, email_last_validated_at, suppression_change, accepted_at, deadline_at,
       settled_at, test_outcome)
    select r.id, batch.id, organization_id, position, npi, requested_type,
           ${PRICES[batch.requestedType]}, r.status, replayed, email, "emailType",
           "emailLastValidatedAt", "suppressionChange", created_at, "deadlineAt", "settledAt",
           "testOutcome"
      from batch, json_to_recordset(${JSON.stringify(rows)}::json)
             r (id text, position smallint, npi text, status text, replayed boolean, email text,
                "emailType" text, "emailLastValidatedAt" timestamptz, "suppressionChange" bigint,
                "deadlineAt" timestamptz, "settledAt" timestamptz, "testOutcome" text)
    returning (select admitted_at is not null from batch) as "isAdmitted"`;
  return only(inserted).isAdmitted;
}
