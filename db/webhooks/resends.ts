import { and, asc, eq, gte, isNull, lte, or, sql } from 'drizzle-orm';
import {
  type Database,
  isAhead,
  moment,
  only,
  query,
  run,
  span,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { organizations, requests, webhookDeliveries } from '../schema.ts';
import { lockDelivery, ownsBatch, REPORTS_FINAL } from './deliveries.ts';
import { type LoggedDelivery, selectDelivery } from './log.ts';

// Resends deliveries. A resent delivery keeps its id and starts its retry schedule again. Its row
// is also an outbox entry for the workflow that sends it: checked_at is null until that workflow
// exists. The sweep starts a missing workflow even if the delivery was never resent.

type Delivery = Readonly<typeof webhookDeliveries.$inferSelect>;

/** The input of the workflow that sends a delivery which no batch's workflow sends. */
export interface DeliveryStart extends Pick<Delivery, 'batchId'> {
  readonly deliveryId: string;
  readonly organizationId: string;
  /** The NPIs whose results the delivery reports. */
  readonly npis: readonly string[];
}

export type ResendOutcome =
  | {
      readonly kind: 'resent';
      readonly delivery: LoggedDelivery;
      readonly npis: readonly string[];
    }
  /** This organization and batch have no such delivery. */
  | { readonly kind: 'unknown' }
  /** The delivery is due or being sent, or the result that it reports is not final yet. */
  | { readonly kind: 'pending' }
  /** The organization's webhooks are suspended, or were suspended when the batch was submitted. */
  | { readonly kind: 'suspended' }
  /** The customer has resent the delivery ten times within the last hour. */
  | { readonly kind: 'limited'; readonly waitMs: number };

/** The result of an operator's resend. It is never `limited`. */
export type OperatorOutcome = Exclude<ResendOutcome, { readonly kind: 'limited' }>;

/**
 * The number of times per hour that a customer may resend one delivery. Each resend has a full
 * schedule of attempts.
 */
const RESENDS_PER_HOUR = 10;

/**
 * The maximum number of deliveries that are resent in one transaction. The limit keeps the number
 * of locked rows small, because the transaction locks the row of each delivery.
 */
export const MAX_RESENDS = 500;

/** Tests whether a customer may resend a row of webhook_deliveries by the hourly limit. */
const MAY_RESEND = sql`coalesce(
  customer_resends[${RESENDS_PER_HOUR}::int] <= clock_timestamp() - interval '1 hour'
    or ${isAhead(sql`customer_resends[${RESENDS_PER_HOUR}::int]`)},
  true)`;

/**
 * Resends a delivery at its customer's request, at most ten times an hour. A delivery that waits
 * for a later attempt is sent now. A delivery that is being sent is not resent, so a repeated call
 * changes nothing.
 */
export async function resendOwn(
  db: Database,
  {
    organizationId,
    batchId,
    deliveryId,
  }: {
    readonly organizationId: string;
    readonly batchId: string;
    readonly deliveryId: string;
  },
): Promise<ResendOutcome> {
  return await transaction(db, async (tx) => {
    // Checks the owner first, in a separate query. A request for another organization's delivery
    // must take as long as for an unknown one, and must not lock it.
    if (!(await ownsBatch(tx, organizationId, batchId))) return { kind: 'unknown' };
    const row = await lockDelivery(tx, deliveryId, batchId);
    if (!row) return { kind: 'unknown' };
    if (row.state === 'none') return { kind: 'suspended' };
    const obstacle = obstacleTo(row);
    if (obstacle) return obstacle;
    const counted = await countResends(tx, [deliveryId]);
    if (!counted) return { kind: 'limited', waitMs: await waitForResend(tx, deliveryId) };
    return await begin(tx, deliveryId);
  });
}

/**
 * Resends the deliveries of an organization that failed at a time or later, at the customer's
 * request, the oldest first. Skips deliveries that the customer has resent ten times within the
 * last hour. Safe to repeat, because a resent delivery is pending and no longer failed.
 * @returns the number of resent deliveries, and whether there are more; null while the
 * organization's webhooks are suspended
 */
export async function resendOwnFailed(
  db: Database,
  { organizationId, since, limit }: Omit<FailedDeliveries, 'until'>,
): Promise<BulkResend | null> {
  return await transaction(db, async (tx) => {
    if (await areSuspended(tx, organizationId)) return null;
    const failed = await tx
      .select({ id: webhookDeliveries.id })
      .from(webhookDeliveries)
      .where(
        and(
          eq(webhookDeliveries.state, 'failed'),
          sql`decided_at >= ${moment(since)}`,
          eq(webhookDeliveries.organizationId, organizationId),
          MAY_RESEND,
        ),
      )
      .orderBy(asc(webhookDeliveries.decidedAt))
      .limit(limit + 1)
      .for('update');
    const ids = failed.slice(0, limit).map(({ id }) => id);
    await countResends(tx, ids);
    await beginRound(tx, ids);
    return { resent: ids.length, more: failed.length > limit };
  });
}

/**
 * Counts a customer's resends of deliveries for which the hourly limit allows another one. The
 * caller has locked the rows.
 * @returns false if the limit allows none of them
 */
async function countResends(
  tx: Transaction,
  deliveryIds: readonly string[],
): Promise<boolean> {
  const counted = await run(tx)`
    update webhook_deliveries
       set customer_resends =
             (clock_timestamp()::timestamptz(3) || customer_resends)[1:${RESENDS_PER_HOUR}::int]
     where id = any(${sql.param(deliveryIds)}::text[]) and ${MAY_RESEND}
    returning id`;
  return counted.length > 0;
}

/** Returns the milliseconds until the hourly limit allows the customer's next resend. */
async function waitForResend(tx: Transaction, deliveryId: string): Promise<number> {
  const oldest = await tx
    .select({
      ms: sql<number | null>`
        (extract(epoch from customer_resends[${RESENDS_PER_HOUR}::int]
           + interval '1 hour' - clock_timestamp()) * 1000)::float8`,
    })
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.id, deliveryId));
  return Math.max(0, only(oldest).ms ?? 0);
}

/**
 * Resends any delivery at an operator's request, even one that was never sent because its
 * organization was suspended.
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function resendAny(
  db: Database,
  by: ChangedBy,
  deliveryId: string,
): Promise<OperatorOutcome> {
  return await transaction(db, async (tx) => {
    const row = await lockDelivery(tx, deliveryId);
    if (!row) return { kind: 'unknown' };
    const obstacle = obstacleTo(row);
    if (obstacle) return obstacle;
    const outcome = await begin(tx, deliveryId);
    await recordAudit(tx, by, {
      action: 'webhooks.resend',
      organizationId: row.organizationId,
      subject: deliveryId,
      details: { from: row.state, resends: outcome.delivery.resends },
    });
    return outcome;
  });
}

interface FailedPeriod {
  readonly organizationId: string;
  /** The time of the first failure. */
  readonly since: Date;
  readonly until: Date;
}

/** A selection of failed deliveries. */
interface FailedDeliveries extends FailedPeriod {
  /** The maximum number of deliveries. */
  readonly limit: number;
}

interface BulkResend {
  readonly resent: number;
  /** True if more deliveries match than `limit`. */
  readonly more: boolean;
}

/**
 * Resends the deliveries of an organization that failed within a period, the oldest first. Safe to
 * repeat, because a resent delivery is pending and no longer failed.
 * @param what.until excludes later failures. A caller repeats this call until `more` is false. If
 * resent deliveries failed again at once, it would never stop without this limit
 * @throws {Refusal} `organization_missing`, `webhooks_suspended`
 */
export async function resendFailed(
  db: Database,
  by: ChangedBy,
  what: FailedDeliveries,
): Promise<BulkResend> {
  const { organizationId, since, limit } = what;
  return await transaction(db, async (tx) => {
    await requireSending(tx, organizationId);
    const failed = await tx
      .select({ id: webhookDeliveries.id })
      .from(webhookDeliveries)
      .where(hasFailed(what))
      .orderBy(asc(webhookDeliveries.decidedAt))
      .limit(limit + 1)
      .for('update');
    const ids = failed.slice(0, limit).map(({ id }) => id);
    await beginRound(tx, ids);
    await recordAudit(tx, by, {
      action: 'webhooks.resend',
      organizationId,
      subject: organizationId,
      details: { since: since.toISOString(), resent: ids.length },
    });
    return { resent: ids.length, more: failed.length > limit };
  });
}

/**
 * Counts the deliveries of an organization that `resendFailed` would resend.
 * @throws {Refusal} `organization_missing`, `webhooks_suspended`
 */
export async function countFailed(db: Database, what: FailedPeriod): Promise<number> {
  return await transaction(db, async (tx) => {
    await requireSending(tx, what.organizationId);
    return await tx.$count(webhookDeliveries, hasFailed(what));
  });
}

function hasFailed({ organizationId, since, until }: FailedPeriod) {
  return and(
    eq(webhookDeliveries.state, 'failed'),
    gte(webhookDeliveries.decidedAt, since),
    lte(webhookDeliveries.decidedAt, until),
    eq(webhookDeliveries.organizationId, organizationId),
  );
}

/** @throws {Refusal} `organization_missing`, `webhooks_suspended` */
async function requireSending(tx: Transaction, organizationId: string): Promise<void> {
  if (await areSuspended(tx, organizationId)) throw new Refusal('webhooks_suspended');
}

/** @throws {Refusal} `organization_missing` */
async function areSuspended(tx: Transaction, organizationId: string): Promise<boolean> {
  const [organization] = await tx
    .select({ suspended: organizations.webhooksSuspended })
    .from(organizations)
    .where(eq(organizations.id, organizationId));
  if (!organization) throw new Refusal('organization_missing');
  return organization.suspended;
}

/**
 * Records the time at which Temporal had a workflow for the attempts of a delivery. A delivery that
 * was resent in the meantime is not changed.
 */
export async function noteDeliveryLook(
  db: Database,
  { deliveryId, resends }: { readonly deliveryId: string; readonly resends: number },
): Promise<void> {
  await query(db, (tx) =>
    tx
      .update(webhookDeliveries)
      .set({ checkedAt: sql`greatest(checked_at, clock_timestamp())` })
      .where(
        and(eq(webhookDeliveries.id, deliveryId), eq(webhookDeliveries.resends, resends)),
      ),
  );
}

/**
 * A delivery that is due and may have no running workflow. `round` says which workflow should make
 * its attempts:
 * - `first`: the workflow of its batch makes the first attempt
 * - `new`: the delivery was resent or has no batch. It needs a new workflow, even if an earlier
 *   workflow of the delivery is still running
 * - `seen`: the delivery was listed before and needs a separate workflow, because the workflow of
 *   its batch may have been reset, paused, or broken
 */
export interface WaitingDelivery extends DeliveryStart, Pick<Delivery, 'resends'> {
  readonly round: 'first' | 'new' | 'seen';
}

/**
 * Lists deliveries that are due and were not checked for `everyMs`, and `new` deliveries whose
 * workflow was not started for `olderThanMs`. The caller marks each delivery with
 * `noteDeliveryLook` after its check. If a check fails because Temporal is unavailable, the next
 * sweep lists the delivery again.
 *
 * The problem: each due delivery has a workflow, unless the workflow was lost or could not be
 * started. Only a call to Temporal shows whether it exists. Thousands of deliveries may be due at
 * once, for example while a receiver is away.
 * - One option is to check all of them on every sweep. That is thousands of calls each time.
 * - Another is to claim rows with `for update skip locked`. But the calls would then run while rows
 *   are locked, and the attempts of these deliveries would wait for them.
 *
 * So each row stores the time of its last check, and nothing is locked. Two sweeps may check the
 * same delivery, which is harmless, because the workflow's id is the delivery's id. The delivery
 * that has waited longest comes first, so none is left out. The longer a delivery has been due, the
 * less often it is checked, down to once an hour, so stuck deliveries leave room for others.
 */
export async function listDeliveriesToLookAt(
  db: Database,
  olderThanMs: number,
  everyMs: number,
  limit: number,
): Promise<WaitingDelivery[]> {
  return await run<WaitingDelivery>(db)`
    -- The first of the two time conditions is the same for all rows, so that the index scan can end
    -- at that time.
    select webhook_deliveries.id as "deliveryId", batch_id as "batchId",
           webhook_deliveries.organization_id as "organizationId", resends,
           array(
             select npi from requests r
              where r.batch_id = b.id
                and r.id = coalesce(webhook_deliveries.request_id, r.id)
              order by position) as npis,
           case when webhook_deliveries.checked_at is not null then 'seen'
                when resends = 0 and batch_id is not null then 'first'
                else 'new' end as round
      from webhook_deliveries
      left join batches b on b.id = batch_id
     where state = 'pending'
       and greatest(webhook_deliveries.checked_at, due_at, webhook_deliveries.created_at)
           < (select clock_timestamp()) - ${span(Math.min(olderThanMs, everyMs))}
       and greatest(webhook_deliveries.checked_at, due_at, webhook_deliveries.created_at)
           < (select clock_timestamp())
             - case when (resends > 0 or batch_id is null)
                         and webhook_deliveries.checked_at is null
                    then ${span(olderThanMs)}
                    else ${span(everyMs)} end
       -- A delivery is checked again after as long as it had been due at the last check.
       and coalesce(
             webhook_deliveries.checked_at
               + least(
                   webhook_deliveries.checked_at
                     - greatest(due_at, webhook_deliveries.created_at),
                   interval '1 hour')
               < clock_timestamp(),
             true)
       and ${REPORTS_FINAL}
     order by greatest(webhook_deliveries.checked_at, due_at, webhook_deliveries.created_at)
     limit ${limit}`;
}

type Locked = Awaited<ReturnType<typeof lockDelivery>>;

/** Makes deliveries due now, and starts their schedules again. The caller has locked them. */
export async function beginRound(
  tx: Transaction,
  deliveryIds: readonly string[],
): Promise<void> {
  await tx.execute(sql`
    update webhook_deliveries
       set state = 'pending', resends = resends + 1, step = 0, step_at = null,
           due_at = clock_timestamp(), decided_at = null, checked_at = null
     where id = any(${sql.param(deliveryIds)}::text[])`);
}

/** Returns the reason why a delivery cannot be resent now, or null if it can. */
function obstacleTo(row: NonNullable<Locked>): Exclude<OperatorOutcome, Resent> | null {
  if (row.suspended) return { kind: 'suspended' };
  const isOnItsWay = row.state === 'pending' && (row.leasedMs > 0 || row.dueMs === 0);
  if (!row.final || isOnItsWay) return { kind: 'pending' };
  return null;
}

type Resent = Extract<ResendOutcome, { readonly kind: 'resent' }>;

async function begin(tx: Transaction, deliveryId: string): Promise<Resent> {
  await beginRound(tx, [deliveryId]);
  const isReported = or(
    isNull(webhookDeliveries.requestId),
    eq(webhookDeliveries.requestId, requests.id),
  );
  const reported = await tx
    .select({ npi: requests.npi })
    .from(webhookDeliveries)
    .innerJoin(requests, and(eq(requests.batchId, webhookDeliveries.batchId), isReported))
    .where(eq(webhookDeliveries.id, deliveryId))
    .orderBy(requests.position);
  return {
    kind: 'resent',
    delivery: await selectDelivery(tx, deliveryId),
    npis: reported.map(({ npi }) => npi),
  };
}
