import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PYTHON_PACKAGE } from '../../api/docs/packages.ts';
import { run } from '../../deploy/local/processes.ts';
import { cacheFolder } from '../../deploy/local/programs.ts';
import { installed, succeed } from './installed.ts';

const IS_USABLE = 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))';

const DOCUMENTED = fileURLToPath(new URL('documented/requirements.txt', import.meta.url));

/**
 * Returns a Python with the packages from PyPI that the pages name (Standard Webhooks, httpx,
 * FastAPI). On a machine without Python it returns null and prints a line about it.
 * @throws {Error} if the packages cannot be installed
 */
export async function documentedPython(): Promise<string | null> {
  if (await hasPython()) {
    return await findPython(
      cacheFolder(process.env.XDG_CACHE_HOME),
      DOCUMENTED,
      'uvicorn, fastapi, httpx, standardwebhooks',
    );
  }
  console.log(
    'no Python 3.11 with venv on PATH as python3: what needs libraries from PyPI is skipped',
  );
  return null;
}

/**
 * Installs a package that the API serves into a folder: the newest one, if none is named. It needs
 * a Python with the dependencies of the package.
 */
export async function installPackage(
  python: string,
  baseUrl: string,
  folder: string,
  name = PYTHON_PACKAGE.name,
): Promise<void> {
  const options = ['--quiet', '--no-deps', '--target', folder];
  const args = ['-m', 'pip', 'install', ...options, `${baseUrl}/docs/${name}`];
  await succeed(python, args, 'the package that the API serves could not be installed');
}

/** Returns true if `python3` on PATH is Python 3.11 or later and can make virtual environments. */
export async function hasPython(): Promise<boolean> {
  return (await run('python3', ['-c', IS_USABLE], {})).code === 0;
}

/**
 * Returns the Python of a virtual environment with exactly the packages of a requirements file.
 * Creates the environment in the cache folder if it is missing. Several processes may call this at
 * once.
 * @param requirements the file. The name of its folder becomes part of the environment's name
 * @param module a module that exists once the environment is complete
 * @throws {Error} one sentence, if Python 3.11, its venv, or a package is missing
 */
export async function findPython(
  cacheDir: string,
  requirements: string,
  module: string,
): Promise<string> {
  const pythonIn = (place: string) => join(place, 'bin', 'python');
  const isWhole = async (place: string) =>
    (await run(pythonIn(place), ['-c', `import ${module}`], {})).code === 0;
  const place = await installed(cacheDir, requirements, isWhole, async (folder) => {
    if (!(await hasPython())) {
      throw new Error(
        'Python 3.11 or later with venv is needed on PATH as python3: install it.',
      );
    }
    console.log(`installing ${module} for Python, once`);
    await succeed(
      'python3',
      ['-m', 'venv', folder],
      'the virtual environment could not be made',
    );
    const options = [
      '--quiet',
      '--no-deps',
      '--only-binary',
      ':all:',
      '--requirement',
      requirements,
    ];
    const problem = `${module} could not be installed from PyPI`;
    await succeed(pythonIn(folder), ['-m', 'pip', 'install', ...options], problem);
  });
  return pythonIn(place);
}
