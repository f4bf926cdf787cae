import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import type { Sql } from 'postgres';
import { migrate } from '../../../../db/operations/migrate.ts';
import { startPostgres } from '../../../../deploy/local/postgres.ts';
import { temporaryFolder } from '../../../support/database.ts';
import {
  CLINICIAN_HEADER,
  clinicianLine,
  clinicianRow,
} from '../../../support/employers.ts';
import {
  contentOf,
  type Imported,
  largeNpi,
  memberName,
  type NppesWorld,
  npi,
  openNppesWorld,
  openWorldAt,
  spawnImport,
  WRONG_NPI,
  writeLargeMain,
} from '../../../support/nppes.ts';
import { eventually } from '../../../support/organization.ts';

// Uses files of several chunks, so that an import can be killed in the middle.

const ROWS = 120_000;
/** In the first and in the last chunk. */
const BROKEN = new Map([
  [7, { NPI: WRONG_NPI }],
  [ROWS - 7, { NPI: WRONG_NPI }],
]);
const NAME = memberName('npidata', '20260809');

test.serial(
  'an NPPES import that was killed and run again has the same result',
  async (t) => {
    const whole = await openNppesWorld(t);
    const path = join(whole.folder, NAME);
    await writeLargeMain(path, ROWS, BROKEN);
    const expected = await whole.imported(path);
    t.like(expected.files, { npidata: { read: ROWS, inserted: ROWS - 2, rejected: 2 } });

    const killed = await openNppesWorld(t);
    const { child, ended } = spawnImport(killed, path);
    await firstRows(killed.sql);
    child.kill('SIGKILL');
    await ended;
    const before = (await killed.sql`select from providers`).length;
    t.true(before > 0 && before < ROWS - 2);
    // PostgreSQL ends the statement of a lost client before it releases the client's lock.
    await eventually(async () => ((await locksOf(killed.sql)) === 0 ? true : null));

    const again = await killed.imported(path);
    t.is(again.outcome, 'imported');
    t.like(again.files, {
      npidata: {
        read: ROWS,
        inserted: ROWS - 2 - before,
        unchanged: before,
        updated: 0,
        rejected: 2,
      },
    });
    t.is(await contentOf(killed.sql), await contentOf(whole.sql));
    t.is(await rejectsOf(killed), await rejectsOf(whole));
    t.is((await killed.imported(path)).outcome, 'already');
    const runs =
      await killed.sql`select state, counts, finished_at from import_runs order by started_at`;
    t.like(runs, [
      { state: 'failed' },
      { state: 'done', counts: { 'npidata.read': ROWS } },
    ]);
    t.true(runs.every((run) => run.finished_at instanceof Date));
  },
);

test.serial(
  'a clinician import that was killed and run again has the same result',
  async (t) => {
    const whole = await openNppesWorld(t, 'clinicians');
    const lines = Array.from({ length: 60_000 }, (_, n) =>
      clinicianLine(clinicianRow(npi(n), { org_pac_id: String(n % 900) })),
    );
    const path = join(whole.folder, 'DAC_NationalDownloadableFile.csv');
    await writeFile(path, CLINICIAN_HEADER + lines.join(''));
    await whole.imported(path);

    const killed = await openNppesWorld(t, 'clinicians');
    const { child, ended } = spawnImport(killed, path);
    await eventually(async () =>
      (await killed.sql`select from import_runs`).length > 0 ? true : null,
    );
    child.kill('SIGKILL');
    await ended;
    await eventually(async () => ((await locksOf(killed.sql)) === 0 ? true : null));
    t.is((await killed.sql`select from clinician_practices`).length, 0, 'all or nothing');
    t.like((await killed.imported(path)).files, {
      clinicians: { read: 60_000, inserted: 60_000 },
    });
    t.is(await contentOf(killed.sql), await contentOf(whole.sql));
    const runs = await killed.sql`select state from import_runs order by started_at`;
    t.deepEqual(
      runs.map(({ state }) => state),
      ['failed', 'done'],
    );
  },
);

test.serial(
  'if PostgreSQL is killed, an import says so, and the next run does the rest',
  async (t) => {
    const dataDir = join(temporaryFolder(t.teardown), 'data');
    let server = await startPostgres({ dataDir });
    t.teardown(() => server.stop());
    const { url, port } = server;
    await migrate(url);
    const world = await openWorldAt(t, url);
    const path = join(world.folder, NAME);
    await writeLargeMain(path, ROWS);

    const { ended } = spawnImport(world, path);
    await firstRows(world.sql);
    process.kill(server.pid, 'SIGKILL');
    await server.exited;
    const { code, stdout, stderr } = await ended;
    t.is(code, 1);
    t.is(stdout, '');
    // An import that takes longer than 10 s prints lines of progress before the error.
    const lastLine = stderr.trimEnd().split('\n').at(-1) ?? '';
    const { error } = JSON.parse(lastLine) as { error: { message: string } };
    t.regex(
      error.message,
      /^lost the connection to PostgreSQL \(\w+\); run the same command again, /,
    );

    server = await startPostgres({ dataDir, port });
    const again = await world.imported(path);
    const { inserted = 0, unchanged = 0 } = again.files.npidata ?? {};
    t.like(again.files, { npidata: { read: ROWS, updated: 0 } });
    t.true(unchanged > 0);
    t.is(inserted + unchanged, ROWS);
  },
);

test.serial(
  'starting an import during another one fails and names the running import',
  async (t) => {
    const world = await openNppesWorld(t);
    const path = join(world.folder, NAME);
    await writeLargeMain(path, ROWS);
    const { child, ended } = spawnImport(world, path);
    await firstRows(world.sql);
    // Otherwise the first import could end before the second one begins.
    child.kill('SIGSTOP');
    const second = await world.operator(path);
    child.kill('SIGCONT');
    t.is(second.code, 1);
    t.regex(
      second.stderr,
      new RegExp(
        `another import is under way \\(import nppes, process ${child.pid} on .*, ${NAME}, since `,
      ),
    );
    const first = await ended;
    t.is(first.code, 0);
    t.is((JSON.parse(first.stdout) as Imported).files.npidata?.inserted, ROWS);
  },
);

test.serial(
  'if a large file has several rows for an NPI, the last one is stored',
  async (t) => {
    const world = await openNppesWorld(t);
    const path = join(world.folder, NAME);
    const last = 'Provider Last Name (Legal Name)';
    await writeLargeMain(
      path,
      ROWS,
      new Map([
        // Repeats a row of the first chunk, and one within the same chunk.
        [30_000, { NPI: largeNpi(1), [last]: 'ACROSS' }],
        [45_001, { NPI: largeNpi(45_000), [last]: 'WITHIN' }],
      ]),
    );
    t.like((await world.imported(path)).files, {
      npidata: { read: ROWS, inserted: ROWS - 2, updated: 1, repeated: 1 },
    });
    const rows = await world.sql`
    select last_name from providers where npi in ${world.sql([largeNpi(1), largeNpi(45_000)])} order by 1`;
    t.deepEqual(
      rows.map((row) => row.last_name),
      ['ACROSS', 'WITHIN'],
    );
  },
);

test.serial(
  'a row that PostgreSQL rejects ends the import at once with a clear message',
  async (t) => {
    const world = await openNppesWorld(t);
    const path = join(world.folder, NAME);
    await writeLargeMain(path, ROWS);
    // Rejects the last row of the last chunk, when all rows have been sent.
    await world.sql.unsafe(
      `alter table providers add constraint refused check (npi <> '${largeNpi(ROWS - 1)}')`,
    );
    const { code, stderr } = await world.operator(path);
    t.is(code, 1);
    t.regex(
      stderr,
      /^operator: PostgreSQL rejected the import; its log says why \(\w{5}\); run the same command again/m,
    );
    await world.sql`alter table providers drop constraint refused`;
    const { inserted = 0, unchanged = 0 } =
      (await world.imported(path)).files.npidata ?? {};
    t.is(inserted + unchanged, ROWS);
  },
);

/** Resolves when an import has written its first row. */
async function firstRows(sql: Sql): Promise<void> {
  await eventually(async () => {
    const [provider] = await sql`select from providers limit 1`;
    return provider ?? null;
  });
}

async function rejectsOf(world: NppesWorld): Promise<string> {
  return await readFile(join(world.folder, 'rejects.csv'), 'utf8');
}

/** Returns the advisory locks held in this database. An import holds one. */
async function locksOf(sql: Sql): Promise<number> {
  const rows = await sql`
    select from pg_locks where locktype = 'advisory'
       and database = (select oid from pg_database where datname = current_database())`;
  return rows.length;
}
