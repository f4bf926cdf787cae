import test from 'ava';
import { endOf, listenForChanges } from '../../db/changes.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { acceptedIds, openOrganization, RULES, submitCommand } from '../support/organization.ts';

// Who is woken by what: what a settlement costs the clients that wait.

const { db, sql } = freshDatabase(test);

// Guards: the triggers that announce requests and batches, and what they say of an end.
test('a settlement wakes those alone whom it concerns', async (t) => {
  const changes = listenForChanges(db);
  t.teardown(() => changes.close());
  const organization = await openOrganization(db, 10);
  const command = submitCommand(organization, { npis: ['1000000011', '1000000012'] });
  const { batchId, requestIds } = acceptedIds(await submit(db, command, RULES));
  const [first = '', second = ''] = requestIds;
  const woken = new Set<string>();
  const note = async (id: string) => {
    for (const watch = changes.watch(id); await watch.next(); ) woken.add(id);
  };
  for (const id of [first, second, batchId]) void Promise.all([note(id), note(endOf(id))]);
  // Everybody is woken when listening begins; later on, what this one hears has been heard by all.
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
