import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { connect } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import {
  type EphemeralServerExecutable,
  TestWorkflowEnvironment,
} from '@temporalio/testing';
import {
  launch,
  launchOnPort,
  run,
  type ServerProcess,
} from '../../deploy/local/processes.ts';
import { cacheFolder } from '../../deploy/local/programs.ts';
import { LOOPBACK } from '../../deploy/ports.ts';
import { folderFor, installed } from './installed.ts';

const NAME = 'temporal-test-server';
const POM = fileURLToPath(new URL(`../${NAME}/pom.xml`, import.meta.url));
/** A downloaded server stays in the cache folder, because tests must also run without a network. */
const KEEP_DOWNLOAD = '3650d';

/** The JVM starts with them sooner, because it compiles less. */
const OPTIONS =
  '-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC';
/** The classpath is relative, because the archive of classes is bound to it. */
const SERVER = `-cp 'lib/*' io.temporal.testserver.TestServer`;

/**
 * Starts the Java server in the folder of this script. The SDK appends the port, and waits only 5 s
 * for the server, so the server loads its classes from an archive. The loop ends the server when its
 * parent is gone, because a test that is killed can't.
 */
const START = `#!/bin/sh
cd "$(dirname "$0")" || exit
parent=$PPID
(
  while kill -0 $$ && kill -0 "$parent"; do sleep 1; done
  kill $$
) > /dev/null 2>&1 < /dev/null &
exec java ${OPTIONS} -XX:SharedArchiveFile=classes.jsa ${SERVER} "$@"
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
  await archiveClasses(folder);
  await writeFile(join(folder, NAME), START, { mode: 0o755 });
}

/** Starts the server once. At its end, the JVM writes the archive. */
async function archiveClasses(cwd: string): Promise<void> {
  const java = `exec java ${OPTIONS} -XX:ArchiveClassesAtExit=classes.jsa ${SERVER}`;
  const server = await launchOnPort(
    NAME,
    undefined,
    (port) =>
      launch({
        name: NAME,
        command: '/bin/sh',
        args: ['-c', `${java} ${port}`],
        cwd,
        env: process.env,
      }),
    isOpen,
  );
  await server.stop();
}

async function isOpen(_server: ServerProcess, port: number): Promise<boolean> {
  const socket = connect(port, LOOPBACK);
  try {
    await once(socket, 'connect');
    return true;
  } catch {
    return false;
  } finally {
    socket.destroy();
  }
}

function notInstalled(problem: string): Error {
  return new Error(
    "Temporal's time-skipping test server could be neither downloaded nor installed " +
      `(${problem}): install Java 11 or later and Maven, or put ${NAME} on PATH.`,
  );
}
