import { fork } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import postgres from 'postgres';
import { listenForChanges } from '../../db/connection/changes.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { LOOPBACK } from '../../deploy/ports.ts';
import { openTestDatabase, temporaryFolder, withSql } from '../support/database.ts';
import type { LossCounts } from '../support/loss-client.ts';
import { eventually } from '../support/organization.ts';
import { addPublishedPostgres, endWithThisProcess } from '../support/programs.ts';

const KILLS = Number(process.env.TEST_POSTGRES_KILLS ?? 3);
const PACKAGE = fileURLToPath(new URL('../../node_modules/postgres', import.meta.url));
const CLIENT = new URL('../support/loss-client.ts', import.meta.url);

test.serial('a busy connection pool survives kill -9 of PostgreSQL', async (t) => {
  t.timeout(300_000 + KILLS * 60_000);
  const { counts, halves } = await killUnderLoad(t, PACKAGE, KILLS);
  t.log(counts);
  t.is(counts.uncaught, 0);
  t.is(counts.hanging, 0);
  t.is(halves, 0);
  t.true(counts.fulfilled > 0 && counts.rejected > 0);
});

test.serial(
  'postgres.js without our patch does not survive kill -9 of PostgreSQL',
  async (t) => {
    t.timeout(1_200_000);
    const published = await addPublishedPostgres(temporaryFolder(t.teardown));
    // One kill causes a few uncaught exceptions, and sometimes none.
    const { counts, halves } = await killUnderLoad(
      t,
      published,
      20,
      ({ uncaught }) => uncaught > 0,
    );
    t.log(counts, `${halves} halves`);
    t.true(counts.uncaught > 0);
  },
);

test.serial(
  'clients that LISTEN for changes receive them again after PostgreSQL was killed',
  async (t) => {
    const dataDir = join(temporaryFolder(t.teardown), 'data');
    let server = await startPostgres({ dataDir });
    const { url, port } = server;
    const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
    const changes = listenForChanges(db);
    t.teardown(async () => {
      changes.close();
      await db.close();
      await server.stop();
    });
    for (const id of ['before', 'after one loss', 'after two losses']) {
      const watch = changes.watch(id);
      let woken = 0;
      const hear = async () => {
        while (await watch.next()) woken += 1;
      };
      void hear();
      // A reconnect wakes every listener once, because it may have missed changes. More wake-ups
      // must come from the notifications.
      await eventually(async () => {
        await db.drizzle.execute(sql`select pg_notify('changed', ${id})`).catch(() => {});
        return woken > 10 || null;
      });
      watch.stop();
      t.true(woken > 10);
      process.kill(server.pid, 'SIGKILL');
      await server.exited;
      server = await startPostgres({ dataDir, port });
    }
  },
);

test('a transaction never shares its connection, even if it fills the query pipeline', async (t) => {
  await using database = await openTestDatabase();
  const sql = postgres(database.url, { max: 1, onnotice: () => {} });
  t.teardown(() => sql.end({ timeout: 1 }));
  await sql`create table steps (step text)`;
  // The pipeline holds a hundred queries. The number of earlier queries decides which one fills it.
  for (let ahead = 97; ahead <= 103; ahead += 1) {
    const before = Array.from({ length: ahead }, (_, index) =>
      sql`select ${index}::int`.execute(),
    );
    const rolledBack = sql.begin(async (tx) => {
      await tx`insert into steps values ('of a transaction')`;
      throw new Error('changed my mind');
    });
    const after = sql`insert into steps values ('of its own')`.execute();
    await t.throwsAsync(rolledBack, { message: 'changed my mind' });
    await Promise.all([...before, after]);
  }
  t.deepEqual(
    Array.from(await sql`select step, count(*)::int from steps group by step`),
    [{ step: 'of its own', count: 7 }],
  );
});

test('a transaction that has lost its connection cannot run another statement', async (t) => {
  await using database = await openTestDatabase();
  const killer = database.sql;
  const sql = postgres(database.url, { max: 1, backoff: () => 0.01, onnotice: () => {} });
  t.teardown(() => sql.end({ timeout: 1 }));
  await sql`create table steps (step text)`;
  const { promise: refused, resolve: tell } = Promise.withResolvers<unknown>();
  const dead = sql.begin(async (tx) => {
    const [backend] = await tx`select pg_backend_pid() as pid`;
    await killer`select pg_terminate_backend(${Number(backend?.pid)})`;
    // This returns once the pool has reconnected. The dead transaction must not get the new
    // connection.
    await sql`select 1`.catch(() => sql`select 1`);
    await tx`insert into steps values ('late')`.then(() => tell(undefined), tell);
  });
  await t.throwsAsync(dead, { code: 'CONNECTION_CLOSED' });
  t.like(await refused, { code: 'CONNECTION_CLOSED' });
  t.deepEqual(Array.from(await sql`select step from steps`), []);
});

test('a query fails if the server closes every connection immediately', async (t) => {
  const server = createServer((socket) => socket.end());
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  const address = server.address();
  const sql = postgres({
    host: LOOPBACK,
    port: typeof address === 'object' ? (address?.port ?? 0) : 0,
    max: 1,
  });
  t.teardown(async () => {
    await sql.end({ timeout: 0 });
    server.close();
  });
  await t.throwsAsync(async () => await sql`select 1`, { code: 'CONNECTION_CLOSED' });
});

/**
 * Runs the busy client with the given copy of postgres.js against its own server. The server is
 * killed and restarted `kills` times, or until `enough` returns true.
 */
async function killUnderLoad(
  t: ExecutionContext,
  modulePackage: string,
  kills: number,
  enough: (counts: LossCounts) => boolean = () => false,
) {
  const dataDir = join(temporaryFolder(t.teardown), 'data');
  let server = await startPostgres({ dataDir });
  const { url, port } = server;
  await withSql(url, (sql) => sql`create table pairs (pair uuid)`);
  const client = fork(CLIENT, [join(modulePackage, 'src', 'index.js'), url], {
    execArgv: [],
  });
  endWithThisProcess(client);
  const ask = async (message: 'count' | 'stop'): Promise<LossCounts> => {
    client.send(message);
    const [counts] = (await once(client, 'message')) as [LossCounts];
    return counts;
  };
  const resultsAfter = async (counts: LossCounts) =>
    await eventually(
      async () => (await ask('count')).fulfilled > counts.fulfilled + 100 || null,
    );
  try {
    await resultsAfter(await ask('count'));
    for (let kill = 0; kill < kills && !enough(await ask('count')); kill += 1) {
      process.kill(server.pid, 'SIGKILL');
      await server.exited;
      server = await startPostgres({ dataDir, port });
      await resultsAfter(await ask('count'));
    }
    const counts = await ask('stop');
    const halves = await withSql(
      url,
      (sql) => sql`select pair from pairs group by pair having count(*) <> 2`,
    );
    return { counts, halves: halves.length };
  } finally {
    client.kill('SIGKILL');
    await server.stop();
  }
}
