import { readFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
import postgres from 'postgres';
import { submit } from '../../db/requests/submit.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { temporaryFolder } from '../support/database.ts';
import { openOrganization, RULES, submitCommand } from '../support/organization.ts';
import { workerProcesses } from '../support/programs.ts';
import { startServers } from '../support/servers.ts';
import { startStack } from '../support/stack.ts';
import { startTemporalServer } from '../support/temporal-server.ts';
import { ordinaryNpis } from '../support/vendors.ts';

/**
 * `node test/bench/waiting.ts [REQUESTS] [ORGANIZATIONS] [MINUTES]`: measures the memory of one
 * worker process, and the growth of the database of Temporal's real server, while 100,000 lookups
 * wait for a vendor that does not respond. Ends after 25 minutes if some lookups have not begun by
 * then. Runs only on Linux, because it reads /proc. Starts its own servers.
 */
const REQUESTS = Number(process.argv[2] ?? 100_000);
const ORGANIZATIONS = Number(process.argv[3] ?? 20);
const MINUTES = Number(process.argv[4] ?? 25);
const BULK = 50;
const EVERY_MS = 30_000;

await using ending = new AsyncDisposableStack();
ending.defer(await startServers());
const dir = temporaryFolder((remove) => ending.defer(remove));
const temporalPostgres = await startPostgres({});
ending.defer(() => temporalPostgres.stop());
const temporal = await startTemporalServer({
  namespace: 'default',
  postgresUrl: temporalPostgres.url,
  dir,
});
ending.defer(() => temporal.stop());
const elsewhere = {
  temporalAddress: temporal.address,
  taskQueue: `waiting-${process.pid}`,
};
const stack = await startStack({ simulatorSpeed: 0.001, elsewhere });
ending.defer(() => stack.stop());
const sql = postgres(stack.databaseUrl, { max: 1 });
ending.defer(() => sql.end());
const temporalSql = postgres(temporalPostgres.url, { max: 1 });
ending.defer(() => temporalSql.end());

const rules = { ...RULES, lookupTimeoutMs: 2 * 3_600_000 };
const npis = ordinaryNpis('found', REQUESTS);
for (let opened = 0; opened < ORGANIZATIONS; opened += 1) {
  const organization = await openOrganization(stack.db, REQUESTS);
  for (let taken = 0; taken < REQUESTS / ORGANIZATIONS; taken += BULK)
    await submit(
      stack.db,
      submitCommand(organization, { npis: npis.splice(0, BULK) }),
      rules,
    );
}
const workers = workerProcesses();
const emptyBytes = await temporalBytes();
const { pid } = await workers.start(stack, { SWEEP_INTERVAL: '15s' });
ending.defer(() => workers.stop());

let begun = 0;
const begunAt = performance.now();
for (let passedMs = 0; passedMs < MINUTES * 60_000 && begun < REQUESTS; ) {
  await setTimeout(EVERY_MS);
  passedMs = performance.now() - begunAt;
  begun = await countBegun();
  const open = await countOpen();
  const growth = ((await temporalBytes()) - emptyBytes) / 1e6;
  const perThousand = (growth / open) * 1000;
  console.log(
    `${(passedMs / 60_000).toFixed(1)} min: ${open} lookups open, ${begun} of them wait for the vendor;`,
    `worker ${megabytes('VmRSS')} MB, at most ${megabytes('VmHWM')} MB;`,
    `Temporal's database grew by ${growth.toFixed(0)} MB, ${perThousand.toFixed(1)} MB per 1,000 open lookups`,
  );
}
await ending.disposeAsync();
process.exit();

/** Counts the lookups whose workflow runs. */
async function countOpen(): Promise<number> {
  const query = "WorkflowType = 'lookUpEmail' and ExecutionStatus = 'Running'";
  return (await stack.client.workflow.count(query)).count;
}

/** Counts the lookups that are planned, so that they wait for the vendor. */
async function countBegun(): Promise<number> {
  const [row] = await sql<{ n: number }[]>`
    select count(*)::int as n from requests where settled_at is null and lookup_id is not null`;
  return row?.n ?? 0;
}

async function temporalBytes(): Promise<number> {
  const [row] = await temporalSql<{ bytes: string }[]>`
    select sum(pg_database_size(datname)) as bytes from pg_database where datname in ('temporal', 'temporal_visibility')`;
  return Number(row?.bytes);
}

function megabytes(what: 'VmRSS' | 'VmHWM'): string {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  const [, kilobytes] = new RegExp(`^${what}:\\s+(\\d+)`, 'm').exec(status) ?? [];
  return (Number(kilobytes) / 1024).toFixed(0);
}
