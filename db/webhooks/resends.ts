import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, run, span, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { lockDelivery, ownsBatch, REPORTS_FINAL } from './deliveries.ts';
import { type LoggedDelivery, selectDelivery } from './log.ts';

// Sending again: the delivery keeps its id and begins a new round of its schedule. The row is the
// outbox entry of the workflow that does it (checked_at is null until it has one); the sweep starts
// what nobody else did, of first rounds too.

/** What starts the workflow of a resend. */
export interface DeliveryStart {
  readonly deliveryId: string;
  readonly batchId: string;
  readonly organizationId: string;
  /** The NPIs that it reports. */
  readonly npis: readonly string[];
}

export type ResendOutcome =
  | { readonly kind: 'resent'; readonly delivery: LoggedDelivery; readonly npis: readonly string[] }
  /** This organization and batch have no such delivery. */
  | { readonly kind: 'unknown' }
  /** It is due or being sent now, or what it reports is not final yet. */
  | { readonly kind: 'pending' }
  /** Its organization's deliveries are suspended, or were when it was submitted. */
  | { readonly kind: 'suspended' }
  /** Its customer has sent it again ten times within the last hour. */
  | { readonly kind: 'limited'; readonly waitMs: number };

/** An operator's resends have no limit. */
export type OperatorOutcome = Exclude<ResendOutcome, { readonly kind: 'limited' }>;

/**
 * How often a customer may send one delivery again within an hour: each time it has a whole
 * schedule of attempts.
 */
const RESENDS_AN_HOUR = 10;

/**
 * Sends a delivery again at its customer's request, at most ten times an hour. One that waits for a
 * later attempt is sent now. One that is on its way is not sent twice, so asking again changes
 * nothing.
 */
export async function resendOwn(
  db: Database,
  { organizationId, batchId, deliveryId }: Omit<DeliveryStart, 'npis'>,
): Promise<ResendOutcome> {
  return await transaction(db, async (tx) => {
    // Asked first and alone: another organization's delivery must take the time of an unknown one,
    // and no lock.
    const isOwn = await ownsBatch(tx, organizationId, batchId);
    const row = isOwn ? await lockDelivery(tx, deliveryId, batchId) : undefined;
    if (!row) return { kind: 'unknown' };
    if (row.state === 'none') return { kind: 'suspended' };
    const obstacle = obstacleTo(row);
    if (obstacle) return obstacle;
    const waitMs = await takeResend(tx, deliveryId);
    if (waitMs !== null) return { kind: 'limited', waitMs };
    return await begin(tx, deliveryId);
  });
}

/**
 * Counts a customer's resend of a delivery, if one more is allowed within the hour. The row is
 * locked.
 * @returns null if it is allowed; else milliseconds until the next one is
 */
async function takeResend(tx: Transaction, deliveryId: string): Promise<number | null> {
  const taken = await run(tx)`
    update webhook_deliveries
       set customer_resends = (clock_timestamp()::timestamptz(3) || customer_resends)[1:${RESENDS_AN_HOUR}::int]
     where id = ${deliveryId}
       and coalesce(customer_resends[${RESENDS_AN_HOUR}::int] <= clock_timestamp() - interval '1 hour', true)
    returning id`;
  if (taken.length > 0) return null;
  const [oldest] = await run<{ ms: number }>(tx)`
    select (extract(epoch from customer_resends[${RESENDS_AN_HOUR}::int] + interval '1 hour' - clock_timestamp()) * 1000)::float8
             as ms
      from webhook_deliveries where id = ${deliveryId}`;
  return Math.max(0, oldest?.ms ?? 0);
}

/**
 * Sends any delivery again at an operator's word, also one that was never to be sent because its
 * organization was suspended then.
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
    const { organizationId, state: from } = row;
    const details = { from, resends: outcome.delivery.resends };
    await recordAudit(tx, by, {
      action: 'webhooks.resend',
      organizationId,
      subject: deliveryId,
      details,
    });
    return outcome;
  });
}

/**
 * Sends everything again that failed for an organization within a time, the oldest first. Safe to
 * repeat: what is on its way has not failed.
 * @param what.until leaves out what failed later: whoever asks until there is no more would not
 * come to an end where what is sent again fails again at once
 * @param what.limit how many at most
 * @returns how many, and whether there are more
 * @throws {Refusal} `organization_missing`, `webhooks_suspended`
 */
export async function resendFailed(
  db: Database,
  by: ChangedBy,
  what: {
    readonly organizationId: string;
    readonly since: Date;
    readonly until: Date;
    readonly limit: number;
  },
): Promise<{ readonly resent: number; readonly more: boolean }> {
  const { organizationId, since, until, limit } = what;
  return await transaction(db, async (tx) => {
    const [organization] = await tx.execute<{ suspended: boolean }>(
      sql`select webhooks_suspended as suspended from organizations where id = ${organizationId}`,
    );
    if (!organization) throw new Refusal('organization_missing');
    if (organization.suspended) throw new Refusal('webhooks_suspended');
    const failed = await tx.execute<{ id: string }>(sql`
      select d.id from webhook_deliveries d join batches b on b.id = d.batch_id
       where d.state = 'failed' and d.decided_at >= ${since.toISOString()}::timestamptz
         and d.decided_at <= ${until.toISOString()}::timestamptz
         and b.organization_id = ${organizationId}
       order by d.decided_at limit ${limit + 1} for update of d`);
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
 * Notes that Temporal has, or was found to have, what makes the attempts of a delivery. A delivery
 * that was sent again in the meantime is left as it is.
 */
export async function noteDeliveryLook(
  db: Database,
  { deliveryId, resends }: { readonly deliveryId: string; readonly resends: number },
): Promise<void> {
  await run(db)`
    update webhook_deliveries set checked_at = greatest(checked_at, clock_timestamp())
     where id = ${deliveryId} and resends = ${resends}`;
}

/**
 * A delivery that could go on. Whether a workflow makes its attempts depends on its round: in the
 * `first` its batch's makes the first attempt; a `new` resend has none, whatever of an older round
 * may be open. One that was `seen` like this before needs its own: its batch's may have been reset,
 * paused or broken.
 */
export interface WaitingDelivery extends DeliveryStart {
  readonly round: 'first' | 'new' | 'seen';
  readonly resends: number;
}

/**
 * Lists deliveries that could go on and that had no completed look for `everyMs`, and resends that
 * were not started for `olderThanMs`. One that waits for its next attempt is listed once that is
 * due. `noteDeliveryLook` marks each as looked at when its look is over. A look that fails, because
 * Temporal is away, is repeated by the next sweep.
 */
export async function listDeliveriesToLookAt(
  db: Database,
  olderThanMs: number,
  everyMs: number,
  limit: number,
): Promise<WaitingDelivery[]> {
  return await run<WaitingDelivery>(db)`
    -- The first bound is the same for every row, so that the index ends the search there.
    select webhook_deliveries.id as "deliveryId", batch_id as "batchId", b.organization_id as "organizationId", resends,
           array(select npi from requests r
                  where r.batch_id = b.id and r.id = coalesce(webhook_deliveries.request_id, r.id) order by position) as npis,
           case when webhook_deliveries.checked_at is not null then 'seen' when resends = 0 then 'first' else 'new' end as round
      from webhook_deliveries join batches b on b.id = batch_id
     where state = 'pending'
       and greatest(webhook_deliveries.checked_at, due_at, webhook_deliveries.created_at)
           < (select clock_timestamp()) - ${span(Math.min(olderThanMs, everyMs))}
       and greatest(webhook_deliveries.checked_at, due_at, webhook_deliveries.created_at) < (select clock_timestamp())
           - case when resends > 0 and webhook_deliveries.checked_at is null then ${span(olderThanMs)} else ${span(everyMs)} end
       -- One that no workflow gets any further is looked at less and less often.
       and coalesce(webhook_deliveries.checked_at
             + least(webhook_deliveries.checked_at - greatest(due_at, webhook_deliveries.created_at), interval '1 hour')
             < clock_timestamp(), true)
       and ${REPORTS_FINAL}
     order by greatest(webhook_deliveries.checked_at, due_at, webhook_deliveries.created_at) limit ${limit}`;
}

type Locked = Awaited<ReturnType<typeof lockDelivery>>;

async function beginRound(tx: Transaction, deliveryIds: readonly string[]): Promise<void> {
  await tx.execute(sql`
    update webhook_deliveries
       set state = 'pending', resends = resends + 1, step = 0, step_at = null, due_at = clock_timestamp(),
           decided_at = null, checked_at = null
     where id = any(${sql.param(deliveryIds)}::text[])`);
}

/** Returns why a delivery cannot be sent again now, or null. */
function obstacleTo(row: NonNullable<Locked>): Exclude<OperatorOutcome, Resent> | null {
  if (row.suspended) return { kind: 'suspended' };
  const isOnItsWay = row.state === 'pending' && (row.leasedMs > 0 || row.dueMs === 0);
  return !row.final || isOnItsWay ? { kind: 'pending' } : null;
}

type Resent = Extract<ResendOutcome, { readonly kind: 'resent' }>;

async function begin(tx: Transaction, deliveryId: string): Promise<Resent> {
  await beginRound(tx, [deliveryId]);
  const reported = await run<{ npi: string }>(tx)`
    select npi from requests r join webhook_deliveries d on d.batch_id = r.batch_id and r.id = coalesce(d.request_id, r.id)
     where d.id = ${deliveryId} order by position`;
  return {
    kind: 'resent',
    delivery: await selectDelivery(tx, deliveryId),
    npis: reported.map(({ npi }) => npi),
  };
}
