import { randomUUID } from 'node:crypto';
import { encryptSecret } from '../../db/accounts/secrets.ts';
import { inventedId } from '../../db/connection/ids.ts';
import { startTemporal } from '../../deploy/local/temporal.ts';
import { main } from '../../deploy/main.ts';
import { TASK_QUEUE, WORKFLOWS } from '../../workflows/messages.ts';
import { startTestEvent, startUpload } from '../../workflows/starts.ts';
import { SECRET_KEYS, testSetting } from './database.ts';
import { saveHistory } from './histories.ts';
import { eventually, type Organization, type SubmitResponse } from './organization.ts';
import { startServers } from './servers.ts';
import { type Stack, type StackOptions, startStack } from './stack.ts';
import { startedUpload } from './uploads.ts';
import {
  aborted,
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from './vendors.ts';

// `npm run histories`: records the histories that test/workflows/replay.test.ts replays. Each
// scenario ends with `save`, under a name that says what happened.

const HELP = `
It brings its own servers, takes about a minute, and writes all histories into test/histories/, each under the name of
what happened. Commit only the files of scenarios that you added, and of batches and lookups that you changed. The other files
stand for runs of released versions, which a new version has to continue.

Needs no settings; TEST_DATABASE_URL, TEST_TEMPORAL_ADDRESS and TEST_TEMPORAL_CLI name servers that are there already.
Exit codes: 0 recorded, 1 failed (one sentence on stderr), 2 wrong usage.`;

async function withStack(
  options: StackOptions,
  use: (stack: Stack) => Promise<void>,
): Promise<void> {
  const stack = await startStack(options);
  try {
    await use(stack);
  } finally {
    await stack.stop();
  }
}

/** Waits until the workflow is closed, and saves its history. */
async function save(
  stack: Stack,
  name: string,
  workflowId = '',
  runId?: string,
): Promise<void> {
  const handle = stack.client.workflow.getHandle(workflowId, runId);
  // A child may not exist yet.
  const closeTime = async () => (await handle.describe().catch(() => null))?.closeTime;
  await eventually(async () => ((await closeTime()) ? true : null));
  await saveHistory(name, workflowId, await handle.fetchHistory());
  console.log(name);
}

function requestOf({ requests }: SubmitResponse, npi: string): string | undefined {
  return requests.find((request) => request.npi === npi)?.request_id;
}

/** Records the outcomes of lookups and batches, with the simulated vendor. */
async function recordOutcomes(): Promise<void> {
  await withStack({ lookupTimeoutMs: 5000 }, async (stack) => {
    const client = await stack.organization();
    const hook = (path: string, mode = 'real-time') => ({
      webhook: { url: `${stack.receiver.url}${path}`, mode },
    });
    const lookups: Readonly<Record<string, string>> = {
      'lookup-found': '2000000010',
      'lookup-not-found': '2000000044',
      'lookup-deadline': '2000000101',
      'lookup-check-digit': '1234567890',
    };
    const mixed = (await client.bulk({ npis: Object.values(lookups), ...hook('/mixed') }))
      .json;
    await save(stack, 'batch-real-time', mixed.batch_id);
    for (const [name, npi] of Object.entries(lookups))
      await save(stack, name, requestOf(mixed, npi));

    const [first = '', second = ''] = ordinaryNpis('found', 2);
    const batches: Readonly<Record<string, object>> = {
      'batch-webhook': {
        npis: [first, second, '2000000044'],
        ...hook('/batch', 'batch'),
      },
      'batch-final-at-submit': { npis: [first, second] },
      'batch-webhooks-retried': { npis: [first, second], ...hook('/fail/2/real-time') },
    };
    const ids = new Map<string, string>();
    for (const [name, body] of Object.entries(batches)) {
      const { json } = await client.bulk(body);
      ids.set(name, json.batch_id);
      await save(stack, name, json.batch_id);
    }
    const path = `/api/v1/batch/${ids.get('batch-webhooks-retried')}/deliveries`;
    const { deliveries } = (await client.get<{ deliveries: { id: string }[] }>(path))
      .json;
    await save(stack, 'delivery-retried', deliveries[0]?.id);
    await recordTestEvent(stack, client.organizationId);
  });
}

async function recordTestEvent(stack: Stack, organizationId: string): Promise<void> {
  const testId = inventedId('msg', randomUUID());
  const target = encryptSecret(SECRET_KEYS, testId, `${stack.receiver.url}/test`);
  const event = { testId, organizationId, target };
  await startTestEvent(stack.client, stack.taskQueue, event, 18_000);
  await save(stack, 'test-event', testId);
}

/** Records scenarios that need all vendors, a verifier, or the registry. */
async function recordWaterfall(): Promise<void> {
  const options = {
    lookupTimeoutMs: 35_000,
    allSources: true,
    rocketReach: { wait: '10s', call: '5s' },
  };
  await withStack(options, async (stack) => {
    const client = await stack.organization();
    const lookups: Readonly<Record<string, string>> = {
      'lookup-last-vendor-finds': '2000000218',
      'lookup-greylisted': '2000000143',
      'lookup-registry': ordinaryNpis('found', 1, 90_000)[0] ?? '',
    };
    const { json } = await client.bulk({ npis: Object.values(lookups) });
    for (const [name, npi] of Object.entries(lookups))
      await save(stack, name, requestOf(json, npi));
    const workflowId = 'reverify-recorded';
    await stack.client.workflow.execute(WORKFLOWS.reverify, {
      taskQueue: stack.taskQueue,
      workflowId,
    });
    await save(stack, 'reverify', workflowId);
  });
}

/** Records lookups whose vendor never responds. */
async function recordMissingResponses(): Promise<void> {
  const [silent = '', lost = ''] = ordinaryNpis('found', 2, 95_000);
  const costly = { ...createScriptedVendor('costly'), repeatIsFree: false };
  const vendor = createScriptedVendor();
  costly.script(lost, () => ({ kind: 'retry', why: 'unanswered', afterMs: null }));
  vendor.script(silent, () => ({ kind: 'retry', why: 'unanswered', afterMs: null }));
  const options = { lookupTimeoutMs: 15_000, providers: [costly, vendor] };
  await withStack(options, async (stack) => {
    const client = await stack.organization();
    const { json } = await client.bulk({ npis: [silent, lost] });
    await save(stack, 'lookup-source-timed-out', requestOf(json, silent));
    await save(stack, 'lookup-response-lost', requestOf(json, lost));
  });
}

/**
 * Records uploads of the console: one that continues as a new run and ends, and one that an operator
 * cancels. Their Temporal suggests a new run after two parts.
 */
async function recordUploads(): Promise<void> {
  await using opened = new AsyncDisposableStack();
  const { address: temporalAddress, stop } = await startTemporal({
    cli: testSetting('TEST_TEMPORAL_CLI'),
    namespace: 'default',
    dynamicConfig: { 'limit.historyCount.suggestContinueAsNew': 15 },
  });
  opened.defer(stop);
  const elsewhere = { temporalAddress, taskQueue: TASK_QUEUE };
  await withStack({ elsewhere }, async (stack) => {
    await stack.startWorker();
    const begin = async (organization: Organization) => {
      const { organizationId } = organization;
      const id = await startedUpload(stack.db, organization, ordinaryNpis('found', 130));
      const upload = { uploadId: id, organizationId };
      await startUpload(stack.client, stack.taskQueue, upload);
      return id;
    };
    const upload = await begin(await stack.organization());
    await save(stack, 'upload', upload);
    const { events } = await stack.client.workflow.getHandle(upload).fetchHistory();
    const started = events?.[0]?.workflowExecutionStartedEventAttributes;
    await save(stack, 'upload-continued', upload, started?.firstExecutionRunId ?? '');
    const slow = await begin(await stack.organization(1000, 1));
    const workflow = stack.client.workflow.getHandle(slow);
    await eventually(async () =>
      (await workflow.describe()).historyLength > 12 ? true : null,
    );
    await workflow.cancel();
    await save(stack, 'upload-cancelled', slow);
  });
}

/** Records the actions of operators, with vendors that respond on demand. */
async function recordInterventions(): Promise<void> {
  const vendor = createScriptedVendor();
  const npis = ordinaryNpis('found', 30);
  const take = () => npis.shift() ?? '';
  const hanging = () => {
    const npi = take();
    vendor.script(npi, ({ signal }) => aborted(signal));
    return npi;
  };
  const options = {
    lookupTimeoutMs: 8000,
    sweepIntervalMs: 1000,
    providers: [vendor],
  };
  await withStack(options, async (stack) => {
    const client = await stack.organization();
    const webhook = { url: `${stack.receiver.url}/hook` };
    const workflow = (id = '') => stack.client.workflow.getHandle(id);
    const asked = (npi: string) =>
      eventually(async () => (vendor.asked(npi, 'submit') > 0 ? true : null));
    const submit = async (count: number) => {
      const open = Array.from({ length: count }, hanging);
      const { json } = await client.bulk({ npis: open, webhook });
      await Promise.all(open.map(asked));
      return json;
    };

    const cancelled = await submit(2);
    await workflow(cancelled.batch_id).cancel();
    await save(stack, 'batch-cancelled', cancelled.batch_id);
    await save(stack, 'lookup-cancelled', cancelled.requests[0]?.request_id);

    const children = await submit(2);
    await workflow(children.requests[0]?.request_id).terminate('recorded');
    await workflow(children.requests[1]?.request_id).cancel();
    await save(stack, 'batch-lookups-terminated-and-cancelled', children.batch_id);
    await save(stack, 'lookup-terminated', children.requests[0]?.request_id);

    const held = take();
    const { script, release } = heldScript(foundStep(held));
    vendor.script(held, script);
    const adopted = (await client.bulk({ npis: [held, hanging()], webhook })).json;
    const { runId } = await workflow(adopted.batch_id).describe();
    await asked(held);
    await workflow(adopted.batch_id).terminate('recorded');
    await eventually(async () => {
      const description = await workflow(adopted.batch_id).describe();
      return description.runId !== runId && description.historyLength > 4 ? true : null;
    });
    release();
    await save(stack, 'batch-terminated', adopted.batch_id, runId);
    await save(stack, 'batch-started-again', adopted.batch_id);
  });
}

await main(
  { name: 'histories', description: 'Records histories to replay in tests.', help: HELP },
  async () => {
    const stop = await startServers();
    try {
      await recordOutcomes();
      await recordWaterfall();
      await recordInterventions();
      await recordMissingResponses();
      await recordUploads();
    } finally {
      await stop();
    }
  },
);
