import { and, eq, isNotNull, sql } from 'drizzle-orm';
import {
  clock,
  type Database,
  ROUNDING_MS,
  span,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { webhookAttempts, webhookDeliveries } from '../schema.ts';
import type { DeliveryState } from '../words.ts';
import { admitToHost, LEASE_MS, type Rests } from './admission.ts';
import { lockDelivery, REPORTS_FINAL } from './deliveries.ts';
import { firstRestMs, type HostHealth, noteHost } from './hosts.ts';
import { giveBackAddresses } from './networks.ts';

// The row of a delivery stores which attempt of the retry schedule is next. So after a crash,
// another worker continues there. A lease on the row keeps two workers from sending the delivery at
// the same time.

/** The right to make one attempt of a delivery. */
export interface Claim {
  readonly deliveryId: string;
  /**
   * How often the delivery had been resent when the attempt was claimed. Each resend starts the
   * retry schedule again. If the delivery is resent during this attempt, the attempt's result is
   * only logged.
   */
  readonly resends: number;
  /** The position of this attempt in the retry schedule, from 0. */
  readonly step: number;
  readonly organizationId: string;
  readonly host: string;
  /** How often the host's breaker had opened when the attempt was admitted. */
  readonly era: number;
  /**
   * Networks from which the host has responded 2xx to this organization before, such as
   * 192.0.2.7/32.
   */
  readonly provenNetworks: readonly string[];
  /**
   * The time of the claim by PostgreSQL's clock. A worker's clock may be minutes off, and receivers
   * would reject a wrong timestamp.
   */
  readonly at: Date;
}

/**
 * The result of `claimDelivery`. `attempt`: make the attempt now. `over`: the delivery is already
 * decided. `wait`: make no attempt now, because of `why`, and try to claim again after `afterMs`.
 * Waiting does not count as an attempt.
 */
export type Claimed =
  | { readonly kind: 'attempt'; readonly claim: Claim }
  | { readonly kind: 'over'; readonly state: Exclude<DeliveryState, 'pending'> }
  | {
      readonly kind: 'wait';
      readonly why:
        | 'not_final'
        | 'not_due'
        | 'in_flight'
        | 'suspended'
        | 'host_away'
        | 'no_room';
      readonly afterMs: number;
    };

/**
 * The effect of an attempt on its delivery: the delivery ends, or waits `afterMs` for the next
 * attempt.
 */
export type AttemptOutcome =
  | { readonly state: 'delivered' | 'failed' }
  | { readonly state: 'pending'; readonly afterMs: number };

/** Milliseconds between two checks of whether an organization's webhooks are still suspended. */
const SUSPENDED_MS = 300_000;
/**
 * Returned if the request or batch of the delivery is not final yet. This happens only if the
 * workflow was started too early, by hand or by mistake.
 */
const NOT_FINAL = { kind: 'wait', why: 'not_final', afterMs: 60_000 } as const;

export interface WebhookRules {
  /** The retry schedule: for each attempt, the milliseconds after the previous one. */
  readonly webhookScheduleMs: readonly number[];
  /** The longest wait for a host that is away, in milliseconds. */
  readonly webhookLongestRestMs: number;
}

/**
 * Claims the next attempt of a delivery, or returns the reason to wait: the reported result is not
 * final, the attempt is not due, the delivery is being sent, its organization's webhooks are
 * suspended, its host's breaker is open, or no slot is free. Waiting does not change the
 * delivery's place in the retry schedule, except while its host is away.
 * @throws {Refusal} `delivery_missing` for an unknown id
 */
export async function claimDelivery(
  db: Database,
  deliveryId: string,
  { webhookScheduleMs, webhookLongestRestMs }: WebhookRules,
): Promise<Claimed> {
  const rests = {
    firstMs: firstRestMs(webhookScheduleMs),
    longestMs: webhookLongestRestMs,
  };
  return await transaction(db, async (tx) => {
    const row = await lockDelivery(tx, deliveryId);
    if (!row) throw new Refusal('delivery_missing');
    const obstacle = obstacleTo(row, webhookScheduleMs, rests);
    if (obstacle !== null) return obstacle;
    if (row.suspended) return await waitForResumption(tx, row);
    const host = URL.parse(row.url ?? '')?.host ?? '';
    const key = { organizationId: row.organizationId, host };
    const isLast = row.step >= webhookScheduleMs.length - 1;
    const admission = await admitToHost(tx, key, row.step === 0 || isLast, rests);
    if (admission.kind === 'go') {
      return await lease(tx, row, host, admission);
    }
    if (admission.why === 'host_away') {
      const place = advance(row.step, row.stepAt, await clock(tx), webhookScheduleMs);
      await putOff(tx, deliveryId, place, admission.afterMs);
    } else {
      await hideFromSweep(tx, deliveryId, admission.afterMs);
    }
    return admission;
  });
}

type Locked = NonNullable<Awaited<ReturnType<typeof lockDelivery>>>;

/** Returns why a delivery cannot be sent now by its own row, or null if it can. */
function obstacleTo(
  row: Locked,
  scheduleMs: readonly number[],
  rests: Rests,
): Exclude<Claimed, { kind: 'attempt' }> | null {
  if (row.state !== 'pending') {
    return { kind: 'over', state: row.state };
  }
  if (!row.final) return NOT_FINAL;
  if (row.leasedMs > 0) {
    return { kind: 'wait', why: 'in_flight', afterMs: row.leasedMs };
  }
  // A longer wait was stored before the clock was set back, or by a longer schedule.
  const longestMs = longestWaitMs(row, scheduleMs, rests) + ROUNDING_MS;
  if (row.dueMs > 0 && row.dueMs <= longestMs)
    return { kind: 'wait', why: 'not_due', afterMs: row.dueMs };
  return null;
}

/** Waits while webhooks are suspended. The retry schedule does not advance. */
async function waitForResumption(
  tx: Transaction,
  { id, step }: Locked,
): Promise<Claimed> {
  await putOff(tx, id, { step, stepAt: null }, SUSPENDED_MS);
  return { kind: 'wait', why: 'suspended', afterMs: SUSPENDED_MS };
}

/**
 * Sets checked_at to a time in the future, so that the sweep skips the delivery until its turn.
 * Otherwise the sweep would spend all its time on waiting deliveries.
 */
async function hideFromSweep(
  tx: Transaction,
  deliveryId: string,
  afterMs: number,
): Promise<void> {
  await tx
    .update(webhookDeliveries)
    .set({ checkedAt: sql`clock_timestamp() + ${span(afterMs)}` })
    .where(eq(webhookDeliveries.id, deliveryId));
}

/** Takes the lease for an admitted attempt, unless the reported result is no longer final. */
async function lease(
  tx: Transaction,
  { id, resends, step, organizationId }: Locked,
  host: string,
  { era, provenNetworks }: Pick<Claim, 'era' | 'provenNetworks'>,
): Promise<Claimed> {
  const [claimed] = await tx
    .update(webhookDeliveries)
    .set({
      leasedUntil: sql`clock_timestamp() + ${span(LEASE_MS)}`,
      leasedHost: host,
    })
    .where(and(eq(webhookDeliveries.id, id), REPORTS_FINAL))
    .returning({ at: sql<Date>`clock_timestamp()` });
  if (!claimed) return NOT_FINAL;
  const { at } = claimed;
  const claim = {
    deliveryId: id,
    resends,
    step,
    organizationId,
    host,
    era,
    provenNetworks,
    at,
  };
  return { kind: 'attempt', claim };
}

/**
 * Returns the longest time that a delivery may still wait by the rule that set the time of its next
 * attempt: a suspension, the schedule, or an unavailable host. A receiver may ask for twice the
 * scheduled wait (`delayBefore`).
 */
function longestWaitMs(
  { step, stepAt, stepMs, dueMs }: Locked,
  scheduleMs: readonly number[],
  rests: Rests,
): number {
  if (stepAt === null) return SUSPENDED_MS;
  const isScheduled = dueMs - stepMs < ROUNDING_MS;
  if (isScheduled) return 2 * (scheduleMs[step] ?? 0);
  // A delivery begins to wait for its host when its attempt is due. If that is in the future, the
  // clock was set back since then.
  if (stepMs > ROUNDING_MS) return 0;
  return Math.max(rests.firstMs, rests.longestMs);
}

/**
 * Gives a claim back, because no attempt was made.
 * @param addresses the addresses for which `admitToAddresses` has already counted the attempt
 */
export async function releaseClaim(
  db: Database,
  claim: Claim,
  addresses: readonly string[],
): Promise<void> {
  await transaction(db, async (tx) => {
    const [held] = await tx
      .update(webhookDeliveries)
      .set({ leasedUntil: null })
      .where(
        and(
          eq(webhookDeliveries.id, claim.deliveryId),
          eq(webhookDeliveries.resends, claim.resends),
          isNotNull(webhookDeliveries.leasedUntil),
        ),
      )
      .returning({ id: webhookDeliveries.id });
    if (held) {
      await giveBackAddresses(tx, claim.organizationId, addresses);
    }
  });
}

/**
 * Milliseconds between two checks of a delivery whose secret cannot be decrypted. An operator has
 * to fix this and then restart the workers.
 */
const UNREADABLE_MS = 60_000;

/**
 * Defers a delivery because its signing secret cannot be decrypted. Nothing was sent, so its
 * schedule does not advance. The log gets an entry with this reason, unless the newest entry
 * already has it.
 * @returns milliseconds until the next check
 */
export async function holdUnreadable(db: Database, claim: Claim): Promise<number> {
  const { deliveryId, resends, step, at: startedAt } = claim;
  await transaction(db, async (tx) => {
    const row = await lockDelivery(tx, deliveryId);
    if (row?.state !== 'pending' || row.resends !== resends) return;
    const [known] = await tx
      .select({ n: webhookAttempts.n })
      .from(webhookAttempts)
      .where(
        and(
          eq(webhookAttempts.deliveryId, deliveryId),
          eq(webhookAttempts.n, row.attempts),
          eq(webhookAttempts.reason, 'secret_unreadable'),
        ),
      );
    let { attempts } = row;
    if (!known) {
      attempts += 1;
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
 * Adds an attempt to the delivery's log, and updates the delivery (its state or its next place in
 * the schedule) and the health of its host. If the delivery was decided or resent in the meantime,
 * the attempt is only logged. Does nothing if its organization was erased. Safe to repeat, because
 * the start time identifies an attempt.
 * @param health null if no request reached the host
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
    // This needs a separate statement, because the statement that locked the delivery does not see
    // an attempt that another worker has just written.
    const [recorded] = await tx
      .select({ n: webhookAttempts.n })
      .from(webhookAttempts)
      .where(
        and(
          eq(webhookAttempts.deliveryId, deliveryId),
          eq(webhookAttempts.startedAt, attempt.startedAt),
        ),
      );
    // The receiver's response and its host would be left in an erased organization.
    if (recorded || row.isErased) return;
    const n = row.attempts + 1;
    await tx.insert(webhookAttempts).values({ deliveryId, n, ...attempt });
    const isOpen = row.state === 'pending' && row.resends === resends;
    const changes = isOpen ? await changesBy(tx, outcome, step) : {};
    await tx
      .update(webhookDeliveries)
      .set({ attempts: n, leasedUntil: null, ...changes })
      .where(eq(webhookDeliveries.id, deliveryId));
    if (health) await noteHost(tx, claim, health);
  });
}

/**
 * Returns the columns of a delivery that an attempt changes: its final state, or its next attempt.
 */
async function changesBy(tx: Transaction, outcome: AttemptOutcome, step: number) {
  if (outcome.state === 'pending') {
    const dueAt = sql`clock_timestamp() + ${span(outcome.afterMs)}`;
    return { state: outcome.state, stepAt: dueAt, dueAt, step: step + 1 };
  }
  return { state: outcome.state, stepAt: null, dueAt: null, decidedAt: await clock(tx) };
}

/**
 * Returns the place in the retry schedule of a delivery whose host is away. If an attempt is
 * deferred past the time of the next attempt, both become one attempt. The last attempt is never
 * skipped.
 */
function advance(
  step: number,
  stepAt: Date | null,
  now: Date,
  scheduleMs: readonly number[],
) {
  let place = { step, stepAt: stepAt ?? now };
  for (;;) {
    const nextMs = scheduleMs[place.step + 1];
    if (nextMs === undefined || place.stepAt.getTime() + nextMs > now.getTime())
      return place;
    place = { step: place.step + 1, stepAt: new Date(place.stepAt.getTime() + nextMs) };
  }
}

async function putOff(
  tx: Transaction,
  deliveryId: string,
  { step, stepAt }: { readonly step: number; readonly stepAt: Date | null },
  afterMs: number,
): Promise<void> {
  await tx
    .update(webhookDeliveries)
    .set({ step, stepAt, dueAt: sql`clock_timestamp() + ${span(afterMs)}` })
    .where(eq(webhookDeliveries.id, deliveryId));
}
