import { type Database, openDatabase } from '../../db/connection/client.ts';
import { recordVendorResponse } from '../../db/lookups/vendor-attempts.ts';
import { beginVendorStep } from '../../db/lookups/vendor-steps.ts';
import { submit } from '../../db/requests/submit.ts';
import { openTestDatabase } from '../support/database.ts';
import {
  acceptedIds,
  joinLookups,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { startServers } from '../support/servers.ts';
import { countingProxy } from './counting-proxy.ts';

/**
 * `node test/bench/vendor-step.ts`: measures the cost of one vendor call for PostgreSQL, counted at
 * the socket, and how many calls are admitted per second. Starts its own servers.
 */
const STEPS = 200;
const CLIENTS = 16;
const ADMISSIONS = 1600;
const FREE = { rates: [], dailyCredits: null };

const stopServers = await startServers();
const { seen, through } = await countingProxy(process.env.TEST_DATABASE_URL ?? '');
try {
  await steps();
  for (const organizations of [1, CLIENTS]) await admissions(organizations);
} finally {
  await stopServers();
}
process.exit();

/** Measures calls one after the other, so that no cost hides behind concurrent work. */
async function steps() {
  await using database = await openTestDatabase();
  const db = openDatabase({
    url: through(database.url),
    poolSize: 1,
    applicationName: 'bench',
  });
  const requests = await joined(database.db, 1, STEPS + 1);
  const costs = {
    begin: { statements: 0, roundTrips: 0 },
    record: { statements: 0, roundTrips: 0 },
  };
  const count = async <T>(
    into: typeof costs.begin,
    work: () => Promise<T>,
  ): Promise<T> => {
    const before = { ...seen };
    const result = await work();
    into.statements += (seen.statements - before.statements) / STEPS;
    into.roundTrips += (seen.roundTrips - before.roundTrips) / STEPS;
    return result;
  };
  // The first call opens the connection.
  await ask(db, requests.pop() ?? '');
  for (const requestId of requests) {
    const key = await count(costs.begin, () => ask(db, requestId));
    await count(costs.record, () => miss(db, key));
  }
  for (const [what, { statements, roundTrips }] of Object.entries(costs))
    console.log(
      `${what}: ${statements.toFixed(1)} statements, ${roundTrips.toFixed(1)} round trips`,
    );
  await db.close();
}

async function admissions(organizations: number) {
  await using database = await openTestDatabase();
  const db = openDatabase({
    url: database.url,
    poolSize: CLIENTS,
    applicationName: 'bench',
  });
  const requests = await joined(db, organizations, ADMISSIONS);
  const begun = performance.now();
  await Promise.all(
    Array.from({ length: CLIENTS }, async () => {
      for (let id = requests.pop(); id; id = requests.pop()) await ask(db, id);
    }),
  );
  const perSecond = Math.round((ADMISSIONS * 1000) / (performance.now() - begun));
  console.log(
    `${CLIENTS} clients, ${organizations} organizations: ${perSecond} admissions a second`,
  );
  await db.close();
}

/** Returns requests whose lookups are open. */
async function joined(
  db: Database,
  organizations: number,
  count: number,
): Promise<string[]> {
  const ids: string[] = [];
  const owners = await Promise.all(
    Array.from({ length: organizations }, () => openOrganization(db, 100_000)),
  );
  for (let n = 0; ids.length < count; n += 60) {
    const npis = Array.from(
      { length: 60 },
      (_, i) => `2${String(n + i).padStart(9, '0')}`,
    );
    const owner = owners[(n / 60) % organizations];
    if (!owner) throw new Error('no organization was opened');
    ids.push(
      ...acceptedIds(await submit(db, submitCommand(owner, { npis }), RULES)).requestIds,
    );
  }
  const taken = ids.slice(0, count);
  await joinLookups(db, taken);
  return taken;
}

async function ask(db: Database, requestId: string) {
  const { freshnessMs } = RULES;
  const step = await beginVendorStep(db, {
    ...{ requestId, vendor: 'bench', mayRepeat: false, callMs: 30_000, freshnessMs },
    ...{ limits: FREE, cost: () => 1, patienceMs: 60_000 },
  });
  if (step.kind !== 'ask') throw new Error(step.kind);
  return step.key;
}

async function miss(db: Database, key: Parameters<typeof recordVendorResponse>[1]) {
  const outcome = { kind: 'responded' } as const;
  const nobody = { state: 'miss', reason: 'nobody', credits: 0, named: null } as const;
  await recordVendorResponse(db, key, {
    ...nobody,
    outcome,
    freshnessMs: RULES.freshnessMs,
  });
}
