import { setTimeout } from 'node:timers/promises';
import { type Client, ScheduleAlreadyRunning, ScheduleOverlapPolicy } from '@temporalio/client';
import type { Logger } from 'pino';
import { NPI, ORGANIZATION_ID, OUTCOME, WORKFLOWS } from '../../workflows/messages.ts';

/** Numbers of temporal/api/enums/v1/common.proto (INDEXED_VALUE_TYPE_…), and the words of Temporal's commands. */
const TYPES = { KEYWORD: { type: 2, word: 'Keyword' }, KEYWORD_LIST: { type: 7, word: 'KeywordList' } };

/** What the Temporal UI finds our workflows by. */
const SEARCH_ATTRIBUTES = [ORGANIZATION_ID, NPI, OUTCOME].map(({ name, type }) => ({
  name,
  ...TYPES[type],
}));

/** The same as Temporal's commands take them: `Npi=KeywordList`. */
export const SEARCH_ATTRIBUTE_WORDS = SEARCH_ATTRIBUTES.map(({ name, word }) => `${name}=${word}`);

/** How often every worker calls `keepNamespace`: what an operator or an accident has deleted comes back. */
export const KEEP_MS = 5 * 60_000;
/** For half a minute. */
const SERVED_TRIES = 60;
const SERVED_MS = 500;

/**
 * Makes sure that the namespace has our search attributes and the Schedule of re-verification. Both are safe to repeat,
 * and a Schedule that somebody has paused stays so. If the cluster does not let us add search attributes (Temporal
 * Cloud), the log says what to add by hand.
 */
export async function keepNamespace(
  client: Client,
  taskQueue: string,
  reverifyMs: number,
  log: Logger,
): Promise<void> {
  await addSearchAttributes(client, log);
  const id = reverifyScheduleId(taskQueue);
  const schedule = {
    spec: { intervals: [{ every: reverifyMs }] },
    // A run that takes long is not joined by another, and missed ones are not made up for.
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
    await client.schedule.getHandle(id).update((previous) => ({ ...previous, ...schedule }));
  }
}

/** The Schedule of re-verification, and the first part of the ids of the workflows it starts. */
export function reverifyScheduleId(taskQueue: string): string {
  return `${WORKFLOWS.reverify}-${taskQueue}`;
}

async function addSearchAttributes(client: Client, log: Logger): Promise<void> {
  const { namespace } = client.options;
  try {
    const { customAttributes } = await client.connection.operatorService.listSearchAttributes({ namespace });
    const missing = SEARCH_ATTRIBUTES.filter(({ name }) => !(name in customAttributes));
    if (missing.length === 0) return;
    await client.connection.operatorService.addSearchAttributes({
      namespace,
      searchAttributes: Object.fromEntries(missing.map(({ name, type }) => [name, type])),
    });
    // A cluster serves new ones some seconds later, and until then refuses every start that has them.
    const query = missing.map(({ name }) => `${name} is null`).join(' and ');
    const isServed = () =>
      client.workflow.count(query).then(
        () => true,
        () => false,
      );
    for (let tries = 1; !(await isServed()) && tries < SERVED_TRIES; tries += 1) await setTimeout(SERVED_MS);
  } catch (error) {
    log.warn(
      { err: error, namespace },
      `search attributes could not be added; if they are missing, add ${SEARCH_ATTRIBUTE_WORDS.join(', ')} to the namespace`,
    );
  }
}
