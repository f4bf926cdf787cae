import { type Client, ScheduleNotFoundError } from '@temporalio/client';
import type { Database } from '../../db/connection/client.ts';
import {
  type CheckResult,
  found,
  GRACE_SECONDS,
  resultOf,
} from '../../db/doctor/check.ts';
import {
  listFailedAtDeadline,
  listUnknownBatches,
  listWork,
} from '../../db/doctor/work.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { describeRun, isRunning, onOurQueues } from './client.ts';
import { reverifyScheduleId } from './namespace.ts';

/** Time limit of one check. It is long, because one call without a response hides all findings. */
const CHECK_TIMEOUT_MS = 15_000;
/** The number of concurrent calls that describe a workflow. */
const DESCRIBE_CONCURRENCY = 20;
/**
 * The most workflows that each check describes. Describing many thousands of workflows would take
 * much of the server's time.
 */
const MAX_DESCRIBED = 1000;
const MAX_LISTED = 20_000;
/** The time limit for listing all open workflows, of which Temporal returns 1,000 per call. */
const LIST_TIMEOUT_MS = 30_000;
/**
 * A workflow counts as stuck if its workflow task is at this attempt or a later one. Temporal
 * retries a failing workflow task forever, and the first failures may only come from a worker's
 * restart.
 */
const FAILING_ATTEMPTS = 4;

/**
 * Compares batches, deliveries, and lookups with their workflows. Checks that unfinished work has
 * an open workflow and finished work does not, that no workflow is stuck, and that the Temporal
 * Schedule is running. Each finding is checked a second time, because work continues during the
 * check and Temporal's lists of workflows are updated late.
 */
export async function checkWorkflows(
  db: Database,
  client: Client,
  taskQueue: string,
): Promise<CheckResult[]> {
  const running = await client.withDeadline(Date.now() + LIST_TIMEOUT_MS, () =>
    listRunning(client, taskQueue),
  );
  const batches = running
    .filter(({ type }) => type === WORKFLOWS.batch)
    .map(({ id }) => id);
  const lookups = running
    .filter(({ type }) => type === WORKFLOWS.lookup)
    .map(({ id }) => id);
  const listed = new Set(running.map(({ id }) => id));
  const unfinished = await listWork(db, 'unfinished', null);
  const missing = unfinished.filter((id) => !listed.has(id));
  const closed = await filter(client, missing, isClosed);
  // `filter` only describes the first `MAX_DESCRIBED` workflows, so batches and lookups must come
  // first. The list begins with the oldest workflows, which are usually deliveries, because these
  // can wait for days. Deliveries are less important.
  const byImportance = new Set([...batches, ...lookups, ...listed]);
  const failing = await filter(client, [...byImportance], isFailing);
  const notRunning = await listWork(db, 'unfinished', closed);
  const openBatches = await filter(
    client,
    await listWork(db, 'over', batches),
    isRunning,
  );
  const openLookups = await filter(
    client,
    await listWork(db, 'final', lookups),
    isRunning,
  );
  return [
    found('workflow_not_running', notRunning),
    found('workflow_left_open', openBatches),
    found('lookup_workflow_left_open', openLookups),
    found('workflow_task_failing', failing, { times: FAILING_ATTEMPTS - 1 }),
    found('schedule_not_running', await idleSchedules(client, taskQueue)),
  ];
}

/**
 * How many days back lost batches and results are looked for. By default, a namespace keeps closed
 * workflows for this time.
 */
const LOST_DAYS = 3;
/** The number of ids that are compared with PostgreSQL at once. */
const COMPARED = 1000;
/** The number of ids that one query to Temporal names. */
const NAMED = 100;

/**
 * Finds batches whose workflow started within 72 hours and that PostgreSQL does not know. The batch
 * was committed before its workflow started, so PostgreSQL has lost it. The name of the organization
 * comes from the memo of the workflow.
 */
export async function checkLostBatches(
  db: Database,
  client: Client,
  taskQueue: string,
): Promise<CheckResult> {
  const since = new Date(Date.now() - LOST_DAYS * 86_400_000).toISOString();
  const query = `WorkflowType = '${WORKFLOWS.batch}' and StartTime > '${since}' and ${onOurQueues(taskQueue)}`;
  const lost = new Set<string>();
  const compare = async (page: ReadonlyMap<string, string>) => {
    for (const id of await listUnknownBatches(db, [...page.keys()])) {
      lost.add(page.get(id) ?? id);
    }
  };
  let page = new Map<string, string>();
  for await (const { workflowId, memo, startTime } of client.workflow.list({ query })) {
    const organization = memo?.organization_id ?? 'an unknown organization';
    page.set(
      workflowId,
      `${workflowId} of ${organization} at ${startTime.toISOString()}`,
    );
    if (page.size < COMPARED) continue;
    await compare(page);
    page = new Map();
  }
  await compare(page);
  const examples = [...lost].sort();
  return resultOf('batch_lost', { findings: examples.length, examples });
}

/**
 * Finds requests that failed at their deadline within 72 hours, although their lookup had completed
 * with an email or `not_found`. PostgreSQL has lost this result. The reconciler reports other lost
 * results when it looks them up again.
 */
export async function checkLostResults(
  db: Database,
  client: Client,
): Promise<CheckResult> {
  const failed = await listFailedAtDeadline(db, LOST_DAYS);
  const organizations = new Map(failed.map((one) => [one.id, one.organizationId]));
  const ids = [...organizations.keys()];
  const lost = new Set<string>();
  for (let from = 0; from < ids.length; from += NAMED) {
    const named = ids.slice(from, from + NAMED).map((id) => `'${id}'`);
    const query = `WorkflowId in (${named.join(', ')}) and ExecutionStatus = 'Completed' and (Outcome is null or Outcome STARTS_WITH 'not_found')`;
    for await (const { workflowId } of client.workflow.list({ query })) {
      lost.add(`${workflowId} of ${organizations.get(workflowId)}`);
    }
  }
  const examples = [...lost].sort();
  return resultOf('result_lost', { findings: examples.length, examples });
}

/**
 * Returns the finding that Temporal can't be used.
 * @param trouble the reason
 */
export function unreachable(trouble: string): CheckResult {
  return resultOf('temporal_unreachable', { findings: 1, examples: [] }, { trouble });
}

function inTime<T>(client: Client, check: () => Promise<T>): Promise<T> {
  return client.withDeadline(Date.now() + CHECK_TIMEOUT_MS, check);
}

/**
 * Returns whether a workflow is missing, or has been closed for a minute. After it closes, the
 * reconciler needs some time to start it again (ARCHITECTURE.md, Invariants, S4).
 */
async function isClosed(client: Client, workflowId: string): Promise<boolean> {
  const run = await describeRun(client, workflowId);
  if (run === null) return true;
  if (run.closeTime === undefined) return false;
  return Date.now() - run.closeTime.getTime() > GRACE_SECONDS * 1000;
}

async function isFailing(client: Client, workflowId: string): Promise<boolean> {
  const run = await describeRun(client, workflowId);
  const attempt = run?.raw.pendingWorkflowTask?.attempt ?? 0;
  return attempt >= FAILING_ATTEMPTS;
}

/** Returns the Schedule if it does not run, with the note of the person who paused it. */
async function idleSchedules(client: Client, taskQueue: string): Promise<string[]> {
  const id = reverifyScheduleId(taskQueue);
  try {
    const schedule = client.schedule.getHandle(id);
    const { state } = await inTime(client, () => schedule.describe());
    return state.paused ? [`${id}: paused, ${state.note ?? 'without a note'}`] : [];
  } catch (error) {
    if (error instanceof ScheduleNotFoundError) return [`${id}: missing`];
    throw error;
  }
}

/** Lists open workflows, oldest first. */
async function listRunning(client: Client, taskQueue: string) {
  const query = `ExecutionStatus = 'Running' and ${onOurQueues(taskQueue)}`;
  const running: { id: string; type: string }[] = [];
  for await (const { workflowId: id, type } of client.workflow.list({ query })) {
    running.push({ id, type });
    if (running.length === MAX_LISTED) break;
  }
  return running.reverse();
}

/**
 * Returns those of the first `MAX_DESCRIBED` ids for which `keep` returns true. If a call fails,
 * waits for the concurrent calls before it throws. The caller then closes the connection, and a
 * retry of the SDK on a closed connection would crash the process.
 */
async function filter(
  client: Client,
  ids: readonly string[],
  keep: (client: Client, id: string) => Promise<boolean>,
): Promise<string[]> {
  const kept: string[] = [];
  const end = Math.min(ids.length, MAX_DESCRIBED);
  for (let from = 0; from < end; from += DESCRIBE_CONCURRENCY) {
    const page = ids.slice(from, from + DESCRIBE_CONCURRENCY);
    const calls = page.map((id) => inTime(client, () => keep(client, id)));
    await Promise.allSettled(calls);
    const verdicts = await Promise.all(calls);
    kept.push(...page.filter((_, index) => verdicts[index]));
  }
  return kept;
}
