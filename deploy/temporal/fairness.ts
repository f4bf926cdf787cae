import { Connection, isGrpcServiceError } from '@temporalio/client';
import type { Logger } from 'pino';
import protobuf from 'protobufjs';
import { queuesOf } from '../../workflows/messages.ts';
import type { TemporalTarget } from './client.ts';

/** `on` if Temporal serves organizations in turn, `unknown` if the server does not show it. */
export type Fairness = 'on' | 'off' | 'unknown';

const CALL_TIMEOUT_MS = 3000;
const SERVICE = 'temporal.server.api.adminservice.v1.AdminService';

/**
 * The part of Temporal's internal API that shows whether a queue is fair. The public API does not
 * show it. A queue has a level, which says how far its backlog reaches. A fair queue has
 * `fair_max_read_level`, any other has `max_read_level`. A queue in which no task has ever waited
 * has no level.
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

/** The response as JSON, in which a field without a value is missing. */
interface Partition {
  readonly versionsInfoInternal?: Readonly<Record<string, VersionInfo>>;
}

interface VersionInfo {
  readonly physicalTaskQueueInfo?: { readonly internalTaskQueueStatus?: readonly Status[] };
}

interface Status {
  readonly maxReadLevel?: string;
  readonly fairMaxReadLevel?: object;
  /** True for tasks from before a change of the setting. */
  readonly draining?: boolean;
}

/** The type of queue that workflows wait in (TASK_QUEUE_TYPE_WORKFLOW). */
const WORKFLOW_QUEUE = 1;

/**
 * Calls services that the SDK's `Connection` does not offer, with the SDK's settings for keys and
 * TLS.
 */
class AdminConnection extends Connection {
  /** Describes the first partition of a queue. Workflow tasks of all versions wait there. */
  static async describePartition(
    { connectionOptions, namespace = 'default' }: TemporalTarget,
    taskQueue: string,
  ): Promise<Partition> {
    // Turns the client's retries off, because a server that refuses will refuse again.
    const { client, callContextStorage, apiKeyFnRef, options } = AdminConnection.createCtorOptions({
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
 * Returns whether Temporal serves the organizations of our queue in turn. It is unknown until a
 * task has waited in the queue, and in Temporal Cloud, which does not offer the internal API.
 */
export async function fairnessOf(target: TemporalTarget, taskQueue: string): Promise<Fairness> {
  const queue = queuesOf(taskQueue).enrichment;
  try {
    const { versionsInfoInternal = {} } = await AdminConnection.describePartition(target, queue);
    const statuses = Object.values(versionsInfoInternal)
      .flatMap(({ physicalTaskQueueInfo }) => physicalTaskQueueInfo?.internalTaskQueueStatus ?? [])
      .filter(({ draining }) => !draining);
    if (statuses.some(({ fairMaxReadLevel }) => fairMaxReadLevel !== undefined)) return 'on';
    if (statuses.some(({ maxReadLevel }) => maxReadLevel !== undefined)) return 'off';
    return 'unknown';
  } catch (error) {
    if (!isGrpcServiceError(error)) throw error;
    return 'unknown';
  }
}

/**
 * Returns a check that logs one warning if fairness is off. It asks again until the server shows
 * whether it is.
 */
export function createFairnessCheck(target: TemporalTarget, taskQueue: string, log: Logger) {
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
