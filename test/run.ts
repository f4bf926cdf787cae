import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { launch } from '../deploy/local/processes.ts';
import { filesOf, GROUPS } from './support/groups.ts';
import { step as timedStep } from './support/long-check.ts';
import {
  countTests,
  slowestTests,
  type TestCounts,
  type TimedTest,
  timedTest,
} from './support/report.ts';

/**
 * `npm test`: runs the checks, starts the servers, and runs all tests except those of `system/`.
 * `npm run test:system` runs those. Arguments go to AVA, for example `npm test -- FILE --match '…'`.
 * `--only-tests` leaves out type check and lint. Servers of
 * `npm run servers`, or those in TEST_DATABASE_URL and TEST_TEMPORAL_ADDRESS, are used instead of
 * new ones. `--temporal server` uses the real server on PostgreSQL instead of the dev server. At
 * the end it lists the slowest tests. The last line is `N passed, N failed`, where a failed step
 * counts as one. If the run is interrupted, it counts the tests that ended before.
 *
 * With `--watch` AVA controls the terminal, and runs tests again when a file that they use changes.
 * Workflows are bundled only once.
 */
const ROOT = fileURLToPath(new URL('..', import.meta.url));
const BIN = join(ROOT, 'node_modules', '.bin');
/**
 * Node's compile cache, as for `npm run operator`, because every test file is a process that loads
 * the same files.
 */
const COMPILED = join(ROOT, 'node_modules', '.cache', 'compile');
/** AVA writes to this program instead of the terminal, and would leave out the colors. */
const COLOR = process.stdout.isTTY ? { FORCE_COLOR: '1' } : {};

const interruption = new AbortController();
const stops: (() => Promise<void>)[] = [];
const timed: TimedTest[] = [];

for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const)
  process.on(signal, () => interruption.abort());

let counts: TestCounts = { passed: 0, failed: 0 };
try {
  const given = process.argv.slice(2);
  const isSystem = given.includes('--system');
  if (!isSystem && !given.includes('--only-tests')) {
    await step('type check', async () => {
      await check('node', ['deploy/build/client-types.ts']);
      await check('tsc', ['--noEmit']);
    });
    await step('lint', () => check('biome', ['check', '.']));
  }
  // Imported after the checks, so that the checks report errors in these files.
  const { startServers, takeServerFlag } = await import('./support/servers.ts');
  const { useKeptServers } = await import('./support/kept-servers.ts');
  if (useKeptServers()) console.log('▸ using the servers of "npm run servers"');
  stops.push(await startServers({ step, onServer: takeServerFlag(given) }));
  const args = given.filter((one) => one !== '--only-tests' && one !== '--system');
  const isWatching = args.includes('--watch');
  const run = isWatching ? watchTests : runTests;
  if (isWatching || args.some((argument) => !argument.startsWith('-'))) {
    await step('tests', () => run(args));
  } else if (isSystem) {
    // Tests in `alone/` measure or exhaust something, so other tests would distort their results.
    const alone = 'test/system/alone/*.test.ts';
    await step('system tests', () => run([...args, 'test/system/**', `!${alone}`]));
    await step('tests that run alone', () => run([...args, '--concurrency=1', alone]));
  } else {
    const grouped = Object.values(GROUPS).flatMap(filesOf);
    const others = ['test/system/**', ...grouped].map((files) => `!${files}`);
    await step('tests', () => run([...args, 'test/**/*.test.ts', ...others]));
  }
  process.exitCode = counts.failed === 0 ? 0 : 1;
} catch (error) {
  const { aborted } = interruption.signal;
  console.error(aborted ? 'interrupted' : messageOf(error));
  if (!aborted) countFailure();
  process.exitCode = aborted ? 130 : 1;
} finally {
  for (const stop of stops.reverse()) await stop();
}
if (timed.length > 0)
  console.log(['▪ the slowest tests', ...slowestTests(timed)].join('\n'));
console.log(`${counts.passed} passed, ${counts.failed} failed`);
// A handle that a library left open must not keep a finished run from ending.
process.exit();

/** Counts something that failed besides the tests, unless a failed test counts already. */
function countFailure(): void {
  counts = { ...counts, failed: Math.max(1, counts.failed) };
}

async function runTests(args: readonly string[]): Promise<void> {
  const ava = launch({
    name: 'AVA',
    command: join(BIN, 'ava'),
    args,
    cwd: ROOT,
    env: environment(),
    // On SIGINT AVA prints the pending tests, which shows where an interrupted run hangs.
    stopSignal: 'SIGINT',
    onLine: (line) => {
      console.log(line);
      counts = countTests(counts, line);
      const test = timedTest(line);
      if (test) timed.push(test);
    },
  });
  stops.push(() => ava.stop());
  const ending = await Promise.race([ava.exited, once(interruption.signal, 'abort')]);
  interruption.signal.throwIfAborted();
  // AVA can also fail without a failed test, for example when it finds no file.
  if (ending !== 'exit code 0') countFailure();
}

/** Runs AVA until Ctrl-C, which also reaches AVA in the terminal's process group. */
async function watchTests(args: readonly string[]): Promise<void> {
  const ava = spawn(join(BIN, 'ava'), args, {
    cwd: ROOT,
    stdio: 'inherit',
    env: environment(),
  });
  const [code] = await once(ava, 'close');
  if (code !== 0 && !interruption.signal.aborted) countFailure();
}

function environment(): NodeJS.ProcessEnv {
  // This folder comes first in PATH, so that AVA runs with the Node of this project even without
  // npm.
  const PATH = `${BIN}${delimiter}${process.env.PATH}`;
  return { ...process.env, ...COLOR, PATH, NODE_COMPILE_CACHE: COMPILED };
}

async function check(command: string, args: readonly string[]): Promise<void> {
  const child = spawn(join(BIN, command), args, {
    cwd: ROOT,
    stdio: ['ignore', 'inherit', 'inherit'],
    signal: interruption.signal,
  });
  const [code] = await once(child, 'close');
  if (code !== 0)
    throw new Error(`${command} ${args.join(' ')} found problems (exit code ${code})`);
}

function step<T>(name: string, work: () => Promise<T>): Promise<T> {
  interruption.signal.throwIfAborted();
  return timedStep(name, work);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
