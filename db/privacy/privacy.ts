import { setTimeout } from 'node:timers/promises';
import { type SQL, sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, query, type Transaction, transaction } from '../client.ts';
import { DatabaseError } from '../errors.ts';
import { hashAddress } from './suppressions.ts';

/** Whom a person's request is about: the provider of an NPI, or the owner of an address (normalized). */
export type DataSubject = { readonly npi: string } | { readonly email: string };

/** What stands for a person in the audit log. */
function nameOf(subject: DataSubject): string {
  return 'npi' in subject ? subject.npi : hashAddress(subject.email);
}

/** Who does it, and who asked for it, when: what the register of such requests has. */
export interface AskedBy extends ChangedBy {
  readonly askedBy: string;
  readonly received: Date;
}

/** The register, the newest first. */
export async function listPrivacyRequests(db: Database, limit: number): Promise<object[]> {
  const register = sql`
    select received_at as "receivedAt", done_at as "doneAt", kind, asked_by as "askedBy", subject, actor, reason
      from privacy_requests
     order by id desc limit ${limit}`;
  return [...(await query(db, (tx) => tx.execute(register)))];
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
  await recordAudit(tx, by, { action, organizationId: null, subject: nameOf(subject), details });
}

/** How much an erasure removed, in rows; all zero if nothing was left to remove. */
export interface Erasure {
  /** Suppressions that are new, or were of another origin. */
  readonly tombstones: number;
  readonly storedEmails: number;
  readonly emailChecks: number;
  /** Answers whose address is gone; their status, price and entries stay. */
  readonly answers: number;
  readonly receiverExcerpts: number;
  readonly endpoints: number;
}

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

async function erase(db: Database, by: AskedBy, subject: DataSubject): Promise<Erasure> {
  return await transaction(db, async (tx) => {
    await tx.execute(LOCK_TIMEOUT);
    // An import may be busy with the endpoints for a minute: only who has waited for it makes others wait.
    await tx.execute(sql`lock table provider_endpoints in share row exclusive mode`);
    // Whoever answers a request locks a balance first. The directory's writers come after, in the order they use.
    await tx.execute(sql`select hold_balances()`);
    await tx.execute(sql`lock table stored_emails, email_checks in share row exclusive mode`);
    const addresses = 'npi' in subject ? await addressesOf(tx, subject.npi) : [subject.email];
    const isTheirs = theirs(subject, addresses);

    const tombstones = await bury(tx, by, subject, addresses);
    const { answers, receiverExcerpts } = await eraseAnswers(tx, isTheirs(sql`email`));
    await tx.execute(sql`update lookups set facts = null where facts is not null
      and npi = any(array(select npi from email_checks where ${isTheirs(sql`email`)}
                    union select ${'npi' in subject ? subject.npi : null}))`);
    const storedEmails = await remove(tx, sql`stored_emails`, isTheirs(sql`email`));
    const emailChecks = await remove(tx, sql`email_checks`, isTheirs(sql`email`));
    const endpoints = await remove(
      tx,
      sql`provider_endpoints`,
      sql`endpoint like '%@%' and ${isTheirs(sql`endpoint_address(endpoint)`)}`,
    );
    const erasure = { tombstones, storedEmails, emailChecks, answers, receiverExcerpts, endpoints };
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

/** What tells a row of theirs, by its `npi` and the column that holds the address. */
function theirs(subject: DataSubject, addresses: readonly string[]): (email: SQL) => SQL {
  return (email) =>
    'npi' in subject ? sql`(npi = ${subject.npi} or ${oneOf(email, addresses)})` : oneOf(email, addresses);
}

function oneOf(column: SQL, addresses: readonly string[]): SQL {
  return sql`${column} = any(${sql.param(addresses)}::text[])`;
}

async function bury(
  tx: Transaction,
  by: ChangedBy,
  subject: DataSubject,
  addresses: readonly string[],
): Promise<number> {
  const hashes = sql`${sql.param(addresses.map(hashAddress))}::text[]`;
  const npis = sql`${sql.param('npi' in subject ? [subject.npi] : [])}::text[]`;
  const rows = await tx.execute(sql`
    insert into suppressions as s (kind, value, origin, reason)
    select kind, value, 'erasure', ${by.reason}
      from (select 'npi' as kind, unnest(${npis}) as value
            union select 'email', unnest(${hashes}) order by 1, 2) t
        on conflict (kind, value) do update set origin = excluded.origin, reason = excluded.reason
     where s.origin <> excluded.origin
    returning 1`);
  return rows.length;
}

/** A delivery's receiver may have answered with what it was sent. */
async function eraseAnswers(
  tx: Transaction,
  isTheirs: SQL,
): Promise<Pick<Erasure, 'answers' | 'receiverExcerpts'>> {
  const [row] = await tx.execute<{ answers: number; excerpts: number }>(sql`
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
    select (select count(*)::int from erased) as answers, (select count(*)::int from excerpts) as excerpts`);
  return { answers: row?.answers ?? 0, receiverExcerpts: row?.excerpts ?? 0 };
}

async function remove(tx: Transaction, table: SQL, isTheirs: SQL): Promise<number> {
  const rows = await tx.execute(sql`delete from ${table} where ${isTheirs} returning 1`);
  return rows.length;
}
