import { sql } from 'drizzle-orm';
import { type Database, run } from '../connection/client.ts';
import { PATTERN_SOURCE } from '../words.ts';

/** A valid address at a domain, without its domain, and the name of the person it belongs to. */
export interface NamedMailbox {
  /** The part of the address before the @. */
  readonly local: string;
  /** The names are as in NPPES. */
  readonly firstName: string | null;
  readonly middleName: string | null;
  readonly lastName: string | null;
}

/** The valid addresses of the directory at a domain. */
export interface MailDomain {
  readonly domain: string;
  /** At most one mailbox per person, the newest ones. */
  readonly mailboxes: readonly NamedMailbox[];
  /**
   * True if a verifier found an existing mailbox at the domain within the last 30 days, and no
   * check since then found that the domain accepts mail for all addresses.
   */
  readonly isVerifiable: boolean;
}

/** The maximum number of addresses that are read for one domain. */
const MAX_ADDRESSES = 200;

/**
 * Reads the valid addresses in the directory for each of the domains. Addresses at their subdomains
 * are not read. A domain without a valid address in the directory is left out.
 */
export async function readMailDomains(
  db: Database,
  domains: readonly string[],
): Promise<MailDomain[]> {
  if (domains.length === 0) return [];
  return await run<MailDomain>(db)`
    select asked.domain,
           jsonb_agg(
             jsonb_build_object(
               'local', split_part(s.email, '@', 1),
               'firstName', p.first_name,
               'middleName', p.middle_name,
               'lastName', p.last_name)) as mailboxes,
           bool_or(exists (
             select from email_checks c
              where c.npi = s.npi and c.email = s.email and c.kind = 'verifier'
                and c.verdict = 'valid' and c.at > now() - interval '30 days'))
             and not exists (
               select from stored_emails a
                where split_part(a.email, '@', 2) = asked.domain and a.verdict = 'catch_all'
                  and a.updated_at > now() - interval '30 days') as "isVerifiable"
      from unnest(${sql.param([...domains])}::text[]) asked(domain)
     cross join lateral (
       select distinct on (npi) npi, email
         from (
           select *
             from stored_emails
            where split_part(email, '@', 2) = asked.domain
              and verdict = 'valid'
              -- Addresses that we wrote ourselves would only confirm their own form.
              and source <> ${PATTERN_SOURCE}
              and not is_suppressed(npi, email)
            order by last_validated_at desc nulls last
            limit ${MAX_ADDRESSES}) newest
        order by npi, email) s
      join providers p on p.npi = s.npi and p.active
     group by asked.domain`;
}

/**
 * Returns true if an address with a person's whole name may be a namesake's: it is known for another
 * NPI, in the directory or as a candidate, and not invalid there. Or another active clinician with a
 * practice in the same state has the same surname and given name. A large employer has mailboxes in
 * the whole state, and `john.smith` is one of its John Smiths. A missing state counts as the same.
 */
export async function isOfAnother(
  db: Database,
  email: string,
  npi: string,
): Promise<boolean> {
  const [row] = await run<{ isKnown: boolean }>(db)`
    select exists (
      select from stored_emails
       where email = ${email} and npi <> ${npi} and verdict <> 'invalid'
      union all
      select from candidates
       where email = ${email}
         and npi <> ${npi}
         and coalesce(verdict, claimed_verdict) <> 'invalid'
      union all
      select from providers me
        join providers other
          on lower(translate(other.last_name, ' ''-', '')) = lower(translate(me.last_name, ' ''-', ''))
         and lower(split_part(other.first_name, ' ', 1)) = lower(split_part(me.first_name, ' ', 1))
       where me.npi = ${npi}
         and other.npi <> me.npi
         and other.entity_type = 1
         and other.active
         and coalesce(other.practice_state = me.practice_state, true)) as "isKnown"`;
  return row?.isKnown === true;
}
