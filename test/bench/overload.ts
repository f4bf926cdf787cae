import { fork } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { Agent, type RequestOptions, request } from 'node:http';
import { setPriority } from 'node:os';
import { setTimeout as delay } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import postgres from 'postgres';
import { openOrganization } from '../support/organization.ts';
import { runProgram, startApiProcess, workerProcesses } from '../support/programs.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';

// `node test/bench/overload.ts [SECONDS]`: sends single submits of 50 organizations to one API
// process. The rate is five times the one that 16 clients reach if each waits for its response, and
// it doesn't depend on responses. One worker looks up the accepted NPIs. Prints the latency of
// responses, the remaining share of the capacity, and the number of late requests after a minute.
// The connections are opened in advance, like those of a load balancer. libuv accepts one new
// connection per turn of the event loop. Thousands of new ones would wait for seconds in the
// kernel, where the API can't reject them.
//
// A kernel that shares its CPUs by session (`sched_autogroup`, usual on desktops) gives each of
// PostgreSQL's processes as much as the whole API. Every response then waits up to 400 to 800 ms
// for its turn, even that of an empty route. Containers don't have this problem, and `sysctl -w
// kernel.sched_autogroup_enabled=0` removes it.

const SECONDS = Number(process.argv[2] ?? 60);
const ORGANIZATIONS = 50;
const LOOKUP_TIMEOUT_S = 60;
/** Seconds until the next sweep settles overdue requests, at most. */
const SWEEP_S = 15;
const CONNECTIONS = 1000;

interface Outcome {
  /** Milliseconds by status. Status 0 is a lost response. */
  readonly times: Readonly<Record<string, number[]>>;
  readonly seconds: number;
}

if (process.send) {
  const [, , seconds = '', rate = '', port = '', ...keys] = process.argv;
  process.send(await load(Number(seconds), Number(rate), port, keys), () =>
    process.exit(),
  );
} else await measure();

async function measure(): Promise<void> {
  const autogroup = '/proc/sys/kernel/sched_autogroup_enabled';
  if (existsSync(autogroup) && Number(readFileSync(autogroup, 'utf8')) === 1) {
    console.log(
      'This kernel shares its CPUs out by session: refusals are late for that alone (see above).',
    );
  }
  const stopServers = await startServers();
  const { TEST_TEMPORAL_ADDRESS: temporalAddress = '' } = process.env;
  const taskQueue = `overload-${process.pid}`;
  const stack = await startStack({
    allSources: true,
    elsewhere: { temporalAddress, taskQueue },
  });
  const workers = workerProcesses();
  await workers.start(stack, { SWEEP_INTERVAL: `${SWEEP_S}s` });
  const env = { TASK_QUEUE: taskQueue, LOOKUP_TIMEOUT: `${LOOKUP_TIMEOUT_S}s` };
  const api = await startApiProcess(stack.databaseUrl, env);
  const organizations = await Promise.all(
    Array.from({ length: ORGANIZATIONS }, () => openOrganization(stack.db, 1_000_000)),
  );
  const keys = organizations.map(({ apiKey }) => apiKey);
  const sql = postgres(stack.databaseUrl, { max: 1 });
  const countBatches = async () =>
    Number((await sql`select count(*) as n from batches`)[0]?.n);
  const { port } = new URL(api.url);
  await spread(10, 0, port, keys);
  const capacity = perSecond(await spread(Math.max(10, SECONDS / 3), 0, port, keys));
  const before = await countBatches();
  const outcome = await spread(SECONDS, capacity * 5, port, keys);
  const committed = (await countBatches()) - before;
  console.log(
    `capacity ${capacity.toFixed(1)} submits a second; for ${SECONDS} s ${(capacity * 5).toFixed(0)} were sent:`,
  );
  for (const [status, times] of Object.entries(outcome.times)) {
    times.sort((a, b) => a - b);
    const at = (share: number) => times[Math.ceil(times.length * share) - 1]?.toFixed(0);
    const name = status === '0' ? 'lost' : status;
    console.log(
      `  ${name}: ${times.length}, p50 / p99 / longest ${at(0.5)} / ${at(0.99)} / ${at(1)} ms`,
    );
  }
  const { 202: accepted = [], 0: lost = [] } = outcome.times;
  console.log(
    `  goodput ${((100 * perSecond(outcome)) / capacity).toFixed(0)} % of capacity`,
  );
  console.log(
    `  ${committed} batches for ${accepted.length} replies of 202 and ${lost.length} lost ones`,
  );
  await delay(60_000);
  const [left] = await sql`
    select count(*) filter (where settled_at is null) as open,
           count(*) filter (where settled_at is null and deadline_at < now() - ${SWEEP_S}::float8 * interval '1 s') as overdue,
           count(*) filter (where settled_at > deadline_at + interval '60 seconds') as late from requests`;
  console.log(
    `  60 s later: ${left?.open} open, of them ${left?.overdue} overdue for more than a sweep's ${SWEEP_S} s; ${left?.late} were final late`,
  );
  const doctor = await runProgram('operator', ['doctor'], {
    env: {
      DATABASE_URL: stack.databaseUrl,
      TEMPORAL_ADDRESS: temporalAddress,
      TASK_QUEUE: taskQueue,
    },
  });
  console.log(
    `  doctor: exit code ${doctor.code}\n${doctor.stdout.replaceAll(/^/gm, '    ')}`,
  );
  await sql.end();
  await api.stop();
  await workers.stop();
  await stack.stop();
  await stopServers();
  process.exit();
}

function perSecond({ times, seconds }: Outcome): number {
  return (times['202']?.length ?? 0) / seconds;
}

/**
 * Loads the API from another process.
 * @param rate submits per second, or 0 for 16 clients that wait for each response
 */
function spread(
  seconds: number,
  rate: number,
  port: string,
  keys: readonly string[],
): Promise<Outcome> {
  const child = fork(fileURLToPath(import.meta.url), [
    String(seconds),
    String(rate),
    port,
    ...keys,
  ]);
  // Real clients run on other machines. This process must not wait for the CPU.
  setPriority(child.pid ?? 0, -15);
  return new Promise((resolve) =>
    child.once('message', (outcome) => resolve(outcome as Outcome)),
  );
}

async function load(
  seconds: number,
  rate: number,
  port: string,
  keys: readonly string[],
): Promise<Outcome> {
  const agent = new Agent({ keepAlive: true, maxFreeSockets: CONNECTIONS });
  const times: Record<string, number[]> = {};
  await Promise.all(
    Array.from({ length: CONNECTIONS }, () => ask(agent, { port, path: '/healthz' })),
  );
  let sent = 0;
  const send = async () => {
    sent += 1;
    const begun = performance.now();
    const status = await submit(agent, port, keys[sent % keys.length] ?? '');
    times[status] ??= [];
    times[status].push(performance.now() - begun);
  };
  const begun = performance.now();
  const elapsed = () => (performance.now() - begun) / 1000;
  const replies: Promise<void>[] = [];
  if (rate === 0) {
    const client = async () => {
      while (elapsed() < seconds) await send();
    };
    await Promise.all(Array.from({ length: 16 }, client));
    return { times, seconds: elapsed() };
  }
  while (elapsed() < seconds) {
    while (sent < elapsed() * rate) replies.push(send());
    await delay(5);
  }
  await Promise.all(replies);
  return { times, seconds };
}

function submit(agent: Agent, port: string, apiKey: string): Promise<number> {
  const npi = `1${Math.floor(Math.random() * 1e9)
    .toString()
    .padStart(9, '0')}`;
  const headers = { 'x-api-key': apiKey, 'content-type': 'application/json' };
  const options = { port, path: '/api/v1/email', method: 'POST', headers };
  return ask(agent, options, JSON.stringify({ npi }));
}

function ask(agent: Agent, options: RequestOptions, body = ''): Promise<number> {
  return new Promise((resolve) => {
    const given = {
      ...options,
      agent,
      host: '127.0.0.1',
      signal: AbortSignal.timeout(30_000),
    };
    const asking = request(given, (reply) => {
      reply.resume().on('end', () => resolve(reply.statusCode ?? 0));
    });
    asking.on('error', () => resolve(0)).end(body);
  });
}
