import { setTimeout } from 'node:timers/promises';
import {
  type Client,
  ScheduleAlreadyRunning,
  ScheduleOverlapPolicy,
} from '@temporalio/client';
import { msToTs } from '@temporalio/common/lib/time.js';
import type { Logger } from 'pino';
import { NPI, ORGANIZATION_ID, OUTCOME, WORKFLOWS } from '../../workflows/messages.ts';
import { ALREADY_EXISTS, NOT_FOUND, unless } from './client.ts';

/**
 * The types of search attributes: their numbers in Temporal's API (INDEXED_VALUE_TYPE_… in
 * temporal/api/enums/v1/common.proto), and their names in Temporal's commands.
 */
const TYPES = {
  KEYWORD: { type: 2, word: 'Keyword' },
  KEYWORD_LIST: { type: 7, word: 'KeywordList' },
};

/** The search attributes of our workflows. */
export const SEARCH_ATTRIBUTES = [ORGANIZATION_ID, NPI, OUTCOME].map(({ name, type }) => {
  return { name, ...TYPES[type] };
});

/** The search attributes in the form of Temporal's commands, such as `Npi=KeywordList`. */
export const SEARCH_ATTRIBUTE_WORDS = SEARCH_ATTRIBUTES.map(
  ({ name, word }) => `${name}=${word}`,
);

/**
 * The interval at which a worker calls `keepNamespace`, which restores parts of the namespace that
 * were deleted.
 */
export const KEEP_MS = 5 * 60_000;
/**
 * The time for which a new namespace keeps closed workflows. It is the default of Temporal's CLI.
 */
const RETENTION = '72h';
/**
 * The most calls that `waitUntilServed` makes, at intervals of `SERVED_MS`. Together they take half
 * a minute.
 */
const SERVED_TRIES = 60;
const SERVED_MS = 500;

/**
 * Makes sure that the namespace has our search attributes and the Temporal Schedule that starts
 * `reverify`. It is safe to repeat, and a paused Schedule stays paused. Some clusters, such as
 * Temporal Cloud, do not let us add search attributes. In that case, logs which ones an operator
 * has to add.
 */
export async function keepNamespace(
  client: Client,
  taskQueue: string,
  reverifyMs: number,
  log: Logger,
): Promise<void> {
  try {
    await addSearchAttributes(client);
  } catch (error) {
    const { namespace } = client.options;
    const words = SEARCH_ATTRIBUTE_WORDS.join(', ');
    log.warn(
      { err: error, namespace },
      `search attributes could not be added; if they are missing, add ${words} to the namespace`,
    );
  }
  await keepSchedule(client, taskQueue, reverifyMs);
}

/** Creates the Temporal Schedule that starts `reverify`, or updates it. */
async function keepSchedule(
  client: Client,
  taskQueue: string,
  reverifyMs: number,
): Promise<void> {
  const id = reverifyScheduleId(taskQueue);
  const schedule = {
    spec: { intervals: [{ every: reverifyMs }] },
    // Skips a run while another is still running, and does not catch up on missed runs.
    policies: { overlap: ScheduleOverlapPolicy.SKIP, catchupWindow: '1m' as const },
    action: {
      type: 'startWorkflow' as const,
      workflowType: WORKFLOWS.reverify,
      workflowId: id,
      taskQueue,
      args: [] as [],
      workflowExecutionTimeout: '15m' as const,
    },
  };
  try {
    await client.schedule.create({ scheduleId: id, ...schedule });
  } catch (error) {
    if (!(error instanceof ScheduleAlreadyRunning)) throw error;
    await client.schedule
      .getHandle(id)
      .update((previous) => ({ ...previous, ...schedule }));
  }
}

/**
 * Returns the id of the Temporal Schedule that starts `reverify`. The ids of the workflows that it
 * starts begin with the same text.
 */
export function reverifyScheduleId(taskQueue: string): string {
  return `${WORKFLOWS.reverify}-${taskQueue}`;
}

/**
 * Creates the namespace of a client if it is missing. Returns when the namespace can be used.
 * @throws Temporal's error if we have no right to create a namespace
 */
export async function makeNamespace(client: Client): Promise<void> {
  const { workflowService } = client;
  const { namespace } = client.options;
  const described = await unless(
    NOT_FOUND,
    workflowService.describeNamespace({ namespace }),
  );
  if (described !== null) return;
  const workflowExecutionRetentionPeriod = msToTs(RETENTION);
  const registration = { namespace, workflowExecutionRetentionPeriod };
  await unless(ALREADY_EXISTS, workflowService.registerNamespace(registration));
  const list = () => workflowService.listWorkflowExecutions({ namespace, pageSize: 1 });
  await waitUntilServed(list);
}

/**
 * Adds the search attributes that the namespace lacks. Returns when they can be used. Before that,
 * the cluster rejects workflows with these attributes.
 * @throws Temporal's error if we have no right to add search attributes
 */
export async function addSearchAttributes(client: Client): Promise<void> {
  const { operatorService } = client.connection;
  const { namespace } = client.options;
  const query = SEARCH_ATTRIBUTES.map(({ name }) => `${name} is null`).join(' and ');
  const count = () => client.workflow.count(query);
  if (await succeeds(count)) return;
  const { customAttributes } = await operatorService.listSearchAttributes({ namespace });
  const missing = SEARCH_ATTRIBUTES.filter(({ name }) => !(name in customAttributes));
  if (missing.length > 0) {
    const searchAttributes = Object.fromEntries(
      missing.map(({ name, type }) => [name, type]),
    );
    const addition = { namespace, searchAttributes };
    await unless(ALREADY_EXISTS, operatorService.addSearchAttributes(addition));
  }
  await waitUntilServed(count);
}

async function succeeds(call: () => Promise<unknown>): Promise<boolean> {
  try {
    await call();
    return true;
  } catch {
    return false;
  }
}

/**
 * Repeats a call until it succeeds, for at most half a minute. A cluster needs some seconds until a
 * new namespace or search attribute can be used.
 */
async function waitUntilServed(call: () => Promise<unknown>): Promise<void> {
  for (let left = SERVED_TRIES; left > 0; left -= 1) {
    if (await succeeds(call)) return;
    if (left > 1) await setTimeout(SERVED_MS);
  }
}

/**
 * Returns the commands that create the namespace and its search attributes. They are shown to
 * operators if we have no right to create these ourselves.
 */
export function commandsFor(namespace: string): string {
  const typed = SEARCH_ATTRIBUTES.map(
    ({ name, word }) => `--name ${name} --type ${word}`,
  );
  const words = SEARCH_ATTRIBUTE_WORDS.map((word) => `--search-attribute ${word}`);
  return `
  temporal operator namespace create --namespace ${namespace} --retention ${RETENTION}
  temporal operator search-attribute create --namespace ${namespace} ${typed.join(' ')}
or, for Temporal Cloud:
  tcld namespace search-attributes add --namespace ${namespace} ${words.join(' ')}`;
}
