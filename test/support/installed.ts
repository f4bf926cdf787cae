import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { run } from '../../deploy/local/processes.ts';

/**
 * Returns the path of the cache folder for the packages that a file lists. Its name contains the
 * name of the list's folder and a digest of the list.
 */
export async function folderFor(cacheDir: string, list: string): Promise<string> {
  const digest = createHash('sha256')
    .update(await readFile(list))
    .digest('hex')
    .slice(0, 12);
  return join(cacheDir, `${basename(dirname(list))}-${digest}`);
}

/**
 * Returns the folder with exactly the packages that a file lists, and fills it if it is missing.
 * Several processes may call this at the same time.
 * @param list the file; the name of its folder and its digest become the name
 * @param isWhole returns true if the folder is complete
 * @param fill fills an empty folder
 */
export async function installed(
  cacheDir: string,
  list: string,
  isWhole: (place: string) => Promise<boolean>,
  fill: (folder: string) => Promise<void>,
): Promise<string> {
  const place = await folderFor(cacheDir, list);
  if (await isWhole(place)) return place;
  await mkdir(cacheDir, { recursive: true });
  const folder = await mkdtemp(join(cacheDir, 'unfinished-'));
  try {
    await fill(folder);
    // The folder is renamed when it is complete, so no process finds half of it. If the place is
    // complete now, another process was faster. An incomplete one depends on programs that were
    // updated since, so it is replaced.
    if (await isWhole(place)) return place;
    await rm(place, { recursive: true, force: true });
    await rename(folder, place);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return place;
}

/** @throws {Error} `problem` and the last line of the output, if the command fails */
export async function succeed(
  command: string,
  args: readonly string[],
  problem: string,
): Promise<void> {
  const { code, output } = await run(command, args, {});
  if (code !== 0) throw new Error(`${problem}: ${output.split('\n').at(-1)}`);
}

/**
 * Returns the folder `node_modules` of a lockfile, and installs it in the cache folder if it is
 * missing. Install scripts of packages are not run.
 * @throws {Error} one sentence, if a package is missing
 */
export async function findPackages(cacheDir: string, lockfile: string): Promise<string> {
  // npm writes it last.
  const isWhole = async (place: string) =>
    existsSync(join(place, 'node_modules', '.package-lock.json'));
  const place = await installed(cacheDir, lockfile, isWhole, async (folder) => {
    console.log(`installing the packages of ${lockfile}, once`);
    await copyFile(lockfile, join(folder, 'package-lock.json'));
    await copyFile(join(dirname(lockfile), 'package.json'), join(folder, 'package.json'));
    const options = ['--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund'];
    await succeed('npm', ['ci', ...options], 'packages could not be installed from npm');
  });
  return join(place, 'node_modules');
}
