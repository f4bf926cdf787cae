import { type Client, ScheduleNotFoundError, WorkflowNotFoundError } from '@temporalio/client';
import type { Database } from '../../db/client.ts';
import type { CheckResult } from '../../db/doctor/doctor.ts';
import { listFinal, listOver, listUnfinished } from '../../db/doctor/work.ts';
import { listElsewhere } from '../../db/workers.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { closedAt } from './client.ts';
import { reverifyScheduleId } from './namespace.ts';

/** Workflows described at once. */
const AT_ONCE = 20;
/** Of one kind in all: a doctor that asks for each of many thousands is a load itself. */
const DESCRIBED_AT_MOST = 1000;
const LISTED_AT_MOST = 20_000;
/** What has closed this recently is the sweep's to start again (ARCHITECTURE.md, Invariants, S4). */
const GRACE_MS = 60_000;
/** A workflow task is tried again without end; the first few failures may be a worker's restart. */
const FAILING_ATTEMPTS = 4;

/**
 * Compares batches, deliveries and lookups with their workflows: none that has something left without one, none that is
 * over with one, none that is stuck, and the Schedule runs.
 * Everything found is asked for a second time, because work goes on meanwhile and lists of workflows lag behind.
 */
export async function checkWorkflows(
  db: Database,
  client: Client,
  taskQueue: string,
): Promise<CheckResult[]> {
  const running = await listRunning(client, taskQueue);
  const idsOf = (type: string) => running.filter((one) => one.type === type).map(({ id }) => id);
  const batches = idsOf(WORKFLOWS.batch);
  const lookups = idsOf(WORKFLOWS.lookup);
  const listed = new Set(running.map(({ id }) => id));
  const missing = (await listUnfinished(db, null)).filter((id) => !listed.has(id));
  const closed = await filter(missing, (id) => isClosed(client, id));
  const isOpen = async (id: string) => !(await isClosed(client, id));
  // Deliveries sleep for days, and are in front of what matters more.
  const failing = await filter([...new Set([...batches, ...lookups, ...listed])], (id) =>
    isFailing(client, id),
  );
  return [
    {
      code: 'workflow_not_running',
      title: 'batch or delivery with something left to do whose workflow is not running',
      explanation:
        'Check that a worker runs: its sweep starts the workflow again, or refunds what is overdue.',
      ...found(await listUnfinished(db, closed)),
    },
    {
      code: 'workflow_left_open',
      title: 'workflow still open although its batch is over',
      explanation:
        'It holds nothing and owes nothing. Look at it in the Temporal UI, then terminate it there.',
      ...found(await filter(await listOver(db, batches), isOpen)),
    },
    {
      code: 'lookup_workflow_left_open',
      title: 'lookup still open although its request has been final for 60 s',
      explanation:
        'It changes nothing any more, but may still ask vendors. Look at it in the Temporal UI, then terminate it there.',
      ...found(await filter(await listFinal(db, lookups), isOpen)),
    },
    {
      code: 'workflow_task_failing',
      title: `open workflow whose task has failed ${FAILING_ATTEMPTS - 1} times in a row`,
      explanation:
        'Its worker cannot go on with it, most often because its code has changed: see "Replaying a failed run". Its requests are refunded at their deadline.',
      ...found(failing),
    },
    {
      code: 'schedule_not_running',
      title: 'Schedule of re-verification that is missing or paused',
      explanation:
        'Stored addresses go stale. A worker makes a missing one anew; a paused one goes on once it is unpaused in the Temporal UI.',
      ...found(await idleSchedules(client, taskQueue)),
    },
  ];
}

/** @param trouble why Temporal cannot be used */
export function unreachable(trouble: string): CheckResult {
  return {
    code: 'temporal_unreachable',
    title: 'Temporal cannot be used, so workflows were not checked',
    explanation: `${trouble}; --offline leaves the workflows out.`,
    findings: 1,
    examples: [],
  };
}

/** Whether workers are where the API starts workflows. */
export async function checkWorkers(
  db: Database,
  place: { readonly namespace: string; readonly taskQueue: string },
): Promise<CheckResult> {
  const elsewhere = await listElsewhere(db, place);
  return {
    code: 'worker_elsewhere',
    title: 'workers only in another namespace or queue, so that nothing is looked up',
    explanation: `None is in ${place.namespace}/${place.taskQueue}: check TEMPORAL_NAMESPACE and TASK_QUEUE of API and workers.`,
    ...found(elsewhere),
  };
}

function found(ids: readonly string[]): Pick<CheckResult, 'findings' | 'examples'> {
  return { findings: ids.length, examples: ids.slice(0, 5) };
}

async function isClosed(client: Client, workflowId: string): Promise<boolean> {
  const closed = await closedAt(client, workflowId);
  return closed !== null && closed.getTime() < Date.now() - GRACE_MS;
}

async function isFailing(client: Client, workflowId: string): Promise<boolean> {
  try {
    const { raw } = await client.workflow.getHandle(workflowId).describe();
    return (raw.pendingWorkflowTask?.attempt ?? 0) >= FAILING_ATTEMPTS;
  } catch (error) {
    if (error instanceof WorkflowNotFoundError) return false;
    throw error;
  }
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

/** The oldest first. */
async function listRunning(
  client: Client,
  taskQueue: string,
): Promise<{ readonly id: string; readonly type: string }[]> {
  const query = `ExecutionStatus = 'Running' and TaskQueue = '${taskQueue}'`;
  const running: { readonly id: string; readonly type: string }[] = [];
  for await (const { workflowId, type } of client.workflow.list({ query })) {
    running.push({ id: workflowId, type });
    if (running.length === LISTED_AT_MOST) break;
  }
  return running.reverse();
}

/** Of the first `DESCRIBED_AT_MOST`. */
async function filter(ids: readonly string[], keep: (id: string) => Promise<boolean>): Promise<string[]> {
  const kept: string[] = [];
  for (let from = 0; from < Math.min(ids.length, DESCRIBED_AT_MOST); from += AT_ONCE) {
    const some = ids.slice(from, from + AT_ONCE);
    const verdicts = await Promise.all(some.map(keep));
    kept.push(...some.filter((_, index) => verdicts[index]));
  }
  return kept;
}
