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
  const stray = workers.length === 0 ? [] : apis.filter((api) => !api.has_worker);
  const places = stray.map(({ namespace, queue }) => `${namespace}/${queue}`);
  return [
    missing('no_api', apis.length),
    missing('no_worker', workers.length),
    resultOf('api_elsewhere', { findings: places.length, examples: places.slice(0, 5) }),
  ];
}

function missing(code: FindingCode, alive: number): CheckResult {
  return resultOf(code, { findings: alive === 0 ? 1 : 0, examples: [] });
}
