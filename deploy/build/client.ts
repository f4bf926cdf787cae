import { execFile } from 'node:child_process';
import { copyFile, mkdtemp, rename, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { build } from 'esbuild';
import './client-types.ts';

// `npm run build` builds the npm package of the client, which the API serves. The same sources give
// the same bytes, so a customer's lockfile stays valid until the client changes.

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CLIENT = join(ROOT, 'api', 'clients', 'typescript');
const PACKAGE = join(CLIENT, 'npi-email-enrichment.tgz');
/** Files of the package, and where they come from. */
const COPIES = {
  'package.json': join(CLIENT, 'package.json'),
  'README.md': join(CLIENT, 'README.md'),
  LICENSE: join(ROOT, 'LICENSE'),
  'dist/csv.LICENSE': join(ROOT, 'node_modules', 'csv-parse', 'LICENSE'),
};

const run = promisify(execFile);
const folder = await mkdtemp(join(tmpdir(), 'npi-email-enrichment-client-'));
try {
  const dist = join(folder, 'dist');
  await build({
    entryPoints: [join(CLIENT, 'index.ts'), join(CLIENT, 'command.ts')],
    outdir: dist,
    absWorkingDir: CLIENT,
    bundle: true,
    splitting: true,
    platform: 'node',
    target: 'node22',
    format: 'esm',
    external: ['standardwebhooks'],
  });
  const tsc = join(ROOT, 'node_modules', '.bin', 'tsc');
  await run(tsc, ['--project', CLIENT, '--outDir', dist]);
  for (const [name, source] of Object.entries(COPIES)) {
    await copyFile(source, join(folder, name));
  }
  const options = ['--silent', '--pack-destination', folder];
  const { stdout } = await run('npm', ['pack', folder, ...options]);
  // Renames a complete file, because the API or another build may use the package now.
  const unfinished = `${PACKAGE}.${process.pid}`;
  await copyFile(join(folder, stdout.trim()), unfinished);
  await rename(unfinished, PACKAGE);
} finally {
  await rm(folder, { recursive: true, force: true });
}
