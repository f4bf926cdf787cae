import test from 'ava';
import { recordReading } from '../../db/audit.ts';
import { openTestDatabase, type TestDatabase } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';

interface Proof {
  readonly entries: number;
  readonly head: string;
  readonly broken_at: number | null;
}

async function note({ db }: TestDatabase, subject: string): Promise<void> {
  const reading = { action: 'explain.reveal', organizationId: null, subject } as const;
  await recordReading(db, { actor: 'ann', reason: 'ticket 7' }, reading);
}

async function logged(database: TestDatabase, entries: number): Promise<void> {
  for (let n = 1; n <= entries; n += 1) await note(database, `subject ${n}`);
}

test('an audit log that was not tampered with verifies, also after concurrent writes', async (t) => {
  await using database = await openTestDatabase();
  const { operator, json } = operatorOn(database.url);
  t.like(await json('audit', 'verify'), { entries: 0, broken_at: null });
  await Promise.all(Array.from({ length: 20 }, (_, n) => note(database, `subject ${n}`)));
  const { head, ...proof } = await json<Proof>('audit', 'verify');
  t.like(proof, { entries: 20, broken_at: null });
  await note(database, 'one more');
  t.is((await operator('audit', 'verify', '--noted', head)).code, 0);
  const [{ db_user: user } = {}] = await database.sql`select distinct db_user from audit_log`;
  t.is(user, 'postgres');
});

const TAMPERINGS: readonly (readonly [what: string, statement: string, brokenAt: number])[] = [
  ['rewritten', "update audit_log set reason = 'nothing' where id = 3", 3],
  ['given another actor', "update audit_log set actor = 'bob' where id = 5", 5],
  ['given another time', "update audit_log set at = at - interval '1 day' where id = 2", 2],
  ['removed', 'delete from audit_log where id = 4', 5],
  ['removed at the beginning', 'delete from audit_log where id = 1', 2],
  [
    'slipped in',
    "insert into audit_log (id, actor, action, reason) overriding system value values (0, 'eve', 'x', 'x')",
    0,
  ],
];

for (const [what, statement, brokenAt] of TAMPERINGS) {
  test(`audit verify ends with 3 for an entry ${what} while triggers were off`, async (t) => {
    await using database = await openTestDatabase();
    await logged(database, 6);
    await database.sql.begin(async (tx) => {
      await tx`set local session_replication_role = replica`;
      await tx.unsafe(statement);
    });
    const { operator } = operatorOn(database.url);
    const { code, stdout } = await operator('audit', 'verify', '--json');
    t.is(code, 3);
    t.is((JSON.parse(stdout) as Proof).broken_at, brokenAt);
  });
}

test('the database sets the number, time and user of an audit entry itself', async (t) => {
  await using database = await openTestDatabase();
  await database.sql`
    insert into audit_log (id, at, db_user, actor, action, reason) overriding system value
    values (77, '2020-01-01', 'nobody', 'eve', 'x', 'x')`;
  const [entry] = await database.sql`
    select id::int, db_user, now() - at < interval '1 hour' as "isNow" from audit_log`;
  t.deepEqual({ ...entry }, { id: 1, db_user: 'postgres', isNow: true });
  const { operator } = operatorOn(database.url);
  t.is((await operator('audit', 'verify')).code, 0);
});

test('audit verify finds entries removed at the end if it gets the noted head', async (t) => {
  await using database = await openTestDatabase();
  const { operator, json } = operatorOn(database.url);
  await logged(database, 4);
  const { head } = await json<Proof>('audit', 'verify');
  await database.sql.begin(async (tx) => {
    await tx`set local session_replication_role = replica`;
    await tx`delete from audit_log where id > 2`;
  });
  await note(database, 'another');
  t.is((await operator('audit', 'verify')).code, 0);
  const { code, stdout } = await operator('audit', 'verify', '--noted', head);
  t.is(code, 3);
  t.regex(stdout, /knows noted +no/);
});
