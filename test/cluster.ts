import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { run } from '../deploy/local/processes.ts';
import { cacheFolder, findTemporalServer, isServerBuilt } from '../deploy/local/programs.ts';

/**
 * `npm run cluster`: on Temporal's real server with PostgreSQL, what asks Temporal most, and kills of the server. Go
 * builds the server first, once; `-- --build` does nothing else, so that it can be done beside other tests. Without Go
 * it says so, and is content.
 */
const FILES = [
  'test/deploy/local/temporal-server.test.ts',
  'test/deploy/temporal/namespace.test.ts',
  'test/system/cluster.test.ts',
  'test/workflows/visibility.test.ts',
];

const cacheDir = cacheFolder(process.env.XDG_CACHE_HOME);
const canBuild = isServerBuilt(cacheDir) || (await run('go', ['version'], {})).code === 0;
if (!canBuild) {
  console.log("without Go on PATH: the tests on Temporal's real server are left out");
} else {
  await findTemporalServer({ cacheDir, onProgress: console.log });
  if (!process.argv.includes('--build')) {
    const runner = fileURLToPath(new URL('run.ts', import.meta.url));
    const args = [runner, '--only-tests', '--temporal', 'server', ...FILES];
    const [code] = await once(spawn(process.execPath, args, { stdio: 'inherit' }), 'close');
    process.exitCode = code ?? 1;
  }
}
