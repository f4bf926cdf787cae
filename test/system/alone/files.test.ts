import { get } from 'node:http';
import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { run } from '../../../db/connection/client.ts';
import { listUploadBatches } from '../../../db/uploads/uploads.ts';
import { fresh } from '../../support/database.ts';
import { type ApiClient, startApi } from '../../support/stack.ts';
import { startedUpload, uploadActivities } from '../../support/uploads.ts';
import { ordinaryNpis } from '../../support/vendors.ts';
import { Visitor } from '../../support/visitor.ts';

// Measures the memory that long files take in an API process, how long they block its event loop,
// and how much they slow down other customers.

setFlagsFromString('--expose-gc');
const collectGarbage: () => void = runInNewContext('gc');

const api = fresh(test, startApi);
const LEDGER = '/api/v1/credits/ledger?format=csv';
const MB = 1_000_000;

/** Opens a customer with a ledger whose file has nearly the maximum of entries, and 6 MB. */
async function withLongLedger(): Promise<ApiClient> {
  const client = await api.organization(1, 100_000);
  await api.db.drizzle.execute(sql`
    insert into ledger_entries (organization_id, kind, amount)
    select ${client.organizationId}, 'grant', 1000000000 from generate_series(1, 99000)`);
  return client;
}

/** Returns the memory in use when nothing runs. Buffers are freed a little after their collection. */
async function usualMemory(): Promise<number> {
  const samples = [];
  for (let n = 0; n < 10; n += 1) {
    samples.push(memory());
    await setImmediate();
  }
  return Math.min(...samples);
}

function memory(): number {
  collectGarbage();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

/**
 * Reads a file without keeping it.
 * @param onPart called after each megabyte
 */
async function read(path: string, headers: Record<string, string>, onPart = () => {}) {
  return await new Promise<{ readonly status: number; readonly bytes: number }>(
    (resolve, reject) => {
      get(new URL(path, api.baseUrl), { headers }, (response) => {
        let bytes = 0;
        response.on('data', (part: Buffer) => {
          const megabytes = Math.floor(bytes / MB);
          bytes += part.length;
          if (Math.floor(bytes / MB) > megabytes) onPart();
        });
        response.on('end', () => resolve({ status: response.statusCode ?? 0, bytes }));
        response.on('error', reject);
      }).on('error', reject);
    },
  );
}

/** Returns the most milliseconds of CPU that one turn of the event loop takes during `work`. */
async function longestBlock(work: Promise<unknown>): Promise<number> {
  let isOver = false;
  void work.finally(() => (isOver = true));
  let longest = 0;
  let before = process.threadCpuUsage();
  while (!isOver) {
    await setImmediate();
    const now = process.threadCpuUsage();
    longest = Math.max(longest, now.user + now.system - before.user - before.system);
    before = now;
  }
  return longest / 1000;
}

async function blocksLittle(
  t: ExecutionContext,
  path: string,
  headers: Record<string, string>,
): Promise<void> {
  const file = read(path, headers);
  const longest = await longestBlock(file);
  const { status, bytes } = await file;
  t.log(`${longest.toFixed(1)} ms of CPU at once for ${(bytes / MB).toFixed(1)} MB`);
  t.is(status, 200);
  t.true(longest < 50);
}

/** Asserts that a file of some megabytes takes little memory, and blocks others little. */
async function takesLittle(
  t: ExecutionContext,
  path: string,
  headers: Record<string, string>,
): Promise<void> {
  await blocksLittle(t, path, headers);
  const before = await usualMemory();
  let most = Number.NEGATIVE_INFINITY;
  const { status, bytes } = await read(path, headers, () => {
    most = Math.max(most, memory() - before);
  });
  t.log(`${(most / MB).toFixed(1)} MB of memory for ${(bytes / MB).toFixed(1)} MB`);
  t.is(status, 200);
  t.true(bytes > 4 * MB);
  t.true(most < 20 * MB);
}

test.serial('a long ledger file takes under 20 MB and blocks under 50 ms', async (t) => {
  const { apiKey } = await withLongLedger();
  await takesLittle(t, LEDGER, { 'x-api-key': apiKey });
});

test.serial('upload results take under 20 MB and block under 50 ms', async (t) => {
  const client = await api.organization(10_000, 100_000);
  const npis = ordinaryNpis('found', 9900);
  await run(api.db)`
    insert into stored_emails (npi, email, email_type, verdict, last_validated_at, source)
    select npi, npi || '@clinic.example', 'professional', 'valid', now(), 'test'
      from unnest(${sql.param(npis)}::text[]) npi`;
  const uploadId = await startedUpload(api.db, client, npis, 'x'.repeat(480));
  const { submitNextPart } = uploadActivities(api.db);
  for (let n = 0; n < npis.length; n += 60) await submitNextPart({ uploadId });
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(client.apiKey);
  const headers = { cookie: visitor.cookie() };
  await takesLittle(t, `/console/uploads/${uploadId}/results.csv`, headers);
  const [batchId] = await listUploadBatches(api.db, uploadId);
  await blocksLittle(t, `/console/batches/${batchId}/results.csv`, headers);
});

test.serial('files of one customer hardly slow down another', async (t) => {
  const { apiKey } = await withLongLedger();
  const other = await api.organization(1, 100_000);
  const median = async (before = () => {}) => {
    const times = [];
    for (let n = 0; n < 60; n += 1) {
      before();
      const begun = performance.now();
      await other.get('/api/v1/credits');
      times.push(performance.now() - begun);
    }
    return times.sort((a, b) => a - b)[30] ?? 0;
  };
  await median();
  const alone = await median();
  const files: ReturnType<typeof read>[] = [];
  const besides = await median(() => files.push(read(LEDGER, { 'x-api-key': apiKey })));
  const statuses = (await Promise.all(files)).map(({ status }) => status);
  const sent = statuses.filter((status) => status === 200).length;
  t.log(`${alone.toFixed(1)} ms, with ${sent} files ${besides.toFixed(1)} ms`);
  t.deepEqual([...new Set(statuses)].sort(), [200, 429]);
  t.true(besides < 10 * alone);
});
