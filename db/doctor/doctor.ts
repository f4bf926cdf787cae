import { sql } from 'drizzle-orm';
import { type ChangedBy, recordAudit } from '../audit.ts';
import { type Database, type Transaction, transaction } from '../client.ts';
import { DatabaseError, Refusal, toDatabaseError } from '../errors.ts';
import { balanceLock } from '../requests/room.ts';
import { settleIn } from '../requests/settle.ts';
import { type CheckResult, type DoctorRules, type FindingCode, resultOf, statement } from './check.ts';
import { ledgerPasses } from './ledger.ts';
import { REQUEST_PASSES } from './requests.ts';
import { workPasses } from './work.ts';

export interface Diagnosis {
  /** The sum of all checks; 0 is health. */
  readonly findings: number;
  readonly checks: readonly CheckResult[];
  readonly durationMs: number;
}

/** Examples for a person to look at. */
const EXAMPLES = 5;

/**
 * Checks every invariant (ARCHITECTURE.md, Invariants) that the database can answer for, on one snapshot, without locks.
 * @param examples how many ids to name per check
 */
export async function diagnose(db: Database, rules: DoctorRules, examples = EXAMPLES): Promise<Diagnosis> {
  try {
    return await db.drizzle.transaction(
      async (tx) => {
        await tx.execute(sql`select ${sql.join(SETTINGS, sql`, `)}`);
        return await runChecks(tx, rules, examples);
      },
      { isolationLevel: 'repeatable read', accessMode: 'read only' },
    );
  } catch (error) {
    throw toDatabaseError(error);
  }
}

/** Whole tables are read: hashes that spill and the time-out of a service's statement are not for this. */
const SETTINGS = Object.entries({
  statement_timeout: '15min',
  work_mem: '256MB',
  jit: 'off',
  parallel_setup_cost: '100',
  parallel_tuple_cost: '0.001',
}).map(([name, value]) => sql`set_config(${name}, ${value}, true)`);

/** The checks alone, on what `tx` sees: a transaction that is going to be rolled back, for example. */
export async function runChecks(
  tx: Transaction,
  rules: DoctorRules,
  examples = EXAMPLES,
): Promise<Diagnosis> {
  const begun = performance.now();
  const checks: CheckResult[] = [];
  for (const pass of [...ledgerPasses(rules), ...REQUEST_PASSES, ...workPasses(rules)]) {
    const rows = await tx.execute<{ code: string; findings: number; examples: string[] }>(
      statement(pass, examples),
    );
    for (const code of Object.keys(pass.checks) as FindingCode[]) {
      const { findings = 0, examples = [] } = rows.find((row) => row.code === code) ?? {};
      checks.push(resultOf(code, { findings, examples }));
    }
  }
  const findings = checks.reduce((sum, check) => sum + check.findings, 0);
  return { findings, checks, durationMs: Math.round(performance.now() - begun) };
}

/** What a repair changed: numbers and ids. */
type Details = Readonly<Record<string, string | number | null>>;

/** Takes one id of a finding; null if there is nothing to repair any more, or not safely. */
type Repair = (
  tx: Transaction,
  subject: string,
  rules: DoctorRules,
) => Promise<{ readonly organizationId: string | null; readonly details: Details } | null>;

export interface RepairRecord {
  readonly check: string;
  readonly subject: string;
  readonly outcome: 'repaired' | 'left';
  /** What was changed, or the code of what refused. */
  readonly details: Details;
}

/**
 * Repairs what can be computed again from the ledger and the requests, or is owed by a rule. Each repair is a
 * transaction of its own that looks again under the organization's lock, and has its record in the audit log.
 * @throws {DatabaseError} if PostgreSQL is away; what the constraints refuse is `left`
 */
export async function repair(
  db: Database,
  by: ChangedBy,
  diagnosis: Diagnosis,
  rules: DoctorRules,
): Promise<RepairRecord[]> {
  const records: RepairRecord[] = [];
  for (const [check, work] of Object.entries(REPAIRS)) {
    const subjects = diagnosis.checks.find(({ code }) => code === check)?.examples ?? [];
    for (const subject of subjects) {
      records.push({ check, subject, ...(await repairOne(db, by, check, subject, rules, work)) });
    }
  }
  return records;
}

async function repairOne(
  db: Database,
  by: ChangedBy,
  check: string,
  subject: string,
  rules: DoctorRules,
  work: Repair,
): Promise<Pick<RepairRecord, 'outcome' | 'details'>> {
  try {
    const done = await transaction(db, async (tx) => {
      const repaired = await work(tx, subject, rules);
      if (!repaired) return null;
      const { organizationId, details } = repaired;
      await recordAudit(tx, by, {
        action: 'doctor.repair',
        organizationId,
        subject,
        details: { check, ...details },
      });
      return details;
    });
    return done ? { outcome: 'repaired', details: done } : { outcome: 'left', details: {} };
  } catch (error) {
    if (error instanceof Refusal) return { outcome: 'left', details: { code: error.code } };
    if (!(error instanceof DatabaseError) || error.unavailable) throw error;
    return { outcome: 'left', details: { code: error.code, constraint: error.constraint } };
  }
}

/** In the order in which they are made: settlements move balances and counts, which must be right by then. */
const REPAIRS: Readonly<Record<string, Repair>> = {
  async balance_differs(tx, organizationId) {
    await balanceLock(tx, organizationId);
    const balance = sql`
      select total::float8, available::float8, held::float8, used::float8
        from credit_balances where organization_id = ${organizationId}`;
    const [before] = await tx.execute<Record<string, number>>(balance);
    await tx.execute(sql`select recompute_balance(${organizationId})`);
    const [after = {}] = await tx.execute<Record<string, number>>(balance);
    const details = Object.entries(after).flatMap(([name, amount]) => [
      [`${name}_before`, before?.[name] ?? null],
      [name, amount],
    ]);
    return { organizationId, details: Object.fromEntries(details) };
  },

  async batch_completed_count(tx, batchId) {
    const organizationId = await lockOwner(tx, 'batches', batchId);
    if (organizationId === null) return null;
    const [row] = await tx.execute<{ before: number; counted: number }>(sql`
      update batches b
         set completed_count = n.counted, updated_at = greatest(b.updated_at, clock_timestamp())
        from (select count(settled_at)::int as counted from requests where batch_id = ${batchId}) n,
             (select completed_count as before from batches where id = ${batchId}) was
       where b.id = ${batchId} and b.completed_count <> n.counted
      returning was.before, n.counted`);
    return row ? { organizationId, details: { ...row } } : null;
  },

  async delivery_attempts(tx, deliveryId) {
    const [row] = await tx.execute<{ organization_id: string; before: number; counted: number }>(sql`
      update webhook_deliveries d
         set attempts = n.last
        from (select count(*)::int as made, coalesce(max(n), 0)::int as last
                from webhook_attempts where delivery_id = ${deliveryId}) n,
             (select d.attempts as before, b.organization_id
                from webhook_deliveries d join batches b on b.id = d.batch_id
               where d.id = ${deliveryId} for update of d) was
       where d.id = ${deliveryId} and n.made = n.last - d.forgotten and d.attempts <> n.last
      returning was.organization_id, was.before, n.last as counted`);
    if (!row) return null;
    const { organization_id: organizationId, ...details } = row;
    return { organizationId, details };
  },

  async entitlement_unearned(tx, subject) {
    const [organizationId = '', npi = '', emailType = ''] = subject.split(' ');
    return await rewriteEntitlement(tx, organizationId, npi, emailType);
  },

  async entitlement_missing(tx, requestId) {
    const [charge] = await tx.execute<{ organization_id: string; npi: string; email_type: string }>(
      sql`select organization_id, npi, email_type from requests where id = ${requestId} and credits_used > 0`,
    );
    return charge
      ? await rewriteEntitlement(tx, charge.organization_id, charge.npi, charge.email_type)
      : null;
  },

  async hold_not_settled(tx, requestId) {
    const organizationId = await lockOwner(tx, 'requests', requestId);
    if (organizationId === null) return null;
    const [row] = await tx.execute<{ amount: number }>(sql`
      insert into ledger_entries (organization_id, request_id, kind, amount)
      select r.organization_id, r.id, 'release', e.amount
        from requests r join ledger_entries e on e.request_id = r.id
       where r.id = ${requestId} and r.settled_at is not null and (r.status <> 'completed' or r.replayed)
         and e.kind = 'hold'
         and (select count(*) from ledger_entries where request_id = r.id) = 1
      returning amount::int`);
    return row ? { organizationId, details: { released: row.amount } } : null;
  },

  async request_overdue(tx, requestId, rules) {
    const organizationId = await lockOwner(tx, 'requests', requestId);
    if (organizationId === null) return null;
    const { status, settledNow } = await settleIn(tx, requestId, 'failed', 'deadline', rules);
    return settledNow ? { organizationId, details: { settled: status } } : null;
  },

  async lookup_left_open(tx, lookupId) {
    // Locked first, so that a request that joins it meanwhile is seen.
    await tx.execute(sql`select from lookups where id = ${lookupId} for update`);
    const [row] = await tx.execute<{ npi: string }>(sql`
      update lookups l set closed_at = clock_timestamp()
       where l.id = ${lookupId} and l.closed_at is null
         and not exists (select from requests r where r.lookup_id = l.id and r.settled_at is null)
      returning l.npi`);
    return row ? { organizationId: null, details: { npi: row.npi } } : null;
  },
};

/** The checks that `repair` knows how to clear. */
export const REPAIRABLE: ReadonlySet<string> = new Set(Object.keys(REPAIRS));

async function rewriteEntitlement(
  tx: Transaction,
  organizationId: string,
  npi: string,
  emailType: string,
): ReturnType<Repair> {
  await balanceLock(tx, organizationId);
  const entitlement = sql`
    select request_id, charged_at::text from entitlements
     where organization_id = ${organizationId} and npi = ${npi} and email_type = ${emailType}`;
  type Row = { readonly request_id: string; readonly charged_at: string };
  const [before] = await tx.execute<Row>(entitlement);
  await tx.execute(sql`select rewrite_entitlement(${organizationId}, ${npi}, ${emailType})`);
  const [after] = await tx.execute<Row>(entitlement);
  if (before?.request_id === after?.request_id && before?.charged_at === after?.charged_at) return null;
  return {
    organizationId,
    details: {
      charge_before: before?.request_id ?? null,
      charged_at_before: before?.charged_at ?? null,
      charge: after?.request_id ?? null,
      charged_at: after?.charged_at ?? null,
    },
  };
}

async function lockOwner(tx: Transaction, table: 'batches' | 'requests', id: string): Promise<string | null> {
  const [owner] = await tx.execute<{ organization_id: string }>(
    sql`select organization_id from ${sql.identifier(table)} where id = ${id}`,
  );
  if (!owner) return null;
  await balanceLock(tx, owner.organization_id);
  return owner.organization_id;
}
