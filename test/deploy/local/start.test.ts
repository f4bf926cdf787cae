import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import type { StackFacts } from '../../../deploy/local/stack.ts';
import { eventually } from '../../support/organization.ts';

// `npm start` as a newcomer meets it.

const START = fileURLToPath(new URL('../../../deploy/local/start.ts', import.meta.url));
const UP = 'Ctrl-C stops everything this started.';

interface Running {
  readonly process: ChildProcess;
  output(): string;
  exited(): Promise<number | null>;
}

function start(dir: string, ...args: string[]): Running {
  const { DATABASE_URL: _db, TEMPORAL_ADDRESS: _temporal, ...env } = process.env;
  const child = spawn(process.execPath, [START, '--dir', dir, ...args], {
    env,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let text = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (text += chunk));
  const exit = once(child, 'exit');
  return { process: child, output: () => text, exited: async () => (await exit)[0] as number | null };
}

async function up(running: Running): Promise<void> {
  await eventually(async () => {
    if (running.process.exitCode !== null) throw new Error(`it ended: ${running.output()}`);
    return running.output().includes(UP) || null;
  }, 120_000);
}

const factsOf = async (dir: string) =>
  JSON.parse(await readFile(join(dir, 'stack.json'), 'utf8')) as StackFacts;

const isReachable = (url: string) =>
  fetch(url).then(
    () => true,
    () => false,
  );

let dir: string;

test.before(async () => {
  dir = await mkdtemp(join(tmpdir(), 'start-'));
});

test.after.always(async () => {
  await rm(dir, { recursive: true, force: true });
});

test.serial(
  'the first start does the main job and stays up, Ctrl-C stops everything, the next finds its data',
  async (t) => {
    const first = start(dir, '--port', '0');
    await up(first);
    t.log(first.output());
    const facts = await factsOf(dir);
    t.deepEqual(Object.keys(facts).sort(), [
      'api_key',
      'base_url',
      'database_url',
      'organization_id',
      'receiver_url',
      'simulator_url',
      'temporal_address',
      'temporal_cli',
      'temporal_ui',
    ]);
    for (const part of [
      '2000000010',
      'rowan.ashdown@',
      'not_found',
      'delivered',
      'Balance: 1000 before, 988 after',
      '1 minute',
    ]) {
      t.true(first.output().includes(part), part);
    }
    // The curl lines work when pasted.
    const line = first
      .output()
      .split('\n')
      .find((text) => text.includes('/api/v1/credits'));
    const pasted = spawn('sh', ['-c', line ?? 'false'], { stdio: ['ignore', 'pipe', 'inherit'] });
    const [answer] = (await once(pasted.stdout, 'data')) as [Buffer];
    t.deepEqual(JSON.parse(String(answer)), { balance: 988, total: 1000, used: 12 });
    t.true(await isReachable(facts.temporal_ui ?? ''));

    first.process.kill('SIGINT');
    t.is(await first.exited(), 0);
    for (const url of [facts.base_url, facts.simulator_url, facts.temporal_ui ?? ''])
      t.false(await isReachable(url), url);

    const second = start(dir, '--port', '0');
    await up(second);
    const found = await factsOf(dir);
    t.is(found.api_key, facts.api_key);
    t.is(found.organization_id, facts.organization_id);
    t.true(second.output().includes('Balance: 988 before, 988 after'));
    second.process.kill('SIGTERM');
    t.is(await second.exited(), 0);
  },
);

test.serial('a dead child process is one clear sentence, and takes the rest down in order', async (t) => {
  const running = start(dir, '--port', '0', '--no-demo');
  await up(running);
  t.false(running.output().includes('Submitting'));
  const facts = await factsOf(dir);
  const log = await readFile(join(dir, 'logs', 'worker.log'), 'utf8');
  const pid = Number(/"pid":(\d+)/.exec(log.trim().split('\n').at(-1) ?? '')?.[1]);
  process.kill(pid, 'SIGKILL');
  t.is(await running.exited(), 1);
  t.regex(running.output(), /the worker ended unexpectedly \(signal SIGKILL\); see its log in /);
  t.false(await isReachable(facts.base_url));
});

test.serial('a taken port is one clear sentence before anything is started', async (t) => {
  const other: Server = createServer().listen(0, '127.0.0.1');
  await once(other, 'listening');
  const address = other.address();
  const port = typeof address === 'object' && address !== null ? address.port : 0;
  const running = start(dir, '--port', String(port));
  t.is(await running.exited(), 1);
  t.regex(running.output().trim(), new RegExp(`^Port ${port} .* is taken: .*--port.*\\.$`));
  other.close();
});

test.serial('--help helps, and a bad option says so', async (t) => {
  const help = start(dir, '--help');
  t.is(await help.exited(), 0);
  t.regex(help.output(), /--no-demo/);
  const bad = start(dir, '--port', 'http');
  t.is(await bad.exited(), 1);
  t.regex(bad.output(), /--port must be a number/);
});
