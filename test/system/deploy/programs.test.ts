import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test, { type ExecutionContext } from 'ava';
import { balanceOf } from '../../../db/accounts/credits.ts';
import { openDatabase } from '../../../db/connection/client.ts';
import { readiness } from '../../../db/operations/migrate.ts';
import { submit } from '../../../db/requests/submit.ts';
import { launch } from '../../../deploy/local/processes.ts';
import { startTemporal } from '../../../deploy/local/temporal.ts';
import { freePort, LOOPBACK } from '../../../deploy/ports.ts';
import {
  openEmptyDatabase,
  temporaryFolder,
  testSetting,
} from '../../support/database.ts';
import {
  eventually,
  openOrganization,
  RULES,
  submitCommand,
} from '../../support/organization.ts';
import {
  installForProduction,
  type ProgramName,
  programCommand,
  runProgram,
} from '../../support/programs.ts';
import { SITE_SETTINGS } from '../../support/site.ts';

// Runs the programs as operators do, from an installation without development packages.

const PROGRAMS: readonly ProgramName[] = [
  'api',
  'worker',
  'migrate',
  'operator',
  'bundle',
];

const root = temporaryFolder(test.after.always);
test.before(() => installForProduction(root));

for (const name of PROGRAMS) {
  test(`${name} --help shows purpose, settings, and exit codes, and needs no setting`, async (t) => {
    const { code, stdout, stderr } = await runProgram(name, ['--help']);
    t.deepEqual([code, stderr], [0, '']);
    t.true(stdout.startsWith(`Usage: npm run ${name} -- `), stdout);
    t.regex(
      stdout,
      name === 'bundle'
        ? /^Needs no settings\.$/m
        : /^Required settings: DATABASE_URL.*deploy\/env\.example/ms,
    );
    t.regex(stdout, /^Exit codes: 0 .* 1 failed .* 2 wrong\s+usage/ms);
  });

  test(`${name} exits with 2 for an unknown option or argument`, async (t) => {
    for (const args of [['--dry-run'], ['first', 'second']]) {
      const { code, stdout, stderr } = await runProgram(name, args);
      t.deepEqual([code, stdout], [2, '']);
      t.regex(stderr, /^error: .*\nAdd --help to see how it is used\.\n$/s);
    }
  });
}

test('migrate does nothing with --help or an unknown option', async (t) => {
  await using database = await openEmptyDatabase();
  const env = { DATABASE_URL: database.url };
  for (const option of ['--help', '--dry-run'])
    await runProgram('migrate', [option], { env });
  t.is(await readiness(database.db), 'migrations_missing');
});

test.serial(
  'without our patch of postgres.js no program starts, and each says what to run',
  async (t) => {
    const env = { DATABASE_URL: await emptyDatabase(t), ...SITE_SETTINGS };
    const options = { root, env };
    for (const [name, ...args] of [
      ['api'],
      ['worker'],
      ['migrate'],
      ['operator', 'org', 'list'],
    ] as const) {
      const { code, stdout, stderr } = await runProgram(name, args, options);
      t.deepEqual([code, stdout], [1, ''], name);
      t.regex(
        stderr,
        new RegExp(
          `^${name}: postgres\\.js was installed without .* "npm run postinstall" .*\n$`,
        ),
      );
    }
    await promisify(execFile)('npm', ['run', 'postinstall'], { cwd: root });
    const { code, stderr } = await runProgram('migrate', [], options);
    t.deepEqual([code, stderr], [0, '']);
  },
);

test.serial(
  'a worker with a wrong sources file ends at once and lists every problem',
  async (t) => {
    const file = join(root, 'sources.json');
    await writeFile(file, '{"registry":"on","vendors":{"hunter":{"wait":"soon"}}}');
    // No server listens on this port.
    const env = { DATABASE_URL: 'postgres://127.0.0.1:1/none', SOURCES_FILE: file };
    t.like(await runProgram('worker', [], { root, env }), {
      code: 1,
      stderr:
        'worker: SOURCES_FILE is wrong:\n' +
        '  vendors.hunter.wait must be a duration such as 500ms, 30s, 15m, 24h or 30d\n' +
        '  registry must be one of [off, fallback]\n',
    });
  },
);

test.serial('an API without its URL or support does not start', async (t) => {
  const nowhere = { DATABASE_URL: 'postgres://127.0.0.1:1/none' };
  t.like(await runProgram('api', [], { root, env: nowhere }), {
    code: 1,
    stderr:
      'api: the configuration is wrong:\n' +
      '  PUBLIC_URL is missing\n' +
      '  SUPPORT_EMAIL is missing\n',
  });
  const wrong = {
    PUBLIC_URL: 'https://api.example.com/api/v1',
    SUPPORT_EMAIL: 'support',
    ...nowhere,
  };
  t.like(await runProgram('api', [], { root, env: wrong }), {
    code: 1,
    stderr:
      'api: the configuration is wrong:\n' +
      '  PUBLIC_URL must be a URL without a path, such as https://api.example.com\n' +
      '  SUPPORT_EMAIL must be an email address, or the https URL of a support page\n',
  });
});

test.serial(
  'an API or a worker without the encryption key SECRETS_KEY ends at once and says why',
  async (t) => {
    const url = 'postgres://127.0.0.1:1/none';
    const env = { ...SITE_SETTINGS, DATABASE_URL: url, SECRETS_KEY: '' };
    for (const name of ['api', 'worker'] as const) {
      const { code, stderr } = await runProgram(name, [], { root, env });
      t.is(code, 1);
      t.regex(stderr, /^(?:api|worker): SECRETS_KEY is not set, [^\n]*\n$/);
    }
  },
);

test.serial(
  'API and worker may start before the migration, and become ready after it',
  async (t) => {
    const temporal = await startTemporal({
      cli: testSetting('TEST_TEMPORAL_CLI'),
      namespace: 'default',
    });
    t.teardown(() => temporal.stop());
    const port = await freePort();
    const bundle = join(root, 'workflow-bundle.js');
    const env = {
      DATABASE_URL: await emptyDatabase(t),
      TEMPORAL_ADDRESS: temporal.address,
      API_HOST: LOOPBACK,
      API_PORT: String(port),
      API_DRAIN_DELAY: '0s',
      WORKFLOW_BUNDLE: bundle,
      ...SITE_SETTINGS,
    };
    const readyz = async () => (await fetch(`http://${LOOPBACK}:${port}/readyz`)).status;
    const api = start(t, 'api', env);
    const early = start(t, 'worker', env);
    for (const { says } of [api, early])
      await says(/"msg":"the database lacks .* \\"npm run migrate\\"/);
    t.is(await readyz(), 503);
    t.notRegex(api.output(), /api ready/);

    t.is((await runProgram('migrate', [], { root, env })).code, 0);
    await api.says(/"msg":"api ready"/);
    // A response is cached for a second.
    await eventually(async () => ((await readyz()) === 200 ? true : null));
    t.is(await early.exited, 'exit code 1');
    t.regex(
      early.output(),
      /^worker: cannot use the file \S+workflow-bundle\.js \(ENOENT\)/m,
    );

    const made = await runProgram('bundle', [bundle], { root });
    t.deepEqual([made.code, made.stderr], [0, '']);
    const said =
      /^bundle: build ([0-9a-f]{12}); start workers with WORKFLOW_BUNDLE=(.*)\n$/.exec(
        made.stdout,
      );
    t.is(said?.[2], bundle);
    const worker = start(t, 'worker', env);
    await worker.says(/"msg":"worker ready"/);
    t.true(worker.output().includes(`"version":"${said?.[1]}","msg":"worker ready"`));
    for (const { pid, exited } of [api, worker]) {
      process.kill(pid, 'SIGTERM');
      t.is(await exited, 'exit code 0');
    }
  },
);

test.serial('one commit has the same build id in every folder', async (t) => {
  const elsewhere = join(temporaryFolder(t.teardown), 'deeper');
  await installForProduction(elsewhere);
  const outputs = [];
  for (const [folder, cwd] of [
    [root, root],
    [elsewhere, '/'],
  ] as const) {
    const file = join(root, 'any-bundle.js');
    const { command, args, env } = programCommand('bundle', [file], { root: folder });
    const { stdout } = await promisify(execFile)(command, args, { cwd, env });
    outputs.push(stdout);
  }
  t.regex(outputs[0] ?? '', /^bundle: build [0-9a-f]{12};/);
  t.is(new Set(outputs).size, 1, outputs.join(''));
});

test.serial('a worker that waits for the migration stops at SIGTERM', async (t) => {
  const worker = start(t, 'worker', { DATABASE_URL: await emptyDatabase(t) });
  await worker.says(/npm run migrate/);
  process.kill(worker.pid, 'SIGTERM');
  t.is(await worker.exited, 'exit code 0');
});

test.serial(
  'while a worker waits for Temporal, it still refunds overdue requests',
  async (t) => {
    const url = await emptyDatabase(t);
    t.is((await runProgram('migrate', [], { env: { DATABASE_URL: url } })).code, 0);
    const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
    t.teardown(() => db.close());
    const port = await freePort();
    const env = {
      ...{
        DATABASE_URL: url,
        SWEEP_INTERVAL: '1s',
        WORKFLOW_BUNDLE: testSetting('TEST_WORKFLOW_BUNDLE'),
      },
      TEMPORAL_ADDRESS: `${LOOPBACK}:${port}`,
      FULLENRICH_API_KEY: 'key-of-a-test',
    };
    const organization = await openOrganization(db, 1);
    const balance = () => balanceOf(db, organization.organizationId);
    const waits = async (target: object, why: string) => {
      const worker = start(t, 'worker', { ...env, ...target });
      await worker.says(
        new RegExp(`"why":"Temporal at [0-9.:]+ ${why}.*"msg":"waiting for Temporal`),
      );
      const command = submitCommand(organization, { npis: ['2000000010'] });
      await submit(db, command, { ...RULES, lookupTimeoutMs: 1 });
      await eventually(async () => ((await balance()).available === 1 ? true : null));
      return worker;
    };
    const TEMPORAL_ADDRESS = testSetting('TEST_TEMPORAL_ADDRESS');
    const refused = await waits(
      { TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE: 'nobody' },
      'has no namespace nobody',
    );
    const operator = async (command: string) =>
      (await runProgram('operator', [command], { env: { DATABASE_URL: url } })).stdout;
    const status = await operator('status');
    t.regex(
      status,
      /^all workers wait for Temporal, and only refund overdue requests: /m,
    );
    t.regex(status, /^nobody +enrichment +none +1$/m);
    t.notRegex(status, /no worker is alive|no sweep/);
    process.kill(refused.pid, 'SIGTERM');
    t.is(await refused.exited, 'exit code 0');
    t.regex(await operator('status'), /^no worker is alive: /m);
    const worker = await waits({}, 'cannot be reached; check TEMPORAL_ADDRESS');

    const cli = testSetting('TEST_TEMPORAL_CLI');
    const temporal = await startTemporal({ cli, namespace: 'default', port });
    t.teardown(() => temporal.stop());
    await worker.says(/"msg":"worker ready"/);
    t.notRegex(await operator('status'), /no worker is alive|workers wait/);
    t.regex(
      worker.output(),
      /"vendors":\["fullenrich"\].*"msg":"these vendors are not called, .*add a verifier \(HUNTER_API_KEY/,
    );
    process.kill(worker.pid, 'SIGTERM');
    t.is(await worker.exited, 'exit code 0');
  },
);

test('if the database rejects the login of migrate, the error contains no password', async (t) => {
  const url = new URL(await emptyDatabase(t));
  url.password = 'hunter2';
  const { code, stdout, stderr } = await runProgram('migrate', [], {
    env: { DATABASE_URL: url.href },
  });
  t.deepEqual([code, stdout], [1, '']);
  t.regex(
    stderr,
    /^migrate: PostgreSQL at \S+ refused .* \(28P01\); check DATABASE_URL\n$/,
  );
  t.notRegex(stderr, /hunter2/);
});

/** Starts a program of the installation that runs until it is stopped. */
function start(
  t: ExecutionContext,
  name: ProgramName,
  env: Readonly<Record<string, string>>,
) {
  let output = '';
  const program = launch({
    name,
    ...programCommand(name, [], { root, env }),
    onLine: (line) => (output += `${line}\n`),
  });
  t.teardown(() => program.stop());
  return {
    pid: program.pid,
    exited: program.exited,
    output: () => output,
    says: (what: RegExp) =>
      eventually(async () => {
        if (program.ending() !== undefined) throw new Error(`${name} ended: ${output}`);
        return what.test(output) || null;
      }),
  };
}

async function emptyDatabase(t: ExecutionContext): Promise<string> {
  const { url, stop } = await openEmptyDatabase();
  t.teardown(stop);
  return url;
}
