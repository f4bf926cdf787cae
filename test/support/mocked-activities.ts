import { randomBytes } from 'node:crypto';
import { Context } from '@temporalio/activity';
import { Worker } from '@temporalio/worker';
import type { Activities } from '../../activities/index.ts';
import { queuesOf } from '../../workflows/messages.ts';
import { testSetting } from './database.ts';
import { SkippedTime } from './skipped-time.ts';

/** The activities that batches and lookups call. Each mock returns a result or throws a failure. */
export type Mocks = {
  readonly [Name in Mocked]: (
    input: Parameters<Activities[Name]>[0],
  ) => Awaited<ReturnType<Activities[Name]>> | ReturnType<Activities[Name]>;
};

type Mocked = (typeof MOCKED)[number];

const MOCKED = [
  'planLookup',
  'identify',
  'askVendor',
  'verifyEmails',
  'settleRequest',
  'refundCredits',
  'readBatch',
  'attemptDeliveries',
] as const;

/** A call of an activity. Its retries belong to the same call. */
export interface MockedCall {
  /** The activity, and its source or reason, such as `askVendor hunter-again`. */
  readonly what: string;
  /** The time of the call on the server's clock, in milliseconds since the epoch. */
  readonly at: number;
}

/**
 * Starts workers that run the real workflows with mocked activities, in skipped time. They need no
 * database, and a scenario takes a fraction of a second. Time is skipped for all workflows, so run
 * one scenario after the other.
 */
export async function startMockedWorkers() {
  const { environment } = await SkippedTime.start();
  let mocks: Mocks;
  let calls: MockedCall[] = [];
  const activities = Object.fromEntries(
    MOCKED.map((name) => [
      name,
      async (input: object) => {
        const { activityId, attempt, scheduledTimestampMs: at } = Context.current().info;
        if (attempt === 1) calls.push({ what: whatOf(name, activityId, input), at });
        return await (mocks[name] as (input: object) => unknown)(input);
      },
    ]),
  );
  const { enrichment, lookups, webhooks } = queuesOf(
    `enrichment-${randomBytes(8).toString('hex')}`,
  );
  const { nativeConnection: connection, client } = environment;
  const workflowBundle = { codePath: testSetting('TEST_WORKFLOW_BUNDLE') };
  const workers = await Promise.all([
    Worker.create({ connection, activities, taskQueue: enrichment, workflowBundle }),
    Worker.create({ connection, activities, taskQueue: lookups }),
    Worker.create({ connection, activities, taskQueue: webhooks }),
  ]);
  const running = Promise.all(workers.map((worker) => worker.run()));
  return {
    client,
    taskQueue: enrichment,
    now: () => environment.currentTimeMs(),
    /**
     * Begins a scenario.
     * @returns the list to which its calls are added
     */
    begin(scenario: Mocks): readonly MockedCall[] {
      mocks = scenario;
      calls = [];
      return calls;
    },
    async stop() {
      for (const worker of workers) worker.shutdown();
      await running;
      await environment.teardown();
    },
  };
}

function whatOf(name: string, activityId: string, input: object): string {
  const { reason, registry } = Object(input);
  // Only activities that ask a source have an id with a name. The others are numbered.
  const source = /^[a-z]/.test(activityId) ? activityId : undefined;
  const detail = reason ?? registry?.trouble ?? source;
  return detail === undefined ? name : `${name} ${detail}`;
}
