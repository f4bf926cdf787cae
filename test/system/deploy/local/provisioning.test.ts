import { execFile, fork, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';
import { OperatorProblem } from '../../../../db/connection/errors.ts';
import { startPostgres } from '../../../../deploy/local/postgres.ts';
import { poll } from '../../../../deploy/local/processes.ts';
import { startTemporal } from '../../../../deploy/local/temporal.ts';
import { LOOPBACK } from '../../../../deploy/ports.ts';
import { temporaryFolder, testSetting, withSql } from '../../../support/database.ts';
import { eventually } from '../../../support/organization.ts';
import { endWithThisProcess } from '../../../support/programs.ts';
import { countTests, slowestTests, timedTest } from '../../../support/report.ts';

test('a PostgreSQL that is started again still has its data and its password', async (t) => {
  const dataDir = join(temporaryFolder(t.teardown), 'data');
  const first = await startPostgres({ dataDir });
  await withSql(first.url, (sql) => sql`create table kept as select 7 as number`);
  await first.stop();
  const second = await startPostgres({ dataDir });
  t.teardown(() => second.stop());
  t.deepEqual(
    Array.from(await withSql(second.url, (sql) => sql`select number from kept`)),
    [{ number: 7 }],
  );
  t.is((await stat(`${dataDir}.password`)).mode & 0o777, 0o600);
});

test('the local PostgreSQL listens only on loopback and requires its password', async (t) => {
  const server = await startPostgres({});
  t.teardown(() => server.stop());
  const [settings] = await withSql(
    server.url,
    (sql) =>
      sql`select current_setting('listen_addresses') as addresses, current_setting('max_connections') as most`,
  );
  t.deepEqual({ ...settings }, { addresses: LOOPBACK, most: '800' });
  const url = new URL(server.url);
  url.password = 'a guess';
  await t.throwsAsync(() => withSql(url.href, (sql) => sql`select 1`), { code: '28P01' });
});

test('PostgreSQL starts even if its lock file contains the ID of an unrelated process', async (t) => {
  const dataDir = join(temporaryFolder(t.teardown), 'data');
  const first = await startPostgres({ dataDir });
  process.kill(first.pid, 'SIGKILL');
  await first.exited;
  // Run as PostgreSQL's user, because a restarted container could reuse the number like this.
  const owner = await stat(dataDir);
  const stranger = execFile('sleep', ['600'], { uid: owner.uid, gid: owner.gid });
  endWithThisProcess(stranger);
  t.teardown(() => stranger.kill());
  await writeFile(
    join(dataDir, 'postmaster.pid'),
    `${stranger.pid}\n${dataDir}\n0\n0\n\n\n\nready\n`,
  );
  const second = await startPostgres({ dataDir });
  t.teardown(() => second.stop());
  t.is((await withSql(second.url, (sql) => sql`select 1`)).length, 1);
});

test('starting a second PostgreSQL on the same data fails with one sentence', async (t) => {
  const dataDir = join(temporaryFolder(t.teardown), 'data');
  const first = await startPostgres({ dataDir });
  t.teardown(() => first.stop());
  const error = await t.throwsAsync(() => startPostgres({ dataDir }), {
    instanceOf: OperatorProblem,
  });
  t.true(
    error?.message.startsWith(
      `Another PostgreSQL (process ${first.pid}) already runs on `,
    ),
  );
});

test('the error about a port that is in use names the port and says what to do', async (t) => {
  const squatter = createServer().listen(0, LOOPBACK);
  await once(squatter, 'listening');
  t.teardown(() => squatter.close());
  const address = squatter.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  const message = new RegExp(
    `^Port ${port} on 127\\.0\\.0\\.1, which .* needs, is in use: .*another port`,
  );
  await t.throwsAsync(() => startPostgres({ port }), { message });
  const temporal = { cli: testSetting('TEST_TEMPORAL_CLI'), namespace: 'default' };
  await t.throwsAsync(() => startTemporal({ ...temporal, port }), {
    message,
  });
  await t.throwsAsync(() => startTemporal({ ...temporal, uiPort: port }), {
    message,
  });
});

test('PostgreSQL ignores Ctrl-C, but ends when the process that started it dies', async (t) => {
  const owner = fork(new URL('../../../support/server-owner.ts', import.meta.url), {
    detached: true,
    execArgv: [],
  });
  endWithThisProcess(owner);
  t.teardown(() => owner.kill('SIGKILL'));
  const [url] = (await once(owner, 'message')) as [string];
  const [folder] = await withSql(
    url,
    (sql) => sql`select current_setting('data_directory') as path`,
  );

  process.kill(-(owner.pid ?? 0), 'SIGINT');
  t.deepEqual(await once(owner, 'message'), ['interrupted', undefined]);
  t.is((await withSql(url, (sql) => sql`select 1`)).length, 1);

  owner.kill('SIGKILL');
  const gone = await poll(async () => {
    const left = await stat(String(folder?.path)).catch(() => undefined);
    return left === undefined ? true : undefined;
  }, 150_000);
  t.true(gone);
  await t.throwsAsync(() => withSql(url, (sql) => sql`select 1`), {
    code: 'ECONNREFUSED',
  });
});

test('programs that a test file started end with it, even after a SIGKILL', async (t) => {
  const module = new URL('../../../support/programs.ts', import.meta.url).href;
  const code = `
    const { endWithThisProcess } = await import(${JSON.stringify(module)});
    const child = (await import('node:child_process')).spawn('sleep', ['600']);
    endWithThisProcess(child);
    process.send(child.pid);`;
  const owner = spawn(process.execPath, ['--input-type=module', '-e', code], {
    stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
  });
  const [pid] = (await once(owner, 'message')) as [number];
  t.true(process.kill(pid, 0));
  owner.kill('SIGKILL');
  await eventually(async () => {
    try {
      return process.kill(pid, 0) ? null : true;
    } catch {
      return true;
    }
  });
  t.throws(() => process.kill(pid, 0), { code: 'ESRCH' });
});

test('Temporal is started again if another program has taken one of its ports', async (t) => {
  const cli = join(temporaryFolder(t.teardown), 'temporal');
  // Like the real one: the reason in one line, then the trace of a panic.
  await script(
    cli,
    `[ -e "$0.once" ] && exec "${testSetting('TEST_TEMPORAL_CLI')}" "$@"
     touch "$0.once"
     echo 'msg="Failed to start gRPC listener" error="listen tcp 127.0.0.1:1: bind: address already in use"'
     seq 100 >&2; exit 2`,
  );
  const temporal = await startTemporal({ cli, namespace: 'default' });
  await temporal.stop();
  t.pass();
});

test('if there is no way to get the Temporal CLI, the error says what to install', async (t) => {
  const cacheDir = temporaryFolder(t.teardown);
  const { error } = await findCli(cacheDir, temporaryFolder(t.teardown));
  t.regex(
    error ?? '',
    /^The Temporal CLI is missing .*install it .* or install Go, or set TEMPORAL_ADDRESS/,
  );
  t.deepEqual(await readdir(cacheDir), []);
});

test('the Temporal CLI is built with Go only once, and then found in its cache', async (t) => {
  const [cacheDir, path] = [temporaryFolder(t.teardown), temporaryFolder(t.teardown)];
  await symlink('/usr/bin/env', join(path, 'env'));
  await script(
    join(path, 'go'),
    `[ "$1" = version ] && exit 0
     printf '#!/bin/sh\\necho temporal version 0\\n' > "$GOBIN/temporal"; /bin/chmod +x "$GOBIN/temporal"`,
  );
  const built = await findCli(cacheDir, path);
  t.is(built.cli, join(cacheDir, 'temporal-v1.5.1'), built.error);
  await rm(join(path, 'go'));
  t.deepEqual(await findCli(cacheDir, path), { cli: built.cli });
  t.deepEqual(await readdir(cacheDir), ['temporal-v1.5.1']);
});

test('a failed build of the Temporal CLI leaves no file that looks like the CLI', async (t) => {
  const [cacheDir, path] = [temporaryFolder(t.teardown), temporaryFolder(t.teardown)];
  await symlink('/usr/bin/env', join(path, 'env'));
  await script(
    join(path, 'go'),
    `[ "$1" = version ] && exit 0; echo half > "$GOBIN/temporal"; exit 1`,
  );
  t.truthy((await findCli(cacheDir, path)).error);
  t.deepEqual(await readdir(cacheDir), []);
});

test('the test runner counts passed tests, failures, crashes, and time-outs', (t) => {
  const report = [
    '  \u001B[32m✔\u001B[39m first',
    '  ✔ second (12ms)',
    '  ✔ [expected fail] known',
    '  ✘ [fail]: third',
    '  ✘ [fail]: before hook',
    '    ℹ 4 tests failed',
    // Counted above. If the run is interrupted, AVA prints no totals.
    '  1 test failed',
    '  1 hook failed',
    '  2 uncaught exceptions',
    '  1 unhandled rejection',
    '  3 tests remained pending after a timeout',
    // AVA's report after Ctrl-C. These tests did not fail.
    '  8 tests were pending in test/db/stats.test.ts',
  ];
  t.deepEqual(report.reduce(countTests, { passed: 0, failed: 0 }), {
    passed: 2,
    failed: 8,
  });
});

test('the test runner lists the slowest tests, slowest first', (t) => {
  const report = [
    '  ✔ db › keys › quick',
    '  ✔ db › keys › a (b) (190ms)',
    '  \u001B[31m✘ [fail]:\u001B[39m api › body › c \u001B[2m(1m 2.5s)\u001B[22m',
    '  ✔ imports › d (12.1s)',
    '    ℹ a remark (3s)',
  ];
  const tests = report.map(timedTest).filter((test) => test !== null);
  t.deepEqual(slowestTests(tests, 2), [
    '   62.5 s  [fail]: api › body › c',
    '   12.1 s  imports › d',
  ]);
  t.is(slowestTests(tests).at(-1), '    0.2 s  db › keys › a (b)');
});

async function script(file: string, body: string): Promise<void> {
  await writeFile(file, `#!/bin/sh\n${body}\n`, { mode: 0o755 });
}

/** Looks for the CLI with `path` as the only folder of programs, and without internet. */
async function findCli(
  cacheDir: string,
  path: string,
): Promise<{ cli?: string; error?: string }> {
  const module = new URL('../../../../deploy/local/programs.ts', import.meta.url).href;
  const code = `
    const { findTemporalCli } = await import(${JSON.stringify(module)});
    const found = findTemporalCli({ cacheDir: ${JSON.stringify(cacheDir)}, onProgress: () => {} });
    console.log(JSON.stringify(await found.then((cli) => ({ cli }), ({ message: error }) => ({ error }))));`;
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--input-type=module', '-e', code],
    {
      env: { PATH: path, HTTPS_PROXY: `http://${LOOPBACK}:1` },
    },
  );
  return JSON.parse(stdout) as { cli?: string; error?: string };
}
