import { setTimeout } from 'node:timers/promises';
import { type SQL, sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, query, type Transaction, transaction } from '../client.ts';
import { DatabaseError } from '../errors.ts';
import { hashAddress, type SuppressionTarget } from './suppressions.ts';

/** Whom a person's request is about: the provider of an NPI, or the owner of an address (normalized). */
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

/** The register, the newest first. */
export async function listPrivacyRequests(db: Database, limit: number) {
  const register = sql`
    select received_at as "receivedAt", done_at as "doneAt", kind, asked_by as "askedBy", subject, actor, reason
      from privacy_requests
     order by id desc limit ${limit}`;
  return await query(db, (tx) => tx.execute<{ readonly doneAt: string }>(register));
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
const DERIVED = ['row_hash', 'phone_key', 'address_key', 'updated_at', 'unchecked', 'facts'];

/**
 * Everything held about a provider, or under an address, for them to have. For an NPI: its NPPES rows and the
 * lookups and requests for it; of an address: what names it. Organizations appear by their ids: whom they are is not
 * the person's data. `custom_data` is the customer's own, and left out.
 * @returns rows with the columns' own names
 */
export async function exportSubject(db: Database, subject: DataSubject) {
  const ofNpi = 'npi' in subject ? sql`npi = ${subject.npi}` : sql`false`;
  const theirs = 'npi' in subject ? ofNpi : sql`email = ${subject.email}`;
  const endpoint =
    'npi' in subject ? ofNpi : sql`endpoint like '%@%' and endpoint_address(endpoint) = ${subject.email}`;
  const { kind, value } = suppressionOf(subject);
  return await query(db, async (tx) => {
    const rows = async (statement: SQL) => {
      const found = await tx.execute<{ row: Record<string, unknown> }>(
        sql`select to_jsonb(t) - ${sql.param(DERIVED)}::text[] as row from (${statement}) t`,
      );
      return [...found].map(({ row }) => row);
    };
    return {
      providers: await rows(sql`select * from providers where ${ofNpi}`),
      locations: await rows(sql`select * from provider_locations where ${ofNpi}`),
      clinician_practices: await rows(sql`select * from clinician_practices where ${ofNpi}`),
      endpoints: await rows(sql`select * from provider_endpoints where ${endpoint} order by npi, endpoint`),
      stored_emails: await rows(sql`select * from stored_emails where ${theirs} order by first_seen_at`),
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
      suppressions: await rows(sql`select * from suppressions where kind = ${kind} and value = ${value}`),
    };
  });
}

/** How much an erasure removed, in rows; all zero if nothing was left to remove. */
export type Erasure = Awaited<ReturnType<typeof erase>>;

/**
 * Erases the addresses of a person everywhere, and leaves tombstones so that no import and no vendor brings them back:
 * the NPI if it was named, and the hash of each address. Addresses that a vendor named for the NPI but that belong to
 * somebody else are deleted without one. What was charged stays charged, and `custom_data` is the customer's own. What
 * sandboxes made up is nobody's.
 *
 * One transaction, which lets nobody settle or submit meanwhile: an answer in the making would be written with the
 * address right after. Whoever queues for a lock holds up all who come later, so it gives up soon, lets them pass, and
 * tries again a few times. Safe to repeat.
 * @throws {DatabaseError} 55P03 if others never let it have its locks; nothing was erased
 */
export async function eraseSubject(db: Database, by: AskedBy, subject: DataSubject): Promise<Erasure> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await erase(db, by, subject);
    } catch (error) {
      if (!(error instanceof DatabaseError && error.code === '55P03' && attempt < ATTEMPTS)) throw error;
      await setTimeout(PAUSE_MS);
    }
  }
}

const ATTEMPTS = 5;
const PAUSE_MS = 500;
/** Longer than the second after which PostgreSQL ends an autovacuum that is in the way. */
const LOCK_TIMEOUT = sql`set local lock_timeout = '1200ms'`;

async function erase(db: Database, by: AskedBy, subject: DataSubject) {
  return await transaction(db, async (tx) => {
    await tx.execute(LOCK_TIMEOUT);
    // An import may be busy with the endpoints for a minute: only who has waited for it makes others wait.
    await tx.execute(sql`lock table provider_endpoints in share row exclusive mode`);
    // Whoever answers a request locks a balance first. The directory's writers come after, in the order they use.
    await tx.execute(sql`select hold_balances()`);
    await tx.execute(sql`lock table stored_emails, email_checks in share row exclusive mode`);
    const npi = 'npi' in subject ? subject.npi : null;
    const addresses = 'npi' in subject ? await addressesOf(tx, subject.npi) : [subject.email];
    // What tells a row of theirs, by its `npi` and the column that holds the address.
    const isOneOf = (email: SQL) => sql`${email} = any(${sql.param(addresses)}::text[])`;
    const isTheirs = (email: SQL) =>
      npi === null ? isOneOf(email) : sql`(npi = ${npi} or ${isOneOf(email)})`;
    const inColumn = isTheirs(sql`email`);
    const inEndpoint = sql`endpoint like '%@%' and ${isTheirs(sql`endpoint_address(endpoint)`)}`;
    const count = async (statement: SQL) => (await tx.execute(sql`${statement} returning 1`)).length;

    const tombstones = await count(buried(by, npi, addresses));
    const answers = await eraseAnswers(tx, inColumn);
    await tx.execute(sql`update lookups set facts = null where facts is not null
      and npi = any(array(select npi from email_checks where ${inColumn} union select ${npi}))`);
    const erasure = {
      /** Suppressions that are new, or were of another origin. */
      tombstones,
      storedEmails: await count(sql`delete from stored_emails where ${inColumn}`),
      emailChecks: await count(sql`delete from email_checks where ${inColumn}`),
      ...answers,
      endpoints: await count(sql`delete from provider_endpoints where ${inEndpoint}`),
    };
    await recordPrivacyRequest(tx, by, 'privacy.erase', subject, erasure);
    return erasure;
  });
}

/** Every address that was ever held for an NPI, but for those found to be another person's. */
async function addressesOf(tx: Transaction, npi: string): Promise<string[]> {
  const rows = await tx.execute<{ email: string }>(sql`
    select email from stored_emails where npi = ${npi}
    union
    select email from email_checks where npi = ${npi}
     group by email having not bool_or(kind = 'identity')
    union
    select email from requests where npi = ${npi} and email is not null and test_outcome is null
    union
    select endpoint_address(endpoint) from provider_endpoints where npi = ${npi} and endpoint like '%@%'`);
  return rows.map(({ email }) => email);
}

function buried({ reason }: ChangedBy, npi: string | null, addresses: readonly string[]): SQL {
  return sql`
    insert into suppressions as s (kind, value, origin, reason)
    select kind, value, 'erasure', ${reason}
      from (select 'npi' as kind, ${npi}::text as value
            union select 'email', unnest(${sql.param(addresses.map(hashAddress))}::text[]) order by 1, 2) t
     where value is not null
        on conflict (kind, value) do update set origin = excluded.origin, reason = excluded.reason
     where s.origin <> excluded.origin`;
}

/** Their status, price and entries stay. A delivery's receiver may have answered with what it was sent. */
async function eraseAnswers(tx: Transaction, isTheirs: SQL) {
  const [row] = await tx.execute<{ answers: number; receiverExcerpts: number }>(sql`
    with erased as (
      update requests set email = null, email_type = null, email_last_validated_at = null,
                          erased_at = clock_timestamp()
       where email is not null and test_outcome is null and ${isTheirs}
      returning id, batch_id
    ), excerpts as (
      update webhook_attempts set response_excerpt = null
       where response_excerpt is not null and delivery_id in (
         select d.id from webhook_deliveries d join erased e on e.batch_id = d.batch_id
          where d.request_id is null or d.request_id = e.id)
      returning 1
    )
    select (select count(*)::int from erased) as answers, (select count(*)::int from excerpts) as "receiverExcerpts"`);
  return { answers: row?.answers ?? 0, receiverExcerpts: row?.receiverExcerpts ?? 0 };
}
