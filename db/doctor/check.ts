import { type SQL, sql } from 'drizzle-orm';
import type { KnownWindows } from '../requests/entitlements.ts';
import FINDINGS from './findings.json' with { type: 'json' };

/**
 * The rules that the workers follow. The checks compare the database with them. Times are in
 * milliseconds.
 */
export interface DoctorRules extends KnownWindows {
  readonly webhookScheduleMs: readonly number[];
}

/** The code of a finding. findings.json has its title, its meaning, and what to do about it. */
export type FindingCode = keyof typeof FINDINGS;

export interface CheckResult {
  readonly code: FindingCode;
  readonly title: string;
  readonly explanation: string;
  readonly findings: number;
  /** Some of the ids found, sorted. */
  readonly examples: readonly string[];
}

/**
 * Returns the result of a check.
 * @param values the replacements for `{name}` in its texts
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

/** A relation that is read once for all of its checks. */
export interface Pass {
  readonly from: SQL;
  /** The id to investigate, as text. */
  readonly subject: SQL;
  /** The forbidden conditions by their finding code. No row should match one. */
  readonly checks: Readonly<Partial<Record<FindingCode, SQL>>>;
}

/**
 * The maximum delay of an automatic step before it is a finding (ARCHITECTURE.md, Invariants, S2
 * and S4).
 */
export const GRACE = sql`interval '60 seconds'`;

/**
 * Returns the statement that counts the findings of a pass by check. It first drops the rows that
 * match no check, and then assigns the others to their checks.
 */
export function statement({ from, subject, checks }: Pass, examples: number): SQL {
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
