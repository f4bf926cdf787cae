import { type SQL, sql } from 'drizzle-orm';
import type { Database, Transaction } from '../client.ts';
import { toDatabaseError } from '../errors.ts';
import type { Check, DoctorRules, Pass } from './check.ts';
import { ledgerPasses } from './ledger.ts';
import { lookupPasses } from './lookups.ts';
import { promisePasses } from './promises.ts';
import { requestPasses } from './requests.ts';
import { workPasses } from './work.ts';

export interface CheckResult extends Pick<Check, 'code' | 'title' | 'explanation'> {
  readonly findings: number;
  /** Some of the ids found, in their order. */
  readonly examples: readonly string[];
}

export interface Diagnosis {
  /** Of all checks together; 0 is health. */
  readonly findings: number;
  readonly checks: readonly CheckResult[];
  /** How long each pass over the tables took. */
  readonly passes: readonly { readonly checks: readonly string[]; readonly durationMs: number }[];
  readonly durationMs: number;
}

/** Examples for a person to look at. */
const EXAMPLES = 5;

/**
 * Checks every invariant (ARCHITECTURE.md, Invariants) that the database can answer for, on one snapshot, without locks.
 * @param examples how many ids to name per check
 * @throws {DatabaseError}
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
  const passes: Diagnosis['passes'][number][] = [];
  for (const pass of passesOf(rules)) {
    const passBegun = performance.now();
    const rows = await tx.execute<{ code: string; findings: number; examples: string[] }>(
      statement(pass, examples),
    );
    const found = new Map(rows.map((row) => [row.code, row]));
    for (const { code, title, explanation } of pass.checks) {
      const row = found.get(code);
      checks.push({ code, title, explanation, findings: row?.findings ?? 0, examples: row?.examples ?? [] });
    }
    passes.push({
      checks: pass.checks.map((check) => check.code),
      durationMs: Math.round(performance.now() - passBegun),
    });
  }
  const findings = checks.reduce((sum, check) => sum + check.findings, 0);
  return { findings, checks, passes, durationMs: Math.round(performance.now() - begun) };
}

function passesOf(rules: DoctorRules): Pass[] {
  return [
    ...ledgerPasses(),
    ...requestPasses(),
    ...promisePasses(rules),
    ...lookupPasses(),
    ...workPasses(rules),
  ];
}

/** Rows that offend no check are dropped before the rest are told apart. */
function statement({ with: queries, from, checks }: Pass, examples: number): SQL {
  const verdicts = checks.map(({ code, subject, when }) => sql`(${code}, ${subject}, ${when})`);
  const offends = checks.map(({ when }) => sql`(${when})`);
  return sql`
    ${queries === undefined ? sql`` : sql`with ${queries}`}
    select v.code, count(*)::int as findings, (array_agg(v.subject order by v.subject))[1:${examples}::int] as examples
      from ${from}
     cross join lateral (values ${sql.join(verdicts, sql`, `)}) v (code, subject, found)
     where (${sql.join(offends, sql` or `)}) and v.found
     group by v.code`;
}
