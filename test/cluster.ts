import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { run } from '../deploy/local/processes.ts';
import { isServerBuilt, TOOLS } from './support/tools.ts';

/**
 * `npm run cluster`: runs the tests that use Temporal most, and kills of the server, on Temporal's
 * real server with PostgreSQL. Go builds the server first, once. Without Go it prints a message and
 * succeeds.
 */
const FILES = [
  'test/system/deploy/local/temporal-server.test.ts',
  'test/system/deploy/temporal/namespace.test.ts',
  'test/system/cluster.test.ts',
  'test/workflows/visibility.test.ts',
];

if (!isServerBuilt() && (await run('go', ['version'], {})).code !== 0) {
  console.log("Go is not on PATH, so the tests on Temporal's real server are skipped");
} else {
  await TOOLS.temporalServer();
  const runner = fileURLToPath(new URL('run.ts', import.meta.url));
  const args = [runner, '--only-tests', '--temporal', 'server', ...FILES];
  const [code] = await once(spawn(process.execPath, args, { stdio: 'inherit' }), 'close');
  process.exitCode = code ?? 1;
}
