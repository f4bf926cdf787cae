import { and, eq, sql } from 'drizzle-orm';
import { type Database, query, run, span } from '../connection/client.ts';
import { webhookDeliveries } from '../schema.ts';
import { REPORTS_FINAL } from './deliveries.ts';

// Finds deliveries that are due and may have no workflow. The row of a delivery is an outbox entry
// for the workflow that sends it: checked_at is null until that workflow exists.

type Delivery = Readonly<typeof webhookDeliveries.$inferSelect>;

/** The input of the workflow that sends a delivery which no batch's workflow sends. */
export interface DeliveryStart extends Pick<Delivery, 'batchId'> {
  readonly deliveryId: string;
  readonly organizationId: string;
  /** The NPIs whose results the delivery reports. */
  readonly npis: readonly string[];
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
 * - `new`: the delivery was resent. It needs a new workflow, even if an earlier workflow of the
 *   delivery is still running
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
  const leastMs = Math.min(olderThanMs, everyMs);
  return await run<WaitingDelivery>(db)`
    select d.id as "deliveryId",
           d.batch_id as "batchId",
           d.organization_id as "organizationId",
           d.resends,
           array(
             select npi
               from requests r
              where r.batch_id = d.batch_id and r.id = coalesce(d.request_id, r.id)
              order by position) as npis,
           d.round
      from (
        select *,
               greatest(due_at, created_at) as due_since,
               greatest(checked_at, due_at, created_at) as idle_since,
               case
                 when checked_at is not null then 'seen'
                 when resends = 0 then 'first'
                 else 'new'
               end as round
          from webhook_deliveries
         where state = 'pending'
           -- This time is the same for all rows, so that the index scan can end at it.
           and greatest(checked_at, due_at, created_at)
                 < (select clock_timestamp()) - ${span(leastMs)}
           and ${REPORTS_FINAL}
      ) d
     where d.idle_since < clock_timestamp() - case d.round
             when 'new' then ${span(olderThanMs)}
             else ${span(everyMs)}
           end
       -- A delivery is checked again after as long as it had been due at the last check.
       and (d.checked_at is null
            or d.checked_at + least(d.checked_at - d.due_since, interval '1 hour')
                 < clock_timestamp())
     order by d.idle_since
     limit ${limit}`;
}
