import { type SQL, sql } from 'drizzle-orm';
import { span } from '../connection/client.ts';
import type { DoctorRules, Pass } from './check.ts';

/**
 * Returns the checks of balances, ledger entries, usage, entitlements, and replays (ARCHITECTURE.md,
 * Invariants, L1 to L6).
 */
export function ledgerPasses({ replayMs }: DoctorRules): Pass[] {
  const window = span(replayMs);
  return [
    ACCOUNTS,
    HISTORY,
    REQUESTS_AND_ENTRIES,
    USAGE,
    doubleCharges(window),
    entitlements(window),
    replays(window),
  ];
}

const ACCOUNTS: Pass = {
  from: sql`
    organizations o
    full join credit_balances b on b.organization_id = o.id
    full join (
      select organization_id,
             -sum(granted) as total,
             sum(available) as available,
             sum(held) as held,
             sum(used) as used
        from ledger_entries
       group by organization_id
    ) e on e.organization_id = coalesce(o.id, b.organization_id)`,
  subject: sql`coalesce(b.organization_id, e.organization_id, o.id)`,
  checks: {
    balance_differs: sql`b.organization_id is null
        or b.total <> coalesce(e.total, 0)
        or b.available <> coalesce(e.available, 0)
        or b.held <> coalesce(e.held, 0)
        or b.used <> coalesce(e.used, 0)`,
  },
};

const HISTORY: Pass = {
  from: sql`(
    select id, available, sum(available) over (partition by organization_id order by id) as balance
      from ledger_entries) h`,
  subject: sql`h.id::text`,
  checks: {
    balance_was_negative: sql`h.balance < 0 and h.balance - h.available >= 0`,
  },
};

/** True for a request that was completed and charged. */
const charged = sql`(r.status = 'completed' and not r.replayed)`;
const settlements = sql`(e.charges + e.releases)`;

const REQUESTS_AND_ENTRIES: Pass = {
  from: sql`
    requests r
    full join (
      select request_id,
             count(*) filter (where kind = 'hold') as holds,
             count(*) filter (where kind = 'charge') as charges,
             count(*) filter (where kind = 'release') as releases,
             max(amount) filter (where kind = 'hold') as hold_amount,
             max(amount) filter (where kind <> 'hold') as settlement_amount,
             max(created_at) filter (where kind = 'charge') as charged_at,
             min(organization_id) as first_organization,
             max(organization_id) as last_organization
        from ledger_entries
       where request_id is not null
       group by request_id
    ) e on e.request_id = r.id`,
  subject: sql`coalesce(r.id, e.request_id)`,
  checks: {
    hold_without_request: sql`r.id is null`,
    request_without_hold: sql`r.id is not null and coalesce(e.holds, 0) = 0
        and not (r.status = 'completed' and r.replayed and e.request_id is null)`,
    charge_without_result: sql`e.charges > 0 and not ${charged}`,
    result_without_charge: sql`e.holds > 0 and e.charges = 0 and ${charged}`,
    release_without_reason: sql`e.releases > 0
        and (r.settled_at is null or ${charged}) and r.id is not null`,
    hold_not_settled: sql`r.settled_at is not null
        and not ${charged} and e.holds > 0 and ${settlements} = 0`,
    settlement_amount: sql`e.settlement_amount <> e.hold_amount`,
    hold_amount: sql`e.hold_amount <> r.cost`,
    entry_of_other_organization: sql`e.first_organization <> r.organization_id
        or e.last_organization <> r.organization_id`,
    charge_time: sql`e.charged_at <> r.settled_at`,
  },
};

const USAGE: Pass = {
  from: sql`
    daily_usage d
    full join (
      select organization_id,
             (settled_at at time zone 'UTC')::date as day,
             requested_type,
             count(*) filter (where credits_used > 0) as found,
             count(*) filter (where replayed) as replayed,
             count(*) filter (where status = 'not_found') as not_found,
             count(*) filter (where status = 'failed') as failed,
             sum(credits_used) as credits_charged
        from requests
       where settled_at is not null
       group by 1, 2, 3
    ) r using (organization_id, day, requested_type)`,
  subject: sql`concat_ws(' ', organization_id, day, requested_type)`,
  checks: {
    usage_differs: sql`
        -- Requests of sandboxes are deleted, and their sums stay.
        not (is_sandbox(organization_id) and day < current_date - 29)
          and (d.found, d.replayed, d.not_found, d.failed, d.credits_charged)
              is distinct from
              (r.found, r.replayed, r.not_found, r.failed, r.credits_charged)`,
  },
};

// The checks above make sure that each request with `credits_used` has a charge in the ledger, and
// that the charge has the time `settled_at`. The checks below therefore read only the requests and
// not the ledger.

/**
 * Finds charges for an NPI that the organization had already paid for within the replay window (L4
 * and L5).
 */
function doubleCharges(window: SQL): Pass {
  const npi = sql`organization_id, npi`;
  return {
    from: sql`(
      with charge as (
        select id, ${npi}, requested_type, email_type, settled_at
          from requests
         where credits_used > 0
           and (${npi}) in (
             select ${npi} from requests where credits_used > 0 group by ${npi} having count(*) > 1)
      )
      select c.id
        from charge c
       where exists (
         select from charge e
          where e.organization_id = c.organization_id
            and e.npi = c.npi
            and c.requested_type in ('any', e.email_type)
            and (e.settled_at < c.settled_at
                 or (e.settled_at = c.settled_at and e.email_type = c.email_type and e.id < c.id))
            and c.settled_at - e.settled_at <= ${window})) c`,
    subject: sql`c.id`,
    checks: {
      charged_twice: sql`true`,
    },
  };
}

/** Compares entitlements with charged requests. */
function entitlements(window: SQL): Pass {
  return {
    from: sql`
      (select * from requests where credits_used > 0) r
      full join entitlements e on e.request_id = r.id`,
    subject: sql`case
        when e.request_id is null then r.id
        else concat_ws(' ', e.organization_id, e.npi, e.email_type)
      end`,
    checks: {
      entitlement_unearned: sql`e.request_id is not null and (
          r.id is null
          or r.organization_id <> e.organization_id
          or r.npi <> e.npi
          or r.email_type <> e.email_type
          or r.settled_at <> e.charged_at)`,
      entitlement_missing: sql`e.request_id is null
        and r.settled_at >= now() - ${window}
        and not exists (
          select from entitlements x
           where x.organization_id = r.organization_id
             and x.npi = r.npi
             and x.email_type = coalesce(r.email_type, x.email_type)
             and x.charged_at >= r.settled_at)`,
    },
  };
}

/**
 * Finds replays without a charge in the replay window before them. The charged request must have
 * the same address as the replay, unless its address was erased or suppressed later, or the address
 * of the replay was erased. A suppression that was removed since then is read from the audit log.
 */
function replays(window: SQL): Pass {
  const wasSuppressed = sql`exists (
    select from removed s
     where s.at >= r.accepted_at and case s.kind
           when 'npi' then s.value = c.npi
           when 'email' then s.value = encode(sha256(convert_to(lower(c.email), 'UTF8')), 'hex')
           else '.' || split_part(lower(c.email), '@', 2) like '%.' || s.value end)`;
  const withheld = sql`(
    r.erased_at is not null
    or c.erased_at is not null
    or is_suppressed(c.npi, c.email)
    or ${wasSuppressed})`;
  return {
    from: sql`(
      with removed as materialized (
        select at, subject as value, details ->> 'kind' as kind
          from audit_log
         where action = 'suppressions.remove'
      )
      select r.id
        from requests r
       where r.replayed
         and r.test_outcome is distinct from 'replayed'
         -- The charged request of a sandbox may be deleted a day after the replay window ends.
         and (r.test_outcome is null or r.settled_at > now() - interval '1 day')
         and not exists (
           select from requests c
            where c.organization_id = r.organization_id
              and c.npi = r.npi
              and (c.email_type = r.email_type and c.email = r.email or ${withheld})
              and c.credits_used > 0
              and c.settled_at between r.settled_at - ${window} and r.settled_at)) r`,
    subject: sql`r.id`,
    checks: {
      replay_without_charge: sql`true`,
    },
  };
}
