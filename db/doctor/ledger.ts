import { sql } from 'drizzle-orm';
import { span } from '../client.ts';
import type { DoctorRules, Pass } from './check.ts';

/**
 * Balances, the ledger in itself and against the requests, and what is paid once (ARCHITECTURE.md, Invariants, L1 to
 * L5).
 */
export function ledgerPasses(rules: DoctorRules): Pass[] {
  return [ACCOUNTS, ENTRIES, HISTORY, REQUESTS_AND_ENTRIES, ...promises(rules)];
}

const account = sql`coalesce(b.organization_id, e.organization_id, o.id)`;

const ACCOUNTS: Pass = {
  from: sql`
    organizations o
    full join credit_balances b on b.organization_id = o.id
    full join (
      select organization_id, -sum(granted) as total, sum(available) as available, sum(held) as held, sum(used) as used,
             sum(granted + available + held + used) as remainder
        from ledger_entries group by organization_id
    ) e on e.organization_id = coalesce(o.id, b.organization_id)`,
  subject: account,
  checks: [
    {
      code: 'balance_differs',
      title: 'balance is not the sum of its entries',
      explanation: 'The entries are the truth: --fix computes the balance from them again.',
      when: sql`b.organization_id is null or b.total <> coalesce(e.total, 0) or b.available <> coalesce(e.available, 0)
        or b.held <> coalesce(e.held, 0) or b.used <> coalesce(e.used, 0)`,
    },
    {
      code: 'balance_not_conserved',
      title: 'total is not balance + used + held',
      explanation:
        'Comes with another finding on the same organization, which says what is wrong; repair that one.',
      when: sql`b.total <> b.available + b.held + b.used`,
    },
    {
      code: 'balance_negative',
      title: 'balance below zero',
      explanation:
        'More was held than there was. See what was posted with "credits ledger ORG", then "credits adjust ORG".',
      when: sql`least(b.total, b.available, b.held, b.used) < 0`,
    },
    {
      code: 'ledger_not_zero',
      title: 'entries do not sum to zero',
      explanation: 'Some entry of the organization is not balanced; entry_unbalanced names it.',
      when: sql`e.remainder <> 0`,
    },
  ],
};

const entry = sql`l.id::text`;

const ENTRIES: Pass = {
  from: sql`ledger_entries l`,
  subject: entry,
  checks: [
    {
      code: 'entry_unbalanced',
      title: 'entry that does not sum to zero',
      explanation:
        'Entries are never changed: find out who could write it, then correct with "credits adjust ORG".',
      when: sql`l.granted + l.available + l.held + l.used <> 0`,
    },
    {
      code: 'entry_columns',
      title: 'entry on the wrong accounts for its kind',
      explanation:
        'Its columns are generated, so the table was changed: compare it with db/migrations, then "credits adjust ORG".',
      when: sql`l.granted + l.available + l.held + l.used = 0 and not case l.kind
        when 'hold' then l.available = -l.amount and l.held = l.amount and l.used = 0 and l.side = 'hold' and l.hold_side is null
        when 'charge' then l.held = -l.amount and l.used = l.amount and l.available = 0
          and l.side = 'settlement' and l.hold_side = 'hold'
        when 'release' then l.held = -l.amount and l.available = l.amount and l.used = 0
          and l.side = 'settlement' and l.hold_side = 'hold'
        else l.available = l.amount and l.held = 0 and l.used = 0 and l.side = 'funding' and l.hold_side is null end`,
    },
    {
      code: 'entry_shape',
      title: 'entry with an impossible amount or request',
      explanation:
        'Holds, charges and releases belong to a request, grants and adjustments to none; only adjustments take away.',
      when: sql`(l.request_id is null) = (l.kind in ('hold', 'charge', 'release'))
        or l.amount = 0 or (l.amount < 0 and l.kind <> 'adjustment')`,
    },
  ],
};

const HISTORY: Pass = {
  from: sql`(
    select id, available, sum(available) over (partition by organization_id order by id) as balance
      from ledger_entries) h`,
  subject: sql`h.id::text`,
  checks: [
    {
      code: 'balance_was_negative',
      title: 'entry that took the balance below zero',
      explanation:
        'Credits were spent before they were there, even if they came later. Nothing to repair, but something let it happen.',
      when: sql`h.balance < 0 and h.balance - h.available >= 0`,
    },
  ],
};

/** Completed, and not for nothing. */
export const charged = sql`(r.status = 'completed' and not r.replayed)`;
const request = sql`coalesce(r.id, e.request_id)`;
const settlements = sql`(e.charges + e.releases)`;

const REQUESTS_AND_ENTRIES: Pass = {
  from: sql`
    requests r
    full join (
      select request_id, count(*) filter (where kind = 'hold') as holds,
             count(*) filter (where kind = 'charge') as charges, count(*) filter (where kind = 'release') as releases,
             max(amount) filter (where kind = 'hold') as hold_amount,
             max(amount) filter (where kind <> 'hold') as settlement_amount,
             max(created_at) filter (where kind = 'charge') as charged_at,
             min(organization_id) as first_organization, max(organization_id) as last_organization
        from ledger_entries
       where request_id is not null group by request_id
    ) e on e.request_id = r.id`,
  subject: request,
  checks: [
    {
      code: 'hold_without_request',
      title: 'entries of a request that does not exist',
      explanation:
        'A request was lost; look for its batch in a backup. Give the credits back with "credits adjust ORG".',
      when: sql`r.id is null`,
    },
    {
      code: 'request_without_hold',
      title: 'request without the hold it needed',
      explanation:
        'It can neither be charged nor released. Find out what accepted it; its result stays as it is.',
      when: sql`r.id is not null and coalesce(e.holds, 0) = 0
        and not (r.status = 'completed' and r.replayed and e.request_id is null)`,
    },
    {
      code: 'held_twice',
      title: 'request with two holds',
      explanation: 'The customer is short of the second one: "credits adjust ORG" by its amount.',
      when: sql`e.holds > 1`,
    },
    {
      code: 'settled_twice',
      title: 'request with two settlements',
      explanation: 'Charged or released once too often: "credits adjust ORG" by the difference.',
      when: sql`${settlements} > 1`,
    },
    {
      code: 'charge_without_result',
      title: 'charge for a request that is not completed',
      explanation: 'The customer paid for nothing: "credits adjust ORG" by the amount.',
      when: sql`e.charges > 0 and not ${charged}`,
    },
    {
      code: 'result_without_charge',
      title: 'completed request that was not charged',
      explanation:
        'Its credits are still held or were released. Charging afterwards is a decision: "credits adjust ORG".',
      when: sql`e.holds > 0 and e.charges = 0 and ${charged}`,
    },
    {
      code: 'release_without_reason',
      title: 'release of a request that is neither refunded nor a replay',
      explanation:
        'The credits were given back although the request is open or completed: "credits adjust ORG".',
      when: sql`e.releases > 0 and (r.settled_at is null or ${charged}) and r.id is not null`,
    },
    {
      code: 'hold_not_settled',
      title: 'hold of a final request that was never released',
      explanation: 'not_found, failed and replays cost nothing: --fix releases the hold.',
      when: sql`r.settled_at is not null and not ${charged} and e.holds > 0 and ${settlements} = 0`,
    },
    {
      code: 'settlement_amount',
      title: 'settlement of another amount than the hold',
      explanation: 'The difference is held for ever or was held by nothing: "credits adjust ORG" by it.',
      when: sql`e.settlement_amount <> e.hold_amount`,
    },
    {
      code: 'hold_amount',
      title: 'hold of another amount than the price',
      explanation:
        'The price is on the request\'s row, as it was at the submit: "credits adjust ORG" by the difference.',
      when: sql`e.hold_amount <> r.cost`,
    },
    {
      code: 'entry_of_other_organization',
      title: "entries on another organization than the request's",
      explanation: 'Someone else was charged or held for it: "credits adjust" on both organizations.',
      when: sql`e.first_organization <> r.organization_id or e.last_organization <> r.organization_id`,
    },
    {
      code: 'charge_time',
      title: 'charge of another time than its request',
      explanation:
        'Both are written in one transaction with one time, which the replay window is measured from.',
      when: sql`e.charged_at <> r.settled_at`,
    },
  ],
};

// That charges and completed requests are the same thing, and of the same time, is checked with the ledger: here a
// charge is a request with credits used, its time `settled_at`.

/** What is paid once is free for the replay window (L4 and L5). */
function promises({ replayMs }: DoctorRules): Pass[] {
  const window = span(replayMs);
  const npi = sql`organization_id, npi`;
  const doubleCharges: Pass = {
    from: sql`(
      with charge as (
        select id, ${npi}, wanted_type, email_type, settled_at from requests
         where credits_used > 0
           and (${npi}) in (select ${npi} from requests where credits_used > 0 group by ${npi} having count(*) > 1)
      )
      select c.id from charge c
       where exists (
         select from charge e
          where e.organization_id = c.organization_id and e.npi = c.npi and c.wanted_type in ('any', e.email_type)
            and (e.settled_at < c.settled_at
                 or (e.settled_at = c.settled_at and e.email_type = c.email_type and e.id < c.id))
            and c.settled_at - e.settled_at <= ${window})) c`,
    subject: sql`c.id`,
    checks: [
      {
        code: 'charged_twice',
        title: 'second charge for one NPI and type within the replay window',
        explanation:
          'It had to be a replay: refund it with "credits adjust ORG". If the window was lengthened lately, older charges show here.',
        when: sql`true`,
      },
    ],
  };
  const entitlements: Pass = {
    from: sql`(select * from requests where credits_used > 0) r full join entitlements e on e.request_id = r.id`,
    subject: sql`case when e.request_id is null then r.id else concat_ws(' ', e.organization_id, e.npi, e.email_type) end`,
    checks: [
      {
        code: 'entitlement_unearned',
        title: 'entitlement that is not its charge',
        explanation:
          'Replays would be given, or measured, from something that was not paid. --fix takes the newest charge.',
        when: sql`e.request_id is not null and (r.id is null or r.organization_id <> e.organization_id or r.npi <> e.npi
          or r.email_type <> e.email_type or r.settled_at <> e.charged_at)`,
      },
      {
        code: 'entitlement_missing',
        title: 'charge within the replay window without its entitlement',
        explanation: 'The next request would be charged again. --fix writes it from the charge.',
        when: sql`e.request_id is null and r.settled_at >= now() - ${window} and not exists (
          select from entitlements x where x.organization_id = r.organization_id and x.npi = r.npi
             and x.email_type = coalesce(r.email_type, x.email_type) and x.charged_at >= r.settled_at)`,
      },
    ],
  };
  // What was paid for may have been erased or suppressed since: then the replay is another address, or erased itself.
  const withheld = sql`(r.erased_at is not null or c.erased_at is not null or is_suppressed(c.npi, c.email))`;
  const replays: Pass = {
    from: sql`(
      select r.id from requests r
       where r.replayed and not exists (
         select from requests c where c.organization_id = r.organization_id and c.npi = r.npi
            and (c.email_type = r.email_type and c.email = r.email or ${withheld}) and c.credits_used > 0
            and c.settled_at between r.settled_at - ${window} and r.settled_at)) r`,
    subject: sql`r.id`,
    checks: [
      {
        code: 'replay_without_charge',
        title: 'replay without a charge in the window before it',
        explanation:
          'An email was given away, or not the one that was paid for. Nothing to repair; if the replay window was shortened or a suppression removed lately, older replays show here.',
        when: sql`true`,
      },
    ],
  };
  return [doubleCharges, entitlements, replays];
}
