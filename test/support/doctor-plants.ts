import { type SQL, sql } from 'drizzle-orm';
import { newId } from '../../db/connection/ids.ts';
import type { Life } from './doctor-life.ts';

/** A corruption, and the only finding that the doctor has to report for it. */
export interface Plant {
  readonly statements: readonly SQL[];
  /** The prefix of the reported ID, or a query for the ID. */
  readonly subject: string | SQL;
}

const NO_ID = newId('req');
const A_LOOKUP = newId('lkp');
const ANOTHER_LOOKUP = newId('lkp');
/** Makes the balances follow the corrupted ledger, as if it had been written that way. */
const REBALANCE = sql`
  update credit_balances b set total = e.total, available = e.available, held = e.held, used = e.used
    from (select organization_id, -sum(granted) as total, sum(available) as available, sum(held) as held, sum(used) as used
            from ledger_entries group by organization_id) e
   where e.organization_id = b.organization_id`;

/** Makes the usage follow the corrupted requests. */
export const RECOUNT = [
  sql`delete from daily_usage`,
  sql`insert into daily_usage (organization_id, day, requested_type, found, replayed, not_found, failed, credits_charged)
    select organization_id, date(settled_at at time zone 'UTC'), requested_type, count(nullif(credits_used, 0)),
           count(*) filter (where replayed), count(*) filter (where status = 'not_found'),
           count(*) filter (where status = 'failed'), sum(credits_used)
      from requests where settled_at is not null group by 1, 2, 3`,
];

/** Returns one corruption per check, by the check's code. */
export function plantsIn(life: Life): Readonly<Record<string, Plant>> {
  const {
    organizationId,
    otherOrganizationId,
    stored,
    replayed,
    bulk,
    open,
    told,
    telling,
    running,
  } = life;
  const [charged, late = '', notFound = '', failed = ''] = bulk.requestIds;
  const [opened] = open.requestIds;
  const [atOnce] = stored.requestIds;
  const post = (requestId: string | null, kind: string, amount: number) =>
    sql`insert into ledger_entries (organization_id, request_id, kind, amount)
        values (${organizationId}, ${requestId}, ${kind}, ${amount})`;
  const deleteEntry = (requestId: string, kind: string) =>
    sql`delete from ledger_entries where request_id = ${requestId} and kind = ${kind}`;
  const upload = (id: string, age: string, stopReason: string | null) =>
    sql`insert into uploads (id, organization_id, api_key_id, file_name, content, started_at, checked_at, npi_column,
                             requested_type, stop_reason, expires_at)
        values (${id}, ${organizationId}, 'key_x', 'f.csv', '', now(), now(), 0, 'any', ${stopReason},
                now() - ${age}::interval + interval '7 days')`;
  const entryOf = (requestId: string, kind: string) =>
    sql`select id::text from ledger_entries where request_id = ${requestId} and kind = ${kind}`;
  const money: Record<string, Plant> = {
    balance_differs: {
      statements: [
        sql`update credit_balances set total = total + 1, available = available + 1
             where organization_id = ${organizationId}`,
      ],
      subject: organizationId,
    },
    balance_was_negative: {
      statements: [
        sql`with removed as (delete from ledger_entries
                              where organization_id = ${organizationId} and kind = 'grant' returning amount)
            insert into ledger_entries (organization_id, kind, amount)
            select ${organizationId}, 'grant', amount from removed`,
      ],
      subject: entryOf(atOnce, 'hold'),
    },
    hold_without_request: {
      statements: [post(NO_ID, 'hold', 1), post(NO_ID, 'release', 1)],
      subject: NO_ID,
    },
    request_without_hold: {
      statements: [deleteEntry(notFound, 'hold'), deleteEntry(notFound, 'release')],
      subject: notFound,
    },
    charge_without_result: {
      statements: [
        sql`update ledger_entries set kind = 'charge' where request_id = ${failed} and kind = 'release'`,
        sql`update ledger_entries e set created_at = r.settled_at from requests r
             where r.id = e.request_id and r.id = ${failed} and e.kind = 'charge'`,
        REBALANCE,
      ],
      subject: failed,
    },
    result_without_charge: {
      statements: [deleteEntry(charged, 'charge'), REBALANCE],
      subject: charged,
    },
    release_without_reason: {
      statements: [post(opened, 'release', 1), REBALANCE],
      subject: opened,
    },
    hold_not_settled: {
      statements: [deleteEntry(failed, 'release'), REBALANCE],
      subject: failed,
    },
    settlement_amount: {
      statements: [
        sql`update ledger_entries set amount = 2 where request_id = ${failed} and kind = 'release'`,
        REBALANCE,
      ],
      subject: failed,
    },
    hold_amount: {
      statements: [
        sql`update ledger_entries set amount = 2 where request_id = ${failed}`,
      ],
      subject: failed,
    },
    entry_of_other_organization: {
      statements: [
        sql`update ledger_entries set organization_id = ${otherOrganizationId} where request_id = ${failed}`,
      ],
      subject: failed,
    },
    charge_time: {
      statements: [
        sql`update ledger_entries set created_at = created_at - interval '1 millisecond'
             where request_id = ${charged} and kind = 'charge'`,
      ],
      subject: charged,
    },
    usage_differs: {
      statements: [
        sql`update daily_usage set replayed = replayed + 1
             where organization_id = ${organizationId} and requested_type = 'any'`,
      ],
      subject: organizationId,
    },
    request_overdue: {
      statements: [
        sql`update requests set deadline_at = now() - interval '61 seconds' where id = ${opened}`,
        // This one is still within the grace period.
        sql`update requests set deadline_at = now() - interval '59 seconds' where id = ${open.requestIds[1] ?? ''}`,
      ],
      subject: opened,
    },
    completed_late: {
      statements: [
        sql`update requests set deadline_at = settled_at - interval '1 millisecond' where id in (${charged}, ${failed})`,
      ],
      subject: charged,
    },
  };
  const promises: Record<string, Plant> = {
    charged_twice: {
      statements: [
        sql`update requests set replayed = false, settled_at = settled_at + interval '1 second' where id = ${late}`,
        sql`update ledger_entries set kind = 'charge' where request_id = ${late} and kind = 'release'`,
        sql`update ledger_entries e set created_at = r.settled_at from requests r
             where r.id = e.request_id and r.id = ${late} and e.kind = 'charge'`,
        sql`update entitlements e set request_id = r.id, charged_at = r.settled_at from requests r
             where r.id = ${late} and e.request_id = ${charged}`,
        REBALANCE,
        ...RECOUNT,
      ],
      subject: late,
    },
    entitlement_unearned: {
      statements: [
        sql`update entitlements set request_id = ${failed} where request_id = ${charged}`,
      ],
      subject: `${organizationId} 2000000036 professional`,
    },
    entitlement_missing: {
      statements: [sql`delete from entitlements where request_id = ${charged}`],
      subject: charged,
    },
    replay_without_charge: {
      statements: [
        sql`update requests set settled_at = settled_at - interval '31 days' where id = ${atOnce}`,
        sql`update ledger_entries set created_at = created_at - interval '31 days' where request_id = ${atOnce}`,
        sql`update entitlements set charged_at = charged_at - interval '31 days' where request_id = ${atOnce}`,
        ...RECOUNT,
      ],
      subject: replayed.requestIds[0],
    },
  };
  const work: Record<string, Plant> = {
    request_without_batch: {
      statements: [sql`delete from batches where id = ${open.batchId}`],
      subject: open.batchId,
    },
    batch_total: {
      statements: [sql`update batches set total = total + 1 where id = ${bulk.batchId}`],
      subject: bulk.batchId,
    },
    batch_positions: {
      statements: [sql`update requests set position = 59 where id = ${failed}`],
      subject: bulk.batchId,
    },
    batch_requested_type: {
      statements: [
        sql`update batches set requested_type = 'professional' where id = ${bulk.batchId}`,
      ],
      subject: bulk.batchId,
    },
    batch_completed_count: {
      statements: [
        sql`update batches set completed_count = completed_count - 1 where id = ${bulk.batchId}`,
      ],
      subject: bulk.batchId,
    },
    batch_not_started: {
      statements: [
        sql`update batches set started_at = null, admitted_at = now() - interval '61 seconds' where id = ${open.batchId}`,
        // This one waits for its turn, and its deadline is within the grace period.
        sql`update batches set started_at = null, admitted_at = null, deadline_at = now() - interval '59 seconds' where id = ${bulk.batchId}`,
      ],
      subject: open.batchId,
    },
    upload_stands_still: {
      statements: [
        upload('upl_still', '16 minutes', null),
        // These uploads are healthy: one has just advanced, one waits for its requests, and one is
        // stopped.
        upload('upl_moved', '14 minutes', null),
        upload('upl_waits', '16 minutes', null),
        sql`insert into upload_parts (upload_id, position, npis, batch_id)
            values ('upl_waits', 0, '{2000000010}', ${open.batchId})`,
        sql`update batches set updated_at = now() - interval '16 minutes' where id = ${open.batchId}`,
        upload('upl_stopped', '16 minutes', 'credits'),
      ],
      subject: 'upl_still',
    },
    closed_but_open: {
      statements: [
        sql`update organizations set closed_at = now(), suspended = true, webhooks_suspended = true
             where id = ${organizationId}`,
      ],
      subject: organizationId,
    },
    organization_half_erased: {
      statements: [
        sql`update organizations
               set closed_at = now(), erased_at = now(), suspended = true, webhooks_suspended = true
             where id = ${organizationId}`,
      ],
      subject: organizationId,
    },
    batch_deliveries: {
      // The number of deliveries stays right, but one belongs to another batch's request.
      statements: [
        sql`update webhook_deliveries set request_id = ${failed} where id = ${telling.deliveries[0] ?? ''}`,
      ],
      subject: telling.batchId,
    },
    delivery_overdue: {
      statements: [
        sql`update batches set updated_at = now() - interval '20 minutes' where id = ${telling.batchId}`,
        sql`update organizations set webhooks_suspended = false`,
        // This one is still within the grace period.
        sql`update webhook_deliveries set due_at = now() - interval '14 minutes' where id = ${telling.deliveries[1] ?? ''}`,
      ],
      subject: telling.deliveries[0] ?? '',
    },
    delivered_without_2xx: {
      statements: [
        sql`update webhook_attempts set status_code = 302 where delivery_id = ${told.delivery}`,
      ],
      subject: told.delivery,
    },
    delivery_secret_unreadable: {
      statements: [
        sql`insert into webhook_attempts (delivery_id, n, started_at, duration_ms, reason)
            values (${telling.deliveries[0] ?? ''}, 1, clock_timestamp(), 0, 'secret_unreadable')`,
        sql`update webhook_deliveries set attempts = 1 where id = ${telling.deliveries[0] ?? ''}`,
      ],
      subject: telling.deliveries[0] ?? '',
    },
    delivery_of_other_organization: {
      statements: [
        sql`update webhook_deliveries set organization_id = 'org_00000000000000000000000000' where id = ${told.delivery}`,
      ],
      subject: told.delivery,
    },
    delivery_attempts: {
      statements: [
        sql`update webhook_deliveries set attempts = 1 where id = ${told.delivery}`,
      ],
      subject: told.delivery,
    },
    delivery_too_early: {
      statements: [
        sql`insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code)
            values (${running.deliveries[0] ?? ''}, 1, now(), 5, 500)`,
        sql`update webhook_deliveries set attempts = 1 where id = ${running.deliveries[0] ?? ''}`,
      ],
      subject: running.deliveries[0] ?? '',
    },
    idempotency_without_response: {
      statements: [sql`update idempotency_keys set response = null`],
      subject: `${organizationId} /api/v1/email `,
    },
    idempotency_of_other_batch: {
      statements: [
        sql`update idempotency_keys set organization_id = ${otherOrganizationId}`,
      ],
      subject: `${otherOrganizationId} /api/v1/email `,
    },
    guard_missing: {
      statements: [
        sql`alter table ledger_entries disable trigger ledger_entries_append_only`,
      ],
      subject: 'ledger_entries_append_only',
    },
    right_missing: {
      statements: [sql`revoke delete on stored_emails from npe_worker`],
      subject: 'npe_worker delete stored_emails',
    },
    autovacuum_off: {
      statements: [sql`set local track_counts = off`],
      subject: 'track_counts',
    },
    statistics_hidden: {
      statements: [sql`revoke pg_read_all_stats from npe_worker`],
      subject: 'npe_worker',
    },
  };
  const lookup = (id: string, npi: string, age: string, closed: boolean) =>
    sql`insert into lookups (id, npi, requested_type, opened_at, closed_at)
        values (${id}, ${npi}, 'any', now() - ${age}::interval, ${closed ? sql`now()` : null})`;
  const wait = (lookupId: string) =>
    sql`update requests set lookup_id = ${lookupId}, status = 'in-progress', started_at = now() where id = ${opened}`;
  const lookups: Record<string, Plant> = {
    lookup_left_open: {
      statements: [
        lookup(A_LOOKUP, '2000000010', '61 seconds', false),
        // A lookup within the grace period, and one with a waiting request.
        lookup(newId('lkp'), '2000000028', '59 seconds', false),
        lookup(ANOTHER_LOOKUP, '2000000069', '61 seconds', false),
        wait(ANOTHER_LOOKUP),
      ],
      subject: A_LOOKUP,
    },
    request_lookup: {
      statements: [
        sql`update requests set status = 'in-progress', started_at = now() where id = ${opened}`,
      ],
      subject: opened,
    },
    lookup_of_other: {
      statements: [lookup(A_LOOKUP, '2000000010', '1 second', true), wait(A_LOOKUP)],
      subject: opened,
    },
    erased_but_held: {
      statements: [
        sql`insert into suppressions (kind, value, origin)
            values ('email', encode(sha256('left@clinic.example'), 'hex'), 'erasure')`,
        sql`insert into stored_emails (npi, email, verdict, source)
            values ('2000000044', 'Left@clinic.example', 'unknown', 'test'),
                   ('2000000044', 'stays@clinic.example', 'unknown', 'test')`,
      ],
      subject: 'directory 2000000044',
    },
    sandbox_not_apart: {
      statements: [
        sql`insert into lookups (id, npi, requested_type, opened_at, closed_at, turn_of, turn_until)
            values ('turn of a test', '2000000044', 'any', now(), now(), ${life.tests[0]}, now())`,
      ],
      subject: life.tests[0] ?? '',
    },
  };
  return { ...money, ...promises, ...lookups, ...work };
}
