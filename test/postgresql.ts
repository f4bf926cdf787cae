import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { arch, platform } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startPostgres } from '../deploy/local/postgres.ts';
import { succeed } from './support/installed.ts';
import { runCheck, step } from './support/long-check.ts';
import { runProgram } from './support/programs.ts';
import { TOOLS } from './support/tools.ts';

/**
 * `npm run postgresql`: runs the tests of the migrations and of the ledger on the oldest PostgreSQL
 * that the service supports. `npm test` runs them on the newest. `migrate` must refuse an older
 * one. npm installs both servers, once.
 */
const OLDEST = 15;
const TOO_OLD = 14;
const FILES = [
  'test/db/migrations.test.ts',
  'test/db/schema.test.ts',
  'test/db/ledger.test.ts',
  'test/db/roles.test.ts',
  'test/db/windows.test.ts',
];

await runCheck(async (started) => {
  const packages = await TOOLS.postgresqlPackages();
  const folderOf = (major: number) =>
    join(packages, `postgresql-${major}-${platform()}-${arch()}`);
  if (existsSync(folderOf(TOO_OLD))) {
    const url = await start(folderOf(TOO_OLD), started);
    await step(`migrate on PostgreSQL ${TOO_OLD}`, () => isRefused(url));
  } else {
    console.log(
      `npm has no PostgreSQL ${TOO_OLD} for this machine: that migrate refuses it is left out`,
    );
  }
  const url = await start(folderOf(OLDEST), started);
  await step(`tests on PostgreSQL ${OLDEST}`, () => runTests(url));
});

/** Starts the server in this folder. @returns the URL of its superuser */
async function start(folder: string, started: AsyncDisposableStack): Promise<string> {
  // Its install script makes the links between libraries, which npm cannot store as files.
  const links = `cd "${folder}" && node scripts/hydrate-symlinks.js`;
  await succeed('/bin/sh', ['-c', links], 'npm has no PostgreSQL for this machine');
  const server = await startPostgres({ package: folder });
  started.defer(() => server.stop());
  return server.url;
}

async function isRefused(url: string): Promise<void> {
  const { code, stderr } = await runProgram('migrate', [], {
    env: { DATABASE_URL: url },
  });
  const sentence = new RegExp(
    `^migrate: .* is PostgreSQL ${TOO_OLD}\\.\\d+, and this service needs ${OLDEST} or later: `,
  );
  if (code !== 1 || !sentence.test(stderr))
    throw new Error(`migrate ended with ${code}: ${stderr}`);
}

async function runTests(url: string): Promise<void> {
  const runner = fileURLToPath(new URL('run.ts', import.meta.url));
  const env = { ...process.env, TEST_DATABASE_URL: url };
  const child = spawn(process.execPath, [runner, '--only-tests', ...FILES], {
    stdio: 'inherit',
    env,
  });
  const [code] = await once(child, 'close');
  if (code !== 0) throw new Error(`the tests on PostgreSQL ${OLDEST} failed`);
}
