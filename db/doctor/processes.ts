import type { Database } from '../connection/client.ts';
import { listApis, listVersions, NO_BUILD } from '../operations/workers.ts';
import { type CheckResult, type FindingCode, found, resultOf } from './check.ts';

/**
 * Checks that at least one API process and one worker process that has joined Temporal are alive,
 * and that every API process has a worker in its namespace and task queue.
 */
export async function checkProcesses(db: Database): Promise<CheckResult[]> {
  const apis = await listApis(db);
  const versions = await listVersions(db);
  const workers = versions.filter(({ version }) => version !== NO_BUILD);
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

/**
 * Finds API processes without a worker in their namespace and task queue. If there are no workers
 * at all, only `no_worker` is reported.
 */
function checkPlaces(
  apis: Awaited<ReturnType<typeof listApis>>,
  workerCount: number,
): CheckResult {
  if (workerCount === 0) return found('api_elsewhere', []);
  const stray = apis.filter((api) => !api.hasWorker);
  const places = stray.map(({ namespace, queue }) => `${namespace}/${queue}`);
  return found('api_elsewhere', places);
}
