import { type SQL, sql } from 'drizzle-orm';
import { GRACE, type Pass } from './check.ts';

/** Each request in itself and against its entries (ARCHITECTURE.md, Invariants, L3, L4, S2). */
export function requestPasses(): Pass[] {
  return [REQUESTS, REQUESTS_AND_ENTRIES];
}

const charged = sql`(r.status = 'completed' and not r.replayed)`;

const REQUESTS: Pass = {
  from: sql`requests r`,
  checks: [
    {
      code: 'request_overdue',
      title: 'request still open 60 s past its deadline',
      explanation:
        'Check that a worker runs: its sweep settles them. --fix settles them as failed and refunds.',
      subject: sql`r.id`,
      when: sql`r.settled_at is null and r.deadline_at < now() - ${GRACE}`,
    },
    {
      code: 'completed_late',
      title: 'request completed after its deadline',
      explanation: 'It had to end as failed with a refund: "credits adjust ORG" by its price.',
      subject: sql`r.id`,
      when: sql`r.status = 'completed' and r.settled_at > r.deadline_at`,
    },
    {
      code: 'email_of_other_type',
      title: 'email of another type than wanted',
      explanation: 'The wanted type is a filter: refund with "credits adjust ORG".',
      subject: sql`r.id`,
      when: sql`r.status = 'completed' and r.wanted_type <> 'any' and r.wanted_type <> r.email_type`,
    },
    {
      code: 'request_state',
      title: 'request whose columns contradict each other',
      explanation:
        'An email belongs to completed unless it was erased, a settling time to final, replayed to completed, a price to each.',
      subject: sql`r.id`,
      when: sql`num_nonnulls(r.email, r.email_type, r.email_last_validated_at) 
          <> case when r.status = 'completed' and r.erased_at is null then 3 else 0 end
        or (r.erased_at is not null and r.status <> 'completed')
        or (r.settled_at is not null) <> (r.status in ('completed', 'not_found', 'failed'))
        or (r.replayed and r.status <> 'completed')
        or r.cost <= 0
        or r.credits_used <> case when ${charged} then r.cost else 0 end`,
    },
  ],
};

/** 62 bits of an entry: of its request, kind, organization and amount, and for a charge its time. */
function fingerprint(
  entry: Record<'requestId' | 'kind' | 'organizationId' | 'amount' | 'chargedAt', SQL>,
): SQL {
  const { requestId, kind, organizationId, amount, chargedAt } = entry;
  const rest = sql`hashint8extended(${amount}, hashfloat8extended(date_part('epoch', ${chargedAt}), 0))`;
  return sql`(hashtextextended(${requestId}, hashtextextended(${kind}, hashtextextended(${organizationId}, ${rest}))) >> 2)`;
}

const NEVER = sql`timestamptz 'epoch'`;
const partOf = (requestId: SQL) => sql`hashtext(${requestId}) & 1023`;

/**
 * Grouping and joining all entries would take half of the doctor's time. So it is done only for those of a thousand
 * parts of the requests in which the fingerprints of the entries do not sum to those of the entries that the requests
 * should have. A replay settled when it was accepted should have none; where one has, its part is joined, and passes.
 */
const SUSPECT = sql`suspect as materialized (
  select part from (
    select ${partOf(sql`request_id`)} as part,
           ${fingerprint({
             requestId: sql`request_id`,
             kind: sql`kind`,
             organizationId: sql`organization_id`,
             amount: sql`amount`,
             chargedAt: sql`case when kind = 'charge' then created_at else ${NEVER} end`,
           })} as print
      from ledger_entries where request_id is not null
    union all
    select ${partOf(sql`r.id`)},
           -${fingerprint({
             requestId: sql`r.id`,
             kind: sql`'hold'`,
             organizationId: sql`r.organization_id`,
             amount: sql`r.cost`,
             chargedAt: NEVER,
           })}
           - case when r.settled_at is null then 0 else ${fingerprint({
             requestId: sql`r.id`,
             kind: sql`case when ${charged} then 'charge' else 'release' end`,
             organizationId: sql`r.organization_id`,
             amount: sql`r.cost`,
             chargedAt: sql`case when ${charged} then r.settled_at else ${NEVER} end`,
           })} end
      from requests r where not (r.replayed and r.settled_at = r.accepted_at)
  ) p group by part having sum(print) <> 0)`;

const request = sql`coalesce(r.id, e.request_id)`;
const settlements = sql`(e.charges + e.releases)`;

const REQUESTS_AND_ENTRIES: Pass = {
  with: SUSPECT,
  from: sql`
    (select * from requests where ${partOf(sql`id`)} in (select part from suspect)) r
    full join (
      select request_id, count(*) filter (where kind = 'hold') as holds,
             count(*) filter (where kind = 'charge') as charges, count(*) filter (where kind = 'release') as releases,
             max(amount) filter (where kind = 'hold') as hold_amount,
             max(amount) filter (where kind <> 'hold') as settlement_amount,
             max(created_at) filter (where kind = 'charge') as charged_at,
             min(organization_id) as first_organization, max(organization_id) as last_organization
        from ledger_entries
       where request_id is not null and ${partOf(sql`request_id`)} in (select part from suspect)
       group by request_id
    ) e on e.request_id = r.id`,
  checks: [
    {
      code: 'hold_without_request',
      title: 'entries of a request that does not exist',
      explanation:
        'A request was lost; look for its batch in a backup. Give the credits back with "credits adjust ORG".',
      subject: request,
      when: sql`r.id is null`,
    },
    {
      code: 'request_without_hold',
      title: 'request without the hold it needed',
      explanation:
        'It can neither be charged nor released. Find out what accepted it; its result stays as it is.',
      subject: request,
      when: sql`r.id is not null and coalesce(e.holds, 0) = 0
        and not (r.status = 'completed' and r.replayed and e.request_id is null)`,
    },
    {
      code: 'held_twice',
      title: 'request with two holds',
      explanation: 'The customer is short of the second one: "credits adjust ORG" by its amount.',
      subject: request,
      when: sql`e.holds > 1`,
    },
    {
      code: 'settled_twice',
      title: 'request with two settlements',
      explanation: 'Charged or released once too often: "credits adjust ORG" by the difference.',
      subject: request,
      when: sql`${settlements} > 1`,
    },
    {
      code: 'charge_without_result',
      title: 'charge for a request that is not completed',
      explanation: 'The customer paid for nothing: "credits adjust ORG" by the amount.',
      subject: request,
      when: sql`e.charges > 0 and not ${charged}`,
    },
    {
      code: 'result_without_charge',
      title: 'completed request that was not charged',
      explanation:
        'Its credits are still held or were released. Charging afterwards is a decision: "credits adjust ORG".',
      subject: request,
      when: sql`e.holds > 0 and e.charges = 0 and ${charged}`,
    },
    {
      code: 'release_without_reason',
      title: 'release of a request that is neither refunded nor a replay',
      explanation:
        'The credits were given back although the request is open or completed: "credits adjust ORG".',
      subject: request,
      when: sql`e.releases > 0 and (r.settled_at is null or ${charged}) and r.id is not null`,
    },
    {
      code: 'hold_not_settled',
      title: 'hold of a final request that was never released',
      explanation: 'not_found, failed and replays cost nothing: --fix releases the hold.',
      subject: request,
      when: sql`r.settled_at is not null and not ${charged} and e.holds > 0 and ${settlements} = 0`,
    },
    {
      code: 'settlement_amount',
      title: 'settlement of another amount than the hold',
      explanation: 'The difference is held for ever or was held by nothing: "credits adjust ORG" by it.',
      subject: request,
      when: sql`e.settlement_amount <> e.hold_amount`,
    },
    {
      code: 'hold_amount',
      title: 'hold of another amount than the price',
      explanation:
        'The price is on the request\'s row, as it was at the submit: "credits adjust ORG" by the difference.',
      subject: request,
      when: sql`e.hold_amount <> r.cost`,
    },
    {
      code: 'entry_of_other_organization',
      title: "entries on another organization than the request's",
      explanation: 'Someone else was charged or held for it: "credits adjust" on both organizations.',
      subject: request,
      when: sql`e.first_organization <> r.organization_id or e.last_organization <> r.organization_id`,
    },
    {
      code: 'charge_time',
      title: 'charge of another time than its request',
      explanation:
        'Both are written in one transaction with one time, which the replay window is measured from.',
      subject: request,
      when: sql`e.charged_at <> r.settled_at`,
    },
  ],
};
