import { type SQL, sql } from 'drizzle-orm';
import { type Database, read, type Transaction } from '../client.ts';
import type { AttemptReason } from '../words.ts';

// The circuit breaker of webhook receivers, per organization and host: in the database, so that it holds across
// workers. While it is open, one attempt at a time finds out whether the host is back. The first and the last attempt
// of a delivery are owed and take that place whenever it is free; of the others only one per rest is let through.

export interface HostKey {
  readonly organizationId: string;
  /** Host and port. */
  readonly host: string;
}

/** What an attempt says about the host: it answered, whatever the status; it did not; or it was never asked. */
export type HostHealth =
  | { readonly kind: 'answered' }
  | { readonly kind: 'silent'; readonly reason: AttemptReason; readonly restMs: number }
  | { readonly kind: 'untried' };

/** With the era of the host's breaker: what the attempt says is noted with it. */
export type HostAdmission =
  | { readonly kind: 'go'; readonly era: number }
  | { readonly kind: 'wait'; readonly afterMs: number };

const FAILURES_TO_OPEN = 5;
/** The rest between two trials doubles up to so many times the first. */
const LONGEST_REST = 12;
const DEFAULT_REST_MS = 5000;
const DEFAULT_LONGEST_WAIT_MS = 1_800_000;

/** Thousands that wait for one host look ten times a second at most, all together. */
const TURN_MS = 100;

/**
 * Asks whether an attempt may be made. One that may not is put off for about as long as the host has been away
 * already, or until its turn among the others, so that many thousands that wait for it cost next to nothing; all of
 * them look again within half an hour.
 * @param owed the first or the last attempt of a delivery
 * @param leaseMs after that a trial that nobody ended has died with its worker
 */
export async function admitToHost(
  tx: Transaction,
  { organizationId, host }: HostKey,
  owed: boolean,
  leaseMs: number,
  scheduleMs: readonly number[],
): Promise<HostAdmission> {
  type Row = { era: number; open: boolean; rests: boolean; tried: boolean; away_ms: string; turn_ms: string };
  const [row] = await tx.execute<Row>(sql`
    select era, open_until is not null as open, open_until > clock_timestamp() as rests,
           coalesce(trial_until > clock_timestamp(), false) as tried,
           extract(epoch from clock_timestamp() - failing_since) * 1000 as away_ms,
           coalesce(extract(epoch from turn_at - clock_timestamp()), 0) * 1000 as turn_ms
      from webhook_hosts
     where organization_id = ${organizationId} and host = ${host}
       for update`);
  if (!row?.open) return { kind: 'go', era: row?.era ?? 0 };
  const set = (change: SQL) =>
    tx.execute(
      sql`update webhook_hosts set ${change} where organization_id = ${organizationId} and host = ${host}`,
    );
  if (row.tried || (row.rests && !owed)) {
    const shortest = firstRestMs(scheduleMs);
    const longest = Math.max(shortest, scheduleMs[3] ?? DEFAULT_LONGEST_WAIT_MS);
    const turnMs = Math.max(Number(row.turn_ms), 0) + TURN_MS;
    // Spread, so that they do not come back all at once.
    const aboutMs = Math.min(Math.max(Number(row.away_ms), shortest), longest) * (0.5 + Math.random() / 2);
    if (turnMs <= longest) await set(sql`turn_at = clock_timestamp() + ${seconds(turnMs)}`);
    return { kind: 'wait', afterMs: Math.ceil(Math.max(aboutMs, turnMs <= longest ? turnMs : 0)) };
  }
  await set(sql`trial_until = clock_timestamp() + ${seconds(leaseMs)}`);
  return { kind: 'go', era: row.era };
}

/** How long the breaker first rests: the schedule's own first wait. */
export function firstRestMs(scheduleMs: readonly number[]): number {
  return scheduleMs[1] || DEFAULT_REST_MS;
}

/**
 * Notes what an attempt says about its host: any answer closes the breaker, five silences in a row open it. Each
 * opening begins an era, and only attempts of this era count: those that were under way before say nothing new.
 */
export async function noteHost(
  tx: Transaction,
  { organizationId, host, era }: HostKey & { readonly era: number },
  health: HostHealth,
): Promise<void> {
  const sameEra = sql`organization_id = ${organizationId} and host = ${host} and era = ${era}`;
  switch (health.kind) {
    case 'answered':
      await tx.execute(sql`update webhook_hosts
        set failures = 0, times_opened = 0, open_until = null, trial_until = null, turn_at = null
        where ${sameEra} and failures > 0`);
      return;
    case 'untried':
      // While it is open, whoever is let through is its one trial.
      await tx.execute(
        sql`update webhook_hosts set trial_until = null where ${sameEra} and trial_until is not null`,
      );
      return;
    case 'silent': {
      const { reason, restMs } = health;
      // A trial that was owed and made before its time does not make the rest longer.
      const opens = sql`case when h.open_until is null then h.failures + 1 >= ${FAILURES_TO_OPEN}
        else h.open_until <= clock_timestamp() end`;
      const rest = sql`least(power(2, h.times_opened), ${LONGEST_REST}) * ${restMs / 1000}::float8`;
      await tx.execute(sql`
        insert into webhook_hosts as h (organization_id, host, failures, failing_since, last_reason)
        values (${organizationId}, ${host}, 1, clock_timestamp(), ${reason})
        on conflict (organization_id, host) do update
           set failures = h.failures + 1, last_reason = excluded.last_reason,
               failing_since = case h.failures when 0 then excluded.failing_since else h.failing_since end,
               era = h.era + case when ${opens} then 1 else 0 end,
               times_opened = h.times_opened + case when ${opens} then 1 else 0 end,
               open_until = case when ${opens} then clock_timestamp() + make_interval(secs => ${rest})
                            else h.open_until end,
               trial_until = null
         where h.era = ${era}`);
      return;
    }
    default:
      health satisfies never;
  }
}

/**
 * Forgets hosts whose last trouble and last trial are longer ago than `keepMs`.
 * @throws {DatabaseError}
 */
export async function forgetHosts(db: Database, keepMs: number): Promise<void> {
  await read(db, (tx) =>
    tx.execute(sql`delete from webhook_hosts
      where greatest(failing_since, open_until, trial_until, turn_at) < clock_timestamp() - ${seconds(keepMs)}`),
  );
}

function seconds(ms: number): SQL {
  return sql`make_interval(secs => ${ms / 1000})`;
}
