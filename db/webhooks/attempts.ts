import { eq, sql } from 'drizzle-orm';
import { clock, type Database, run, span, type Transaction, transaction } from '../client.ts';
import { Refusal } from '../errors.ts';
import { webhookAttempts, webhookDeliveries } from '../schema.ts';
import type { DeliveryState } from '../words.ts';
import { lockDelivery, REPORTS_FINAL } from './deliveries.ts';
import { admitToHost, giveBackAddresses, type HostHealth, LEASE_MS, noteHost } from './hosts.ts';

// Where a delivery is in its schedule is a fact of its row, so that whoever looks at it next, after
// whatever crash, goes on from there; a lease on the row keeps two from sending it at once.

/** The right to make one attempt. */
export interface Claim {
  readonly deliveryId: string;
  /**
   * The round it belongs to: a resend meanwhile begins another, which this attempt says nothing of.
   */
  readonly resends: number;
  /** The place in the schedule, from 0. */
  readonly step: number;
  readonly organizationId: string;
  readonly host: string;
  /** Its host's, when the attempt was admitted. */
  readonly era: number;
  /** Where its host has answered 2xx to its organization before, as 192.0.2.7/32. */
  readonly provenNetworks: readonly string[];
  /**
   * When it was taken, by PostgreSQL's clock: a worker's own may be minutes off, and receivers
   * refuse that.
   */
  readonly at: Date;
}

/** `wait`: why no attempt is made now, which does not count as one. */
export type Claimed =
  | { readonly kind: 'attempt'; readonly claim: Claim }
  | { readonly kind: 'over'; readonly state: Exclude<DeliveryState, 'pending'> }
  | {
      readonly kind: 'wait';
      readonly why: 'not_final' | 'not_due' | 'in_flight' | 'suspended' | 'host_away' | 'no_room';
      readonly afterMs: number;
    };

/** What follows from an attempt: the end, or another one. */
export type AttemptOutcome =
  | { readonly state: 'delivered' | 'failed' }
  | { readonly state: 'pending'; readonly afterMs: number };

/** Held deliveries look this often whether their organization is still suspended. */
const SUSPENDED_MS = 300_000;
/** Somebody started it too early, by hand or by mistake. */
const NOT_FINAL = { kind: 'wait', why: 'not_final', afterMs: 60_000 } as const;

/**
 * Takes the right to make the next attempt of a delivery, or says why not now: what it reports is
 * not final, it is not due, it is being sent, its organization is suspended, its host is away, or
 * there is no room. What is put off keeps its place in the schedule.
 * @param rules.webhookScheduleMs milliseconds before each attempt of a round, after the previous
 * one
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function claimDelivery(
  db: Database,
  deliveryId: string,
  { webhookScheduleMs }: { readonly webhookScheduleMs: readonly number[] },
): Promise<Claimed> {
  return await transaction(db, async (tx) => {
    const row = await lockDelivery(tx, deliveryId);
    if (!row) throw new Refusal('delivery_missing');
    const { state, step, stepAt, resends, organizationId } = row;
    if (state !== 'pending') return { kind: 'over', state };
    if (!row.final) return NOT_FINAL;
    if (row.leasedMs > 0) return { kind: 'wait', why: 'in_flight', afterMs: row.leasedMs };
    if (row.dueMs > 0) return { kind: 'wait', why: 'not_due', afterMs: row.dueMs };
    if (row.suspended) {
      // The schedule stands still meanwhile.
      await putOff(tx, deliveryId, { step, stepAt: null }, SUSPENDED_MS);
      return { kind: 'wait', why: 'suspended', afterMs: SUSPENDED_MS };
    }
    const owed = step === 0 || step >= webhookScheduleMs.length - 1;
    const host = URL.parse(row.url ?? '')?.host ?? '';
    const admission = await admitToHost(tx, { organizationId, host }, owed, webhookScheduleMs);
    if (admission.kind === 'wait') {
      const { why, afterMs } = admission;
      if (why === 'host_away') {
        await putOff(
          tx,
          deliveryId,
          advance(step, stepAt, await clock(tx), webhookScheduleMs),
          afterMs,
        );
      } else {
        // Until its turn nobody needs to look after it: else those that wait would keep the sweep
        // from the others.
        await tx.execute(sql`
          update webhook_deliveries set checked_at = clock_timestamp() + ${span(afterMs)} where id = ${deliveryId}`);
      }
      return admission;
    }
    const [claimed] = await tx.execute<{ at: Date }>(sql`
      update webhook_deliveries set leased_until = clock_timestamp() + ${span(LEASE_MS)}, leased_host = ${host}
       where id = ${deliveryId} and ${REPORTS_FINAL} returning clock_timestamp() as at`);
    if (!claimed) return NOT_FINAL;
    const { at } = claimed;
    const { era, provenNetworks } = admission;
    const claim = { deliveryId, resends, step, organizationId, host, era, provenNetworks, at };
    return { kind: 'attempt', claim };
  });
}

/**
 * Gives a claim back that led to no attempt.
 * @param addresses where the attempt was counted
 */
export async function releaseClaim(
  db: Database,
  claim: Claim,
  addresses: readonly string[],
): Promise<void> {
  await transaction(db, async (tx) => {
    const [held] = await run(tx)`
      update webhook_deliveries set leased_until = null
       where id = ${claim.deliveryId} and resends = ${claim.resends} and leased_until is not null returning id`;
    if (held) await giveBackAddresses(tx, addresses);
  });
}

/**
 * How long a delivery waits whose secret cannot be read: operators have to act, and then start the
 * workers again.
 */
const UNREADABLE_MS = 60_000;

/**
 * Puts a delivery off because the secret that signs it cannot be read. Nothing was sent, so its
 * schedule stands still. The log gets one attempt that says so, unless the newest one says so
 * already.
 * @returns milliseconds until the next look
 */
export async function holdUnreadable(db: Database, claim: Claim): Promise<number> {
  const { deliveryId, resends, step, at: startedAt } = claim;
  await transaction(db, async (tx) => {
    const row = await lockDelivery(tx, deliveryId);
    if (row?.state !== 'pending' || row.resends !== resends) return;
    const [known] = await run(tx)`
      select n from webhook_attempts
       where delivery_id = ${deliveryId} and n = ${row.attempts} and reason = 'secret_unreadable'`;
    const attempts = known ? row.attempts : row.attempts + 1;
    if (!known) {
      await tx.insert(webhookAttempts).values({
        deliveryId,
        n: attempts,
        startedAt,
        durationMs: 0,
        reason: 'secret_unreadable',
      });
    }
    await tx
      .update(webhookDeliveries)
      .set({ attempts, leasedUntil: null })
      .where(eq(webhookDeliveries.id, deliveryId));
    await putOff(tx, deliveryId, { step, stepAt: null }, UNREADABLE_MS);
  });
  return UNREADABLE_MS;
}

/**
 * Adds one attempt to the delivery's log, and what follows from it: its state or its next place in
 * the schedule, and the health of its host. A delivery that is decided stays so, and one that was
 * sent again meanwhile goes on: then the attempt is logged and changes nothing else. Safe to
 * repeat: an attempt is known by when it started.
 * @param health null if the host was never asked
 */
export async function recordAttempt(
  db: Database,
  claim: Claim,
  attempt: Omit<typeof webhookAttempts.$inferSelect, 'deliveryId' | 'n'>,
  outcome: AttemptOutcome,
  health: HostHealth | null,
): Promise<void> {
  const { deliveryId, resends, step } = claim;
  await transaction(db, async (tx) => {
    const row = await lockDelivery(tx, deliveryId);
    if (!row) throw new Refusal('delivery_missing');
    // In a statement of its own, under the lock: the one before does not see what another has just
    // written.
    const [recorded] = await tx.execute(sql`
      select n from webhook_attempts
       where delivery_id = ${deliveryId} and started_at = ${attempt.startedAt.toISOString()}::timestamptz`);
    if (recorded) return;
    const n = row.attempts + 1;
    await tx.insert(webhookAttempts).values({ deliveryId, n, ...attempt });
    const isOpen = row.state === 'pending' && row.resends === resends;
    const dueAt =
      outcome.state === 'pending' ? sql`clock_timestamp() + ${span(outcome.afterMs)}` : null;
    const place = dueAt === null ? { decidedAt: await clock(tx) } : { step: step + 1 };
    const follows = isOpen && { state: outcome.state, stepAt: dueAt, dueAt, ...place };
    await tx
      .update(webhookDeliveries)
      .set({ attempts: n, leasedUntil: null, ...follows })
      .where(eq(webhookDeliveries.id, deliveryId));
    if (health) await noteHost(tx, claim, health);
  });
}

/**
 * The schedule's clock runs on while a host is away: an attempt that is put off past the time of
 * the next one falls together with it, down to the last, which is made in any case.
 */
function advance(step: number, stepAt: Date | null, now: Date, scheduleMs: readonly number[]) {
  let place = { step, stepAt: stepAt ?? now };
  for (;;) {
    const nextMs = scheduleMs[place.step + 1];
    if (nextMs === undefined || place.stepAt.getTime() + nextMs > now.getTime()) return place;
    place = { step: place.step + 1, stepAt: new Date(place.stepAt.getTime() + nextMs) };
  }
}

async function putOff(
  tx: Transaction,
  deliveryId: string,
  { step, stepAt }: { readonly step: number; readonly stepAt: Date | null },
  afterMs: number,
): Promise<void> {
  await tx.execute(sql`
    update webhook_deliveries set step = ${step}, step_at = ${stepAt?.toISOString() ?? null}::timestamptz,
           due_at = clock_timestamp() + ${span(afterMs)}
     where id = ${deliveryId}`);
}
