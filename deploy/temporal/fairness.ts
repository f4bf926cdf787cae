import { Connection, isGrpcServiceError } from '@temporalio/client';
import type { Logger } from 'pino';
import protobuf from 'protobufjs';
import { queuesOf } from '../../workflows/messages.ts';
import type { TemporalTarget } from './client.ts';

/**
 * `on` if Temporal's task queue is fair, which means that organizations take turns. `unknown` if
 * the server does not reveal that.
 */
export type Fairness = 'on' | 'off' | 'unknown';

const CALL_TIMEOUT_MS = 3000;
const SERVICE = 'temporal.server.api.adminservice.v1.AdminService';

/**
 * The part of Temporal's internal API that reveals whether a queue is fair, which the public API
 * does not. The response contains a level that describes the backlog of the queue. The level of a
 * fair queue is in the field `fair_max_read_level`. The level of any other queue is in
 * `max_read_level`. If no task has ever waited in a queue, both are missing.
 */
const { root } = protobuf.parse(`
  syntax = "proto3";
  package temporal.server.api.adminservice.v1;

  service AdminService {
    rpc DescribeTaskQueuePartition (DescribeTaskQueuePartitionRequest) returns (DescribeTaskQueuePartitionResponse);
  }
  message DescribeTaskQueuePartitionRequest {
    string namespace = 1;
    TaskQueuePartition task_queue_partition = 2;
    TaskQueueVersionSelection build_ids = 3;
  }
  message TaskQueuePartition {
    string task_queue = 1;
    int32 task_queue_type = 2;
  }
  message TaskQueueVersionSelection {
    bool unversioned = 2;
    bool all_active = 3;
  }
  message DescribeTaskQueuePartitionResponse {
    map<string, TaskQueueVersionInfoInternal> versions_info_internal = 1;
  }
  message TaskQueueVersionInfoInternal {
    PhysicalTaskQueueInfo physical_task_queue_info = 2;
  }
  message PhysicalTaskQueueInfo {
    repeated InternalTaskQueueStatus internal_task_queue_status = 3;
  }
  message InternalTaskQueueStatus {
    int64 max_read_level = 6;
    FairLevel fair_max_read_level = 9;
    bool draining = 10;
  }
  message FairLevel {
    int64 task_pass = 1;
    int64 task_id = 2;
  }
`);

/** The response as JSON. Fields without a value are missing. */
interface Partition {
  readonly versionsInfoInternal?: Readonly<Record<string, VersionInfo>>;
}

interface VersionInfo {
  readonly physicalTaskQueueInfo?: {
    readonly internalTaskQueueStatus?: readonly Status[];
  };
}

interface Status {
  readonly maxReadLevel?: string;
  readonly fairMaxReadLevel?: object;
  /**
   * True for the old queue after fairness was switched on or off. It only has tasks from before the
   * switch.
   */
  readonly draining?: boolean;
}

/** The number of the queue type for workflow tasks (TASK_QUEUE_TYPE_WORKFLOW). */
const WORKFLOW_QUEUE = 1;

/**
 * A connection that can call services that the SDK's `Connection` does not offer. It uses the SDK's
 * settings for API keys and TLS.
 */
class AdminConnection extends Connection {
  /** Describes the first partition of a queue, with the workflow tasks of all versions. */
  static async describePartition(
    { connectionOptions, namespace = 'default' }: TemporalTarget,
    taskQueue: string,
  ): Promise<Partition> {
    // Without interceptors, the client does not retry. A server that refuses this call would refuse
    // it again.
    const { client, callContextStorage, apiKeyFnRef, options } =
      AdminConnection.createCtorOptions({
        ...connectionOptions,
        interceptors: [],
      });
    const rpc = AdminConnection.generateRPCImplementation({
      serviceName: SERVICE,
      client,
      callContextStorage,
      interceptors: options.interceptors,
      staticMetadata: options.metadata,
      apiKeyFnRef,
    });
    const admin = root.lookupService(SERVICE).create(rpc) as protobuf.rpc.Service & {
      describeTaskQueuePartition(request: object): Promise<protobuf.Message>;
    };
    const request = {
      namespace,
      taskQueuePartition: { taskQueue, taskQueueType: WORKFLOW_QUEUE },
      buildIds: { unversioned: true, allActive: true },
    };
    try {
      const deadline = Date.now() + CALL_TIMEOUT_MS;
      const response = await callContextStorage.run({ deadline }, () =>
        admin.describeTaskQueuePartition(request),
      );
      return response.toJSON();
    } finally {
      client.close();
    }
  }
}

/**
 * Returns whether our enrichment queue is fair, which means that organizations take turns. The
 * result is `unknown` until a task has waited in the queue. It is always `unknown` in Temporal
 * Cloud, which does not offer the internal API.
 */
export async function fairnessOf(
  target: TemporalTarget,
  taskQueue: string,
): Promise<Fairness> {
  const queue = queuesOf(taskQueue).enrichment;
  try {
    const { versionsInfoInternal = {} } = await AdminConnection.describePartition(
      target,
      queue,
    );
    const statuses = Object.values(versionsInfoInternal)
      .flatMap(
        ({ physicalTaskQueueInfo }) =>
          physicalTaskQueueInfo?.internalTaskQueueStatus ?? [],
      )
      .filter(({ draining }) => !draining);
    if (statuses.some(({ fairMaxReadLevel }) => fairMaxReadLevel !== undefined)) {
      return 'on';
    }
    if (statuses.some(({ maxReadLevel }) => maxReadLevel !== undefined)) return 'off';
    return 'unknown';
  } catch (error) {
    if (!isGrpcServiceError(error)) throw error;
    return 'unknown';
  }
}

/**
 * Returns a function that logs a warning if fairness is off. Call it regularly: it asks the server
 * until the server reveals whether fairness is on. After that it does nothing.
 */
export function createFairnessCheck(
  target: TemporalTarget,
  taskQueue: string,
  log: Logger,
) {
  let known: Fairness = 'unknown';
  return async (): Promise<void> => {
    if (known !== 'unknown') return;
    known = await fairnessOf(target, taskQueue);
    if (known === 'off') {
      log.warn(
        { setting: 'matching.enableFairness' },
        'Temporal does not serve organizations in turn: the backlog of one delays the others; switch fairness on, see "Fairness" in deploy/operations.md',
      );
    }
  };
}
