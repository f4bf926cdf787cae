import { type SQL, sql } from 'drizzle-orm';
import type { KnownWindows } from '../requests/entitlements.ts';
import FINDINGS from './findings.json' with { type: 'json' };

/**
 * What the database should hold is measured by the rules that the workers keep; times in
 * milliseconds.
 */
export interface DoctorRules extends KnownWindows {
  readonly webhookScheduleMs: readonly number[];
}

/**
 * What a check finds: findings.json has, for each, its title, what it means, and what to do about
 * it.
 */
export type FindingCode = keyof typeof FINDINGS;

export interface CheckResult {
  readonly code: FindingCode;
  readonly title: string;
  readonly explanation: string;
  readonly findings: number;
  /** Some of the ids found, in their order. */
  readonly examples: readonly string[];
}

/** What a check has found. @param values what `{name}` stands for in its texts */
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

/** A relation, read once for all of its checks. */
export interface Pass {
  readonly from: SQL;
  /** The id to look at, as text. */
  readonly subject: SQL;
  /** What must never be, by the code of its finding: true of no row. */
  readonly checks: Readonly<Partial<Record<FindingCode, SQL>>>;
}

/**
 * What has to happen on its own may be this late before it is a finding (ARCHITECTURE.md,
 * Invariants, S2 and S4).
 */
export const GRACE = sql`interval '60 seconds'`;

/**
 * What a pass finds, by check. Rows that offend no check are dropped before the rest are told
 * apart.
 */
export function statement({ from, subject, checks }: Pass, examples: number): SQL {
  const verdicts = Object.entries(checks).map(
    ([code, when]) => sql`(${code}, ${subject}, ${when})`,
  );
  const offends = Object.values(checks).map((when) => sql`(${when})`);
  return sql`
    select v.code, count(*)::int as findings, (array_agg(v.subject order by v.subject))[1:${examples}::int] as examples
      from ${from}
     cross join lateral (values ${sql.join(verdicts, sql`, `)}) v (code, subject, found)
     where (${sql.join(offends, sql` or `)}) and v.found
     group by v.code`;
}
