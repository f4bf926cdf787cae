import { type SQL, sql } from 'drizzle-orm';
import { span, type Transaction } from '../connection/client.ts';
import type { KnownWindows } from '../requests/entitlements.ts';
import FINDINGS from './findings.json' with { type: 'json' };

/**
 * The settings of the workers that the checks need: time windows and the webhook schedule, in
 * milliseconds.
 */
export interface DoctorRules extends KnownWindows {
  readonly webhookScheduleMs: readonly number[];
}

/**
 * The code of a finding. The file findings.json contains its title, its meaning, and what to do
 * about it.
 */
export type FindingCode = keyof typeof FINDINGS;

/** The default number of example ids per check. */
export const EXAMPLES = 5;

export interface CheckResult {
  readonly code: FindingCode;
  readonly title: string;
  readonly explanation: string;
  readonly findings: number;
  /**
   * Up to five ids (by default) of rows that the check found, sorted. `batch_lost` and `result_lost`
   * have all.
   */
  readonly examples: readonly string[];
}

/**
 * Returns the result of a check.
 * @param values the values that replace `{name}` in the title and the explanation
 */
export function resultOf(
  code: FindingCode,
  found: Pick<CheckResult, 'findings' | 'examples'>,
  values: Readonly<Record<string, string | number>> = {},
): CheckResult {
  const filled = (text: string) =>
    text.replace(/\{(\w+)\}/, (_, name: string) => String(values[name]));
  const { title, explanation } = FINDINGS[code];
  return { code, title: filled(title), explanation: filled(explanation), ...found };
}

/** Returns the result of a check that has read the ids of all its findings. */
export function found(
  code: FindingCode,
  ids: readonly string[],
  values?: Parameters<typeof resultOf>[2],
): CheckResult {
  const examples = ids.slice(0, EXAMPLES);
  return resultOf(code, { findings: ids.length, examples }, values);
}

/** A group of checks that read the same rows, so that the rows are read only once. */
export interface Pass {
  readonly from: SQL;
  /** The id that is reported for a row with a finding, as text. */
  readonly subject: SQL;
  /** A condition for each finding code. A row that matches the condition is a finding. */
  readonly checks: Readonly<Partial<Record<FindingCode, SQL>>>;
}

/**
 * How late an automatic step may be before it is reported as a finding (ARCHITECTURE.md,
 * Invariants, S2 and S4).
 */
export const GRACE_SECONDS = 60;
export const GRACE = span(GRACE_SECONDS * 1000);

/** Runs the checks of passes, one pass after the other. */
export async function runPasses(
  tx: Transaction,
  passes: readonly Pass[],
  examples = EXAMPLES,
): Promise<CheckResult[]> {
  const checks: CheckResult[] = [];
  for (const pass of passes) {
    const rows = await tx.execute<{ code: string; findings: number; examples: string[] }>(
      statement(pass, examples),
    );
    for (const code of Object.keys(pass.checks) as FindingCode[]) {
      const { findings = 0, examples = [] } = rows.find((row) => row.code === code) ?? {};
      checks.push(resultOf(code, { findings, examples }));
    }
  }
  return checks;
}

/**
 * Returns the statement that counts the findings of a pass by check. The statement first drops the
 * rows that match no check, and then counts each remaining row for every check that it matches.
 */
function statement({ from, subject, checks }: Pass, examples: number): SQL {
  const verdicts = Object.entries(checks).map(
    ([code, when]) => sql`(${code}, ${subject}, ${when})`,
  );
  const offends = Object.values(checks).map((when) => sql`(${when})`);
  return sql`
    select v.code,
           count(*)::int as findings,
           (array_agg(v.subject order by v.subject))[1:${examples}::int] as examples
      from ${from}
     cross join lateral (values ${sql.join(verdicts, sql`, `)}) v (code, subject, found)
     where (${sql.join(offends, sql` or `)}) and v.found
     group by v.code`;
}
