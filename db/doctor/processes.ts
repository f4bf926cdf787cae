import type { Database } from '../client.ts';
import { listApis, listVersions } from '../workers.ts';
import { type CheckResult, type FindingCode, resultOf } from './check.ts';

/**
 * Checks that an API and a worker are alive, and that every API has a worker in its namespace and
 * task queue.
 */
export async function checkProcesses(db: Database): Promise<CheckResult[]> {
  const apis = await listApis(db);
  const workers = await listVersions(db);
  return [
    checkAlive('no_api', apis.length),
    checkAlive('no_worker', workers.length),
    checkPlaces(apis, workers.length),
  ];
}

function checkAlive(code: FindingCode, alive: number): CheckResult {
  const findings = alive === 0 ? 1 : 0;
  return resultOf(code, { findings, examples: [] });
}

/** Finds APIs without a worker. If there are no workers at all, that is a finding by itself. */
function checkPlaces(apis: Awaited<ReturnType<typeof listApis>>, workerCount: number): CheckResult {
  if (workerCount === 0) return resultOf('api_elsewhere', { findings: 0, examples: [] });
  const stray = apis.filter((api) => !api.has_worker);
  const places = stray.map(({ namespace, queue }) => `${namespace}/${queue}`);
  return resultOf('api_elsewhere', { findings: places.length, examples: places.slice(0, 5) });
}
