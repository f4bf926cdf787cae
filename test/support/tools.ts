import { fileURLToPath } from 'node:url';
import {
  cacheFolder,
  findBuilt,
  findTemporalServer,
  type ProgramSearch,
} from '../../deploy/local/programs.ts';
import { findPackages } from './installed.ts';
import { findPython } from './python.ts';
import { findTestServer } from './test-server.ts';

/** Where they are kept, and who is told of a build. */
export const SEARCH: ProgramSearch = {
  cacheDir: cacheFolder(process.env.XDG_CACHE_HOME),
  onProgress: console.log,
};

/** A program that Go builds. */
const built = (name: string, module: string, version: string, flags = '') =>
  findBuilt(SEARCH, `${name}-${version}`, `${flags}${module}@${version}`);
const python = (requirements: string, module: string) =>
  findPython(SEARCH.cacheDir, path(requirements), module);
const packages = (lockfile: string) => findPackages(SEARCH.cacheDir, path(lockfile));
const path = (file: string) => fileURLToPath(new URL(`../${file}`, import.meta.url));

/** 3.16.0, as Go counts it. */
const PROMETHEUS = 'v0.316.0';
/**
 * Of the two dozen ways to find targets the one that our file uses: the others bring the clients of
 * every cloud.
 */
const ONLY_DNS = '-tags=remove_all_sd,enable_dns_sd ';
const COMMANDS = 'github.com/prometheus/prometheus/cmd';

/**
 * What the long checks bring beside the packages of this project: looked up in the cache folder,
 * else made there, once. Each throws one sentence where it cannot be made.
 */
export const TOOLS = {
  schemathesis: () => python('schemathesis/requirements.txt', 'schemathesis'),
  clientPackages: () => packages('clients/package-lock.json'),
  clientPython: () => python('clients/requirements.txt', 'openapi_python_client'),
  manifestPython: () => python('shipping/requirements.txt', 'kubernetes_validate'),
  grafanaPackages: () => packages('monitoring/package-lock.json'),
  postgresqlPackages: () => packages('postgresql/package-lock.json'),
  kustomize: () => built('kustomize', 'sigs.k8s.io/kustomize/kustomize/v5', 'v5.7.1'),
  compose: () => built('compose', 'github.com/compose-spec/compose-go/v2/cmd', 'v2.16.2'),
  testServer: findTestServer,
  temporalServer: () => findTemporalServer(SEARCH),
  promtool: () => built('promtool', `${COMMANDS}/promtool`, PROMETHEUS, ONLY_DNS),
  prometheus: () => built('prometheus', `${COMMANDS}/prometheus`, PROMETHEUS, ONLY_DNS),
};
