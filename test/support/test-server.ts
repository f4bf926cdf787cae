import { existsSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  type EphemeralServerExecutable,
  TestWorkflowEnvironment,
} from '@temporalio/testing';
import { run } from '../../deploy/local/processes.ts';
import { cacheFolder } from '../../deploy/local/programs.ts';
import { folderFor, installed } from './installed.ts';

const NAME = 'temporal-test-server';
const POM = fileURLToPath(new URL(`../${NAME}/pom.xml`, import.meta.url));
/** A downloaded server stays in the cache folder, because tests must also run without a network. */
const KEEP_DOWNLOAD = '3650d';

/**
 * Starts the Java server in the folder of this script. The SDK appends the port. The loop ends the
 * server when its parent is gone, because a test that is killed can't.
 */
const START = `#!/bin/sh
parent=$PPID
(
  while kill -0 $$ && kill -0 "$parent"; do sleep 1; done
  kill $$
) > /dev/null 2>&1 < /dev/null &
exec java -cp "$(dirname "$0")/lib/*" io.temporal.testserver.TestServer "$@"
`;

/**
 * Returns Temporal's time-skipping test server: the one on PATH, else the one kept in the cache
 * folder, else the SDK's download, else the Java server, which Maven installs once in about 20 s.
 * Several processes may call this at once.
 * @throws {Error} one sentence that says what to install, if no server is found
 */
export async function findTestServer(): Promise<EphemeralServerExecutable> {
  const cacheDir = cacheFolder(process.env.XDG_CACHE_HOME);
  const { code, output } = await run('/bin/sh', ['-c', `command -v ${NAME}`], {});
  if (code === 0) return { type: 'existing-path', path: output };
  const place = await folderFor(cacheDir, POM);
  if (!isInstalled(place)) {
    const download = await tryDownload(cacheDir);
    if (download !== null) return download;
    await installed(
      cacheDir,
      POM,
      async (folder) => isInstalled(folder),
      installJavaServer,
    );
  }
  return { type: 'existing-path', path: join(place, NAME) };
}

/** The script is written last. */
function isInstalled(folder: string): boolean {
  return existsSync(join(folder, NAME));
}

/** Returns the SDK's download, or null if it can't be downloaded or doesn't start here. */
async function tryDownload(
  downloadDir: string,
): Promise<EphemeralServerExecutable | null> {
  const executable = {
    type: 'cached-download',
    downloadDir,
    ttl: KEEP_DOWNLOAD,
  } as const;
  await mkdir(downloadDir, { recursive: true });
  try {
    const environment = await TestWorkflowEnvironment.createTimeSkipping({
      server: { executable },
    });
    await environment.teardown();
    return executable;
  } catch {
    return null;
  }
}

async function installJavaServer(folder: string): Promise<void> {
  console.log(`installing ${NAME} with Maven, once`);
  const java = await run('java', ['-version'], {});
  if (java.code !== 0) throw notInstalled('java does not run');
  // Maven processes must not share a local repository, so this one gets its own.
  const repository = join(folder, 'repository');
  const options = [
    `-Dmaven.repo.local=${repository}`,
    `-DoutputDirectory=${join(folder, 'lib')}`,
  ];
  const maven = await run(
    'mvn',
    ['-q', '-B', '-f', POM, ...options, 'dependency:copy-dependencies'],
    {},
  );
  if (maven.code !== 0)
    throw notInstalled(maven.output.split('\n')[0] || 'mvn does not run');
  await rm(repository, { recursive: true });
  await writeFile(join(folder, NAME), START, { mode: 0o755 });
}

function notInstalled(problem: string): Error {
  return new Error(
    "Temporal's time-skipping test server could be neither downloaded nor installed " +
      `(${problem}): install Java 11 or later and Maven, or put ${NAME} on PATH.`,
  );
}
