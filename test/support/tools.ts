import { existsSync, globSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from '../../deploy/local/processes.ts';
import {
  cacheFolder,
  goInstall,
  keepProgram,
  type ProgramSearch,
} from '../../deploy/local/programs.ts';
import { findPackages, succeed } from './installed.ts';
import { findPython } from './python.ts';
import { findTestServer } from './test-server.ts';

/** The folder in which tools are kept, and the function that reports builds. */
export const SEARCH: ProgramSearch = {
  cacheDir: cacheFolder(process.env.XDG_CACHE_HOME),
  onProgress: console.log,
};

/**
 * Finds a program in the cache folder, or builds it from its Go module.
 * @param name the program's name in the cache folder
 * @param module the arguments for `go install`: optional flags, and the module with its version
 * @throws {Error} if Go is missing or cannot build it
 */
async function findBuilt(name: string, module: string): Promise<string> {
  const found = await keepProgram(SEARCH, name, [['building', goInstall(module)]]);
  if (found !== null) return found;
  throw new Error(
    `${name} is missing and could not be built: install Go, then try again.`,
  );
}

/** Returns the path of a program, which Go builds if it is missing. */
const built = (name: string, module: string, version: string, flags = '') =>
  findBuilt(`${name}-${version}`, `${flags}${module}@${version}`);
const python = (requirements: string, module: string) =>
  findPython(SEARCH.cacheDir, path(requirements), module);
const packages = (lockfile: string) => findPackages(SEARCH.cacheDir, path(lockfile));
/** Returns the folder with the source of a Go module, which Go downloads if it is missing. */
async function downloaded(module: string): Promise<string> {
  const { code, output } = await run('go', ['mod', 'download', '-json', module], {});
  if (code !== 0) throw new Error(`${module} could not be downloaded: ${output}`);
  return JSON.parse(output).Dir;
}
const path = (file: string) => fileURLToPath(new URL(`../${file}`, import.meta.url));

/** Returns the folder with pg_dump, pg_restore, and psql. */
async function findPostgresqlClients(): Promise<string> {
  const interpreter = await python('postgresql/requirements.txt', 'embedded_postgres');
  const where = 'import embedded_postgres; print(embedded_postgres.__path__[0])';
  const { output } = await run(interpreter, ['-W', 'ignore', '-c', where], {});
  return join(output, 'pginstall', 'bin');
}

/** The places of Debian's packages, with the library that compiles queries. */
const LLVM_LIBRARIES = '/usr/lib/postgresql/*/lib/llvmjit.so';
const INSTALL_POSTGRESQL =
  'apt-get update && apt-get install --yes --no-install-recommends postgresql';

/**
 * Returns the folder with the programs of a PostgreSQL that can compile queries, which those of npm
 * and Python cannot. Installs Debian's package if it is missing, which needs root.
 */
async function findCompilingPostgresql(): Promise<string> {
  if (globSync(LLVM_LIBRARIES).length === 0) {
    const command = `export DEBIAN_FRONTEND=noninteractive; ${INSTALL_POSTGRESQL}`;
    await succeed('/bin/sh', ['-c', command], `"${INSTALL_POSTGRESQL}" failed`);
  }
  const [library] = globSync(LLVM_LIBRARIES);
  if (library === undefined) throw new Error("the system's PostgreSQL has no LLVM");
  return join(dirname(library), '..', 'bin');
}

/**
 * The version of the Temporal server. The CLI's dev server has the same version, so that the dev
 * server and the production server differ only in their database.
 */
const SERVER_VERSION = 'v1.29.1';
const SERVER_COMMANDS = 'go.temporal.io/server/cmd';

/**
 * Finds the Temporal server, and the tool that creates its tables. If they are missing, Go builds
 * them, which takes 4 to 6 minutes on two cores and is only needed once.
 */
export async function findTemporalServer() {
  const server = `${SERVER_COMMANDS}/server`;
  const sqlTool = `${SERVER_COMMANDS}/tools/sql`;
  return {
    server: await built('temporal-server', server, SERVER_VERSION),
    sqlTool: await built('temporal-sql', sqlTool, SERVER_VERSION),
  };
}

/** Returns true if the Temporal server is in the cache folder. */
export function isServerBuilt(): boolean {
  return ['temporal-server', 'temporal-sql'].every((name) =>
    existsSync(join(SEARCH.cacheDir, `${name}-${SERVER_VERSION}`)),
  );
}

/** Prometheus 3.16.0. The version of its Go module is different. */
const PROMETHEUS = 'v0.316.0';
/**
 * Builds only the service discovery that our file uses. The others need the client libraries of
 * every cloud.
 */
const ONLY_DNS = '-tags=remove_all_sd,enable_dns_sd ';
const PROMETHEUS_OPERATOR = 'github.com/prometheus-operator/prometheus-operator@v0.85.0';
const COMMANDS = 'github.com/prometheus/prometheus/cmd';

/**
 * Finds the tools of the long checks in the cache folder, or installs them there. Each function
 * throws one sentence if that fails.
 */
export const TOOLS = {
  schemathesis: () => python('schemathesis/requirements.txt', 'schemathesis'),
  clientPackages: () => packages('clients/package-lock.json'),
  clientPython: () => python('clients/requirements.txt', 'openapi_python_client'),
  manifestPython: () => python('shipping/requirements.txt', 'kubernetes_validate'),
  grafanaPackages: () => packages('monitoring/package-lock.json'),
  postgresqlPackages: () => packages('postgresql/package-lock.json'),
  postgresqlClients: findPostgresqlClients,
  compilingPostgresql: findCompilingPostgresql,
  kustomize: () => built('kustomize', 'sigs.k8s.io/kustomize/kustomize/v5', 'v5.7.1'),
  compose: () => built('compose', 'github.com/compose-spec/compose-go/v2/cmd', 'v2.16.2'),
  /** The definitions of the Prometheus Operator's resources. */
  prometheusOperator: async () =>
    `${await downloaded(PROMETHEUS_OPERATOR)}/example/prometheus-operator-crd`,
  testServer: findTestServer,
  temporalServer: findTemporalServer,
  promtool: () => built('promtool', `${COMMANDS}/promtool`, PROMETHEUS, ONLY_DNS),
  prometheus: () => built('prometheus', `${COMMANDS}/prometheus`, PROMETHEUS, ONLY_DNS),
  /** The newest version whose Go module contains the files of its web page. */
  alertmanager: () =>
    built(
      'alertmanager',
      'github.com/prometheus/alertmanager/cmd/alertmanager',
      'v0.31.1',
    ),
};
