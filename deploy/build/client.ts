import { execFile } from 'node:child_process';
import { copyFile, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { type BuildOptions, build } from 'esbuild';
import { NPM_PACKAGE } from '../../api/docs/packages.ts';
import './client-types.ts';
import { writePackage } from './package-file.ts';

// `npm run build` builds the npm package of the client, which the API serves. The same sources give
// the same bytes, so a customer's lockfile stays valid until the client changes.

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CLIENT = join(ROOT, 'api', 'clients', 'typescript');
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
  const options: BuildOptions = {
    outdir: dist,
    absWorkingDir: CLIENT,
    bundle: true,
    platform: 'node',
    target: 'node22',
    external: ['standardwebhooks'],
  };
  // Programs get CommonJS, which `import` and `require` load as the same module, also in Jest and in
  // projects of TypeScript without `"type": "module"`.
  await build({ ...options, entryPoints: [join(CLIENT, 'index.ts')], format: 'cjs' });
  await writeFile(join(dist, 'package.json'), '{ "type": "commonjs" }\n');
  await build({
    ...options,
    entryPoints: [join(CLIENT, 'command.ts')],
    format: 'esm',
    outExtension: { '.js': '.mjs' },
    splitting: true,
  });
  const tsc = join(ROOT, 'node_modules', '.bin', 'tsc');
  await run(tsc, ['--project', CLIENT, '--outDir', dist]);
  for (const [name, source] of Object.entries(COPIES)) {
    await copyFile(source, join(folder, name));
  }
  const silent = ['--silent', '--pack-destination', folder];
  const { stdout } = await run('npm', ['pack', folder, ...silent]);
  writePackage(NPM_PACKAGE, await readFile(join(folder, stdout.trim())));
} finally {
  await rm(folder, { recursive: true, force: true });
}
