import { type ChildProcess, spawn } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { ExecutionContext } from 'ava';
import postgres, { type Sql } from 'postgres';
import { runOperator } from '../../deploy/operator/program.ts';
import { openTestDatabase, temporaryFolder } from './database.ts';
import { endWithThisProcess } from './programs.ts';

/** A database and a folder of their own for one test of the importer: one import runs in a database at a time. */
export interface NppesWorld {
  readonly url: string;
  readonly sql: Sql;
  readonly folder: string;
  /** Runs `import nppes PATH …`; rejected rows are listed in `rejects.csv` of the folder. */
  operator(path: string, ...options: string[]): Promise<Ended>;
  /** What `--json` prints of an import. @throws {Error} where it ended with another code than 0 */
  imported(path: string, ...options: string[]): Promise<Imported>;
}

export interface Ended {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface Imported {
  readonly outcome: string;
  readonly as_of: string;
  readonly files: Readonly<Record<string, Readonly<Record<string, number>>>>;
  readonly rejects_path: string | null;
}

const COMMAND = fileURLToPath(new URL('../../deploy/operator.ts', import.meta.url));
/** All that an import writes but when it did. */
const CONTENT = [
  `select coalesce(md5(string_agg((to_jsonb(p) - 'imported_at')::text, ',' order by npi)), '') as digest from providers p`,
  ...['provider_endpoints', 'provider_other_names', 'provider_locations'].map(
    (table) =>
      `select coalesce(md5(string_agg(d::text, ',' order by d::text)), '') as digest from ${table} d`,
  ),
];

export async function openNppesWorld(t: ExecutionContext): Promise<NppesWorld> {
  const database = await openTestDatabase();
  const world = await openWorldAt(t, database.url);
  t.teardown(() => database.stop());
  return world;
}

/** In a database that the test has made. */
export async function openWorldAt(t: ExecutionContext, url: string): Promise<NppesWorld> {
  const folder = temporaryFolder(t.teardown);
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  t.teardown(() => sql.end({ timeout: 1 }));
  const operator = async (path: string, ...options: string[]): Promise<Ended> => {
    let stdout = '';
    let stderr = '';
    const code = await runOperator(argumentsOf(folder, path, options), {
      databaseUrl: () => url,
      stdout: (text) => (stdout += text),
      stderr: (text) => (stderr += text),
    });
    return { code, stdout, stderr };
  };
  return {
    url,
    sql,
    folder,
    operator,
    async imported(path, ...options) {
      const { code, stdout, stderr } = await operator(path, '--json', ...options);
      if (code !== 0) throw new Error(`the import ended with ${code}: ${stderr}`);
      return JSON.parse(stdout) as Imported;
    },
  };
}

/** The same command as a process of its own, which can be killed. */
export function spawnImport(
  world: NppesWorld,
  path: string,
): { readonly child: ChildProcess; readonly ended: Promise<Ended> } {
  const child = spawn(process.execPath, [COMMAND, ...argumentsOf(world.folder, path, ['--json'])], {
    env: { PATH: process.env.PATH, DATABASE_URL: world.url },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  endWithThisProcess(child);
  const ended = new Promise<Ended>((resolve, reject) => {
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (text: Buffer) => (stdout += text));
    child.stderr.on('data', (text: Buffer) => (stderr += text));
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, stdout, stderr }));
  });
  return { child, ended };
}

/** The content of the tables: the same for two databases, or twice, where they hold the same. */
export async function contentOf(sql: Sql): Promise<string> {
  const digests: string[] = [];
  for (const query of CONTENT) digests.push(String((await sql.unsafe(query))[0]?.digest));
  return digests.join(' ');
}

/** As `contentOf`, of the rows' versions: differs where a row was written again, though with the same values. */
export async function versionsOf(sql: Sql): Promise<string> {
  const [row] = await sql`
    select md5(string_agg(v, ',' order by v)) as digest from (
      select xmin || ' ' || xmax || ' ' || npi as v from providers
      union all select xmin || ' ' || xmax || ' ' || npi || endpoint from provider_endpoints
      union all select xmin || ' ' || xmax || ' ' || npi || name from provider_other_names
      union all select xmin || ' ' || xmax || ' ' || npi || line_1 from provider_locations) versions`;
  return String(row?.digest);
}

function argumentsOf(folder: string, path: string, options: readonly string[]): string[] {
  return ['import', 'nppes', path, '--rejects', join(folder, 'rejects.csv'), ...options];
}
