import { sql } from 'drizzle-orm';
import { type Database, run } from '../client.ts';
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

/** What the directory knows about the addresses at a domain. */
export interface MailDomain {
  readonly domain: string;
  /** At most one mailbox per person. */
  readonly mailboxes: readonly NamedMailbox[];
  /**
   * True if a verifier told existing mailboxes at the domain from missing ones within the last 30
   * days, and none said that the domain accepts mail for all of them.
   */
  readonly isVerifiable: boolean;
}

/** The maximum number of addresses that are read for one domain. */
const MAX_ADDRESSES = 200;

/**
 * Reads what the directory knows about the addresses at domains. Addresses at their subdomains are
 * not read. A domain without an address in the directory is left out.
 */
export async function readMailDomains(
  db: Database,
  domains: readonly string[],
): Promise<MailDomain[]> {
  if (domains.length === 0) return [];
  return await run<MailDomain>(db)`
    select asked.domain,
           coalesce(
             jsonb_agg(
               jsonb_build_object(
                 'local', split_part(s.email, '@', 1),
                 'firstName', p.first_name,
                 'middleName', p.middle_name,
                 'lastName', p.last_name))
               filter (where s.is_known and s.is_first and p.active),
             '[]') as mailboxes,
           bool_or(c.is_decided) and not bool_or(c.is_catch_all) as "isVerifiable"
      from unnest(${sql.param([...domains])}::text[]) asked(domain)
     cross join lateral (
       select npi, email, is_known,
              row_number() over (partition by npi, is_known order by email) = 1 as is_first
         from (
           select npi, email,
                  -- Addresses that we wrote ourselves would only confirm their own form.
                  verdict = 'valid' and not unchecked and may_store and source <> ${PATTERN_SOURCE}
                    as is_known
             from stored_emails
            where split_part(email, '@', 2) = asked.domain
            limit ${MAX_ADDRESSES}) here) s
     cross join lateral (
       select coalesce(bool_or(verdict in ('valid', 'invalid')), false) as is_decided,
              coalesce(bool_or(verdict = 'catch_all'), false) as is_catch_all
         from email_checks
        where npi = s.npi and email = s.email and kind = 'verifier'
          and at > now() - interval '30 days') c
      left join providers p on p.npi = s.npi
     group by asked.domain`;
}
