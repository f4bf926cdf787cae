import type { Client } from '@temporalio/client';
import type { Database } from '../../db/client.ts';
import type { CheckResult } from '../../db/doctor/doctor.ts';
import { listOver, listUnfinished } from '../../db/doctor/work.ts';
import { listElsewhere } from '../../db/workers.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { closedAt } from './client.ts';

/** Workflows described at once. */
const AT_ONCE = 20;
/** What has closed this recently is the sweep's to start again (ARCHITECTURE.md, Invariants, S4). */
const GRACE_MS = 60_000;

/**
 * Compares the batches and the resends with their workflows: none that has something left without one, no batch that
 * is over with one.
 * Everything found is asked for a second time in the database, because work goes on meanwhile.
 */
export async function checkWorkflows(
  db: Database,
  client: Client,
  taskQueue: string,
): Promise<CheckResult[]> {
  const closed = await filter(await listUnfinished(db, null), async (id) => await isClosed(client, id));
  const open = await listOver(db, await listRunning(client, taskQueue));
  const stillOpen = await filter(open, async (id) => !(await isClosed(client, id)));
  return [
    { ...NOT_RUNNING, ...found(await listUnfinished(db, closed)) },
    { ...LEFT_OPEN, ...found(stillOpen) },
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

const NOT_RUNNING = {
  code: 'workflow_not_running',
  title: 'batch or resend with something left to do whose workflow is not running',
  explanation: 'Check that a worker runs: its sweep starts the workflow again, or refunds what is overdue.',
};

const LEFT_OPEN = {
  code: 'workflow_left_open',
  title: 'workflow still open although its batch is over',
  explanation: 'It holds nothing and owes nothing. Look at it in the Temporal UI, then terminate it there.',
};

function found(ids: readonly string[]): Pick<CheckResult, 'findings' | 'examples'> {
  return { findings: ids.length, examples: ids.slice(0, 5) };
}

async function isClosed(client: Client, workflowId: string): Promise<boolean> {
  const closed = await closedAt(client, workflowId);
  return closed !== null && closed.getTime() < Date.now() - GRACE_MS;
}

async function listRunning(client: Client, taskQueue: string): Promise<string[]> {
  const query = `WorkflowType = '${WORKFLOWS.batch}' and ExecutionStatus = 'Running' and TaskQueue = '${taskQueue}'`;
  const ids: string[] = [];
  for await (const { workflowId } of client.workflow.list({ query })) ids.push(workflowId);
  return ids;
}

async function filter(ids: readonly string[], keep: (id: string) => Promise<boolean>): Promise<string[]> {
  const kept: string[] = [];
  for (let from = 0; from < ids.length; from += AT_ONCE) {
    const some = ids.slice(from, from + AT_ONCE);
    const verdicts = await Promise.all(some.map(keep));
    kept.push(...some.filter((_, index) => verdicts[index]));
  }
  return kept;
}
