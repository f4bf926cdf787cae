import type { Books, Customer } from './books.ts';
import { isSmall } from './customers.ts';
import { NORMAL, type Phases } from './phases.ts';
import type { Promised } from './promises.ts';
import type { PeakMemory } from './usage.ts';
import type { World } from './world.ts';

// The report about the simulated day. Each figure of an event stands next to the same figure of the
// normal time of the same run.

/** How long something took, in milliseconds, and when it began, in milliseconds since 1970. */
interface Timed {
  readonly what: string;
  readonly at: number;
  readonly ms: number;
}

/** The sizes of the stored data, in bytes. */
export interface Sizes {
  readonly postgres: number;
  readonly wal: number;
  readonly temporal: number;
}

/** Prints how each promise was kept. @returns the number of broken ones */
export function printPromises(promises: readonly Promised[]): number {
  console.log('\nPROMISES                                     given  broken');
  for (const { name, given, broken } of promises) {
    console.log(
      `${name.padEnd(42)} ${String(given).padStart(7)} ${String(broken.length).padStart(7)}`,
    );
    for (const one of broken.slice(0, 20)) console.log(`  ${one}`);
  }
  return promises.reduce((sum, { broken }) => sum + broken.length, 0);
}

/** Prints percentiles by phase, and the ratio of the 95th percentile to that of the normal time. */
export function printLatencies(timed: readonly Timed[], phases: Phases): void {
  console.log(
    '\nLATENCIES in ms                     n     p50     p95     p99     max  p95 to normal',
  );
  for (const [what, all] of Map.groupBy(timed, (one) => one.what)) {
    console.log(what);
    const byPhase = Map.groupBy(all, ({ at }) => phases.at(at));
    const normal = percentile(byPhase.get(NORMAL) ?? [], 0.95);
    for (const phase of phases.measured()) {
      const some = byPhase.get(phase);
      if (some === undefined) continue;
      const figures = [0.5, 0.95, 0.99, 1].map((share) => percentile(some, share));
      const cells = [some.length, ...figures].map((figure) =>
        String(Math.round(figure)).padStart(7),
      );
      const ratio = (percentile(some, 0.95) / normal).toFixed(2);
      console.log(`  ${phase.padEnd(28)} ${cells.join(' ')} ${ratio.padStart(9)}`);
    }
  }
}

function percentile(timed: readonly Timed[], share: number): number {
  const sorted = timed.map(({ ms }) => ms).sort((a, b) => a - b);
  return sorted[Math.ceil(sorted.length * share) - 1] ?? Number.NaN;
}

/** Returns the times of all successful requests of customers. */
export function callsOf({ calls }: Books): Timed[] {
  return calls
    .filter(
      ({ kind, status }) =>
        (kind === 'submit' || kind === 'poll') && status < 300 && status > 0,
    )
    .map(({ kind, at, ms }) => ({ what: kind, at, ms }));
}

/** Returns the times from each submit to its result, by the origin of the result. */
export async function resultsOf(
  { stack }: World,
  customers: readonly Customer[],
): Promise<Timed[]> {
  const ids = customers.map(({ organizationId }) => organizationId);
  return await stack.db.drizzle.$client<Timed[]>`
    select '202 to result, ' || case
             when r.status <> 'completed' then r.status
             when r.replayed then 'replay'
             when r.lookup_id is null then 'stored'
             else coalesce(s.source, 'unknown') || ' vendor' end as what,
           extract(epoch from r.accepted_at)::float8 * 1000 as at,
           extract(epoch from r.settled_at - r.accepted_at)::float8 * 1000 as ms
      from requests r left join stored_emails s on (s.npi, s.email) = (r.npi, r.email)
     where r.organization_id = any(${ids})
     order by 1`;
}

/** Returns the times from each submit to its first webhook, if the receiver is good. */
export async function webhooksOf({ stack, received }: World, { accepted }: Books) {
  const batches = new Map(accepted.map((batch) => [batch.id, batch]));
  const deliveries = await stack.db.drizzle.$client<{ id: string; batch_id: string }[]>`
    select id, batch_id from webhook_deliveries`;
  const arrivals = received();
  return deliveries.flatMap(({ id, batch_id }): Timed[] => {
    const batch = batches.get(batch_id);
    const [arrived] = arrivals.get(id) ?? [];
    if (batch?.customer.receiver !== 'good' || arrived === undefined) return [];
    return [
      { what: `202 to webhook, ${batch.mode}`, at: batch.at, ms: arrived - batch.at },
    ];
  });
}

/** Prints how long the flooding customer and the small ones waited for the first vendor's emails. */
export async function printFairness(
  world: World,
  phases: Phases,
  flooder: Customer,
  others: readonly Customer[],
): Promise<void> {
  const fromFirst = async (customers: readonly Customer[], phase: string) => {
    const results = await resultsOf(world, customers);
    const wanted = results.filter(
      ({ what, at }) => what.endsWith('first vendor') && phases.at(at) === phase,
    );
    return [0.5, 0.95].map((share) => percentile(wanted, share));
  };
  const small = others.filter(isSmall);
  const [p50 = 0, p95 = 0] = await fromFirst(small, NORMAL);
  const [floodP50 = 0, floodP95 = 0] = await fromFirst(small, 'flood');
  const [ownP50 = 0, ownP95 = 0] = await fromFirst([flooder], 'flood');
  console.log('\nFAIRNESS in ms, 202 to result of the first vendor        p50     p95');
  const line = (what: string, ...figures: number[]) =>
    console.log(
      what.padEnd(52),
      ...figures.map((ms) => String(Math.round(ms)).padStart(7)),
    );
  line('small customers, normal', p50, p95);
  line('small customers, during the flood', floodP50, floodP95);
  line('the flooding customer', ownP50, ownP95);
  console.log(
    `small customers waited ${(floodP50 / p50).toFixed(2)} times as long (p95: ${(floodP95 / p95).toFixed(2)} times)`,
  );
}

/** Prints how often customers saw an error, by phase. */
export function printErrors(world: World, { calls }: Books, phases: Phases): void {
  console.log('\nERRORS that customers saw (0: no response)');
  const errors = calls.filter(({ status }) => status === 0 || status >= 400);
  const groups = Map.groupBy(errors, ({ kind, at, status }) =>
    [phases.at(at).padEnd(16), kind.padEnd(8), status].join(' '),
  );
  for (const [what, own] of [...groups].sort())
    console.log(`  ${what}  ${own.length} times`);
  console.log(
    `  ${errors.length} of ${calls.length} requests; the load balancer's view:`,
  );
  console.log(world.replies());
}

/** Prints the length of each phase, the load of the machine, and the requests that became final. */
export async function printLoad({ stack }: World, phases: Phases): Promise<void> {
  const settled = await stack.db.drizzle.$client<{ at: number }[]>`
    select extract(epoch from settled_at)::float8 * 1000 as at from requests
     where lookup_id is not null`;
  const byPhase = Map.groupBy(settled, ({ at }) => phases.at(at));
  console.log(
    '\nLOAD                 seconds  busy cores  lookups that ended per second',
  );
  for (const [phase, { seconds, busy }] of phases.totals()) {
    const perSecond = (byPhase.get(phase)?.length ?? 0) / seconds;
    console.log(
      `  ${phase.padEnd(16)} ${seconds.toFixed(0).padStart(9)} ${(100 * busy).toFixed(0).padStart(9)} % ${perSecond.toFixed(1).padStart(10)}`,
    );
  }
}

export async function printMoney({ stack }: World): Promise<void> {
  const [sums] = await stack.db.drizzle.$client`
    select sum(total)::float8 as granted, sum(available)::float8 as available,
           sum(held)::float8 as held, sum(used)::float8 as charged
      from credit_balances`;
  console.log('\nMONEY in credits', sums);
}

export function printMemory(memory: PeakMemory): void {
  console.log('\nMEMORY, the peak of one program of each kind');
  for (const [kind, bytes] of memory.peaks()) {
    console.log(`  ${kind.padEnd(16)} ${(bytes / 1e6).toFixed(0).padStart(6)} MB`);
  }
}

export async function sizesOf({ stack, temporalBytes }: World): Promise<Sizes> {
  const [row] = await stack.db.drizzle.$client<{ postgres: number; wal: number }[]>`
    select pg_database_size(current_database())::float8 as postgres,
           pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as wal`;
  return { postgres: row?.postgres ?? 0, wal: row?.wal ?? 0, temporal: temporalBytes() };
}

/** Prints the growth of the stored data for each NPI. */
export function printDisk(before: Sizes, after: Sizes, npis: number): void {
  const perNpi = (kind: keyof Sizes) =>
    ((after[kind] - before[kind]) / npis / 1000).toFixed(1);
  console.log(
    `\nDISK for each of ${npis} NPIs: PostgreSQL ${perNpi('postgres')} kB, WAL ${perNpi('wal')} kB, Temporal ${perNpi('temporal')} kB`,
  );
}
