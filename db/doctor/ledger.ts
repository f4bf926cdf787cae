import { sql } from 'drizzle-orm';
import type { Pass } from './check.ts';

/** Balances and the ledger in itself (ARCHITECTURE.md, Invariants, L1 and L2). */
export function ledgerPasses(): Pass[] {
  return [ACCOUNTS, ENTRIES, HISTORY];
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
  checks: [
    {
      code: 'balance_differs',
      title: 'balance is not the sum of its entries',
      explanation: 'The entries are the truth: --fix computes the balance from them again.',
      subject: account,
      when: sql`b.organization_id is null or b.total <> coalesce(e.total, 0) or b.available <> coalesce(e.available, 0)
        or b.held <> coalesce(e.held, 0) or b.used <> coalesce(e.used, 0)`,
    },
    {
      code: 'balance_not_conserved',
      title: 'total is not balance + used + held',
      explanation:
        'Comes with another finding on the same organization, which says what is wrong; repair that one.',
      subject: account,
      when: sql`b.total <> b.available + b.held + b.used`,
    },
    {
      code: 'balance_negative',
      title: 'balance below zero',
      explanation:
        'More was held than there was. See what was posted with "credits ledger ORG", then "credits adjust ORG".',
      subject: account,
      when: sql`least(b.total, b.available, b.held, b.used) < 0`,
    },
    {
      code: 'ledger_not_zero',
      title: 'entries do not sum to zero',
      explanation: 'Some entry of the organization is not balanced; entry_unbalanced names it.',
      subject: account,
      when: sql`e.remainder <> 0`,
    },
  ],
};

const entry = sql`l.id::text`;

const ENTRIES: Pass = {
  from: sql`ledger_entries l`,
  checks: [
    {
      code: 'entry_unbalanced',
      title: 'entry that does not sum to zero',
      explanation:
        'Entries are never changed: find out who could write it, then correct with "credits adjust ORG".',
      subject: entry,
      when: sql`l.granted + l.available + l.held + l.used <> 0`,
    },
    {
      code: 'entry_columns',
      title: 'entry on the wrong accounts for its kind',
      explanation:
        'Its columns are generated, so the table was changed: compare it with db/migrations, then "credits adjust ORG".',
      subject: entry,
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
      subject: entry,
      when: sql`(l.request_id is null) = (l.kind in ('hold', 'charge', 'release'))
        or l.amount = 0 or (l.amount < 0 and l.kind <> 'adjustment')`,
    },
  ],
};

/** Entries in one of two hundred stretches of the ledger. */
const STRETCH = sql`(select max(id) / 200 + 1 from ledger_entries)`;

/**
 * Adding up entry by entry needs them in order, so it is done only where an organization may have been below zero: in
 * those stretches that took more, all gains left out, than it had before them.
 * float8 is exact up to 2^53 credits, and several times as fast as the numeric that sum(bigint) gives.
 */
const HISTORY: Pass = {
  with: sql`suspect as materialized (
    select organization_id, stretch, before
      from (select organization_id, stretch, taken,
                   coalesce(sum(net) over (partition by organization_id order by stretch
                                           rows between unbounded preceding and 1 preceding), 0) as before
              from (select l.organization_id, s.stretch, sum(l.available::float8) as net,
                           sum(least(l.available, 0)::float8) as taken
                      from generate_series(0, 199) s (stretch) join ledger_entries l on l.id / ${STRETCH} = s.stretch
                     group by l.organization_id, s.stretch) l) l
     where before + taken < 0)`,
  from: sql`
    suspect s
    cross join lateral (
      select l.id, l.available, s.before + sum(l.available::float8) over (order by l.id rows unbounded preceding) as balance
        from ledger_entries l
       where l.organization_id = s.organization_id
         and l.id >= s.stretch * ${STRETCH} and l.id < (s.stretch + 1) * ${STRETCH}) h`,
  checks: [
    {
      code: 'balance_was_negative',
      title: 'entry that took the balance below zero',
      explanation:
        'Credits were spent before they were there, even if they came later. Nothing to repair, but something let it happen.',
      subject: sql`h.id::text`,
      when: sql`h.balance < 0 and h.balance - h.available >= 0`,
    },
  ],
};
