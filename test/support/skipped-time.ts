import {
  TestWorkflowEnvironment,
  type TimeSkippingTestWorkflowEnvironmentOptions,
} from '@temporalio/testing';
import type {
  NativeConnectionPlugin,
  WorkerOptions,
  WorkerPlugin,
} from '@temporalio/worker';
import { SEARCH_ATTRIBUTES } from '../../deploy/temporal/namespace.ts';
import { type Travel, travel } from './database.ts';
import { installTestRuntime } from './runtime.ts';
import { findTestServer } from './test-server.ts';

/**
 * A separate Temporal server in which hours pass in moments. While a test waits for a workflow's
 * result or calls `skip`, the test server jumps to the next timer as soon as no task is running.
 * PostgreSQL's clock follows the server's, because deadlines and schedules are facts in PostgreSQL.
 *
 * The server has no Schedules, no visibility, and no Worker Deployments. Its time stops for good if
 * a workflow is terminated during a task, or if a child closes after its parent.
 */
export class SkippedTime {
  environment!: TestWorkflowEnvironment;
  private clock: Travel | null = null;

  /** @throws {Error} one sentence that says what to install, if there is no test server */
  static async start(): Promise<SkippedTime> {
    installTestRuntime();
    const time = new SkippedTime();
    time.environment = await startServer({
      server: { executable: await findTestServer() },
      plugins: [callBeforeActivities(() => time.follow())],
    });
    const { operatorService } = time.environment.connection;
    const searchAttributes = Object.fromEntries(
      SEARCH_ATTRIBUTES.map(({ name, type }) => [name, type]),
    );
    await operatorService.addSearchAttributes({ namespace: 'default', searchAttributes });
    return time;
  }

  /**
   * Makes the clock of a database follow the server's, for connections that are made afterwards.
   * @returns a function that closes its connection
   */
  async lead(databaseUrl: string): Promise<() => Promise<void>> {
    const clock = await travel(databaseUrl);
    this.clock = clock;
    await this.follow();
    return () => clock.stop();
  }

  /** Skips this time, and runs everything that is due in it. */
  async skip(ms: number): Promise<void> {
    await this.environment.sleep(ms);
    await this.follow();
  }

  /**
   * Sets PostgreSQL's clock to the test server's. It may be slightly ahead, but no work starts too
   * early.
   */
  private async follow(): Promise<void> {
    const askedAt = Date.now();
    const serverAt = await this.environment.currentTimeMs();
    await this.clock?.keepAhead(serverAt - askedAt);
  }
}

/**
 * A plugin that workers get from their connection. It calls `before` at the start of each activity,
 * including local ones.
 */
function callBeforeActivities(
  before: () => Promise<void>,
): NativeConnectionPlugin & WorkerPlugin {
  const interceptor = () => ({
    inbound: {
      async execute<Input, Output>(
        input: Input,
        next: (input: Input) => Promise<Output>,
      ): Promise<Output> {
        await before();
        return await next(input);
      },
    },
  });
  return {
    name: 'call-before-activities',
    configureWorker(options: WorkerOptions): WorkerOptions {
      const activity = [interceptor, ...(options.interceptors?.activity ?? [])];
      return { ...options, interceptors: { ...options.interceptors, activity } };
    },
  };
}

/** The number of starts before the error is reported. */
const STARTS = 12;

/** Starts the test server. The SDK waits 5 s for it, which is too short on a busy machine. */
async function startServer(
  options: TimeSkippingTestWorkflowEnvironmentOptions,
): Promise<TestWorkflowEnvironment> {
  for (let start = 1; ; start += 1) {
    try {
      return await TestWorkflowEnvironment.createTimeSkipping(options);
    } catch (error) {
      if (start === STARTS) throw error;
    }
  }
}
