import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { arch, homedir, platform } from 'node:os';
import { join } from 'node:path';
import { OperatorProblem } from '../../db/errors.ts';
import { run } from './processes.ts';

// Finds programs that npm does not install, and keeps them in the cache folder.

export interface ProgramSearch {
  /** This project's folder below the user's cache folder. Created when needed. */
  readonly cacheDir: string;
  /** Prints a line for a person who is waiting. */
  readonly onProgress: (line: string) => void;
}

/**
 * The newest version that `go install` accepts. Later ones have replace directives in their go.mod.
 */
const CLI_VERSION = 'v1.5.1';
const MACHINE = `${platform()}_${arch().replace('x64', 'amd64')}`;
const ARCHIVE = `temporal_cli_${CLI_VERSION.slice(1)}_${MACHINE}.tar.gz`;
const RELEASE = `https://github.com/temporalio/cli/releases/download/${CLI_VERSION}/${ARCHIVE}`;
// Gives up only if nothing arrives for a while, because a slow connection may take minutes.
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
 * Finds the Temporal CLI, which contains the dev server and its UI. Tries PATH, the cache folder,
 * the release to download, and building it with Go (about 3 minutes on two cores, once).
 * @returns a path, or the bare name if it is on PATH
 * @throws {OperatorProblem} if all of these fail
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

/** The version of the server in the CLI, so that both kinds differ only in their database. */
const SERVER_VERSION = 'v1.29.1';
const UI_VERSION = 'v2.42.1';
const COMMANDS = 'go.temporal.io/server/cmd';

/**
 * The server, the tool that creates its tables, and its UI. Each has its name in the cache folder,
 * and its Go module.
 */
const PROGRAMS = {
  server: [`temporal-server-${SERVER_VERSION}`, `${COMMANDS}/server@${SERVER_VERSION}`],
  sqlTool: [`temporal-sql-${SERVER_VERSION}`, `${COMMANDS}/tools/sql@${SERVER_VERSION}`],
  ui: [`temporal-ui-${UI_VERSION}`, `github.com/temporalio/ui-server/v2/cmd/server@${UI_VERSION}`],
} as const;

/** Returns whether all programs are in the cache folder. */
export function isServerBuilt(cacheDir: string): boolean {
  return Object.values(PROGRAMS).every(([name]) => existsSync(join(cacheDir, name)));
}

/**
 * Finds the programs of the server in the cache folder, or builds them with Go (4 to 6 minutes on
 * two cores, once).
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
 * Finds a program of a Go module in the cache folder, or builds it with Go, once.
 * @param name its name in the cache folder
 * @param module in the form for `go install`: flags, if any, and the module with its version
 * @throws {OperatorProblem} if Go is missing or cannot build it
 */
export async function findBuilt(
  search: ProgramSearch,
  name: string,
  module: string,
): Promise<string> {
  const found = await keep(search, name, [['building', goInstall(module)]]);
  if (found !== null) return found;
  throw new OperatorProblem(
    `${name} is missing and could not be built: install Go, then try again.`,
  );
}

function goInstall(module: string): string {
  return `GOBIN="$0" go install ${module}`;
}

/**
 * Returns a program from the cache folder, or null. If it is missing, tries commands until one
 * succeeds. A command puts one file into the folder `$0`. The file is then renamed, which is
 * atomic, so no process finds an incomplete program and two builders do no harm.
 * @param ways a verb for messages, and the command
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
    const progress = showProgress(`${verb} ${name}`, onProgress);
    try {
      const { code, output } = await run('/bin/sh', ['-c', command, folder]);
      const [file] = await readdir(folder);
      if (code === 0 && file !== undefined) {
        await rename(join(folder, file), place);
        return place;
      }
      const lastLine = output.split('\n').at(-1);
      onProgress(`${verb} ${name} failed: ${lastLine}`);
    } finally {
      clearInterval(progress);
      await rm(folder, { recursive: true, force: true });
    }
  }
  return null;
}

/** Prints now that work has begun, and then regularly how long it has taken. */
function showProgress(work: string, onProgress: (line: string) => void): NodeJS.Timeout {
  const begun = Date.now();
  onProgress(`${work}, once; this may take minutes`);
  return setInterval(() => {
    const seconds = Math.round((Date.now() - begun) / 1000);
    onProgress(`${work}: ${seconds} s`);
  }, PROGRESS_MS);
}
