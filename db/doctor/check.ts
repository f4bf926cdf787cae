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
  /** The id to look at, as text. */
  readonly subject: SQL;
  readonly when: SQL;
}

/** A relation (`from`), read once for all of its checks. */
export interface Pass {
  /** Named queries that `from` reads. */
  readonly with?: SQL;
  readonly from: SQL;
  readonly checks: readonly Check[];
}

/** What has to happen on its own may be this late before it is a finding (ARCHITECTURE.md, Invariants, S2 and S4). */
export const GRACE = sql`interval '60 seconds'`;
