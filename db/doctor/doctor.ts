import { type SQL, sql } from 'drizzle-orm';
import { balanceLock } from '../accounts/balance.ts';
import {
  type Database,
  snapshot,
  type Transaction,
  transaction,
} from '../connection/client.ts';
import { DatabaseError, Refusal } from '../connection/errors.ts';
import { type ChangedBy, recordAudit } from '../operations/audit.ts';
import { settleIn } from '../requests/settle.ts';
import type { organizations } from '../schema.ts';
import { type CheckResult, type DoctorRules, EXAMPLES, runPasses } from './check.ts';
import { ledgerPasses } from './ledger.ts';
import { REQUEST_PASSES } from './requests.ts';
import { workPasses } from './work.ts';

/**
 * Checks all invariants (ARCHITECTURE.md, Invariants) that can be checked with the database only.
 * Constraints enforce some of them. For those, it only checks that the constraints still exist.
 * Reads one snapshot and takes no locks.
 * @param examples the maximum number of example ids per check
 */
export async function diagnose(
  db: Database,
  rules: DoctorRules,
  examples = EXAMPLES,
): Promise<CheckResult[]> {
  return await snapshot(db, (tx) => runChecks(tx, rules, examples));
}

/** Runs the checks in the caller's transaction, for example in one that will be rolled back. */
export async function runChecks(
  tx: Transaction,
  rules: DoctorRules,
  examples = EXAMPLES,
): Promise<CheckResult[]> {
  const passes = [...ledgerPasses(rules), ...REQUEST_PASSES, ...workPasses(rules)];
  return await runPasses(tx, passes, examples);
}

/** The changes of a repair, as numbers and ids. */
type Details = Readonly<Record<string, string | number | null>>;

/**
 * A function that repairs one subject, such as a request or a balance.
 * @returns the details to record; null if the subject no longer needs a repair, or if a repair is
 * not safe
 */
type Fix = (
  tx: Transaction,
  subject: string,
  rules: DoctorRules,
) => Promise<Details | null>;

interface RepairRecord {
  readonly check: string;
  readonly subject: string;
  readonly outcome: 'repaired' | 'left';
  /** The changes of the repair, or the error code if the repair was rejected. */
  readonly details: Details;
}

/**
 * Repairs the findings whose correct state can be derived from other rows or from a rule. Each
 * repair is a separate transaction. It locks the organization's balance, checks again that the
 * repair is needed, and adds an entry to the audit log.
 * @throws {DatabaseError} if PostgreSQL is unavailable; a repair that a constraint rejects is
 * recorded as `left`
 */
export async function repair(
  db: Database,
  by: ChangedBy,
  checks: readonly CheckResult[],
  rules: DoctorRules,
): Promise<RepairRecord[]> {
  const records: RepairRecord[] = [];
  for (const [check, fix] of Object.entries(REPAIRS)) {
    const found = checks.find(({ code }) => code === check);
    for (const subject of found?.examples ?? []) {
      records.push(await repairOne(db, by, { check, fix, subject }, rules));
    }
  }
  return records;
}

async function repairOne(
  db: Database,
  by: ChangedBy,
  {
    check,
    fix,
    subject,
  }: { readonly check: string; readonly fix: Fix; readonly subject: string },
  rules: DoctorRules,
): Promise<RepairRecord> {
  try {
    const details = await transaction(db, async (tx) => {
      const organizationId = await findOwner(tx, subject);
      if (organizationId !== null) await balanceLock(tx, organizationId);
      const changes = await fix(tx, subject, rules);
      if (changes === null) return null;
      const change = { action: 'doctor.repair', organizationId, subject } as const;
      await recordAudit(tx, by, { ...change, details: { check, ...changes } });
      return changes;
    });
    if (details === null) {
      return { check, subject, outcome: 'left', details: {} };
    }
    return { check, subject, outcome: 'repaired', details };
  } catch (error) {
    return { check, subject, outcome: 'left', details: refusalOf(error) };
  }
}

function refusalOf(error: unknown): Details {
  if (error instanceof Refusal) return { code: error.code };
  if (!(error instanceof DatabaseError) || error.isAway) throw error;
  return { code: error.code, constraint: error.constraint };
}

async function detailsOf(tx: Transaction, fix: SQL): Promise<Details | null> {
  const [row] = await tx.execute<{ details: Details | null }>(fix);
  return row?.details ?? null;
}

/**
 * Finds the organization of a subject. The subject is the id of a batch, a request, or a delivery,
 * or it begins with an organization's id.
 */
async function findOwner(tx: Transaction, subject: string): Promise<string | null> {
  const [owner] = await tx.execute<Pick<typeof organizations.$inferSelect, 'id'>>(sql`
    select id from organizations where id = split_part(${subject}, ' ', 1)
    union all
    select organization_id from batches where id = ${subject}
    union all
    select organization_id from requests where id = ${subject}
    union all
    select organization_id from webhook_deliveries where id = ${subject}`);
  return owner?.id ?? null;
}

/**
 * The repairs in the order in which they run. Settlements change balances and counts, so balances
 * and counts are repaired first.
 */
const REPAIRS: Readonly<Record<string, Fix>> = {
  balance_differs: recomputeBalance,
  batch_completed_count: recountBatch,
  delivery_attempts: recountAttempts,
  entitlement_unearned: rewriteEntitlement,
  entitlement_missing: addEntitlement,
  result_without_charge: settleHold,
  hold_not_settled: settleHold,
  request_overdue: settleRequest,
  lookup_left_open: closeLookup,
};

/** The codes of the checks that `repair` can fix. */
export const REPAIRABLE: ReadonlySet<string> = new Set(Object.keys(REPAIRS));

async function recomputeBalance(tx: Transaction, organizationId: string) {
  return await detailsOf(tx, sql`select recompute_balance(${organizationId}) as details`);
}

async function recountBatch(tx: Transaction, batchId: string) {
  return await detailsOf(
    tx,
    sql`
      update batches b
         set completed_count = n.counted,
             updated_at = later(b.updated_at, clock_timestamp())
        from (select count(settled_at)::int as counted from requests where batch_id = ${batchId}) n,
             (select completed_count as before from batches where id = ${batchId}) was
       where b.id = ${batchId} and b.completed_count <> n.counted
      returning json_build_object('before', was.before, 'counted', n.counted) as details`,
  );
}

async function recountAttempts(tx: Transaction, deliveryId: string) {
  return await detailsOf(
    tx,
    sql`
      update webhook_deliveries d
         set attempts = n.last
        from (
          select count(*)::int as made, coalesce(max(n), 0)::int as last
            from webhook_attempts
           where delivery_id = ${deliveryId}
        ) n, (
          select attempts as before from webhook_deliveries where id = ${deliveryId} for update
        ) was
       where d.id = ${deliveryId}
         and n.made = n.last - d.forgotten
         and d.attempts <> n.last
      returning json_build_object('before', was.before, 'counted', n.last) as details`,
  );
}

async function rewriteEntitlement(tx: Transaction, subject: string) {
  const [organizationId = '', npi = '', emailType = ''] = subject.split(' ');
  return await detailsOf(
    tx,
    sql`select rewrite_entitlement(${organizationId}, ${npi}, ${emailType}) as details`,
  );
}

async function addEntitlement(tx: Transaction, requestId: string) {
  return await detailsOf(
    tx,
    sql`
      select rewrite_entitlement(organization_id, npi, email_type) as details
        from requests
       where id = ${requestId} and credits_used > 0`,
  );
}

async function settleHold(tx: Transaction, requestId: string) {
  return await detailsOf(tx, sql`select settle_hold(${requestId}) as details`);
}

async function settleRequest(tx: Transaction, requestId: string, rules: DoctorRules) {
  const { status, settledNow } = await settleIn(
    tx,
    requestId,
    'failed',
    'deadline',
    rules,
  );
  return settledNow ? { settled: status } : null;
}

async function closeLookup(tx: Transaction, lookupId: string) {
  // Locks the lookup first, so that the update below sees a request that is joining the lookup now.
  await tx.execute(sql`select from lookups where id = ${lookupId} for update`);
  return await detailsOf(
    tx,
    sql`
      update lookups l
         set closed_at = clock_timestamp()
       where l.id = ${lookupId}
         and l.closed_at is null
         and not exists (
           select from requests r where r.lookup_id = l.id and r.settled_at is null)
      returning json_build_object('npi', l.npi) as details`,
  );
}
