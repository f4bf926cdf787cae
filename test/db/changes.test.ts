import test from 'ava';
import { endOf, listenForChanges } from '../../db/connection/changes.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { settle } from '../../db/requests/settle.ts';
import { freshDatabase } from '../support/database.ts';
import {
  eventually,
  openOrganization,
  RULES,
  submitAccepted,
} from '../support/organization.ts';
import { startRelay } from '../support/relay.ts';

// Tests which waiting clients a settlement wakes.

const { db, sql, url } = freshDatabase(test);

// Fails without the triggers that notify of changed requests and batches, and of their end.
test('settling a request wakes only clients that wait for it or for its batch', async (t) => {
  const changes = listenForChanges(db);
  t.teardown(() => changes.close());
  const organization = await openOrganization(db, 10);
  const { batchId, requestIds } = await submitAccepted(db, organization, {
    npis: ['1000000011', '1000000012'],
  });
  const [first = '', second = ''] = requestIds;
  const woken = new Set<string>();
  const note = async (id: string) => {
    for (const watch = changes.watch(id); await watch.next(); ) woken.add(id);
  };
  for (const id of [first, second, batchId])
    void Promise.all([note(id), note(endOf(id))]);
  // All watchers are woken when listening starts. From then on, once this watcher is woken, the
  // others have received all earlier notifications, too.
  const last = changes.watch('last');
  await last.next();
  const wokenBy = async (requestId: string) => {
    woken.clear();
    await settle(db, requestId, 'failed', 'test', RULES);
    await sql`select pg_notify('changed', 'last')`;
    await last.next();
    return [...woken].toSorted();
  };
  t.deepEqual(await wokenBy(first), [batchId, first, endOf(first)]);
  t.deepEqual(await wokenBy(second), [batchId, endOf(batchId), second, endOf(second)]);
});

// A standby refuses LISTEN like this, and the connection stays open.
test('if PostgreSQL rejects LISTEN, a process repeats LISTEN until it is accepted', async (t) => {
  let refused = 0;
  let isStandby = true;
  const there = new URL(url);
  const relay = await startRelay(
    { host: there.hostname, port: Number(there.port) },
    (sent) => {
      if (!isStandby || !sent.includes('listen "')) return sent;
      refused += 1;
      return sent.replace('listen "', 'lisxen "');
    },
  );
  there.host = `${relay.host}:${relay.port}`;
  const relayed = openDatabase({ url: there.href, poolSize: 1, applicationName: 'test' });
  const changes = listenForChanges(relayed);
  t.teardown(async () => {
    changes.close();
    await relayed.close();
    relay.close();
  });
  const watch = changes.watch('id');
  await eventually(async () => refused || null);
  isStandby = false;
  t.true(await watch.next(), 'woken when listening begins');
  const heard = watch.next();
  await sql`select pg_notify('changed', 'id')`;
  t.true(await heard);
});

test('after several failed LISTENs, each notification is still received only once', async (t) => {
  const there = new URL(url);
  const relay = await startRelay({ host: there.hostname, port: Number(there.port) });
  there.host = `${relay.host}:${relay.port}`;
  const relayed = openDatabase({ url: there.href, poolSize: 1, applicationName: 'test' });
  t.teardown(async () => {
    await relayed.close();
    relay.close();
  });
  const heard: string[] = [];
  const listen = () =>
    relayed.listen(
      'news',
      (payload) => heard.push(payload),
      () => {},
    );
  relay.cut();
  for (let tries = 0; tries < 3; tries += 1) await t.throwsAsync(listen());
  relay.mend();
  await eventually(async () => (await listen().catch(() => null)) ?? null);
  for (const payload of ['one', 'two']) await sql`select pg_notify('news', ${payload})`;
  await eventually(async () => heard.includes('two') || null);
  t.deepEqual(heard, ['one', 'two']);
});
