import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { NativeConnection, Worker } from '@temporalio/worker';
import postgres from 'postgres';
import { eventually } from '../support/organization.ts';
import { startServers } from '../support/servers.ts';
import { type Stack, startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis } from '../support/vendors.ts';
import { countingProxy } from './counting-proxy.ts';

/**
 * `node test/bench/live.ts`: measures the cost of a lookup whose vendor responds at once. Starts
 * its own servers and runs only on Linux. It prints:
 *
 * - statements and round trips to PostgreSQL per found NPI, from the submit to its webhook
 * - NPIs per second with 1, 5, and 20 concurrent bulks of one organization, alternating with a bare
 *   sample on the same Temporal, which has a child and an activity per NPI
 * - CPU time per NPI of this process (API, worker, and vendor) and of PostgreSQL
 */
const BULK = 60;
const TICKS_PER_MS = 0.1;
const TURNS = 3;

const stopServers = await startServers();
const vendor = createScriptedVendor();
const npis = ordinaryNpis('found', 100 * BULK);
try {
  await roundTrips();
  await speeds();
} finally {
  await stopServers();
}
process.exit();

function take(): string[] {
  const taken = npis.splice(0, BULK);
  for (const npi of taken) vendor.script(npi, () => foundStep(npi));
  return taken;
}

async function roundTrips() {
  const direct = process.env.TEST_DATABASE_URL ?? '';
  const { seen, through } = await countingProxy(direct);
  process.env.TEST_DATABASE_URL = through(direct);
  const stack = await startStack({ providers: [vendor] });
  const client = await stack.organization(10_000);
  const webhook = { url: `${stack.receiver.url}/hook`, mode: 'batch' };
  const run = async (taken: readonly string[]) => {
    const { json } = await client.bulk({ npis: taken, webhook });
    await eventually(async () => {
      const told = stack.receiver
        .deliveries()
        .map(({ body }) => JSON.parse(body).batch.id);
      return told.includes(json.batch_id) || null;
    });
  };
  // The first bulk opens connections.
  await run(take());
  const before = { ...seen };
  await run(take());
  const perNpi = (n: number) => (n / BULK).toFixed(1);
  console.log(
    `per found NPI, from the submit to its webhook: ${perNpi(seen.statements - before.statements)} statements,`,
    `${perNpi(seen.roundTrips - before.roundTrips)} round trips`,
  );
  await stack.stop();
  process.env.TEST_DATABASE_URL = direct;
}

async function speeds() {
  const stack = await startStack({ providers: [vendor], lookupTimeoutMs: 600_000 });
  const stopBare = await startBare(stack);
  const sql = postgres(stack.databaseUrl, { max: 1 });
  const client = await stack.organization(100_000);
  const ours = (bulks: number) => async () => {
    const { json } = await client.bulk({ npis: take() });
    // Waits by SQL, which costs as little as waiting for the bare sample. hot-path.ts measures the
    // cost of polls.
    const completed = () =>
      sql`select from batches where id = ${json.batch_id} and status = 'completed'`;
    while ((await completed()).length === 0) await setTimeout(25 * bulks);
  };
  const bare = async (n: number) => {
    const workflowId = `bare-${n}-${Math.random()}`;
    const args = [npis.slice(0, BULK)];
    await stack.client.workflow.execute('bareBatch', {
      taskQueue: 'bare',
      workflowId,
      args,
    });
  };
  await Promise.all([ours(1)(), bare(0)]);
  for (const bulks of [1, 5, 20]) {
    // Measures both in turns, so that a slow moment of the machine affects both.
    const turns = { bare: [] as Figures[], ours: [] as Figures[] };
    for (let turn = 0; turn < TURNS; turn += 1) {
      turns.bare.push(await measure(sql, bulks, bare));
      turns.ours.push(await measure(sql, bulks, ours(bulks)));
    }
    const [theirs, own] = [mean(turns.bare), mean(turns.ours)];
    console.log(
      `${bulks} bulks: ${(1 / own.secondsPerNpi).toFixed(1)} NPIs/s, bare ${(1 / theirs.secondsPerNpi).toFixed(1)},`,
      `ratio ${(theirs.secondsPerNpi / own.secondsPerNpi).toFixed(2)};`,
      `CPU ms per NPI: here ${own.here.toFixed(1)}, bare ${theirs.here.toFixed(1)}, PostgreSQL ${own.postgres.toFixed(1)}, Temporal ${own.temporal.toFixed(1)}, bare ${theirs.temporal.toFixed(1)}`,
    );
  }
  await sql.end();
  await stopBare();
  await stack.stop();
}

type Figures = Awaited<ReturnType<typeof measure>>;

function mean(turns: readonly Figures[]): Figures {
  const of = (key: keyof Figures) =>
    turns.reduce((sum, figures) => sum + figures[key], 0) / turns.length;
  return {
    secondsPerNpi: of('secondsPerNpi'),
    here: of('here'),
    postgres: of('postgres'),
    temporal: of('temporal'),
  };
}

async function measure(
  sql: postgres.Sql,
  bulks: number,
  work: (n: number) => Promise<void>,
) {
  const before = {
    cpu: process.cpuUsage(),
    postgres: await postgresMs(sql),
    temporal: temporalMs(),
    at: performance.now(),
  };
  await Promise.all(Array.from({ length: bulks }, (_, n) => work(n)));
  const count = bulks * BULK;
  const { user, system } = process.cpuUsage(before.cpu);
  return {
    secondsPerNpi: (performance.now() - before.at) / 1000 / count,
    here: (user + system) / 1000 / count,
    postgres: ((await postgresMs(sql)) - before.postgres) / count,
    temporal: (temporalMs() - before.temporal) / count,
  };
}

async function startBare({ client }: Stack) {
  const workflowsPath = fileURLToPath(new URL('bare-workflows.ts', import.meta.url));
  const connection = await NativeConnection.connect({
    address: process.env.TEST_TEMPORAL_ADDRESS ?? '',
  });
  const worker = await Worker.create({
    ...{ connection, namespace: client.options.namespace, taskQueue: 'bare' },
    workflowsPath,
    activities: { find: async (npi: string) => npi },
  });
  const running = worker.run();
  return async () => {
    worker.shutdown();
    await running;
    await connection.close();
  };
}

/**
 * Returns the CPU time of the server and of all its processes in milliseconds, including ended
 * ones.
 */
async function postgresMs(sql: postgres.Sql): Promise<number> {
  const [row] = await sql`select pg_backend_pid() as pid`;
  const server = fieldsOf(row?.pid)[1];
  const all = readdirSync('/proc').filter((name) => /^[0-9]+$/.test(name));
  const own = all.map(fieldsOf).filter(([, parent]) => parent === server);
  const [, , , , , , , , , , , user = 0, system = 0, endedUser = 0, endedSystem = 0] =
    fieldsOf(server);
  const ticks = own.reduce(
    (sum, fields) => sum + (fields[11] ?? 0) + (fields[12] ?? 0),
    0,
  );
  return (ticks + user + system + endedUser + endedSystem) / TICKS_PER_MS;
}

/** Returns the CPU time of the Temporal server that this process started, in milliseconds. */
function temporalMs(): number {
  const all = readdirSync('/proc').filter((name) => /^[0-9]+$/.test(name));
  const ticks = all.filter((pid) => isTemporal(pid)).map(fieldsOf);
  return (
    ticks.reduce((sum, fields) => sum + (fields[11] ?? 0) + (fields[12] ?? 0), 0) /
    TICKS_PER_MS
  );
}

function isTemporal(pid: string): boolean {
  try {
    return readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('temporal');
  } catch {
    return false;
  }
}

/**
 * Returns the fields of /proc/PID/stat after the name: state, parent, …. Returns an empty list for
 * an ended process.
 */
function fieldsOf(pid: string | number | undefined): number[] {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    return text
      .slice(text.lastIndexOf(')') + 2)
      .split(' ')
      .map(Number);
  } catch {
    return [];
  }
}
