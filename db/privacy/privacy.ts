import { setTimeout } from 'node:timers/promises';
import { type SQL, sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, only, run, type Transaction, transaction } from '../client.ts';
import { DatabaseError } from '../errors.ts';
import { hashAddress, type SuppressionTarget } from './suppressions.ts';

/**
 * Whom a person's request is about: the provider of an NPI, or the owner of an address
 * (normalized).
 */
export type DataSubject = { readonly npi: string } | { readonly email: string };

/** What would suppress them, and stands for them in the audit log. */
function suppressionOf(subject: DataSubject): SuppressionTarget {
  return 'npi' in subject
    ? { kind: 'npi', value: subject.npi }
    : { kind: 'email', value: hashAddress(subject.email) };
}

/** Who does it, and who asked for it, when: what the register of such requests has. */
export interface AskedBy extends ChangedBy {
  readonly askedBy: string;
  readonly received: Date;
}

/**
 * The register, the newest first: what people asked of us, and what was done. It is read from the
 * audit log, which can't be rewritten. Of an objection the reason says who asked, and when.
 */
export async function listPrivacyRequests(db: Database, limit: number) {
  return await run<{ readonly doneAt: string }>(db)`
    select details ->> 'received_at' as "receivedAt",
           to_char(at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as "doneAt",
           case action when 'privacy.export' then 'export' when 'privacy.erase' then 'erasure' else 'objection' end as kind,
           details ->> 'asked_by' as "askedBy", subject, actor, reason
      from audit_log
     where action in ('privacy.export', 'privacy.erase')
        or action = 'suppressions.add' and details ->> 'origin' = 'operator'
     order by id desc limit ${limit}`;
}

/**
 * Writes a request into the register. Await it before anything is shown.
 * @throws {DatabaseError} 23514 for an actor or a reason that is empty or too long
 */
export async function recordPrivacyRequest(
  tx: Transaction,
  { askedBy, received, ...by }: AskedBy,
  action: 'privacy.export' | 'privacy.erase',
  subject: DataSubject,
  counts: Readonly<Record<string, number>>,
): Promise<void> {
  const details = { asked_by: askedBy, received_at: received.toISOString(), ...counts };
  const { value } = suppressionOf(subject);
  await recordAudit(tx, by, { action, organizationId: null, subject: value, details });
}

/** What we compute for ourselves from other columns. */
const DERIVED = [
  'row_hash',
  'import_number',
  'phone_key',
  'address_key',
  'updated_at',
  'unchecked',
  'facts',
];

/** By which a person is known; the other one is null, which in SQL equals nothing. */
const known = (subject: DataSubject) => ({ npi: null, email: null, ...subject });

/**
 * Everything held about a provider, or under an address, for them to have. For an NPI: its NPPES
 * rows and the lookups and requests for it; of an address: what names it. Organizations appear by
 * their ids: whom they are is not the person's data. `custom_data` is the customer's own, and left
 * out.
 * @returns rows with the columns' own names
 */
export async function exportSubject(db: Database, subject: DataSubject) {
  const { npi, email } = known(subject);
  const ofNpi = sql`npi = ${npi}`;
  const theirs = sql`(${ofNpi} or email = ${email})`;
  const endpoint = sql`(${ofNpi} or endpoint like '%@%' and endpoint_address(endpoint) = ${email})`;
  const { kind, value } = suppressionOf(subject);
  const rows = async (statement: SQL) => {
    const found = await run<{ row: Record<string, unknown> }>(db)`
      select to_jsonb(t) - ${sql.param(DERIVED)}::text[] as row from (${statement}) t`;
    return found.map(({ row }) => row);
  };
  return {
    providers: await rows(sql`select * from providers where ${ofNpi}`),
    locations: await rows(sql`select * from provider_locations where ${ofNpi}`),
    clinician_practices: await rows(sql`select * from clinician_practices where ${ofNpi}`),
    employer_domains: await rows(sql`select * from employer_domains where key = ${`npi:${npi}`}`),
    endpoints: await rows(
      sql`select * from provider_endpoints where ${endpoint} order by npi, endpoint`,
    ),
    stored_emails: await rows(
      sql`select * from stored_emails where ${theirs} order by first_seen_at`,
    ),
    email_checks: await rows(sql`select * from email_checks where ${theirs} order by id`),
    lookups: await rows(sql`select * from lookups where ${ofNpi} order by opened_at`),
    requests: await rows(sql`
      select id, batch_id, organization_id, npi, status, email, email_type, email_last_validated_at, accepted_at,
             settled_at, erased_at
        from requests where ${theirs} and test_outcome is null order by accepted_at, id`),
    // Those that reported one of these answers, alone or with the rest of a batch.
    deliveries: await rows(sql`
      select id, batch_id, request_id, state, attempts, created_at, decided_at from webhook_deliveries
       where batch_id in (select batch_id from requests where ${theirs} and test_outcome is null)
         and (request_id is null or request_id in (select id from requests where ${theirs}))
       order by created_at, id`),
    suppressions: await rows(
      sql`select * from suppressions where kind = ${kind} and value = ${value}`,
    ),
  };
}

/**
 * Erases the addresses of a person everywhere, and leaves tombstones so that no import and no
 * vendor brings them back: the NPI if it was named, and the hash of each address. Addresses that a
 * vendor named for the NPI but that belong to somebody else are deleted without one. What was
 * charged stays charged, and `custom_data` is the customer's own. What sandboxes made up is
 * nobody's.
 *
 * One transaction, which lets nobody settle or submit meanwhile: an answer in the making would be
 * written with the address right after. Whoever queues for a lock holds up all who come later, so
 * it gives up soon, lets them pass, and tries again a few times. Safe to repeat.
 * @param isRehearsal true to do all of it and take it back: what would be removed, and no entry in
 * the register
 * @returns how much was removed, in rows; `tombstones` are suppressions that are new, or were of
 * another origin
 * @throws {DatabaseError} 55P03 if others never let it have its locks; nothing was erased
 */
export async function eraseSubject(
  db: Database,
  by: AskedBy,
  subject: DataSubject,
  isRehearsal = false,
) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await erase(db, by, subject, isRehearsal);
    } catch (error) {
      if (!(error instanceof DatabaseError && error.code === '55P03' && attempt < ATTEMPTS))
        throw error;
      await setTimeout(PAUSE_MS);
    }
  }
}

const ATTEMPTS = 5;
const PAUSE_MS = 500;
/** Longer than the second after which PostgreSQL ends an autovacuum that is in the way. */
const LOCK_TIMEOUT = sql`set local lock_timeout = '1200ms'`;

async function erase(db: Database, by: AskedBy, subject: DataSubject, isRehearsal: boolean) {
  const rehearsed = new Error('rehearsed');
  let erasure: Record<string, number> = {};
  await transaction(db, async (tx) => {
    await tx.execute(LOCK_TIMEOUT);
    // An import may be busy with the endpoints for a minute: only who has waited for it makes
    // others wait.
    await tx.execute(sql`lock table provider_endpoints in share row exclusive mode`);
    // Whoever answers a request locks a balance first. The directory's writers come after, in the
    // order they use.
    await tx.execute(sql`select hold_balances()`);
    // Who writes both of these begins with the first. A prepared statement locks the tables of its
    // CTEs in their order, and the one that it is an insert into or a delete from before them.
    await tx.execute(sql`lock table stored_emails, email_checks in share row exclusive mode`);
    erasure = only(await tx.execute<Record<string, number>>(eraseAddresses(subject, by.reason)));
    await recordPrivacyRequest(tx, by, 'privacy.erase', subject, erasure);
    if (isRehearsal) throw rehearsed;
  }).catch((error) => {
    if (error !== rehearsed) throw error;
  });
  return erasure;
}

/** Answers keep their status, price and entries. */
function eraseAddresses(subject: DataSubject, reason: string): SQL {
  const { npi, email } = known(subject);
  const isTheirs = (address: SQL) =>
    sql`(npi = ${npi} or ${address} = any(array(select email from addresses)))`;
  const inColumn = isTheirs(sql`email`);
  return sql`
    with addresses as materialized (
      -- Every one that was ever held for an NPI, but for those found to be another person's.
      select ${email}::text as email
      union
      select email from stored_emails where npi = ${npi}
      union
      select email from email_checks where npi = ${npi}
       group by email having not bool_or(kind = 'identity')
      union
      select email from requests where npi = ${npi} and email is not null and test_outcome is null
      union
      select endpoint_address(endpoint) from provider_endpoints where npi = ${npi} and endpoint like '%@%'
    ), tombstones as (
      insert into suppressions as s (kind, value, origin, reason)
      select kind, value, 'erasure', ${reason}
        from (select 'npi' as kind, ${npi}::text as value
              union select 'email', encode(sha256(convert_to(email, 'UTF8')), 'hex') from addresses order by 1, 2) t
       where value is not null
          on conflict (kind, value) do update set origin = excluded.origin, reason = excluded.reason
       where s.origin <> excluded.origin
      returning 1
    ), erased as (
      update requests set email = null, email_type = null, email_last_validated_at = null,
                          erased_at = clock_timestamp()
       where email is not null and test_outcome is null and ${inColumn}
      returning id, batch_id
    ), excerpts as (
      -- A delivery's receiver may have answered with what it was sent, also of an answer that retention has erased.
      update webhook_attempts set response_excerpt = null
       where response_excerpt is not null and delivery_id in (
         select d.id from webhook_deliveries d
           join (select id, batch_id from erased union select id, batch_id from requests where npi = ${npi}) e
             on e.batch_id = d.batch_id
          where d.request_id is null or d.request_id = e.id)
      returning 1
    ), misses as (
      update lookups set facts = null where facts is not null
         and npi = any(array(select npi from email_checks where ${inColumn} union select ${npi}))
    ), stored as (
      delete from stored_emails where ${inColumn} returning 1
    ), checks as (
      delete from email_checks where ${inColumn} returning 1
    ), endpoints as (
      delete from provider_endpoints
       where endpoint like '%@%' and ${isTheirs(sql`endpoint_address(endpoint)`)} returning 1
    )
    select (select count(*)::int from tombstones) as tombstones, (select count(*)::int from stored) as "storedEmails",
           (select count(*)::int from checks) as "emailChecks", (select count(*)::int from erased) as answers,
           (select count(*)::int from excerpts) as "receiverExcerpts",
           (select count(*)::int from endpoints) as endpoints`;
}
