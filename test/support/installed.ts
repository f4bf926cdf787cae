import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, mkdtemp, readFile, rename, rm } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { run } from '../../deploy/local/processes.ts';

/**
 * Returns the place in the cache folder of what a file lists: its name has the folder and the
 * digest of the list.
 */
export async function folderFor(cacheDir: string, list: string): Promise<string> {
  const digest = createHash('sha256')
    .update(await readFile(list))
    .digest('hex')
    .slice(0, 12);
  return join(cacheDir, `${basename(dirname(list))}-${digest}`);
}

/**
 * The folder in the cache folder that holds exactly what a file lists, made when it is not there.
 * Several processes may ask at once.
 * @param list the file; the name of its folder and its digest become the name
 * @param isWhole whether the folder at a place is all there
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
    // Renamed as a whole: nobody ever finds half of it. What it was made with may have been updated
    // since, which breaks it; a whole one is that of another process, which was quicker.
    if (await isWhole(place)) return place;
    await rm(place, { recursive: true, force: true });
    await rename(folder, place);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
  return place;
}

/** @throws {Error} `problem` and the last line of what the command wrote, where it fails */
export async function succeed(
  command: string,
  args: readonly string[],
  problem: string,
): Promise<void> {
  const { code, output } = await run(command, args, {});
  if (code !== 0) throw new Error(`${problem}: ${output.split('\n').at(-1)}`);
}

/**
 * The folder `node_modules` that a lockfile describes, in the cache folder. What packages would run
 * when they are installed is not run.
 * @throws {Error} one sentence, where a package is missing
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
