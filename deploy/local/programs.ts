import { existsSync } from 'node:fs';
import { mkdir, mkdtemp, readdir, rename, rm } from 'node:fs/promises';
import { arch, homedir, platform } from 'node:os';
import { join } from 'node:path';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { run } from './processes.ts';

// Finds programs that npm does not install. Programs that are downloaded or built are kept in a
// cache folder.

export interface ProgramSearch {
  /** This project's folder below the user's cache folder. It is created when it is needed. */
  readonly cacheDir: string;
  /** Prints a line about the progress. */
  readonly onProgress: (line: string) => void;
}

/**
 * The newest version of the Temporal CLI that `go install` accepts. It rejects later versions,
 * because they have replace directives in go.mod.
 */
const CLI_VERSION = 'v1.5.1';
const MACHINE = `${platform()}_${arch().replace('x64', 'amd64')}`;
const ARCHIVE = `temporal_cli_${CLI_VERSION.slice(1)}_${MACHINE}.tar.gz`;
const RELEASE = `https://github.com/temporalio/cli/releases/download/${CLI_VERSION}/${ARCHIVE}`;
// The download only fails if nothing arrives for 10 seconds. It has no total time limit, because it
// may take minutes on a slow connection.
const DOWNLOAD = `set -e
  curl -fsSL --connect-timeout 10 --speed-time 10 -o "$0/packed" ${RELEASE}
  tar -xzf "$0/packed" -C "$0" temporal
  rm "$0/packed"
  "$0/temporal" --version`;
const PROGRESS_MS = 5_000;

/**
 * Returns the folder for programs that were downloaded or built.
 * @param xdgCacheHome the value of XDG_CACHE_HOME, if it is set (XDG Base Directory Specification)
 */
export function cacheFolder(xdgCacheHome: string | undefined): string {
  return join(xdgCacheHome || join(homedir(), '.cache'), 'npi-email-enrichment');
}

/**
 * Finds the Temporal CLI, which contains the dev server and its UI. First looks for it on PATH and
 * in the cache folder. If it is missing, downloads the release, or else builds it with Go. The
 * build takes about 3 minutes on two cores and is only needed once.
 * @returns the path of the CLI, or only its name if it is on PATH
 * @throws {OperatorProblem} if all of these fail
 */
export async function findTemporalCli(search: ProgramSearch): Promise<string> {
  const { code, output } = await run('temporal', ['--version'], { timeout: 20_000 });
  if (code === 0 && output.startsWith('temporal version')) {
    return 'temporal';
  }
  const found = await keepProgram(search, `temporal-${CLI_VERSION}`, [
    ['downloading', DOWNLOAD],
    ['building', goInstall(`github.com/temporalio/cli/cmd/temporal@${CLI_VERSION}`)],
  ]);
  if (found !== null) return found;
  throw new OperatorProblem(
    'The Temporal CLI is missing and could be neither downloaded nor built: install it (https://docs.temporal.io/cli), ' +
      'or install Go, or set TEMPORAL_ADDRESS to a Temporal cluster, then try again.',
  );
}

/** Returns the command that builds a Go module, for `keepProgram`. */
export function goInstall(module: string): string {
  return `GOBIN="$0" go install ${module}`;
}

/**
 * Returns the path of a program in the cache folder. If the program is missing, tries commands
 * until one of them produces it. Returns null if all of them fail.
 *
 * A command must put one file into the folder `$0`. The file is then moved to its final name, which
 * is atomic, so other processes never find an incomplete program.
 * @param ways the commands, each with a verb for messages
 */
export async function keepProgram(
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

/** Prints that some work has begun, and then regularly how long it has been running. */
function showProgress(work: string, onProgress: (line: string) => void): NodeJS.Timeout {
  const begun = Date.now();
  onProgress(`${work}, once; this may take minutes`);
  return setInterval(() => {
    const seconds = Math.round((Date.now() - begun) / 1000);
    onProgress(`${work}: ${seconds} s`);
  }, PROGRESS_MS);
}
