import test from 'ava';
import { type Database, openDatabase, query } from '../../db/client.ts';
import { findEnvelope } from '../../db/requests/envelope.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { acceptedIds, openOrganization, RULES, submitCommand } from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Every connection keeps each statement that it has planned, so their number must not grow with what is asked.

const { url } = freshDatabase(test);

const npisFrom = (first: number, count: number) =>
  Array.from({ length: count }, (_, i) => String(1_000_000_000 + first + i));

/** The texts of statements that the only connection of a pool keeps. */
async function kept(db: Database): Promise<string[]> {
  const rows = await query(db, (tx) =>
    tx.execute<{ statement: string }>('select statement from pg_prepared_statements order by 1'),
  );
  return rows.map(({ statement }) => statement);
}

test('a bulk of 60 and its poll are the statements of a bulk of 2, each planned once per connection', async (t) => {
  const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
  t.teardown(() => db.close());
  const organization = await openOrganization(db, 1000);
  const stored = { email: 'a@example.com', emailType: 'professional', source: 'test' } as const;
  for (const npi of npisFrom(0, 40)) {
    await storeEmail(db, { ...stored, npi, lastValidatedAt: new Date() });
  }
  const take = async (npis: string[]) => {
    const webhook = { url: 'https://example.com/hook', mode: 'real-time' } as const;
    const { batchId } = acceptedIds(await submit(db, submitCommand(organization, { npis, webhook }), RULES));
    const envelope = await findEnvelope(db, { organizationId: organization.organizationId, batchId });
    t.is(envelope?.items.length, npis.length);
  };
  await take(npisFrom(39, 2));
  const before = await kept(db);
  t.true(before.some((statement) => statement.includes('insert into "requests"')));
  for (const count of [1, 7, 60]) await take(npisFrom(0, count));
  t.deepEqual(await kept(db), before);
});

test('what is asked one after the other is asked over one connection, where its plans and pages are warm', async (t) => {
  const db = openDatabase({ url, poolSize: 5, applicationName: 'test' });
  t.teardown(() => db.close());
  const ask = () => query(db, (tx) => tx.execute<{ pid: number }>('select pg_backend_pid() as pid'));
  const pidsOf = (answers: readonly { pid: number }[][]) => new Set(answers.map(([row]) => row?.pid));
  t.is(pidsOf(await Promise.all(Array.from({ length: 5 }, ask))).size, 5);
  const answers = [];
  for (let i = 0; i < 10; i += 1) answers.push(await ask());
  t.is(pidsOf(answers).size, 1);
});
