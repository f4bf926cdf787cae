import { setTimeout } from 'node:timers/promises';
import {
  and,
  desc,
  isNotNull,
  isNull,
  type SQL,
  type SQLWrapper,
  sql,
} from 'drizzle-orm';
import {
  type Database,
  query,
  run,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { DatabaseError } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { clockTime } from '../schema/columns.ts';
import {
  auditLog,
  candidates,
  emailChecks,
  lookups,
  requests,
  storedEmails,
  vendorProfiles,
} from '../schema.ts';
import { hashAddress, type SuppressionTarget } from './suppressions.ts';

/**
 * The subject of a privacy request: the provider with an NPI, or the owner of a normalized email
 * address.
 */
export type DataSubject = { readonly npi: string } | { readonly email: string };

/**
 * Returns the suppression that excludes a person. Its value also identifies the person in the audit
 * log.
 */
function suppressionOf(subject: DataSubject): SuppressionTarget {
  if ('npi' in subject) return { kind: 'npi', value: subject.npi };
  return { kind: 'email', value: hashAddress(subject.email) };
}

/**
 * The operator who handles a privacy request, the person who made it, and the time it was received.
 */
export interface AskedBy extends ChangedBy {
  readonly askedBy: string;
  readonly received: Date;
}

/**
 * Lists all privacy requests, the newest first. They are read from the audit log, which cannot be
 * rewritten. The erasure of an organization is one of them, because it has to be repeated after a
 * restore. An objection is a suppression that an operator added. Its reason says who objected and
 * when.
 */
export async function listPrivacyRequests(db: Database, limit: number) {
  return await query(db, (tx) =>
    tx
      .select({
        receivedAt: sql<string | null>`details ->> 'received_at'`,
        doneAt: auditLog.at,
        kind: sql<'export' | 'erasure' | 'organization' | 'objection'>`case action
          when 'privacy.export' then 'export'
          when 'privacy.erase' then 'erasure'
          when 'org.erase' then 'organization'
          else 'objection'
        end`,
        askedBy: sql<string | null>`details ->> 'asked_by'`,
        subject: auditLog.subject,
        actor: auditLog.actor,
        reason: auditLog.reason,
      })
      .from(auditLog)
      .where(sql`action in ('privacy.export', 'privacy.erase', 'org.erase')
        or action = 'suppressions.add' and details ->> 'origin' = 'operator'`)
      .orderBy(desc(auditLog.id))
      .limit(limit),
  );
}

/**
 * Records a privacy request in the audit log. Show data only after this promise resolves.
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

/** Columns for internal use, such as hashes of other columns. An export leaves them out. */
const DERIVED = [
  'row_hash',
  'import_number',
  'phone_key',
  'address_key',
  'updated_at',
  'facts',
];

/**
 * Returns the NPI and the address of a person, one of which is null. In SQL, no value equals null,
 * so a comparison with the missing one is never true.
 */
function keysOf(subject: DataSubject) {
  return { npi: null, email: null, ...subject };
}

/**
 * Exports all data about a person. For an NPI, these are its NPPES data, its addresses, lookups,
 * and requests. For an address, these are all rows that contain it. Organizations appear only with
 * their ids, because their names are not the person's data. `custom_data` belongs to the customer
 * and is left out.
 * @returns rows with the column names of the tables
 */
export async function exportSubject(db: Database, subject: DataSubject) {
  const { npi, email } = keysOf(subject);
  const ofNpi = sql`npi = ${npi}`;
  const theirs = sql`(${ofNpi} or email = ${email})`;
  const { kind, value } = suppressionOf(subject);
  const employerKey = `npi:${npi}`;
  const rows = (statement: SQL) => exportRows(db, statement);
  return {
    providers: await rows(sql`select * from providers where ${ofNpi}`),
    locations: await rows(sql`select * from provider_locations where ${ofNpi}`),
    clinician_practices: await rows(
      sql`select * from clinician_practices where ${ofNpi}`,
    ),
    employer_domains: await rows(
      sql`select * from employer_domains where key = ${employerKey}`,
    ),
    endpoints: await rows(sql`
      select * from provider_endpoints
       where (${ofNpi} or endpoint like '%@%' and endpoint_address(endpoint) = ${email})
       order by npi, endpoint`),
    candidates: await rows(sql`
      select * from candidates where ${theirs} order by named_at, email`),
    stored_emails: await rows(sql`
      select * from stored_emails where ${theirs} order by first_seen_at`),
    vendor_profiles: await rows(sql`
      select * from vendor_profiles where ${ofNpi} order by vendor`),
    email_checks: await rows(sql`
      select * from email_checks where ${theirs} order by id`),
    lookups: await rows(sql`
      select * from lookups where ${ofNpi} order by opened_at`),
    requests: await rows(sql`
      select id, batch_id, organization_id, npi, status, email, email_type,
             email_last_validated_at, accepted_at, settled_at, erased_at
        from requests
       where ${theirs} and test_outcome is null
       order by accepted_at, id`),
    // The deliveries that reported the result of one of these requests, individually or as part of
    // a batch.
    deliveries: await rows(sql`
      select id, batch_id, request_id, state, attempts, created_at, decided_at
        from webhook_deliveries
       where batch_id in (select batch_id from requests where ${theirs} and test_outcome is null)
         and (request_id is null or request_id in (select id from requests where ${theirs}))
       order by created_at, id`),
    suppressions: await rows(sql`
      select * from suppressions where kind = ${kind} and value = ${value}`),
  };
}

async function exportRows(
  db: Database,
  statement: SQL,
): Promise<Record<string, unknown>[]> {
  const found = await run<{ row: Record<string, unknown> }>(db)`
    select to_jsonb(t) - ${sql.param(DERIVED)}::text[] as row from (${statement}) t`;
  return found.map(({ row }) => row);
}

const ATTEMPTS = 5;
const PAUSE_MS = 500;

/**
 * Erases all addresses of a person. It suppresses the NPI, if it was given, and the hash of each
 * address, so that no import and no vendor brings them back. Addresses of other people that a
 * vendor returned for the NPI are deleted without a suppression. Charges stay, and `custom_data`
 * stays because it belongs to the customer. Sandbox data stays because it is made up.
 *
 * It runs in one transaction that blocks submits and settling. Otherwise, a result in progress
 * could store the address right after the erasure. While it waits for a lock, all other
 * transactions that need the lock wait behind it. So it gives up after 1.2 s, lets them pass, and
 * tries again, five times in total. Safe to repeat.
 * @param isRehearsal true to roll everything back and only return the numbers of rows that would be
 * removed; the audit log then gets no entry
 * @returns the numbers of removed rows by kind, and as `suppressions` the number of those that were
 * added, or that existed with another origin
 * @throws {DatabaseError} 55P03 if it could not get its locks; nothing was erased
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
      const isLocked = error instanceof DatabaseError && error.code === '55P03';
      if (!isLocked || attempt >= ATTEMPTS) throw error;
      await setTimeout(PAUSE_MS);
    }
  }
}

/**
 * Waits longer than 1 s for a lock, because PostgreSQL cancels an autovacuum that holds the lock
 * only after 1 s.
 */
const LOCK_TIMEOUT = sql`set local lock_timeout = '1200ms'`;

async function erase(
  db: Database,
  by: AskedBy,
  subject: DataSubject,
  isRehearsal: boolean,
) {
  const rehearsed = new Error('rehearsed');
  let erasure: Record<string, number> = {};
  await transaction(db, async (tx) => {
    await tx.execute(LOCK_TIMEOUT);
    // Locks the endpoints first, because an import may hold them for a minute. While this
    // transaction waits for them, it must not hold other locks that submits and settling need.
    await tx.execute(sql`lock table provider_endpoints in share row exclusive mode`);
    // Locks the balances before the address tables, because settling a request also locks a balance
    // first.
    await tx.execute(sql`select hold_balances()`);
    // Locks these tables in the same order as all other writers do. A prepared statement locks the
    // tables of its CTEs in their order.
    await tx.execute(sql`
      lock table candidates, stored_emails, email_checks in share row exclusive mode`);
    erasure = await eraseAddresses(tx, subject, by.reason);
    await recordPrivacyRequest(tx, by, 'privacy.erase', subject, erasure);
    if (isRehearsal) throw rehearsed;
  }).catch((error) => {
    if (error !== rehearsed) throw error;
  });
  return erasure;
}

/**
 * Erases a person's addresses, table by table. The locks of `erase` keep other writers out, so all
 * statements see the same rows. Requests keep their status, price, and ledger entries.
 */
async function eraseAddresses(tx: Transaction, subject: DataSubject, reason: string) {
  const { npi } = keysOf(subject);
  const addresses = await listAddresses(tx, subject);
  const isTheirs = (address: SQLWrapper) =>
    sql`(npi = ${npi} or ${address} = any(${sql.param(addresses)}::text[]))`;
  // Read before the evidence is deleted below.
  const evidence = await tx
    .selectDistinct({ npi: emailChecks.npi })
    .from(emailChecks)
    .where(isTheirs(emailChecks.email));
  const npis = sql.param([...evidence.map((check) => check.npi), npi]);
  const suppressed = await suppressErased(tx, npi, addresses, reason);
  const results = await tx
    .update(requests)
    .set({
      email: null,
      emailType: null,
      emailLastValidatedAt: null,
      erasedAt: clockTime,
    })
    .where(
      and(
        isNotNull(requests.email),
        isNull(requests.testOutcome),
        isTheirs(requests.email),
      ),
    )
    .returning({ id: requests.id });
  const resultIds = results.map(({ id }) => id);
  // A receiver's response may repeat the address that we sent. This is true even for a request
  // whose address was deleted since, at the end of its retention.
  const excerpts = await tx.execute(sql`
    update webhook_attempts
       set response_excerpt = null
     where response_excerpt is not null
       and delivery_id in (
         select d.id
           from requests r join webhook_deliveries d on d.batch_id = r.batch_id
          where (r.npi = ${npi} or r.id = any(${sql.param(resultIds)}::text[]))
            and (d.request_id is null or d.request_id = r.id))`);
  await tx
    .update(lookups)
    .set({ facts: null })
    .where(and(isNotNull(lookups.facts), sql`npi = any(${npis}::text[])`));
  const named = await tx.delete(candidates).where(isTheirs(candidates.email));
  const stored = await tx.delete(storedEmails).where(isTheirs(storedEmails.email));
  const checks = await tx.delete(emailChecks).where(isTheirs(emailChecks.email));
  const profiles = await tx.delete(vendorProfiles).where(sql`npi = any(${npis}::text[])`);
  const endpoints = await tx.execute(sql`
    delete from provider_endpoints
     where endpoint like '%@%' and ${isTheirs(sql`endpoint_address(endpoint)`)}`);
  return {
    suppressions: suppressed.count,
    candidates: named.count,
    storedEmails: stored.count,
    emailChecks: checks.count,
    results: results.length,
    receiverExcerpts: excerpts.count,
    vendorProfiles: profiles.count,
    endpoints: endpoints.count,
  };
}

/**
 * Lists the address of a privacy request, and all addresses that were ever stored for the NPI,
 * except those of another person.
 */
async function listAddresses(tx: Transaction, subject: DataSubject): Promise<string[]> {
  if ('email' in subject) return [subject.email];
  const { npi } = subject;
  const known = await run<{ email: string }>(tx)`
    select email from candidates where npi = ${npi}
    union
    select email from stored_emails where npi = ${npi}
    union
    select email from email_checks where npi = ${npi}
     group by email having not bool_or(kind = 'identity')
    union
    select email from requests
     where npi = ${npi} and email is not null and test_outcome is null
    union
    select endpoint_address(endpoint) from provider_endpoints
     where npi = ${npi} and endpoint like '%@%'`;
  return known.map(({ email }) => email);
}

/** Suppresses an erased NPI, if it was given, and the hashes of the erased addresses. */
async function suppressErased(
  tx: Transaction,
  npi: string | null,
  addresses: readonly string[],
  reason: string,
) {
  const erased = addresses.map((email) => suppressionOf({ email }));
  if (npi !== null) erased.push(suppressionOf({ npi }));
  return await tx.execute(sql`
    insert into suppressions as s (kind, value, origin, reason)
    select kind, value, 'erasure', ${reason}
      from jsonb_to_recordset(${JSON.stringify(erased)}::jsonb) erased (kind text, value text)
     order by kind, value
        on conflict (kind, value) do update set origin = excluded.origin, reason = excluded.reason
     where s.origin <> excluded.origin`);
}
