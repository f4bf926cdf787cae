import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from '../../deploy/local/command.ts';

const REQUIREMENTS = fileURLToPath(new URL('./requirements.txt', import.meta.url));

/**
 * The Python of a virtual environment that holds exactly `requirements.txt`, made in the cache folder when needed.
 * @throws {Error} one sentence, where Python 3.11, its venv or a package is missing
 */
export async function findPython(cacheDir: string): Promise<string> {
  const digest = createHash('sha256')
    .update(await readFile(REQUIREMENTS))
    .digest('hex')
    .slice(0, 12);
  const place = join(cacheDir, `schemathesis-${digest}`);
  const python = join(place, 'bin', 'python');
  // An update of the system's Python breaks environments made with the one before.
  if ((await run(python, ['-c', 'import schemathesis'], {})).code === 0) return python;
  const { code } = await run('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 11))'], {});
  if (code !== 0) throw new Error('Schemathesis needs Python 3.11 or later on PATH as python3: install it.');
  console.log('installing Schemathesis, once');
  await mkdir(cacheDir, { recursive: true });
  const folder = await mkdtemp(join(cacheDir, 'unfinished-'));
  try {
    await succeed('python3', ['-m', 'venv', folder], 'Python has no venv module: install it (python3-venv)');
    await succeed(
      join(folder, 'bin', 'python'),
      [
        '-m',
        'pip',
        'install',
        '--quiet',
        '--no-deps',
        '--only-binary',
        ':all:',
        '--requirement',
        REQUIREMENTS,
      ],
      'Schemathesis could not be installed from PyPI',
    );
    await rm(place, { recursive: true, force: true });
    // Renamed as a whole: nobody ever finds half an environment.
    await rename(folder, place);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return python;
}

async function succeed(command: string, args: readonly string[], problem: string): Promise<void> {
  const { code, output } = await run(command, args, {});
  if (code !== 0) throw new Error(`${problem}: ${output.split('\n').at(-1)}`);
}
