import { readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import postgres from 'postgres';
import { submit } from '../../db/requests/submit.ts';
import { openOrganization, RULES, submitCommand } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// `node test/bench/waiting.ts [REQUESTS] [ORGANIZATIONS]`: the memory of one worker process, and the growth of the dev
// server's database, while so many lookups are open with a vendor that does not answer in that time. On Linux, whose /proc
// is read. Brings its own servers.

const REQUESTS = Number(process.argv[2] ?? 100_000);
const ORGANIZATIONS = Number(process.argv[3] ?? 20);
const BULK = 50;
const SECONDS = 60;

const stopServers = await startServers();
const { TEST_TEMPORAL_ADDRESS: temporalAddress = '' } = process.env;
const elsewhere = { temporalAddress, taskQueue: `waiting-${process.pid}` };
const stack = await startStack({ simulatorSpeed: 0.001, elsewhere });
const workers = workerProcesses();
const sql = postgres(stack.databaseUrl, { max: 1 });
const rules = { ...RULES, lookupTimeoutMs: 3_600_000 };
const npis = ordinaryNpis('found', REQUESTS);
for (let opened = 0; opened < ORGANIZATIONS; opened += 1) {
  const organization = await openOrganization(stack.db, REQUESTS);
  for (let taken = 0; taken < REQUESTS / ORGANIZATIONS; taken += BULK)
    await submit(stack.db, submitCommand(organization, { npis: npis.splice(0, BULK) }), rules);
}
const { pid } = await workers.start(stack, { SWEEP_INTERVAL: '15s' });
const megabytes = (what: string) =>
  Number(new RegExp(`^${what}:\\s+(\\d+)`, 'm').exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1]) /
  1024;
const count = async () => {
  const [row] = await sql`
    select count(*)::int as open, count(*) filter (where lookup_id is not null)::int as begun
      from requests where settled_at is null`;
  return { open: Number(row?.open), begun: Number(row?.begun) };
};
for (let passed = 0; passed < SECONDS || (await count()).begun < REQUESTS; passed += 5) {
  await setTimeout(5000);
  const { open, begun } = await count();
  console.log(`${begun} of ${open} lookups begun: ${megabytes('VmRSS').toFixed(0)} MB`);
}
console.log(`at most ${megabytes('VmHWM').toFixed(0)} MB`);
await workers.stop();
await sql.end();
await stack.stop();
await stopServers();
process.exit();
