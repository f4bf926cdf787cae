import { fork } from 'node:child_process';
import { existsSync } from 'node:fs';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';
import { server as hapiServer } from '@hapi/hapi';
import postgres, { type Sql } from 'postgres';
import { createQueues } from '../../api/http/turn-queue.ts';
import { takePlaces } from '../../db/accounts/limits.ts';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { submit } from '../../db/requests/submit.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { buildServedFiles } from '../support/servers.ts';
import { startApi } from '../support/stack.ts';

// `node test/bench/hot-path.ts [SECONDS]`: measures submits, polls, and admissions that need only
// PostgreSQL. Each is compared to the same work without our rules, on the same temporary PostgreSQL
// (without fsync) and in the same run:
//
// - bulks of 60 stored emails, admitted as in the API: compared to the floor, which is one
//   statement for a whole bulk without any rule, and to peers if they are installed (`npm ci` in
//   peers/)
// - polls: compared to a bare hapi route with one select
// - admissions of a single key: by the number of requests that its window allows
//
// Ratios are comparable between machines, absolute numbers are not.

const SECONDS = Number(process.argv[2] ?? 3);
const NPIS = 120_000;
const POOL = 20;
const BULK = 60;

/** Submits one bulk of an organization. */
type Take = (organization: number, npis: string[]) => Promise<unknown>;

if (process.send) {
  process.once('message', async (order: Order) => process.send?.(await load(order)));
} else {
  await main();
  process.exit();
}

async function main(): Promise<void> {
  await buildServedFiles();
  const server = await startPostgres({});
  try {
    await migrate(server.url);
    const db = openDatabase({
      url: server.url,
      poolSize: POOL,
      applicationName: 'bench',
    });
    const sql = postgres(server.url, { max: POOL, onnotice: () => {} });
    await sql`insert into stored_emails (npi, email, email_type, verdict, last_validated_at, source)
      select (1000000000 + n)::text, 'a' || n || '@example.com', 'professional', 'valid', now(), 'bench'
        from generate_series(0, ${NPIS - 1}::int) n`;
    await sql`vacuum analyze stored_emails`;
    await stored(db, sql, server.url);
    await admissions(db, sql);
    await polls(server.url, sql);
    await sql.end();
    await db.close();
  } finally {
    await server.stop();
  }
}

async function stored(db: Database, sql: Sql, url: string): Promise<void> {
  const floor = floorOf(sql);
  const peers = await startPeers(sql, url, floor);
  console.log(`stored emails: NPIs per second, in bulks of ${BULK}`);
  for (const organizations of [1, 10]) {
    for (const clients of [1, 5, 20]) {
      const figures: Record<string, number> = {};
      await emptyFloor(sql, organizations);
      for (const [name, take] of Object.entries({
        ours: await ours(db, organizations),
        replays: await replays(db, organizations),
        floor,
        ...peers?.engines,
      })) {
        figures[name] = await rate(clients, organizations, take);
      }
      const base = figures.ours ?? 0;
      const each = Object.entries(figures).map(
        ([name, n]) => `${name} ${n.toFixed(0)} (${ratio(base, n)})`,
      );
      console.log(
        `  organizations ${organizations}, clients ${clients}: ${each.join(', ')}`,
      );
    }
  }
  await peers?.stop();
}

/** Returns a function that submits bulks. Each bulk is new to its organization and charged. */
async function ours(db: Database, count: number): Promise<Take> {
  const organizations = await Promise.all(
    Array.from({ length: count }, () => openOrganization(db, 1e9)),
  );
  const { writes } = createQueues(POOL);
  return async (n, npis) => {
    const organization = organizations[n];
    if (!organization) throw new Error('no such organization');
    const work = () => submit(db, submitCommand(organization, { npis }), RULES);
    acceptedIds(await writes.inTurn(organization.organizationId, work));
  };
}

/** Returns a function that submits the same bulk again and again, as free replays. */
async function replays(db: Database, count: number): Promise<Take> {
  const take = await ours(db, count);
  const npis = Array.from({ length: BULK }, (_, i) => String(1_000_000_000 + i));
  return (n) => take(n, npis);
}

/** Creates tables like ours, without triggers and foreign keys. */
async function emptyFloor(sql: Sql, count: number): Promise<void> {
  for (const table of [
    'credit_balances',
    'batches',
    'requests',
    'ledger_entries',
    'entitlements',
  ]) {
    await sql`drop table if exists ${sql(`floor_${table}`)}`;
    await sql`create table ${sql(`floor_${table}`)} (like ${sql(table)} including all)`;
  }
  await sql`insert into floor_credit_balances (organization_id, total, available)
    select n::text, 1e9, 1e9 from generate_series(0, ${count - 1}::int) n`;
}

/** Returns a function that writes the rows of a bulk of stored emails in one statement. */
function floorOf(sql: Sql): Take {
  return (n, npis) => sql`
    with stored as (
      select npi, email, email_type, last_validated_at from stored_emails
       where npi = any(${npis}) and verdict = 'valid' and last_validated_at > now() - interval '30 days'
    ), balance as (
      update floor_credit_balances set available = available - ${npis.length}::int, used = used + ${npis.length}::int
       where organization_id = ${n}::text returning organization_id
    ), batch as (
      insert into floor_batches (id, organization_id, submitted_as, requested_type, total, completed_count, created_at, updated_at, deadline_at)
      select gen_random_uuid(), organization_id, 'bulk', 'any', ${npis.length}::int, ${npis.length}::int, now(), now(), now() from balance
      returning id, organization_id
    ), request as (
      insert into floor_requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, email, email_type,
                                  email_last_validated_at, accepted_at, deadline_at, settled_at)
      select gen_random_uuid(), batch.id, organization_id, row_number() over () - 1, npi, 'any', 1, 'completed', email,
             email_type, last_validated_at, now(), now(), now() from batch, stored
      returning id, organization_id, npi, email_type
    ), entries as (
      insert into floor_ledger_entries (organization_id, request_id, kind, amount)
      select organization_id, id, kind, 1 from request, (values ('hold'), ('charge')) entry (kind)
    )
    insert into floor_entitlements (organization_id, npi, email_type, request_id, charged_at)
    select organization_id, npi, email_type, id, now() from request on conflict do nothing`;
}

interface Peers {
  readonly engines: Readonly<Record<string, Take>>;
  stop(): Promise<void>;
}

/**
 * Starts engines that keep their work in PostgreSQL and run the floor's statement for each NPI.
 * Returns null if they are not installed.
 */
async function startPeers(sql: Sql, url: string, work: Take): Promise<Peers | null> {
  const folder = new URL('./peers/', import.meta.url);
  if (!existsSync(new URL('node_modules/', folder))) {
    console.log('without peers, which `npm ci` in test/bench/peers/ installs');
    return null;
  }
  await sql`create database peers`;
  const database = new URL(url);
  database.pathname = '/peers';
  const { openPeers } = (await import(new URL('peers.mjs', folder).href)) as {
    openPeers(databaseUrl: string, take: Take): Promise<Peers>;
  };
  return await openPeers(database.href, work);
}

/** Returns NPIs per second. */
async function rate(clients: number, organizations: number, take: Take): Promise<number> {
  let next = 0;
  const one = async () => {
    const first = (next * BULK) % NPIS;
    const npis = Array.from({ length: BULK }, (_, i) =>
      String(1_000_000_000 + first + i),
    );
    const organization = next % organizations;
    next += 1;
    await take(organization, npis);
  };
  return BULK * (await perSecond(clients, one));
}

/** Measures admissions of one key whose window is nearly full. */
async function admissions(db: Database, sql: Sql): Promise<void> {
  console.log('admissions of one key per second');
  const windowMs = 600_000;
  const each = 50;
  const figures: number[] = [];
  for (const limit of [100, 1000, 10_000, 60_000]) {
    const { keyId } = await openOrganization(db, 0);
    const key = { keyId, requestsPerMinute: limit };
    const take = () => takePlaces(db, key, windowMs, 1);
    await take();
    let [ms, bytes, admitted] = [0, 0, 0];
    while (ms < SECONDS * 1000) {
      const seconds = Math.min(limit - each, 60);
      await sql`update rate_windows w set (hits, counts) = (
        select array_agg(now() - i * interval '1 s' order by i desc), array_agg(${Math.floor((limit - each) / seconds)}::int)
          from generate_series(1, ${seconds}::int) i) where api_key_id = ${keyId}`;
      const [before] = await sql`select pg_current_wal_insert_lsn() as lsn`;
      const begun = performance.now();
      for (let i = 0; i < each; i += 1) admitted += (await take()).taken;
      ms += performance.now() - begun;
      const [wal] =
        await sql`select (pg_current_wal_insert_lsn() - ${before?.lsn}::pg_lsn)::int as bytes`;
      bytes += wal?.bytes;
    }
    figures.push(ms / admitted);
    console.log(
      `  limit ${limit}: ${((1000 * admitted) / ms).toFixed(0)}, ${ratio(ms / admitted, figures[0] ?? 0)} the cost, ${(bytes / admitted).toFixed(0)} bytes of WAL each`,
    );
  }
}

async function polls(databaseUrl: string, sql: Sql): Promise<void> {
  // No run reaches the limit within so short a window.
  const api = await startApi({
    databaseUrl,
    temporalAddress: '127.0.0.1:9',
    rateWindowMs: 1000,
  });
  const bare = hapiServer({ host: '127.0.0.1', port: 0 });
  bare.route({
    method: 'GET',
    path: '/request/{id}',
    handler: async ({ params }) =>
      (await sql`select * from requests where id = ${String(params.id)}`)[0] ?? null,
  });
  bare.route({
    method: 'GET',
    path: '/batch/{id}',
    handler: ({ params }) =>
      sql`select * from requests where batch_id = ${String(params.id)} order by position`,
  });
  await bare.start();
  const client = await api.organization(1e6);
  const npis = Array.from({ length: BULK }, (_, i) => String(1_000_000_000 + i));
  const { json } = await client.bulk({ npis });
  const [requestId, batchId] = [json.requests[0]?.request_id, json.batch_id];
  const etag = (await client.get(`/api/v1/batch/${batchId}`)).headers.get('etag') ?? '';
  const key = { authorization: `Bearer ${client.apiKey}` };
  const ours = (path: string, headers = {}): Target => ({
    port: api.port,
    path,
    headers: { ...key, ...headers },
  });
  const theirs = (path: string): Target => ({
    port: Number(bare.info.port),
    path,
    headers: {},
  });
  const batch = ours(`/api/v1/batch/${batchId}`);
  const pairs: readonly [name: string, Target, of: string, Target][] = [
    [
      'single',
      ours(`/api/v1/email/${requestId}`),
      'bare route',
      theirs(`/request/${requestId}`),
    ],
    ['batch of 60', batch, 'bare route', theirs(`/batch/${batchId}`)],
    [
      '304 of the batch',
      ours(`/api/v1/batch/${batchId}`, { 'if-none-match': etag }),
      'its 200',
      batch,
    ],
  ];
  console.log('polls per second, and the 99th percentile in ms');
  for (const connections of [1, 20]) {
    for (const [name, one, of, other] of pairs) {
      const [ofOne, ofOther] = await loadFrom({ targets: [one, other], connections });
      console.log(
        `  ${name}, connections ${connections}: ${show(ofOne)}; ${of} ${show(ofOther)}: ${ratio(ofOne.perSecond, ofOther.perSecond)}`,
      );
    }
  }
  await bare.stop();
  await api.stop();
}

function ratio(one: number, other: number): string {
  return `${(one / other).toFixed(2)}×`;
}

function show({ perSecond, p99 }: Load): string {
  return `${perSecond.toFixed(0)} (p99 ${p99.toFixed(1)})`;
}

/** Returns calls per second of this many concurrent callers. */
async function perSecond(
  callers: number,
  call: () => Promise<unknown>,
  seconds = SECONDS,
): Promise<number> {
  let calls = 0;
  const begun = performance.now();
  const end = begun + seconds * 1000;
  await Promise.all(
    Array.from({ length: callers }, async () => {
      while (performance.now() < end) {
        await call();
        calls += 1;
      }
    }),
  );
  return calls / ((performance.now() - begun) / 1000);
}

interface Target {
  readonly port: number;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
}

/** Two targets to compare. */
interface Order {
  readonly targets: readonly [Target, Target];
  readonly connections: number;
}

interface Load {
  readonly perSecond: number;
  readonly p99: number;
}

/** Runs the clients in their own process, so that their cost is not measured. */
function loadFrom(order: Order): Promise<[Load, Load]> {
  return new Promise((resolve, reject) => {
    const child = fork(fileURLToPath(import.meta.url), process.argv.slice(2));
    child.once('message', (loads: [Load, Load]) => {
      resolve(loads);
      child.disconnect();
    });
    child.once('error', reject);
    child.send(order);
  });
}

/** Seconds per turn. The targets alternate, so that a slow moment of the machine affects both. */
const TURN_SECONDS = 0.25;

async function load({ targets, connections }: Order): Promise<Load[]> {
  const sides = await Promise.all(
    targets.map(async (target) => {
      const asking = await Promise.all(
        Array.from({ length: connections }, () => openAsker(target)),
      );
      return { asking, times: [] as number[], rates: [] as number[] };
    }),
  );
  // Warms up first, so that compiling, planning, and connecting are not measured.
  for (const { asking } of sides) {
    for (let i = 0; i < 2000; i += connections)
      await Promise.all(asking.map((one) => one()));
  }
  for (let turn = 0; turn < SECONDS / TURN_SECONDS; turn += 1) {
    for (const { asking, times, rates } of sides) {
      const free = [...asking];
      const timed = async () => {
        const one = free.pop();
        if (!one) throw new Error('more callers than connections');
        const begun = performance.now();
        await one();
        times.push(performance.now() - begun);
        free.push(one);
      };
      rates.push(await perSecond(connections, timed, TURN_SECONDS));
    }
  }
  return sides.map(({ times, rates }) => {
    times.sort((a, b) => a - b);
    const perSecond = rates.reduce((sum, rate) => sum + rate, 0) / rates.length;
    return { perSecond, p99: times[Math.floor(times.length * 0.99)] ?? 0 };
  });
}

/** Opens one persistent connection and returns a function that sends the same request over it. */
async function openAsker({ port, path, headers }: Target): Promise<() => Promise<void>> {
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  const bytes = `GET ${path} HTTP/1.1\r\nhost: localhost\r\n${lines.join('')}\r\n`;
  let text = '';
  let responded = (_error: Error | null) => {};
  const socket = connect(port, '127.0.0.1').setNoDelay();
  socket.setEncoding('latin1').on('data', (chunk: string) => {
    text += chunk;
    const head = text.indexOf('\r\n\r\n');
    const length = Number(/content-length: (\d+)/i.exec(text)?.[1] ?? 0);
    if (head < 0 || text.length < head + 4 + length) return;
    const status = text.slice(9, 12);
    text = '';
    responded(
      status === '200' || status === '304'
        ? null
        : new Error(`${path} responded ${status}`),
    );
  });
  await new Promise((resolve) => socket.once('connect', resolve));
  return () =>
    new Promise((resolve, reject) => {
      responded = (error) => (error ? reject(error) : resolve());
      socket.write(bytes);
    });
}
