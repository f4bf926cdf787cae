import { sql } from 'drizzle-orm';
import { clock, type Database, type Transaction, transaction } from '../client.ts';
import { DatabaseError } from '../errors.ts';

// One gate before every call of a vendor, a verifier or the registry: circuit breaker, the source's own pauses, rate
// limits and spend, all of them in the database, so that they hold across workers.

/** At most `calls` in any `perMs` milliseconds. */
export interface Rate {
  readonly calls: number;
  readonly perMs: number;
}

export interface SourceLimits {
  readonly rates: readonly Rate[];
  /** Credits a day (UTC); null for no limit. */
  readonly dailyCredits: number | null;
}

export type Admission =
  | { readonly kind: 'go' }
  /** Not now: by the source's word, by a limit, or because it is failing. */
  | {
      readonly kind: 'wait';
      readonly why: 'paused' | 'rate_limit' | 'breaker_open';
      readonly afterMs: number;
    }
  /** Not today: the spend limit is reached. */
  | { readonly kind: 'spent' };

/** How a call went, as far as the source's health is concerned. */
export type CallOutcome =
  | { readonly kind: 'answered' }
  | { readonly kind: 'rate_limit'; readonly afterMs: number | null }
  /** It could not answer: its server, the network, or an answer that is not as documented. */
  | { readonly kind: 'failed'; readonly why: string }
  /** It could not answer a question again that it has failed to answer before: that says nothing new about it. */
  | { readonly kind: 'failed_again'; readonly why: string }
  /** It will not serve us until an operator acts. */
  | { readonly kind: 'refused'; readonly why: string };

const FAILURES_TO_OPEN = 5;
const FIRST_OPEN_MS = 30_000;
const LONGEST_OPEN_MS = 600_000;
/** A refused key or an empty account does not mend itself in seconds. */
const REFUSED_OPEN_MS = 300_000;
/** A trial call that has not ended by then died with its worker. */
const TRIAL_MS = 60_000;
const DEFAULT_PAUSE_MS = 5000;

interface Health extends Record<string, unknown> {
  readonly state: 'closed' | 'open';
  readonly failures: number;
  readonly times_opened: number;
  readonly open_in_ms: string | null;
  readonly trial_in_ms: string | null;
  readonly paused_in_ms: string | null;
}

/**
 * Asks whether a source may be called now, and takes what the call needs: its place under every rate limit, the
 * trial of an open breaker, and `cost` of the day's credits. Part of the transaction that records the call, and its
 * last lock: calls of one source are admitted one after the other.
 */
export async function admitCall(
  tx: Transaction,
  source: string,
  { rates, dailyCredits }: SourceLimits,
  cost: number,
): Promise<Admission> {
  const health = await lockHealth(tx, source);
  const pausedMs = Number(health.paused_in_ms ?? 0);
  if (pausedMs > 0) return { kind: 'wait', why: 'paused', afterMs: pausedMs };
  if (health.state === 'open') {
    const waitMs = Math.max(Number(health.open_in_ms ?? 0), Number(health.trial_in_ms ?? 0));
    if (waitMs > 0) return { kind: 'wait', why: 'breaker_open', afterMs: waitMs };
  }
  const lateMs = await takePlaces(tx, source, rates);
  if (lateMs > 0) return { kind: 'wait', why: 'rate_limit', afterMs: lateMs };
  if (!(await spend(tx, source, cost, dailyCredits))) return { kind: 'spent' };
  if (health.state === 'open') {
    await tx.execute(sql`update source_health set trial_until = clock_timestamp() + ${seconds(TRIAL_MS)}
      where source = ${source}`);
  }
  return { kind: 'go' };
}

/**
 * Notes how a call went: opens the breaker, closes it, or pauses the source.
 * @param unspent of the credits that were set aside, those that the call did not cost; negative where it cost more
 * @param askedAt when they were set aside
 */
export async function recordCall(
  tx: Transaction,
  source: string,
  outcome: CallOutcome,
  unspent = 0,
  askedAt: Date | null = null,
): Promise<void> {
  if (unspent !== 0 && askedAt !== null) {
    // Health before spend, as in `admitCall`: the other way round the two wait for each other.
    await lockHealth(tx, source);
    await giveBack(tx, source, unspent, askedAt);
  }
  switch (outcome.kind) {
    case 'answered':
      // Most calls are answered by a healthy source: nothing to write.
      await tx.execute(sql`update source_health
        set state = 'closed', failures = 0, times_opened = 0, open_until = null, trial_until = null,
            last_error = null, changed_at = clock_timestamp()
        where source = ${source} and (state = 'open' or failures > 0)`);
      return;
    case 'rate_limit':
      await lockHealth(tx, source);
      await tx.execute(sql`update source_health
        set paused_until = greatest(paused_until, clock_timestamp() + ${seconds(outcome.afterMs ?? DEFAULT_PAUSE_MS)}),
            trial_until = null, changed_at = clock_timestamp()
        where source = ${source}`);
      return;
    case 'failed':
    case 'failed_again': {
      const { state, failures, times_opened: times } = await lockHealth(tx, source);
      // One question that always fails must not shut the source for all others; a failed trial opens it for longer.
      if (outcome.kind === 'failed_again' && state === 'closed') return;
      const opens = state === 'open' || failures + 1 >= FAILURES_TO_OPEN;
      await open(tx, source, opens ? Math.min(FIRST_OPEN_MS * 2 ** times, LONGEST_OPEN_MS) : 0, outcome.why);
      return;
    }
    case 'refused':
      await lockHealth(tx, source);
      await open(tx, source, REFUSED_OPEN_MS, outcome.why);
      return;
    default:
      outcome satisfies never;
  }
}

/**
 * `admitCall` in a transaction of its own, for calls that leave no record before they are made.
 * @throws {DatabaseError}
 */
export async function admitOne(
  db: Database,
  source: string,
  limits: SourceLimits,
  cost: number,
): Promise<Admission & { readonly at: Date }> {
  return await transaction(db, async (tx) => {
    const admission = await admitCall(tx, source, limits, cost);
    return { ...admission, at: await clock(tx) };
  });
}

/**
 * `recordCall` in a transaction of its own.
 * @throws {DatabaseError}
 */
export async function recordOne(
  db: Database,
  source: string,
  outcome: CallOutcome,
  unspent = 0,
  askedAt: Date | null = null,
): Promise<void> {
  await transaction(db, (tx) => recordCall(tx, source, outcome, unspent, askedAt));
}

async function lockHealth(tx: Transaction, source: string): Promise<Health> {
  await tx.execute(sql`insert into source_health (source) values (${source}) on conflict do nothing`);
  const [health] = await tx.execute<Health>(sql`
    select state, failures, times_opened, ${msUntil('open_until')} as open_in_ms,
           ${msUntil('trial_until')} as trial_in_ms, ${msUntil('paused_until')} as paused_in_ms
      from source_health where source = ${source} for update`);
  if (!health) throw new DatabaseError('no_row');
  return health;
}

/** Zero: stays closed, with one more failure on its account. */
async function open(tx: Transaction, source: string, openMs: number, why: string): Promise<void> {
  await tx.execute(
    openMs === 0
      ? sql`update source_health set failures = failures + 1, last_error = ${why}, changed_at = clock_timestamp()
            where source = ${source}`
      : sql`update source_health
            set state = 'open', failures = failures + 1, times_opened = times_opened + 1, trial_until = null,
                open_until = clock_timestamp() + ${seconds(openMs)}, last_error = ${why},
                changed_at = clock_timestamp()
            where source = ${source}`,
  );
}

/**
 * The generic cell rate algorithm (ITU-T I.371): a small burst, then an even pace. The pace is set so that burst and
 * pace together stay within `calls` in any window, which counting per minute would not.
 * @returns 0 where a place was taken under every limit, else the milliseconds until one may be free
 */
async function takePlaces(tx: Transaction, source: string, rates: readonly Rate[]): Promise<number> {
  if (rates.length === 0) return 0;
  const at = await clock(tx);
  const rows = await tx.execute<{ limit_name: string; due: string }>(sql`
    select limit_name, extract(epoch from due_at) * 1000 as due from source_rates where source = ${source}`);
  const dueOf = new Map(rows.map((row) => [row.limit_name, Number(row.due)]));
  const places = rates.map(({ calls, perMs }) => {
    const burst = Math.max(1, Math.floor(calls / 5));
    const intervalMs = perMs / Math.max(1, calls - burst);
    const name = `${calls}/${perMs}`;
    const due = Math.max(dueOf.get(name) ?? 0, at.getTime());
    const lateMs = due - intervalMs * (burst - 1) - at.getTime();
    return { name, lateMs, next: new Date(due + intervalMs) };
  });
  const lateMs = Math.ceil(Math.max(...places.map((place) => place.lateMs)));
  if (lateMs > 0) return lateMs;
  for (const { name, next } of places) {
    await tx.execute(sql`insert into source_rates (source, limit_name, due_at)
      values (${source}, ${name}, ${next.toISOString()}::timestamptz)
      on conflict (source, limit_name) do update set due_at = excluded.due_at`);
  }
  return 0;
}

/** One conditional statement, so that no two calls spend the same last credit. */
async function spend(tx: Transaction, source: string, cost: number, limit: number | null): Promise<boolean> {
  if (cost === 0) return true;
  if (limit !== null && cost > limit) return false;
  const rows = await tx.execute(sql`
    insert into source_spend (source, day, credits)
    values (${source}, (clock_timestamp() at time zone 'UTC')::date, ${cost})
    on conflict (source, day) do update set credits = source_spend.credits + excluded.credits
      where ${limit}::numeric is null or source_spend.credits + excluded.credits <= ${limit}::numeric
    returning 1`);
  return rows.length === 1;
}

async function giveBack(tx: Transaction, source: string, unspent: number, askedAt: Date): Promise<void> {
  await tx.execute(sql`update source_spend set credits = greatest(0, credits - ${unspent}::numeric)
    where source = ${source} and day = (${askedAt.toISOString()}::timestamptz at time zone 'UTC')::date`);
}

function msUntil(column: string) {
  return sql`ceil(extract(epoch from ${sql.identifier(column)} - clock_timestamp()) * 1000)`;
}

function seconds(ms: number) {
  return sql`make_interval(secs => ${ms / 1000})`;
}
