import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { arch, homedir, platform } from 'node:os';
import { join } from 'node:path';
import { OperatorProblem } from '../../db/errors.ts';
import { run } from './processes.ts';

// The programs that npm does not bring: kept in the cache folder once they are there.

export interface ProgramSearch {
  /** The folder of this project below the user's cache folder; made when needed. */
  readonly cacheDir: string;
  /** A line for the person who waits. */
  readonly onProgress: (line: string) => void;
}

/** The newest version that `go install` accepts: later ones have replace directives in their go.mod. */
const CLI_VERSION = 'v1.5.1';
const RELEASE = `https://github.com/temporalio/cli/releases/download/${CLI_VERSION}/temporal_cli_${CLI_VERSION.slice(1)}_${platform()}_${arch().replace('x64', 'amd64')}.tar.gz`;
// Given up only while nothing arrives: a slow connection may take minutes.
const DOWNLOAD = `set -e
  curl -fsSL --connect-timeout 10 --speed-time 10 -o "$0/packed" ${RELEASE}
  tar -xzf "$0/packed" -C "$0" temporal
  rm "$0/packed"
  "$0/temporal" --version`;
const PROGRESS_MS = 5_000;

/** @param xdgCacheHome the value of XDG_CACHE_HOME, if set (XDG Base Directory Specification) */
export function cacheFolder(xdgCacheHome: string | undefined): string {
  return join(xdgCacheHome || join(homedir(), '.cache'), 'npi-email-enrichment');
}

/**
 * The Temporal CLI, which holds the dev server and its UI: the one on PATH, else one kept in the cache folder, else its
 * release, else built by Go (about 3 minutes on two cores, once).
 * @returns a path, or the bare name when it is on PATH
 * @throws {OperatorProblem} if there is none
 */
export async function findTemporalCli(search: ProgramSearch): Promise<string> {
  const { code, output } = await run('temporal', ['--version'], { timeout: 20_000 });
  if (code === 0 && output.startsWith('temporal version')) return 'temporal';
  const found = await keep(search, `temporal-${CLI_VERSION}`, [
    ['downloading', DOWNLOAD],
    ['building', goInstall(`github.com/temporalio/cli/cmd/temporal@${CLI_VERSION}`)],
  ]);
  if (found !== null) return found;
  throw new OperatorProblem(
    'The Temporal CLI is missing and could be neither downloaded nor built: install it (https://docs.temporal.io/cli), ' +
      'or install Go, or set TEMPORAL_ADDRESS to a Temporal cluster, then try again.',
  );
}

/** The same server as in the CLI, so that what differs is what it runs on. */
const SERVER_VERSION = 'v1.29.1';
const UI_VERSION = 'v2.42.1';
const COMMANDS = 'go.temporal.io/server/cmd';

/** The server, the tool that makes its tables, and its UI: as what each is kept, and where Go has it from. */
const PROGRAMS = {
  server: [`temporal-server-${SERVER_VERSION}`, `${COMMANDS}/server@${SERVER_VERSION}`],
  sqlTool: [`temporal-sql-${SERVER_VERSION}`, `${COMMANDS}/tools/sql@${SERVER_VERSION}`],
  ui: [`temporal-ui-${UI_VERSION}`, `github.com/temporalio/ui-server/v2/cmd/server@${UI_VERSION}`],
} as const;

/** Whether all programs are in the cache folder. */
export function isServerBuilt(cacheDir: string): boolean {
  return Object.values(PROGRAMS).every(([name]) => existsSync(join(cacheDir, name)));
}

/**
 * The programs of the server: kept in the cache folder, else built by Go (4 to 6 minutes on two cores, once).
 * @throws {OperatorProblem} if one cannot be built
 */
export async function findTemporalServer(search: ProgramSearch) {
  const { server, sqlTool, ui } = PROGRAMS;
  return {
    server: await findBuilt(search, ...server),
    sqlTool: await findBuilt(search, ...sqlTool),
    ui: await findBuilt(search, ...ui),
  };
}

/**
 * A program of a Go module: the one kept in the cache folder, else built by Go, once.
 * @param name what it is called there
 * @param module as `go install` takes it: flags, if any, and the module with its version
 * @throws {OperatorProblem} when Go is missing or cannot build it
 */
export async function findBuilt(search: ProgramSearch, name: string, module: string): Promise<string> {
  const found = await keep(search, name, [['building', goInstall(module)]]);
  if (found !== null) return found;
  throw new OperatorProblem(`${name} is missing and could not be built: install Go, then try again.`);
}

function goInstall(module: string): string {
  return `GOBIN="$0" go install ${module}`;
}

/**
 * A program in the cache folder. If it is not there, it is the one file that a shell command puts into the folder `$0`:
 * the first of the commands that succeeds. Renaming is atomic, so nobody ever finds half a program, nor does a second
 * builder hurt.
 * @param ways what each command does, and the command
 */
async function keep(
  { cacheDir, onProgress }: ProgramSearch,
  name: string,
  ways: readonly (readonly [verb: string, command: string])[],
): Promise<string | null> {
  const place = join(cacheDir, name);
  if (existsSync(place)) return place;
  await mkdir(cacheDir, { recursive: true });
  for (const [verb, command] of ways) {
    const folder = await mkdtemp(join(cacheDir, 'unfinished-'));
    const begun = Date.now();
    onProgress(`${verb} ${name}, once; this may take minutes`);
    const progress = setInterval(() => {
      onProgress(`${verb} ${name}: ${Math.round((Date.now() - begun) / 1000)} s`);
    }, PROGRESS_MS);
    try {
      const { code, output } = await run('/bin/sh', ['-c', command, folder]);
      const [file] = await readdir(folder);
      if (code === 0 && file !== undefined) {
        await rename(join(folder, file), place);
        return place;
      }
      onProgress(`${verb} ${name} failed: ${output.split('\n').at(-1)}`);
    } finally {
      clearInterval(progress);
      await rm(folder, { recursive: true, force: true });
    }
  }
  return null;
}
