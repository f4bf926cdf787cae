import { readFile } from 'node:fs/promises';
import test from 'ava';
import { openDatabase, run } from '../../../db/connection/client.ts';
import { startPostgres } from '../../../deploy/local/postgres.ts';
import { fresh, withSql } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';

// Tests that PostgreSQL's log contains no personal data.

const COMPOSE = new URL('../../../deploy/container/compose.yaml', import.meta.url);

const lines: string[] = [];
const server = fresh(test, () => startPostgres({ onLog: (line) => lines.push(line) }));

/** Returns the settings of the server in compose.yaml that are about its log. */
async function logSettings(): Promise<readonly string[]> {
  const text = await readFile(COMPOSE, 'utf8');
  return [...text.matchAll(/-c, (log_\w+=\w+)/g)].map(([, setting = '']) => setting);
}

/** Changes settings of the running server. */
async function configure(settings: readonly string[]): Promise<void> {
  await withSql(server.url, async (sql) => {
    for (const setting of settings) await sql.unsafe(`alter system set ${setting}`);
    await sql`select pg_reload_conf()`;
  });
}

/**
 * Inserts an address twice, which fails, and returns what the server logs.
 * @param end a text that the server logs after that
 */
async function logAbout(address: string, end: string): Promise<string> {
  lines.length = 0;
  const db = openDatabase({ url: server.url, poolSize: 1, applicationName: 'test' });
  try {
    await run(db)`create table if not exists people (email text unique)`;
    const insert = () => run(db)`insert into people values (${address}::text)`;
    await insert();
    await insert().catch(() => {});
  } finally {
    await db.close();
  }
  await withSql(server.url, (sql) => sql.unsafe(`select '${end}'::int`)).catch(() => {});
  return await eventually(async () => {
    const log = lines.join('\n');
    return log.includes(end) ? log : null;
  });
}

test('with our settings, the log of PostgreSQL contains no values', async (t) => {
  const slow = 'log_min_duration_statement=0';
  await configure([slow]);
  t.regex(await logAbout('jane@clinic.example', 'end_1'), /jane@clinic\.example/);
  const settings = await logSettings();
  t.deepEqual([...settings].sort(), [
    'log_error_verbosity=terse',
    'log_parameter_max_length=0',
  ]);
  await configure(settings);
  const log = await logAbout('john@clinic.example', 'end_2');
  t.regex(log, /duplicate key value/);
  t.notRegex(log, /john@/);
});
