import { mkdir, mkdtemp, readdir, rename, rm, stat } from 'node:fs/promises';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { LocalProblem, launch, poll, run } from './processes.ts';

export interface CliSearch {
  /** The folder of this project below the user's cache folder; made when needed. */
  readonly cacheDir: string;
  /** A line for the person who waits. */
  readonly onProgress: (line: string) => void;
}

/** The newest version that `go install` accepts: later ones have replace directives in their go.mod. */
const VERSION = 'v1.5.1';
const MODULE = `github.com/temporalio/cli/cmd/temporal@${VERSION}`;
const DOWNLOADED = 'temporal-sdk';
const BUILT = `temporal-${VERSION}`;
const DOWNLOAD_STALL_MS = 10_000;
const PROGRESS_MS = 5_000;

/** @param xdgCacheHome the value of XDG_CACHE_HOME, if set (XDG Base Directory Specification) */
export function cacheFolder(xdgCacheHome: string | undefined): string {
  return join(xdgCacheHome || join(homedir(), '.cache'), 'npi-email-enrichment');
}

/**
 * The Temporal CLI, which holds the dev server and its UI: the one on PATH, else one kept in the cache folder,
 * else the SDK's own download, else built by Go (about 3 minutes on two cores, once).
 * @returns a path, or the bare name when it is on PATH
 * @throws {LocalProblem} `temporal_missing`
 */
export async function findTemporalCli({ cacheDir, onProgress }: CliSearch): Promise<string> {
  for (const candidate of ['temporal', join(cacheDir, DOWNLOADED), join(cacheDir, BUILT)]) {
    if (await isTemporalCli(candidate)) return candidate;
  }
  await mkdir(cacheDir, { recursive: true });
  const found =
    (await download(cacheDir, onProgress)) ?? (await build({ cacheDir, onProgress }, MODULE, BUILT));
  if (found !== undefined) return found;
  throw new LocalProblem(
    'temporal_missing',
    'The Temporal CLI is missing and could be neither downloaded nor built: install it (https://docs.temporal.io/cli), ' +
      'or install Go, or set TEMPORAL_ADDRESS to a Temporal cluster, then try again.',
  );
}

async function isTemporalCli(command: string): Promise<boolean> {
  const { code, output } = await run(command, ['--version'], { timeout: 20_000 });
  return code === 0 && output.startsWith('temporal version');
}

/** The SDK cannot be interrupted while it downloads, so it does so in a process of its own. */
async function download(cacheDir: string, onProgress: (line: string) => void): Promise<string | undefined> {
  onProgress('looking for the Temporal CLI: trying the download of the Temporal SDK');
  return await inFreshFolder(cacheDir, async (folder) => {
    const child = launch({
      name: 'the download',
      command: process.execPath,
      args: [import.meta.filename, folder],
      stopSignal: 'SIGKILL',
    });
    let size = -1;
    for (;;) {
      // Given up only while nothing arrives: a slow connection may take minutes.
      const event = await poll(async () => {
        if (child.ending() !== undefined) return 'ended';
        const arrived = await sizeOf(folder);
        if (arrived === size) return undefined;
        size = arrived;
        return 'grew';
      }, DOWNLOAD_STALL_MS);
      if (event !== 'grew') break;
    }
    await child.stop();
    const [file] = await readdir(folder);
    if (
      child.ending() !== 'exit code 0' ||
      file === undefined ||
      !(await isTemporalCli(join(folder, file)))
    ) {
      onProgress('the Temporal CLI cannot be downloaded here');
      return undefined;
    }
    return await keep(join(folder, file), join(cacheDir, DOWNLOADED));
  });
}

/**
 * Builds a program of a Go module and keeps it in the cache folder.
 * @param module as `go install` takes it, with its version
 * @param name what the program is called there
 * @returns undefined when Go is missing or cannot build it
 */
export async function build(
  { cacheDir, onProgress }: CliSearch,
  module: string,
  name: string,
): Promise<string | undefined> {
  if ((await run('go', ['version'], {})).code !== 0) return undefined;
  onProgress(`building ${name} with Go, once; this takes up to 3 minutes`);
  const begun = Date.now();
  const progress = setInterval(() => {
    onProgress(`building ${name}: ${Math.round((Date.now() - begun) / 1000)} s`);
  }, PROGRESS_MS);
  try {
    return await inFreshFolder(cacheDir, async (folder) => {
      // `env` sets the variable for Go alone and leaves it everything else it needs from the environment.
      const { code, output } = await run('env', [`GOBIN=${folder}`, 'go', 'install', module], {});
      const [file] = await readdir(folder);
      if (code === 0 && file !== undefined) return await keep(join(folder, file), join(cacheDir, name));
      onProgress(`Go could not build ${name}: ${output.split('\n').at(-1)}`);
      return undefined;
    });
  } finally {
    clearInterval(progress);
  }
}

/** Renaming is atomic, so nobody ever finds half a program, nor does a second builder hurt. */
async function keep(file: string, place: string): Promise<string> {
  await rename(file, place);
  return place;
}

async function inFreshFolder<T>(cacheDir: string, use: (folder: string) => Promise<T>): Promise<T> {
  const folder = await mkdtemp(join(cacheDir, 'unfinished-'));
  try {
    return await use(folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function sizeOf(folder: string): Promise<number> {
  const sizes = await Promise.all((await readdir(folder)).map((name) => stat(join(folder, name))));
  return sizes.reduce((sum, { size }) => sum + size, 0);
}

/**
 * As a process, this file makes the SDK put its Temporal CLI into the folder named by the first argument. The SDK has no
 * call for that alone: it downloads when it is to start a dev server and has none.
 */
if (import.meta.main) {
  const { TestWorkflowEnvironment } = await import('@temporalio/testing');
  const executable = { type: 'cached-download', downloadDir: process.argv[2] ?? '' } as const;
  await (await TestWorkflowEnvironment.createLocal({ server: { executable } })).teardown();
}
