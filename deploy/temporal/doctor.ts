import { type Client, ScheduleNotFoundError } from '@temporalio/client';
import type { Database } from '../../db/client.ts';
import { type CheckResult, type FindingCode, resultOf } from '../../db/doctor/check.ts';
import { listWork } from '../../db/doctor/work.ts';
import { listElsewhere } from '../../db/workers.ts';
import { queuesOf, WORKFLOWS } from '../../workflows/messages.ts';
import { describeRun, isRunning, onOurQueues, type TemporalTarget } from './client.ts';
import { fairnessOf } from './fairness.ts';
import { reverifyScheduleId } from './namespace.ts';

/** Workflows described at the same time. */
const AT_ONCE = 20;
/** Limit per check: a doctor that describes many thousands of workflows is itself a load. */
const DESCRIBED_AT_MOST = 1000;
const LISTED_AT_MOST = 20_000;
/**
 * The sweep still has to restart workflows that closed this recently (ARCHITECTURE.md, Invariants,
 * S4).
 */
const GRACE_MS = 60_000;
/**
 * Temporal retries a workflow task forever. The first few failures may come from a worker's
 * restart.
 */
const FAILING_ATTEMPTS = 4;

/**
 * Compares batches, deliveries and lookups with their workflows. Unfinished work has an open
 * workflow, finished work doesn't, no workflow is stuck, and the Schedule runs. Checks each finding
 * a second time, because work goes on during the check and lists of workflows lag behind.
 */
export async function checkWorkflows(
  db: Database,
  client: Client,
  taskQueue: string,
): Promise<CheckResult[]> {
  const running = await listRunning(client, taskQueue);
  const idsOf = (type: string) => running.flatMap((one) => (one.type === type ? [one.id] : []));
  const batches = idsOf(WORKFLOWS.batch);
  const lookups = idsOf(WORKFLOWS.lookup);
  const listed = new Set(running.map(({ id }) => id));
  const missing = (await listWork(db, 'unfinished', null)).filter((id) => !listed.has(id));
  const closed = await filter(missing, (id) => isClosed(client, id));
  const isOpen = (id: string) => isRunning(client, id);
  // Deliveries come last. They sleep for days, so they are the oldest and would displace workflows
  // that matter more.
  const failing = await filter([...new Set([...batches, ...lookups, ...listed])], (id) =>
    isFailing(client, id),
  );
  return [
    found('workflow_not_running', await listWork(db, 'unfinished', closed)),
    found('workflow_left_open', await filter(await listWork(db, 'over', batches), isOpen)),
    found('lookup_workflow_left_open', await filter(await listWork(db, 'final', lookups), isOpen)),
    found('workflow_task_failing', failing, { times: FAILING_ATTEMPTS - 1 }),
    found('schedule_not_running', await idleSchedules(client, taskQueue)),
  ];
}

/**
 * Returns the check of whether Temporal serves organizations in turn; null if the server does not
 * show it.
 */
export async function checkFairness(
  target: TemporalTarget,
  taskQueue: string,
): Promise<CheckResult | null> {
  const fairness = await fairnessOf(target, taskQueue);
  if (fairness === 'unknown') return null;
  return found('fairness_off', fairness === 'off' ? [queuesOf(taskQueue).enrichment] : []);
}

/** Returns the finding that Temporal can't be used. @param trouble the reason */
export function unreachable(trouble: string): CheckResult {
  return resultOf('temporal_unreachable', { findings: 1, examples: [] }, { trouble });
}

/** Checks that workers run where the API starts workflows. */
export async function checkWorkers(
  db: Database,
  place: { readonly namespace: string; readonly taskQueue: string },
): Promise<CheckResult> {
  const { namespace, taskQueue } = place;
  return found('worker_elsewhere', await listElsewhere(db, place), {
    place: `${namespace}/${taskQueue}`,
  });
}

function found(
  code: FindingCode,
  ids: readonly string[],
  values?: Parameters<typeof resultOf>[2],
): CheckResult {
  return resultOf(code, { findings: ids.length, examples: ids.slice(0, 5) }, values);
}

async function isClosed(client: Client, workflowId: string): Promise<boolean> {
  const run = await describeRun(client, workflowId);
  return run === null || Number(run.closeTime ?? Number.POSITIVE_INFINITY) < Date.now() - GRACE_MS;
}

async function isFailing(client: Client, workflowId: string): Promise<boolean> {
  const run = await describeRun(client, workflowId);
  return (run?.raw.pendingWorkflowTask?.attempt ?? 0) >= FAILING_ATTEMPTS;
}

async function idleSchedules(client: Client, taskQueue: string): Promise<string[]> {
  const id = reverifyScheduleId(taskQueue);
  try {
    const { state } = await client.schedule.getHandle(id).describe();
    return state.paused ? [id] : [];
  } catch (error) {
    if (error instanceof ScheduleNotFoundError) return [id];
    throw error;
  }
}

/** Lists open workflows, oldest first. */
async function listRunning(client: Client, taskQueue: string) {
  const query = `ExecutionStatus = 'Running' and ${onOurQueues(taskQueue)}`;
  const running: { id: string; type: string }[] = [];
  for await (const { workflowId: id, type } of client.workflow.list({ query })) {
    running.push({ id, type });
    if (running.length === LISTED_AT_MOST) break;
  }
  return running.reverse();
}

/** Filters the first `DESCRIBED_AT_MOST` ids. */
async function filter(
  ids: readonly string[],
  keep: (id: string) => Promise<boolean>,
): Promise<string[]> {
  const kept: string[] = [];
  for (let from = 0; from < Math.min(ids.length, DESCRIBED_AT_MOST); from += AT_ONCE) {
    const some = ids.slice(from, from + AT_ONCE);
    const verdicts = await Promise.all(some.map(keep));
    kept.push(...some.filter((_, index) => verdicts[index]));
  }
  return kept;
}
