import { Client, Connection, ScheduleAlreadyRunning, ScheduleOverlapPolicy } from '@temporalio/client';
import { loadClientConnectConfig } from '@temporalio/envconfig';
import type { Logger } from 'pino';
import { WORKFLOWS } from '../../workflows/messages.ts';

/** The enrichment queue of a deployment; a namespace per environment keeps deployments apart. */
export const TASK_QUEUE = 'enrichment';

/** Where Temporal is and how to get in, by Temporal's own environment variables (or its TOML profile). */
export function temporalTarget(environment: Readonly<Record<string, string | undefined>>) {
  const env = Object.fromEntries(
    Object.entries(environment).filter((entry): entry is [string, string] => !!entry[1]),
  );
  return loadClientConnectConfig({ overrideEnvVars: env });
}

export type TemporalTarget = ReturnType<typeof temporalTarget>;

/** A client that connects when it is first used, so that the API starts while Temporal is away. */
export function lazyClient(target: TemporalTarget): Client {
  const connection = Connection.lazy(target.connectionOptions);
  return new Client({ connection, ...(target.namespace ? { namespace: target.namespace } : {}) });
}

/** How often the Schedules of a deployment run; milliseconds. */
export interface Intervals {
  readonly sweepMs: number;
  readonly reverifyMs: number;
}

/**
 * Makes sure that the namespace has our search attributes and Schedules. Both are safe to repeat. Where the cluster
 * does not let us add search attributes (Temporal Cloud), the log says what to add by hand.
 */
export async function prepareNamespace(
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
        ...{ type: 'startWorkflow' as const, workflowType, workflowId: id, taskQueue },
        ...{ args: [] as [], workflowExecutionTimeout: limit },
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

/** INDEXED_VALUE_TYPE_KEYWORD and …_KEYWORD_LIST of temporal/api/enums/v1/common.proto. */
const KEYWORD = 2;
const KEYWORD_LIST = 7;

async function addSearchAttributes(client: Client, log: Logger): Promise<void> {
  const wanted = { OrganizationId: KEYWORD, BatchStatus: KEYWORD, Npi: KEYWORD_LIST };
  const { namespace } = client.options;
  try {
    const { customAttributes } = await client.connection.operatorService.listSearchAttributes({ namespace });
    const missing = Object.entries(wanted).filter(([name]) => !(name in customAttributes));
    if (missing.length === 0) return;
    await client.connection.operatorService.addSearchAttributes({
      namespace,
      searchAttributes: Object.fromEntries(missing),
    });
  } catch (error) {
    log.warn(
      { err: error, namespace },
      'search attributes could not be added; if they are missing, add OrganizationId=Keyword, BatchStatus=Keyword, Npi=KeywordList to the namespace',
    );
  }
}
