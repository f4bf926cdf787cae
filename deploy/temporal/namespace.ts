import { type Client, ScheduleAlreadyRunning, ScheduleOverlapPolicy } from '@temporalio/client';
import type { Logger } from 'pino';
import { BATCH_STATUS, NPI, ORGANIZATION_ID, WORKFLOWS } from '../../workflows/messages.ts';

/** Numbers of temporal/api/enums/v1/common.proto (INDEXED_VALUE_TYPE_…), and the words of Temporal's commands. */
const TYPES = { KEYWORD: { type: 2, word: 'Keyword' }, KEYWORD_LIST: { type: 7, word: 'KeywordList' } };

/** What the Temporal UI finds our workflows by. */
const SEARCH_ATTRIBUTES = [ORGANIZATION_ID, BATCH_STATUS, NPI].map(({ name, type }) => ({
  name,
  ...TYPES[type],
}));

/** The same as Temporal's commands take them: `Npi=KeywordList`. */
export const SEARCH_ATTRIBUTE_WORDS = SEARCH_ATTRIBUTES.map(({ name, word }) => `${name}=${word}`);

/** How often the Schedules of a deployment run; milliseconds. */
export interface Intervals {
  readonly sweepMs: number;
  readonly reverifyMs: number;
}

/** How often every worker calls `keepNamespace`: what an operator or an accident has deleted comes back. */
export const KEEP_MS = 5 * 60_000;

/**
 * Makes sure that the namespace has our search attributes and Schedules. A Schedule that is paused stays so. If the
 * cluster does not let us add search attributes (Temporal Cloud), the log says what to add by hand.
 */
export async function keepNamespace(
  client: Client,
  taskQueue: string,
  intervals: Intervals,
  log: Logger,
): Promise<void> {
  await addSearchAttributes(client, log);
  const runs = [
    { workflowType: WORKFLOWS.sweep, every: intervals.sweepMs, limit: '5m' as const },
    { workflowType: WORKFLOWS.reverify, every: intervals.reverifyMs, limit: '15m' as const },
  ];
  for (const { workflowType, every, limit } of runs) {
    const id = scheduleId(workflowType, taskQueue);
    const schedule = {
      spec: { intervals: [{ every }] },
      // A run that takes long is not joined by another, and missed ones are not made up for.
      policies: { overlap: ScheduleOverlapPolicy.SKIP, catchupWindow: '1m' as const },
      action: {
        type: 'startWorkflow' as const,
        workflowType,
        workflowId: id,
        taskQueue,
        args: [] as [],
        workflowExecutionTimeout: limit,
      },
    };
    try {
      await client.schedule.create({ scheduleId: id, ...schedule });
    } catch (error) {
      if (!(error instanceof ScheduleAlreadyRunning)) throw error;
      await client.schedule.getHandle(id).update((previous) => ({ ...previous, ...schedule }));
    }
  }
}

/** The Schedule of a workflow type, and the first part of the ids of the workflows it starts. */
export function scheduleId(workflowType: string, taskQueue: string): string {
  return `${workflowType}-${taskQueue}`;
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
  } catch (error) {
    log.warn(
      { err: error, namespace },
      `search attributes could not be added; if they are missing, add ${SEARCH_ATTRIBUTE_WORDS.join(', ')} to the namespace`,
    );
  }
}
