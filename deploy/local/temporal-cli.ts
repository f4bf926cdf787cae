import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { arch, homedir, platform } from 'node:os';
import { join } from 'node:path';
import { LocalProblem, run } from './processes.ts';

export interface CliSearch {
  /** The folder of this project below the user's cache folder; made when needed. */
  readonly cacheDir: string;
  /** A line for the person who waits. */
  readonly onProgress: (line: string) => void;
}

/** The newest version that `go install` accepts: later ones have replace directives in their go.mod. */
const VERSION = 'v1.5.1';
const MODULE = `github.com/temporalio/cli/cmd/temporal@${VERSION}`;
const RELEASE = `https://github.com/temporalio/cli/releases/download/${VERSION}/temporal_cli_${VERSION.slice(1)}_${platform()}_${arch().replace('x64', 'amd64')}.tar.gz`;
const KEPT = `temporal-${VERSION}`;
const PROGRESS_MS = 5_000;

/** @param xdgCacheHome the value of XDG_CACHE_HOME, if set (XDG Base Directory Specification) */
export function cacheFolder(xdgCacheHome: string | undefined): string {
  return join(xdgCacheHome || join(homedir(), '.cache'), 'npi-email-enrichment');
}

/**
 * The Temporal CLI, which holds the dev server and its UI: the one on PATH, else one kept in the cache folder, else its
 * release, else built by Go (about 3 minutes on two cores, once).
 * @returns a path, or the bare name when it is on PATH
 * @throws {LocalProblem} `temporal_missing`
 */
export async function findTemporalCli(search: CliSearch): Promise<string> {
  for (const candidate of ['temporal', join(search.cacheDir, KEPT)]) {
    if (await isTemporalCli(candidate)) return candidate;
  }
  await mkdir(search.cacheDir, { recursive: true });
  const found = (await download(search)) ?? (await build(search, MODULE, KEPT));
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

async function download({ cacheDir, onProgress }: CliSearch): Promise<string | undefined> {
  onProgress(`downloading the Temporal CLI ${VERSION}`);
  const kept = await keep(cacheDir, KEPT, async (folder) => {
    // Given up only while nothing arrives: a slow connection may take minutes.
    const unpack = `curl -fsSL --connect-timeout 10 --speed-time 10 ${RELEASE} | tar -xz -C "$0" temporal`;
    await run('/bin/sh', ['-c', unpack, folder], {});
    return await isTemporalCli(join(folder, 'temporal'));
  });
  if (kept === undefined) onProgress('the Temporal CLI cannot be downloaded here');
  return kept;
}

/**
 * A program of a Go module: kept in the cache folder, else built by Go, once.
 * @param module as `go install` takes it, with its version
 * @param name what the program is called there
 * @param flags of `go install`
 * @throws {LocalProblem} `program_missing`
 */
export async function findBuilt(
  search: CliSearch,
  module: string,
  name: string,
  flags: readonly string[] = [],
): Promise<string> {
  const kept = join(search.cacheDir, name);
  if (existsSync(kept)) return kept;
  await mkdir(search.cacheDir, { recursive: true });
  const built = await build(search, module, name, flags);
  if (built !== undefined) return built;
  const message = `${name} is missing and could not be built: install Go, then try again.`;
  throw new LocalProblem('program_missing', message);
}

/** @returns undefined when Go is missing or cannot build it */
async function build(
  { cacheDir, onProgress }: CliSearch,
  module: string,
  name: string,
  flags: readonly string[] = [],
): Promise<string | undefined> {
  if ((await run('go', ['version'], {})).code !== 0) return undefined;
  onProgress(`building ${name} with Go, once; this takes up to 3 minutes`);
  const begun = Date.now();
  const progress = setInterval(() => {
    onProgress(`building ${name}: ${Math.round((Date.now() - begun) / 1000)} s`);
  }, PROGRESS_MS);
  return await keep(cacheDir, name, async (folder) => {
    // `env` sets the variable for Go alone and leaves it everything else it needs from the environment.
    const { code, output } = await run('env', [`GOBIN=${folder}`, 'go', 'install', ...flags, module], {});
    if (code !== 0) onProgress(`Go could not build ${name}: ${output.split('\n').at(-1)}`);
    return code === 0;
  }).finally(() => clearInterval(progress));
}

/**
 * Keeps the one file that `make` puts into a folder, if it says that it is good. Renaming is atomic, so nobody ever finds
 * half a program, nor does a second builder hurt.
 */
async function keep(cacheDir: string, name: string, make: (folder: string) => Promise<boolean>) {
  const folder = await mkdtemp(join(cacheDir, 'unfinished-'));
  const place = join(cacheDir, name);
  try {
    const [file] = (await make(folder)) ? await readdir(folder) : [];
    if (file === undefined) return undefined;
    await rename(join(folder, file), place);
    return place;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
