import { and, asc, eq, gt, isNull, lte, or, type SQL, sql } from 'drizzle-orm';
import {
  type Database,
  isAhead,
  lasts,
  moment,
  only,
  query,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { type AuditedChange, type ChangedBy, recordAudit } from '../operations/audit.ts';
import { organizations, requests, webhookDeliveries } from '../schema.ts';
import { LEASE_MS } from './admission.ts';
import { lockDelivery, ownsBatch } from './deliveries.ts';
import { type LoggedDelivery, selectDelivery } from './log.ts';

// Resends deliveries. A resent delivery keeps its id, is due now, and starts its retry schedule
// again. The sweep starts its workflow (due.ts).

/** One delivery. */
export interface OneDelivery {
  readonly kind: 'one';
  readonly deliveryId: string;
  /** The batch that the delivery must belong to, and its organization. Null for any. */
  readonly owner: { readonly organizationId: string; readonly batchId: string } | null;
}

/**
 * The deliveries of an organization that failed within a period, the oldest first. Safe to repeat,
 * because a resent delivery is pending and no longer failed.
 */
export interface FailedDeliveries {
  readonly kind: 'failed';
  readonly organizationId: string;
  /** The time of the first failure. */
  readonly since: Date;
  /**
   * The time of the last failure, or null for all. A caller that repeats the resend until nothing is
   * left needs it. If resent deliveries failed again at once, it would never stop without it.
   */
  readonly until: Date | null;
}

/**
 * Pending deliveries that wait for a later attempt, for example after a receiver or our own network
 * was down, in the order of their ids. Deliveries of suspended organizations wait for the end of the
 * suspension, so they are left out.
 */
export interface WaitingDeliveries {
  readonly kind: 'waiting';
  /** Null for all organizations. */
  readonly organizationId: string | null;
  /** The last id of the previous call, or an empty text. */
  readonly after: string;
}

/** The operator who resends, or the customer. Only operators' resends are audited. */
export type ResentBy = ChangedBy | 'customer';

export type ResendOutcome =
  /** `more` is true if more deliveries are selected than one call resends. */
  | {
      readonly kind: 'resent';
      readonly ids: readonly string[];
      readonly more: boolean;
    }
  /** There is no such delivery, or it belongs to another owner. */
  | { readonly kind: 'unknown' }
  /** The delivery is due or being sent, or the result that it reports is not final yet. */
  | { readonly kind: 'pending' }
  /** The organization's webhooks are suspended, or were suspended when the batch was submitted. */
  | { readonly kind: 'suspended' }
  /** The customer has resent the delivery ten times within the last hour. */
  | { readonly kind: 'limited'; readonly waitMs: number };

/** The deliveries that a call resends, or the reason why it resends none. */
type Choice =
  | {
      readonly kind: 'chosen';
      readonly ids: readonly string[];
      readonly more: boolean;
      /** The entry in the audit log. Null if there is nothing to record. */
      readonly audited: AuditedChange | null;
    }
  | Exclude<ResendOutcome, { readonly kind: 'resent' }>;

/**
 * The number of times per hour that a customer may resend one delivery. Each resend has a full
 * schedule of attempts.
 */
const RESENDS_PER_HOUR = 10;

/**
 * The maximum number of deliveries that are resent in one transaction. The limit keeps the number
 * of locked rows small, because the transaction locks the row of each delivery.
 */
const MAX_RESENDS = 500;

/** Tests whether a customer may resend a row of webhook_deliveries by the hourly limit. */
const MAY_RESEND = sql`coalesce(
  customer_resends[${RESENDS_PER_HOUR}::int] <= clock_timestamp() - interval '1 hour'
    or ${isAhead(sql`customer_resends[${RESENDS_PER_HOUR}::int]`)},
  true)`;

/**
 * Resends deliveries, at most 500 per call. A delivery that waits for a later attempt is sent now. A
 * delivery that is being sent is not resent, so a repeated call changes nothing. A customer may
 * resend each delivery ten times an hour. An operator may also resend a delivery that was never
 * sent because its organization was suspended.
 * @throws {Refusal} `organization_missing`; {DatabaseError} 23514 for an actor or a reason that is
 * empty or too long
 */
export async function resend(
  db: Database,
  selection: OneDelivery | FailedDeliveries | WaitingDeliveries,
  by: ResentBy,
): Promise<ResendOutcome> {
  return await transaction(db, async (tx) => {
    const choice = await choose(tx, selection, by);
    if (choice.kind !== 'chosen') return choice;
    const { ids, more, audited } = choice;
    await beginRound(tx, ids);
    if (by === 'customer') {
      await countResends(tx, ids);
    } else if (audited !== null) {
      await recordAudit(tx, by, audited);
    }
    return { kind: 'resent', ids, more };
  });
}

/** Locks the selected deliveries that may be resent. */
async function choose(
  tx: Transaction,
  selection: OneDelivery | FailedDeliveries | WaitingDeliveries,
  by: ResentBy,
): Promise<Choice> {
  switch (selection.kind) {
    case 'one':
      return await chooseOne(tx, selection, by);
    case 'failed':
      return await chooseFailed(tx, selection, by);
    case 'waiting':
      return await chooseWaiting(tx, selection);
    default:
      return selection satisfies never;
  }
}

async function chooseOne(
  tx: Transaction,
  { deliveryId, owner }: OneDelivery,
  by: ResentBy,
): Promise<Choice> {
  // Checks the owner first, in a separate query. A request for another organization's delivery
  // must take as long as for an unknown one, and must not lock it.
  if (owner !== null && !(await ownsBatch(tx, owner.organizationId, owner.batchId)))
    return { kind: 'unknown' };
  const row = await lockDelivery(tx, deliveryId, owner?.batchId);
  if (!row) return { kind: 'unknown' };
  if (row.suspended) return { kind: 'suspended' };
  if (by === 'customer' && row.state === 'none') {
    return { kind: 'suspended' };
  }
  const isOnItsWay = row.state === 'pending' && (row.leasedMs > 0 || row.dueMs === 0);
  if (!row.final || isOnItsWay) return { kind: 'pending' };
  if (by === 'customer') {
    const waitMs = await waitForResend(tx, deliveryId);
    if (waitMs !== null) return { kind: 'limited', waitMs };
  }
  const audited: AuditedChange = {
    action: 'webhooks.resend',
    organizationId: row.organizationId,
    subject: deliveryId,
    details: { from: row.state, resends: row.resends + 1 },
  };
  return { kind: 'chosen', ids: [deliveryId], more: false, audited };
}

async function chooseFailed(
  tx: Transaction,
  selection: FailedDeliveries,
  by: ResentBy,
): Promise<Choice> {
  const { organizationId, since } = selection;
  if (await areSuspended(tx, organizationId)) {
    return { kind: 'suspended' };
  }
  const mayResend = by === 'customer' ? MAY_RESEND : undefined;
  const failed = await tx
    .select({ id: webhookDeliveries.id })
    .from(webhookDeliveries)
    .where(and(hasFailed(selection), mayResend))
    .orderBy(asc(webhookDeliveries.decidedAt))
    .limit(MAX_RESENDS + 1)
    .for('update');
  const ids = failed.slice(0, MAX_RESENDS).map(({ id }) => id);
  const audited: AuditedChange = {
    action: 'webhooks.resend',
    organizationId,
    subject: organizationId,
    details: { since: since.toISOString(), resent: ids.length },
  };
  return { kind: 'chosen', ids, more: failed.length > MAX_RESENDS, audited };
}

async function chooseWaiting(
  tx: Transaction,
  { organizationId, after }: WaitingDeliveries,
): Promise<Choice> {
  const waiting = await tx
    .select({ id: webhookDeliveries.id })
    .from(webhookDeliveries)
    .innerJoin(organizations, eq(organizations.id, webhookDeliveries.organizationId))
    .where(and(isWaiting(organizationId), gt(webhookDeliveries.id, after)))
    .orderBy(asc(webhookDeliveries.id))
    .limit(MAX_RESENDS + 1)
    .for('update', { of: webhookDeliveries });
  const ids = waiting.slice(0, MAX_RESENDS).map(({ id }) => id);
  const more = waiting.length > MAX_RESENDS;
  if (ids.length === 0) {
    return { kind: 'chosen', ids, more, audited: null };
  }
  const audited: AuditedChange = {
    action: 'webhooks.retry',
    organizationId,
    subject: organizationId ?? 'all',
    details: { hastened: ids.length },
  };
  return { kind: 'chosen', ids, more, audited };
}

/**
 * Counts the failed deliveries that an operator's `resend` would resend.
 * @throws {Refusal} `organization_missing`, `webhooks_suspended`
 */
export async function countFailed(
  db: Database,
  selection: FailedDeliveries,
): Promise<number> {
  return await transaction(db, async (tx) => {
    if (await areSuspended(tx, selection.organizationId))
      throw new Refusal('webhooks_suspended');
    return await tx.$count(webhookDeliveries, hasFailed(selection));
  });
}

/**
 * Counts the waiting deliveries that `resend` would make due now.
 * @param organizationId null for all organizations
 */
export async function countWaiting(
  db: Database,
  organizationId: string | null,
): Promise<number> {
  const waiting = await query(db, (tx) =>
    tx
      .select({ n: sql<number>`count(*)::int` })
      .from(webhookDeliveries)
      .innerJoin(organizations, eq(organizations.id, webhookDeliveries.organizationId))
      .where(isWaiting(organizationId)),
  );
  return only(waiting).n;
}

/** Reads a delivery that was just resent, and the NPIs whose results it reports. */
export async function readResent(
  db: Database,
  deliveryId: string,
): Promise<{ readonly delivery: LoggedDelivery; readonly npis: readonly string[] }> {
  const isReported = or(
    isNull(webhookDeliveries.requestId),
    eq(webhookDeliveries.requestId, requests.id),
  );
  return await query(db, async (tx) => {
    const reported = await tx
      .select({ npi: requests.npi })
      .from(webhookDeliveries)
      .innerJoin(
        requests,
        and(eq(requests.batchId, webhookDeliveries.batchId), isReported),
      )
      .where(eq(webhookDeliveries.id, deliveryId))
      .orderBy(requests.position);
    const delivery = await selectDelivery(tx, deliveryId);
    return { delivery, npis: reported.map(({ npi }) => npi) };
  });
}

function hasFailed({ organizationId, since, until }: FailedDeliveries): SQL | undefined {
  return and(
    eq(webhookDeliveries.state, 'failed'),
    sql`decided_at >= ${moment(since)}`,
    until === null ? undefined : lte(webhookDeliveries.decidedAt, until),
    eq(webhookDeliveries.organizationId, organizationId),
  );
}

function isWaiting(organizationId: string | null): SQL | undefined {
  return and(
    eq(webhookDeliveries.state, 'pending'),
    sql`${webhookDeliveries.dueAt} > clock_timestamp()`,
    sql`${lasts(webhookDeliveries.leasedUntil, LEASE_MS)} is not true`,
    eq(organizations.webhooksSuspended, false),
    organizationId === null
      ? undefined
      : eq(webhookDeliveries.organizationId, organizationId),
  );
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
 * Returns the milliseconds until the hourly limit allows the customer's next resend, or null if it
 * allows one now.
 */
async function waitForResend(
  tx: Transaction,
  deliveryId: string,
): Promise<number | null> {
  const found = await tx
    .select({
      ms: sql<number | null>`
        case when not ${MAY_RESEND} then greatest(0,
          (extract(epoch from customer_resends[${RESENDS_PER_HOUR}::int]
             + interval '1 hour' - clock_timestamp()) * 1000)::float8) end`,
    })
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.id, deliveryId));
  return only(found).ms;
}

/** Counts a customer's resends of deliveries. */
async function countResends(
  tx: Transaction,
  deliveryIds: readonly string[],
): Promise<void> {
  await tx.execute(sql`
    update webhook_deliveries
       set customer_resends =
             (clock_timestamp()::timestamptz(3) || customer_resends)[1:${RESENDS_PER_HOUR}::int]
     where id = any(${sql.param(deliveryIds)}::text[])`);
}

/** Makes deliveries due now, and starts their schedules again. */
async function beginRound(
  tx: Transaction,
  deliveryIds: readonly string[],
): Promise<void> {
  await tx.execute(sql`
    update webhook_deliveries
       set state = 'pending', resends = resends + 1, step = 0, step_at = null,
           due_at = clock_timestamp(), decided_at = null, checked_at = null
     where id = any(${sql.param(deliveryIds)}::text[])`);
}
