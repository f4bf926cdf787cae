import { sql } from 'drizzle-orm';
import type { DoctorRules, Pass } from './check.ts';

// That charges and completed requests are the same thing, and of the same time, is checked with the ledger: here a
// charge is a request with credits used, its time `settled_at`.

/** What is paid once is free for the replay window (ARCHITECTURE.md, Invariants, L4 and L5). */
export function promisePasses({ replayMs }: DoctorRules): Pass[] {
  const window = sql`make_interval(secs => ${replayMs / 1000}::float8)`;
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
    checks: [
      {
        code: 'charged_twice',
        title: 'second charge for one NPI and type within the replay window',
        explanation:
          'It had to be a replay: refund it with "credits adjust ORG". If the window was lengthened lately, older charges show here.',
        subject: sql`c.id`,
        when: sql`true`,
      },
    ],
  };
  const entitlements: Pass = {
    from: sql`(select * from requests where credits_used > 0) r full join entitlements e on e.request_id = r.id`,
    checks: [
      {
        code: 'entitlement_unearned',
        title: 'entitlement that is not its charge',
        explanation:
          'Replays would be given, or measured, from something that was not paid. --fix takes the newest charge.',
        subject: sql`concat_ws(' ', e.organization_id, e.npi, e.email_type)`,
        when: sql`e.request_id is not null and (r.id is null or r.organization_id <> e.organization_id or r.npi <> e.npi
          or r.email_type <> e.email_type or r.settled_at <> e.charged_at)`,
      },
      {
        code: 'entitlement_missing',
        title: 'charge within the replay window without its entitlement',
        explanation: 'The next request would be charged again. --fix writes it from the charge.',
        subject: sql`r.id`,
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
    checks: [
      {
        code: 'replay_without_charge',
        title: 'replay without a charge in the window before it',
        explanation:
          'An email was given away, or not the one that was paid for. Nothing to repair; if the replay window was shortened or a suppression removed lately, older replays show here.',
        subject: sql`r.id`,
        when: sql`true`,
      },
    ],
  };
  return [doubleCharges, entitlements, replays];
}
