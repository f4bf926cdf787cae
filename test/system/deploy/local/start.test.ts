import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { chmod, readFile, stat } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { Client, Connection } from '@temporalio/client';
import test, { type ExecutionContext } from 'ava';
import type { Sql } from 'postgres';
import { submit } from '../../../../db/requests/submit.ts';
import type { StackFacts } from '../../../../deploy/config/stack-facts.ts';
import { freePort } from '../../../../deploy/ports.ts';
import { TASK_QUEUE, WORKFLOWS } from '../../../../workflows/messages.ts';
import {
  openEmptyDatabase,
  openTestDatabase,
  temporaryFolder,
  testSetting,
  withSql,
} from '../../../support/database.ts';
import { WHY } from '../../../support/operator.ts';
import {
  type EnvelopeResponse,
  eventually,
  openOrganization,
  RULES,
  type SubmitResponse,
  submitCommand,
} from '../../../support/organization.ts';
import { endWithThisProcess } from '../../../support/programs.ts';

// Runs `npm start` as a new user does.

const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));
const START = fileURLToPath(
  new URL('../../../../deploy/local/start.ts', import.meta.url),
);
const OPERATOR = fileURLToPath(
  new URL('../../../../deploy/operator.ts', import.meta.url),
);
const UP = 'Ctrl-C stops everything this started.';

interface Running {
  readonly process: ChildProcess;
  output(): string;
  exited(): Promise<number | null>;
}

/** Starts in a folder, without variables from the environment of the test runner. */
function start(
  t: ExecutionContext,
  folder: string,
  args: readonly string[] = [],
  more: NodeJS.ProcessEnv = {},
): Running {
  return follow(t, process.execPath, [START, ...args], folder, more);
}

function follow(
  t: ExecutionContext,
  command: string,
  args: readonly string[],
  cwd: string,
  more: NodeJS.ProcessEnv = {},
): Running {
  const {
    DATABASE_URL: _db,
    TEMPORAL_ADDRESS: _temporal,
    LOOKUP_TIMEOUT: _timeout,
    ...env
  } = process.env;
  const child = spawn(command, args, {
    cwd,
    env: { ...env, ...more },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  endWithThisProcess(child);
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.on('data', (chunk) => (text += chunk));
  const exit = once(child, 'exit');
  t.teardown(() => child.kill('SIGKILL'));
  return {
    process: child,
    output: () => text,
    exited: async () => (await exit)[0] as number | null,
  };
}

async function up(running: Running): Promise<void> {
  await eventually(async () => {
    if (running.process.exitCode !== null)
      throw new Error(`it ended: ${running.output()}`);
    return running.output().includes(UP) || null;
  });
}

const factsOf = async (folder: string) =>
  JSON.parse(await readFile(join(folder, '.local', 'stack.json'), 'utf8')) as StackFacts;

async function workerPid(folder: string): Promise<number> {
  const log = await readFile(join(folder, '.local', 'logs', 'worker.log'), 'utf8');
  return Number(/"pid":(\d+)/.exec(log.trim().split('\n').at(-1) ?? '')?.[1]);
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
}

const isReachable = (url: string) =>
  fetch(url).then(
    () => true,
    () => false,
  );

/** Runs the operator command as the stack prints it: in its folder, without a DATABASE_URL. */
function operator(folder: string, ...args: string[]) {
  const env = { PATH: process.env.PATH };
  return promisify(execFile)(process.execPath, [OPERATOR, ...args], { cwd: folder, env });
}

async function call<T>(
  { base_url: baseUrl }: StackFacts,
  apiKey: string,
  path: string,
  body?: object,
) {
  const headers = {
    authorization: `Bearer ${apiKey}`,
    'content-type': 'application/json',
  };
  const sent = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  return (await (
    await fetch(`${baseUrl}/api/v1${path}`, { headers, ...sent })
  ).json()) as T;
}

/** Looks up one NPI through the API. */
async function lookUp(facts: StackFacts, apiKey: string, npi: string) {
  const { batch_id: batchId } = await call<SubmitResponse>(facts, apiKey, '/email', {
    npi,
  });
  const envelope = await eventually(async () => {
    const seen = await call<EnvelopeResponse>(facts, apiKey, `/batch/${batchId}`);
    return seen.batch.status === 'completed' ? seen : null;
  });
  return { batchId, found: envelope.data[0] };
}

/** Returns the name of every table with the number of its rows. */
function contents(url: string): Promise<readonly string[]> {
  return withSql(url, async (sql) => {
    const tables = await sql<{ name: string }[]>`
      select format('%I.%I', schemaname, tablename) as name from pg_tables
      where schemaname not in ('pg_catalog', 'information_schema') order by 1`;
    return await Promise.all(
      tables.map(async ({ name }) => {
        const [row] = await sql.unsafe<{ count: number }[]>(
          `select count(*)::int from ${name}`,
        );
        return `${name}: ${row?.count}`;
      }),
    );
  });
}

async function occupy(
  t: ExecutionContext,
  port: number,
): Promise<{ readonly port: number; free(): Promise<void> }> {
  const server: Server = createServer().listen(port, '127.0.0.1');
  // If another program already listens on the port, the test uses that.
  await Promise.race([once(server, 'listening'), once(server, 'error')]).catch(() => {});
  const address = server.address();
  const free = async () => {
    if (server.listening) await new Promise((resolve) => server.close(resolve));
  };
  t.teardown(free);
  return {
    port: typeof address === 'object' && address !== null ? address.port : port,
    free,
  };
}

const folder = temporaryFolder(test.after.always);

test.serial(
  'npm start runs a demo lookup, stops at Ctrl-C, and keeps its data for next time',
  async (t) => {
    const usual = await occupy(t, 8090);
    const first = start(t, folder, ['--port', '0'], {
      LOOKUP_TIMEOUT: '3m',
      RATE_WINDOW: '',
      // Settings of real sources have no effect.
      SOURCES_FILE: 'ours.json',
    });
    await up(first);
    t.log(first.output());
    const facts = await factsOf(folder);
    t.deepEqual(Object.keys(facts).sort(), [
      'api_key',
      'base_url',
      'database_url',
      'organization_id',
      'ports',
      'receiver_url',
      'secrets_key',
      'simulator_url',
      'temporal_address',
      'temporal_namespace',
      'temporal_ui',
      'test_api_key',
      'webhook_secrets',
    ]);
    for (const part of [
      '2000000010',
      'rowan.ashdown@',
      'not_found',
      'delivered',
      'Balance: 1000 before, 988 after',
      'fails after 3m here',
    ]) {
      t.true(first.output().includes(part), part);
    }
    t.regex(
      first.output(),
      /Temporal CLI .* PostgreSQL .* migrations /s,
      'what may be missing comes first',
    );
    // The printed commands work when pasted.
    const lines = first.output().split('\n');
    const pasted = async (...begins: string[]) => {
      const script = begins
        .map((begin) => lines.find((line) => line.startsWith(begin)) ?? 'false')
        .join('\n');
      return JSON.parse((await promisify(execFile)('sh', ['-c', script])).stdout);
    };
    const curl = '  curl -s -H "Authorization: Bearer $';
    const credits = await pasted('BASE=', 'KEY=', `${curl}KEY" $BASE/api/v1/credits`);
    t.deepEqual(credits, { balance: 988, total: 1000, used: 12 });
    const { requests } = (await pasted(
      'BASE=',
      'TEST_KEY=',
      `${curl}TEST_KEY"`,
    )) as SubmitResponse;
    const email = await eventually(async () => {
      const headers = { authorization: `Bearer ${facts.test_api_key}` };
      const response = await fetch(`${facts.base_url}${requests[0]?.poll_url}`, {
        headers,
      });
      return ((await response.json()) as EnvelopeResponse).data[0]?.email ?? null;
    });
    t.is(email, 'npi2000000010@clinic.example.com');
    t.true(await isReachable(facts.temporal_ui ?? ''));
    // The variable from the environment has an effect.
    const [waits] = await withSql(
      facts.database_url,
      (sql) =>
        sql`select distinct extract(epoch from deadline_at - created_at)::float8 as seconds
          from batches where not is_sandbox(organization_id)`,
    );
    t.is(waits?.seconds, 180);

    first.process.kill('SIGINT');
    t.is(await first.exited(), 0);
    for (const url of [facts.base_url, facts.simulator_url, facts.temporal_ui ?? ''])
      t.false(await isReachable(url), url);
    t.not(new URL(facts.simulator_url).port, String(usual.port));
    await usual.free();
    await chmod(join(folder, '.local', 'stack.json'), 0o644);

    const second = start(t, folder, ['--port', '0']);
    await up(second);
    const found = await factsOf(folder);
    t.is(found.api_key, facts.api_key);
    t.is(found.organization_id, facts.organization_id);
    t.is(found.test_api_key, facts.test_api_key);
    t.deepEqual(found.ports, facts.ports, 'a port that had to be chosen is kept');
    t.is(found.simulator_url, facts.simulator_url);
    t.is((await stat(join(folder, '.local', 'stack.json'))).mode & 0o777, 0o600);
    t.true(second.output().includes('Balance: 988 before, 988 after'));
    t.true(second.output().includes('fails after 1m here'));
    const id = facts.organization_id;
    await operator(folder, 'credits', 'adjust', id, '-988', '--reason', 'spent');
    second.process.kill('SIGTERM');
    t.is(await second.exited(), 0);

    const third = start(t, folder, ['--port', '0']);
    await up(third);
    t.true(third.output().includes('too few credits for the demonstration'));
    const grant = ['credits', 'grant', 'Demonstration', '1000', '--reference', 'demo'];
    t.true(third.output().includes(grant.slice(0, 5).join(' ')));
    await operator(folder, ...grant, '--reason', 'demo');
    third.process.kill('SIGTERM');
    t.is(await third.exited(), 0);
  },
);

for (const signal of ['SIGTERM', 'SIGHUP'] as const) {
  test.serial(`${signal} ends npm start and everything that it started`, async (t) => {
    const away = temporaryFolder(t.teardown);
    const options = ['--port', '0', '--no-demo', '--dir', join(away, '.local')];
    const npm = follow(t, 'npm', ['start', '--', ...options], ROOT);
    await up(npm);
    const facts = await factsOf(away);
    const worker = await workerPid(away);
    npm.process.kill(signal);
    await npm.exited();
    const ports = [...Object.values(facts.ports), Number(new URL(facts.base_url).port)];
    t.is(ports.length, 6);
    for (const port of ports) await eventually(() => freePort(port).catch(() => null));
    await eventually(async () => !isAlive(worker) || null);
    t.pass();
  });
}

test.serial('several npm starts at the same time choose different ports', async (t) => {
  const folders = [temporaryFolder(t.teardown), temporaryFolder(t.teardown)];
  const running = folders.map((away) => start(t, away, ['--port', '0', '--no-demo']));
  await Promise.all(running.map(up));
  const facts = await Promise.all(folders.map(factsOf));
  const ports = facts.flatMap(({ ports, base_url: url }) => [
    ...Object.values(ports),
    new URL(url).port,
  ]);
  t.is(new Set(ports.map(Number)).size, 12);
  for (const { process: one, exited } of running) {
    one.kill('SIGTERM');
    t.is(await exited(), 0);
  }
});

test.serial(
  'npm start reports that its API port is in use by another npm start',
  async (t) => {
    const port = String(await freePort());
    const away = temporaryFolder(t.teardown);
    const running = [1, 2].map(() => start(t, away, ['--port', port, '--no-demo']));
    const first = await Promise.race(running.map((one) => one.exited().then(() => one)));
    t.regex(
      first.output().trim(),
      new RegExp(`^start: Port ${port} .* is in use: .*--port.*\\.$`),
    );
    const other = running.find((one) => one !== first);
    other?.process.kill('SIGTERM');
    t.is(await other?.exited(), 0);
  },
);

test.serial(
  'if a child process dies, npm start says so in one sentence and stops the others',
  async (t) => {
    const running = start(t, folder, ['--port', '0', '--no-demo']);
    await up(running);
    t.false(running.output().includes('Submitting'));
    const facts = await factsOf(folder);
    process.kill(await workerPid(folder), 'SIGKILL');
    t.is(await running.exited(), 1);
    t.regex(
      running.output(),
      /the worker ended unexpectedly \(signal SIGKILL\); see its log in /,
    );
    t.false(await isReachable(facts.base_url));
  },
);

test.serial(
  'with existing servers, npm start uses an empty database and a separate namespace',
  async (t) => {
    await using database = await openEmptyDatabase();
    const connection = await Connection.connect({
      address: testSetting('TEST_TEMPORAL_ADDRESS'),
    });
    t.teardown(() => connection.close());
    // A workflow of another deployment. All deployments use the same task queue.
    const theirs = await new Client({ connection }).workflow.start(WORKFLOWS.batch, {
      taskQueue: TASK_QUEUE,
      workflowId: randomUUID(),
      args: [{ batchId: 'of another deployment' }],
    });
    t.teardown(() => theirs.terminate());
    const given = {
      DATABASE_URL: database.url,
      TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
    };
    const away = temporaryFolder(t.teardown);

    const first = start(t, away, ['--port', '0', '--no-demo'], given);
    await up(first);
    const facts = await factsOf(away);
    const { batchId, found } = await lookUp(facts, facts.api_key, '2000000010');
    t.regex(found?.email ?? '', /^rowan\.ashdown@/);
    const namespace = facts.temporal_namespace;
    // Fails if this is another stack's namespace. The teardown must not delete that one.
    t.regex(namespace, /^local-stack-/);
    t.teardown(() => connection.operatorService.deleteNamespace({ namespace }));
    const own = new Client({ connection, namespace });
    t.is((await own.workflow.getHandle(batchId).describe()).type, WORKFLOWS.batch);
    t.is(
      (await theirs.describe()).historyLength,
      2,
      'started and scheduled, but taken by nobody',
    );
    first.process.kill('SIGTERM');
    t.is(await first.exited(), 0);

    const second = start(t, away, ['--port', '0', '--no-demo'], given);
    await up(second);
    const again = await factsOf(away);
    t.is(again.organization_id, facts.organization_id, 'the database is known again');
    t.is(again.temporal_namespace, namespace);

    // The operator command finds the stack and its Temporal by itself, and its changes are made
    // there. Doctor skips new batches, so this batch is made older.
    const hanging = await call<SubmitResponse>(again, again.api_key, '/email', {
      npi: '2000000101',
    });
    await eventually(async () => {
      const age = (sql: Sql) =>
        sql`update batches set started_at = started_at - interval '2 minutes'
             where id = ${hanging.batch_id} and started_at is not null`;
      return (await withSql(database.url, age)).count === 1 || null;
    });
    const doctor = await operator(away, 'doctor');
    t.regex(doctor.stdout, /^\d+ checks in .*: no findings\n$/, 'the workflows too');
    t.regex(
      doctor.stderr,
      /^operator: DATABASE_URL is not set, .*\.local\/stack\.json.*\n$/,
    );
    const json = async (...args: string[]) =>
      JSON.parse((await operator(away, '--json', ...args)).stdout);
    const { id } = await json('org', 'create', 'Mine', ...WHY);
    await json('credits', 'grant', id, '5', '--reference', 'x', ...WHY);
    const { api_key: apiKey } = await json('keys', 'issue', id, '--name', 'k', ...WHY);
    const { found: responded } = await lookUp(again, apiKey, '2000000010');
    t.is(responded?.email, found?.email);
    second.process.kill('SIGTERM');
    t.is(await second.exited(), 0);
  },
);

test.serial(
  'npm start rejects a database that is in use, and leaves it unchanged',
  async (t) => {
    await using used = await openTestDatabase();
    await using foreign = await openEmptyDatabase();
    const customer = await openOrganization(used.db, 10);
    await submit(used.db, submitCommand(customer, { npis: ['2000000010'] }), RULES);
    await foreign.sql`create table theirs as select 1 as number`;
    for (const { url } of [used, foreign]) {
      const before = await contents(url);
      const running = start(t, folder, ['--port', '0'], {
        DATABASE_URL: url,
        TEMPORAL_ADDRESS: '127.0.0.1:1',
      });
      t.is(await running.exited(), 1);
      t.regex(
        running.output(),
        /\nstart: The database of DATABASE_URL is in use, .* Unset DATABASE_URL, .*empty database\.\n$/,
      );
      t.deepEqual(await contents(url), before);
    }
  },
);

test.serial(
  'without a Temporal CLI, npm start starts nothing, not even PostgreSQL',
  async (t) => {
    const [away, path] = [temporaryFolder(t.teardown), temporaryFolder(t.teardown)];
    const running = start(t, away, ['--port', '0'], {
      PATH: path,
      HTTPS_PROXY: 'http://127.0.0.1:1',
      XDG_CACHE_HOME: away,
    });
    t.is(await running.exited(), 1);
    t.regex(
      running.output(),
      /\nstart: The Temporal CLI is missing .*TEMPORAL_ADDRESS.*\n$/,
    );
    t.false(running.output().includes('PostgreSQL '));
  },
);

test.serial(
  'npm start reports a port that is in use before it starts anything',
  async (t) => {
    const { port } = await occupy(t, 0);
    const running = start(t, folder, ['--port', String(port)]);
    t.is(await running.exited(), 1);
    t.regex(
      running.output().trim(),
      new RegExp(`^start: Port ${port} .* is in use: .*--port.*\\.$`),
    );
  },
);

test.serial(
  'npm start prints its help with --help, and reports a wrong option or variable',
  async (t) => {
    const help = start(t, folder, ['--help']);
    t.is(await help.exited(), 0);
    t.regex(help.output(), /--no-demo/);
    const bad = start(t, folder, ['--port', 'http']);
    t.is(await bad.exited(), 2);
    t.regex(bad.output(), /--port <PORT>.* whole number from 0 to 65535/);
    const variable = start(t, folder, [], { LOOKUP_TIMEOUT: 'soon' });
    t.is(await variable.exited(), 1);
    t.regex(
      variable.output(),
      /^start: .*is wrong:\n {2}LOOKUP_TIMEOUT must be a duration [^\n]*\n$/,
    );
  },
);
