import { sql } from 'drizzle-orm';
import { type Database, run, span } from '../connection/client.ts';
import { type DoctorRules, GRACE, type Pass } from './check.ts';
import GUARDED from './guarded.json' with { type: 'json' };

/**
 * Returns the checks of batches, uploads, deliveries, and Idempotency-Keys, of the triggers,
 * constraints, and indexes that protect the data, of the rights of the roles, and of the settings
 * that the metrics of PostgreSQL need (ARCHITECTURE.md, Invariants, S1, S4, W1, I1).
 */
export function workPasses({ webhookScheduleMs }: DoctorRules): Pass[] {
  return [
    BATCHES,
    CLOSED,
    UPLOADS,
    deliveries(webhookScheduleMs),
    IDEMPOTENCY,
    GUARDS,
    RIGHTS,
    SETTINGS,
    STATISTICS,
  ];
}

const BATCHES: Pass = {
  from: sql`
    batches b
    full join (
      select batch_id,
             count(*) as total,
             count(settled_at) as final,
             min(position) as first,
             max(position) as last,
             min(requested_type) as first_type,
             max(requested_type) as last_type
        from requests
       group by batch_id
    ) r on r.batch_id = b.id
    left join (
      select d.batch_id,
             count(*) as total,
             count(*) filter (where d.request_id is null) as of_batch,
             count(*) filter (where r.batch_id = d.batch_id) as of_requests
        from webhook_deliveries d
        left join requests r on r.id = d.request_id
       group by d.batch_id
    ) d on d.batch_id = b.id`,
  subject: sql`coalesce(b.id, r.batch_id)`,
  checks: {
    request_without_batch: sql`b.id is null`,
    batch_total: sql`b.total <> coalesce(r.total, 0)`,
    batch_positions: sql`b.total = r.total and (r.first <> 0 or r.last <> b.total - 1)`,
    batch_requested_type: sql`b.requested_type <> r.first_type or b.requested_type <> r.last_type`,
    batch_completed_count: sql`b.completed_count <> coalesce(r.final, 0)`,
    batch_not_started: sql`b.started_at is null
        and coalesce(b.admitted_at, b.deadline_at) < now() - ${GRACE}`,
    // A unique constraint makes sure that the deliveries of a batch have different requests.
    batch_deliveries: sql`case b.webhook_mode
          when 'real-time' then d.total = b.total and d.of_requests = b.total
          when 'batch' then d.total = 1 and d.of_batch = 1
          else d.total is null
        end is not true`,
  },
};

/** Checks that the commands that close and erase organizations have reached their ends. */
const CLOSED: Pass = {
  from: sql`organizations o`,
  subject: sql`o.id`,
  checks: {
    closed_but_open: sql`o.closed_at is not null and o.erased_at is null and exists (
      select from batches b where b.organization_id = o.id and b.status = 'in-progress')`,
    organization_half_erased: sql`o.erased_at is not null and exists (
      select from batches b
       where b.organization_id = o.id
         and (num_nonnulls(b.webhook_url, b.custom_data) > 0
              or exists (
                select from requests r where r.batch_id = b.id and r.email is not null)))`,
  },
};

/**
 * Checks uploads that have parts to submit. While requests of an upload are open, its next part may
 * wait. An upload expires seven days after it was started or continued.
 */
const UPLOADS: Pass = {
  from: sql`
    uploads u
    left join (
      select p.upload_id,
             max(b.updated_at) as moved_at,
             bool_or(b.completed_count < b.total) as is_open
        from upload_parts p
        join batches b on b.id = p.batch_id
       group by p.upload_id) p on p.upload_id = u.id`,
  subject: sql`u.id`,
  checks: {
    upload_stands_still: sql`u.started_at is not null
        and u.submitted_at is null
        and u.stop_reason is null
        and p.is_open is not true
        and greatest(p.moved_at, u.expires_at - interval '7 days')
            < now() - interval '15 minutes'`,
  },
};

/**
 * How late a delivery may be. It is longer than GRACE, because a delivery may wait for minutes
 * while its receiver has the maximum number of concurrent attempts.
 */
export const DELIVERY_GRACE_SECONDS = 900;
const DELIVERY_GRACE = span(DELIVERY_GRACE_SECONDS * 1000);

/**
 * Checks webhook deliveries. A delivery is also reported if its next attempt is too far in the
 * future. A receiver may ask for a delay of at most twice the delay in the schedule (DECISIONS.md,
 * Webhooks, schedule).
 */
function deliveries(scheduleMs: readonly number[]): Pass {
  const steps = sql`${sql.param(scheduleMs.map(String))}::text[]::float8[]`;
  const step = sql`(${steps})[least(d.step + 1, ${scheduleMs.length}::int)]`;
  const dueAt = sql`greatest(b.updated_at, d.due_at, d.leased_until)`;
  return {
    from: sql`
      webhook_deliveries d
      left join batches b on b.id = d.batch_id
      left join organizations g on g.id = d.organization_id
      left join requests r on r.id = d.request_id
      left join (
        select batch_id, max(settled_at) as completed_at from requests group by batch_id
      ) c on c.batch_id = d.batch_id and d.request_id is null
      left join (
        select delivery_id,
               count(*) as made,
               max(n) as last,
               min(started_at) as first_at,
               bool_or(status_code between 200 and 299) as accepted,
               (array_agg(reason order by n desc))[1] as last_reason
          from webhook_attempts
         group by delivery_id
      ) a on a.delivery_id = d.id`,
    subject: sql`d.id`,
    checks: {
      delivery_overdue: sql`d.state = 'pending'
          and b.status = 'completed'
          and not g.webhooks_suspended
          and (${dueAt} + ${DELIVERY_GRACE} < now()
                 and coalesce(d.checked_at <= now() - interval '1 minute', true)
               or d.due_at > now() + make_interval(secs => 2 * ${step} / 1000) + ${DELIVERY_GRACE})`,
      delivery_secret_unreadable: sql`d.state = 'pending' and a.last_reason = 'secret_unreadable'`,
      delivery_of_other_organization: sql`b.organization_id <> d.organization_id`,
      delivered_without_2xx: sql`d.state = 'delivered'
          and d.forgotten < d.attempts
          and a.accepted is not true`,
      delivery_attempts: sql`d.attempts <> coalesce(a.last, d.attempts)
          or d.attempts - d.forgotten <> coalesce(a.made, 0)`,
      delivery_too_early: sql`a.made > 0 and case
          when d.request_id is null then b.status <> 'completed' or a.first_at < c.completed_at
          else r.settled_at is null or a.first_at < r.settled_at
        end`,
    },
  };
}

const IDEMPOTENCY: Pass = {
  from: sql`
    idempotency_keys i
    left join batches b on b.id = substring(i.response from '"batch_id":"([^"]+)"')`,
  subject: sql`concat_ws(
      ' ', i.organization_id, i.path,
      to_char(i.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))`,
  checks: {
    idempotency_without_response: sql`i.response is null`,
    idempotency_of_other_batch: sql`i.response is not null
        and b.organization_id is distinct from i.organization_id`,
  },
};

const GUARDS: Pass = {
  from: sql`(
    select g.name, bool_and(g.works) as works
      from (
        select unnest(${sql.param(GUARDED)}::text[]) as name, null::boolean as works
        union all
        select t.tgname, t.tgenabled in ('O', 'A')
          from pg_trigger t join pg_class c on c.oid = t.tgrelid
         where c.relnamespace = current_schema()::regnamespace and not t.tgisinternal
        union all
        select conname, convalidated
          from pg_constraint
         where connamespace = current_schema()::regnamespace
        union all
        select c.relname, i.indisvalid
          from pg_index i join pg_class c on c.oid = i.indexrelid
         where c.relnamespace = current_schema()::regnamespace
      ) g group by g.name) g`,
  subject: sql`g.name`,
  checks: {
    guard_missing: sql`g.works is not true`,
  },
};

const RIGHTS: Pass = {
  from: sql`(select * from granted_rights except select * from rights) gone`,
  subject: sql`concat_ws(' ', role, privilege, name)`,
  checks: {
    right_missing: sql`true`,
  },
};

const SETTINGS: Pass = {
  from: sql`pg_settings`,
  subject: sql`name`,
  checks: {
    autovacuum_off: sql`name in ('autovacuum', 'track_counts') and setting = 'off'`,
  },
};

const STATISTICS: Pass = {
  from: sql`unnest(array['npe_worker', 'npe_operator']) name`,
  subject: sql`name`,
  checks: {
    statistics_hidden: sql`not pg_has_role(name, 'pg_read_all_stats', 'member')`,
  },
};

/** Returns those of the given ids that are not the id of a batch. */
export async function listUnknownBatches(
  db: Database,
  ids: readonly string[],
): Promise<string[]> {
  const rows = await run<{ id: string }>(db)`
    select id
      from unnest(${sql.param(ids)}::text[]) id
     where not exists (select from batches b where b.id = id.id)`;
  return rows.map(({ id }) => id);
}

/**
 * Lists the requests that the sweep failed because of their deadline, with their organizations.
 * @param days how far back
 */
export async function listFailedAtDeadline(
  db: Database,
  days: number,
): Promise<{ readonly id: string; readonly organizationId: string }[]> {
  return await run<{ id: string; organizationId: string }>(db)`
    select id, organization_id as "organizationId"
      from requests
     where status = 'failed'
       and reason = 'deadline'
       and settled_at > now() - make_interval(days => ${days}::int)
     order by id`;
}

const OPEN = sql`b.completed_count < b.total`;

/**
 * The rows whose workflows the doctor looks up in Temporal. Each query returns the ids of rows in
 * one state, and the time since when each row has been in that state.
 */
const WORK = {
  /**
   * Batches with an open request, and deliveries whose next attempt is due. Their workflows should
   * have been started at least 60 s ago, so they must be running (ARCHITECTURE.md, Invariants, S4).
   */
  unfinished: sql`
    select b.id, b.created_at as since from batches b
     where b.started_at < clock_timestamp() - ${GRACE}
       and ${OPEN}
    union all
    -- While a delivery waits for its next attempt, it needs no workflow. The sweep starts the
    -- workflow when the attempt is due.
    select d.id, final.at from webhook_deliveries d
     cross join lateral (
       select max(r.settled_at) as at, count(*) = count(r.settled_at) as all_settled
         from requests r
        where r.batch_id = d.batch_id and (d.request_id is null or r.id = d.request_id)) final
     where d.state = 'pending'
       and final.all_settled
       and greatest(final.at, d.due_at) < clock_timestamp() - ${GRACE}`,
  /**
   * Batches that finished at least two minutes ago, so that their workflows must be closed. The
   * time is two minutes, because a workflow that missed the signal of a settlement checks its batch
   * only 60 s after the deadline. Batches that still have a delivery without an attempt are
   * excluded.
   */
  over: sql`
    select b.id, b.created_at as since from batches b
     where b.updated_at < clock_timestamp() - 2 * ${GRACE} and not ${OPEN}
       and not exists (
         select from webhook_deliveries d
          where d.batch_id = b.id and d.state = 'pending' and d.attempts = 0 and d.resends = 0)`,
  /**
   * Requests that have been final for at least 60 s, so that their lookup workflows must be closed.
   */
  final: sql`
    select r.id, r.settled_at as since
      from requests r
     where r.settled_at < clock_timestamp() - ${GRACE}`,
};

/**
 * Lists the ids of one kind of WORK, the oldest first.
 * @param among null to list all ids, otherwise only these ids are listed
 */
export async function listWork(
  db: Database,
  what: keyof typeof WORK,
  among: readonly string[] | null,
): Promise<string[]> {
  let within = sql`true`;
  if (among !== null) {
    const ids = sql`jsonb_array_elements_text(${JSON.stringify(among)}::jsonb)`;
    within = sql`w.id in (select ${ids})`;
  }
  const rows = await run<{ id: string }>(db)`
    select w.id from (${WORK[what]}) w where ${within} order by w.since`;
  return rows.map(({ id }) => id);
}
