import { type SQL, sql } from 'drizzle-orm';
import type { SettleRules } from '../requests/settle.ts';

/** What the database should hold is measured by the rules that the workers keep; times in milliseconds. */
export interface DoctorRules extends SettleRules {
  readonly webhookScheduleMs: readonly number[];
}

/** One thing that must never be: true of no row of its pass. */
export interface Check {
  readonly code: string;
  /** What a finding is, in a few words. */
  readonly title: string;
  /** What it means and what to do about it. */
  readonly explanation: string;
  readonly when: SQL;
}

/** A relation, read once for all of its checks. */
export interface Pass {
  readonly from: SQL;
  /** The id to look at, as text. */
  readonly subject: SQL;
  readonly checks: readonly Check[];
}

/** What has to happen on its own may be this late before it is a finding (ARCHITECTURE.md, Invariants, S2 and S4). */
export const GRACE = sql`interval '60 seconds'`;

/** What a pass finds, by check. Rows that offend no check are dropped before the rest are told apart. */
export function statement({ from, subject, checks }: Pass, examples: number): SQL {
  const verdicts = checks.map(({ code, when }) => sql`(${code}, ${subject}, ${when})`);
  const offends = checks.map(({ when }) => sql`(${when})`);
  return sql`
    select v.code, count(*)::int as findings, (array_agg(v.subject order by v.subject))[1:${examples}::int] as examples
      from ${from}
     cross join lateral (values ${sql.join(verdicts, sql`, `)}) v (code, subject, found)
     where (${sql.join(offends, sql` or `)}) and v.found
     group by v.code`;
}
