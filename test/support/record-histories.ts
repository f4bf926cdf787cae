import { sql } from 'drizzle-orm';
import { MAGIC, STORED_EMAILS } from '../../deploy/local/sim/magic.ts';
import { main } from '../../deploy/main.ts';
import { WORKFLOWS } from '../../workflows/messages.ts';
import { saveHistory } from './histories.ts';
import { eventually, type SubmitAnswer } from './organization.ts';
import { startServers } from './servers.ts';
import { type Stack, type StackOptions, startStack } from './stack.ts';
import { storeEmail } from './stored.ts';
import { aborted, createScriptedVendor, foundStep, heldScript, ordinaryNpis } from './vendors.ts';

// `npm run histories`: records the histories that test/workflows/replay.test.ts replays. Each scenario ends with `save`,
// under the name of what happened.

const HELP = `
It brings its own servers, takes about a minute, and writes all histories into test/histories/ anew, each under the name of
what happened. Commit those that are meant to be new: the others stand for workflows that run in production while a new
version is deployed. Before the first release of a change record anew; later, a change that breaks one is patched
(workflow.patched), and its new course is added under a new name.

Needs no settings; TEST_DATABASE_URL, TEST_TEMPORAL_ADDRESS and TEST_TEMPORAL_CLI name servers that are there already.
Exit codes: 0 recorded, 1 failed (one sentence on stderr), 2 wrong usage.`;

async function withStack(options: StackOptions, use: (stack: Stack) => Promise<void>): Promise<void> {
  const stack = await startStack(options);
  try {
    await use(stack);
  } finally {
    await stack.stop();
  }
}

/** Waits until the workflow is closed, and saves it. */
async function save(stack: Stack, name: string, workflowId = '', runId?: string): Promise<void> {
  const handle = stack.client.workflow.getHandle(workflowId, runId);
  // A child may not be there yet.
  const closeTime = async () => (await handle.describe().catch(() => null))?.closeTime;
  await eventually(async () => ((await closeTime()) ? true : null));
  await saveHistory(name, workflowId, await handle.fetchHistory());
  console.log(name);
}

function requestOf({ requests }: SubmitAnswer, npi: string): string | undefined {
  return requests.find((request) => request.npi === npi)?.request_id;
}

/** Every outcome of a look-up and of a batch, against the simulated vendor. */
async function recordOutcomes(): Promise<void> {
  await withStack({ lookupTimeoutMs: 5000 }, async (stack) => {
    const client = await stack.organization();
    const hook = (path: string, mode = 'real-time') => ({
      webhook: { url: `${stack.receiver.url}${path}`, mode },
    });
    const lookups: Readonly<Record<string, string>> = {
      'lookup-found': '2000000010',
      'lookup-personal': '2000000028',
      'lookup-not-found': '2000000044',
      'lookup-deadline': '2000000101',
      'lookup-vendor-fails': '2000000119',
      'lookup-rate-limited': '2000000127',
      'lookup-unusable': '2000000135',
      'lookup-asynchronous-vendor': ordinaryNpis('found_later', 1)[0] ?? '',
      'lookup-identity-mismatch': '2000000168',
    };
    const npis = [...Object.values(lookups), '1234567890', '2000000010'];
    const mixed = (await client.bulk({ npis, ...hook('/mixed') })).json;
    await save(stack, 'bulk-mixed-real-time', mixed.batch_id);
    for (const [name, npi] of Object.entries(lookups)) await save(stack, name, requestOf(mixed, npi));

    const [first = '', second = '', ...more] = ordinaryNpis('found', 12);
    const batches: Readonly<Record<string, object>> = {
      'single-found': { npis: [first] },
      'single-not-found': { npis: ordinaryNpis('not_found', 1) },
      'single-check-digit': { npis: ['1234567890'] },
      'single-deadline': { npis: ['2000000101'] },
      'bulk-without-webhook': { npis: more },
      'batch-webhook': { npis: [second, '2000000044'], ...hook('/batch', 'batch') },
    };
    for (const [name, body] of Object.entries(batches))
      await save(stack, name, await submitted(client.bulk(body)));
    const known: Readonly<Record<string, object>> = {
      'replayed-real-time': { npis: [first, second], ...hook('/replayed') },
      'batch-webhook-retried': { npis: [first], ...hook('/fail/3/batch', 'batch') },
      'real-time-webhook-retried': { npis: [first, second], ...hook('/fail/2/real-time') },
      'webhook-exhausted': { npis: [first], ...hook('/status/503/never') },
      'webhook-gone': { npis: [first], ...hook('/status/410/gone', 'batch') },
    };
    const ids = new Map<string, string>();
    for (const [name, body] of Object.entries(known)) {
      const batchId = await submitted(client.bulk(body));
      ids.set(name, batchId);
      await save(stack, name, batchId);
    }
    const deliveriesOf = async (name: string) => {
      const path = `/api/v1/batch/${ids.get(name)}/deliveries`;
      return { path, ...(await client.get<{ deliveries: { id: string }[] }>(path)).json };
    };
    for (const name of ['real-time-webhook-retried', 'webhook-exhausted']) {
      await save(stack, `${name}-delivery`, (await deliveriesOf(name)).deliveries[0]?.id);
    }
    for (const name of ['batch-webhook-retried', 'webhook-gone']) {
      const { path, deliveries } = await deliveriesOf(name);
      await client.call('POST', `${path}/${deliveries[0]?.id}/resend`);
      await save(stack, `${name}-resent`, deliveries[0]?.id);
    }
  });
}

/** The whole waterfall: every magic NPI, by all vendors, with a verifier and the registry. */
async function recordWaterfall(): Promise<void> {
  const options = { lookupTimeoutMs: 35_000, allSources: true, rocketReach: WATERFALL };
  await withStack(options, async (stack) => {
    const client = await stack.organization();
    for (const { npi, email, type, validatedAgoMs } of STORED_EMAILS) {
      const lastValidatedAt = new Date(Date.now() - validatedAgoMs);
      await storeEmail(stack.db, { npi, email, emailType: type, lastValidatedAt, source: 'test' });
    }
    const magic = [...MAGIC.keys()];
    const all = (await client.bulk({ npis: magic })).json;
    await save(stack, 'waterfall-batch', all.batch_id);
    for (const npi of magic) {
      const handle = stack.client.workflow.getHandle(requestOf(all, npi) ?? '');
      // Those that are refused or known at once have no lookup.
      const looked = await handle.describe().catch(() => null);
      if (looked) await save(stack, `waterfall-${npi}`, looked.workflowId);
    }
    const unknown = ordinaryNpis('found', 2, 90_000);
    const identified = (await client.bulk({ npis: unknown })).json;
    await save(stack, 'waterfall-registry', identified.batch_id);

    await stack.db.drizzle.execute(sql`delete from stored_emails where npi = ${ALL_VENDORS}`);
    await stack.db.drizzle.execute(sql`update lookups set facts = null where npi = ${ALL_VENDORS}`);
    const others = await Promise.all([stack.organization(), stack.organization()]);
    const shared = await Promise.all(others.map((one) => one.single({ npi: ALL_VENDORS })));
    for (const [i, { json }] of shared.entries()) {
      await save(stack, `waterfall-shared-${i + 1}`, json.batch_id);
    }
    const workflowId = 'reverify-recorded';
    await stack.client.workflow.execute(WORKFLOWS.reverify, { taskQueue: stack.taskQueue, workflowId });
    await save(stack, 'reverify', workflowId);
  });
}

/** Only the last vendor knows this one. */
const ALL_VENDORS = '2000000218';
const WATERFALL = { wait: '10s', call: '5s' };

async function submitted(answer: Promise<{ readonly json: SubmitAnswer }>): Promise<string> {
  return (await answer).json.batch_id;
}

/** What operators, outages and the sweep do, against vendors that answer on demand. */
async function recordInterventions(): Promise<void> {
  const vendor = createScriptedVendor();
  const second = createScriptedVendor('second');
  const npis = ordinaryNpis('found', 30);
  const take = () => npis.shift() ?? '';
  const hanging = () => {
    const npi = take();
    vendor.script(npi, ({ signal }) => aborted(signal));
    return npi;
  };
  const options = { lookupTimeoutMs: 8000, sweepIntervalMs: 1000, providers: [vendor, second] };
  await withStack(options, async (stack) => {
    const client = await stack.organization();
    const webhook = { url: `${stack.receiver.url}/hook` };
    const workflow = (id = '') => stack.client.workflow.getHandle(id);
    const asked = (npi: string) => eventually(async () => (vendor.asked(npi, 'submit') > 0 ? true : null));
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

    const alone = await submit(1);
    await workflow(alone.batch_id).cancel();
    await save(stack, 'single-cancelled', alone.batch_id);
    const ended = await submit(1);
    const ofEnded = await workflow(ended.batch_id).describe();
    await workflow(ended.batch_id).terminate('recorded');
    await save(stack, 'single-terminated', ended.batch_id, ofEnded.runId);

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

    const lost = await submit(2);
    const before = await workflow(lost.batch_id).describe();
    await workflow(lost.batch_id).terminate('recorded');
    for (const one of lost.requests) await workflow(one.request_id).terminate('recorded');
    await eventually(async () =>
      (await workflow(lost.batch_id).describe()).runId === before.runId ? null : true,
    );
    await save(stack, 'batch-started-again-nothing-left', lost.batch_id);

    const [neither, later, broken] = [take(), take(), take()];
    vendor.script(later, () => ({ kind: 'miss', reason: 'nobody' }));
    second.script(later, () => foundStep(later));
    vendor.script(broken, () => ({ kind: 'fatal', why: 'auth' }));
    second.script(broken, () => ({ kind: 'fatal', why: 'plan' }));
    const both = (await client.bulk({ npis: [neither, later, broken] })).json;
    await workflow(both.batch_id).result();
    await save(stack, 'lookup-two-vendors-miss', requestOf(both, neither));
    await save(stack, 'lookup-second-vendor-finds', requestOf(both, later));
    await save(stack, 'lookup-vendors-refuse', requestOf(both, broken));

    await stack.stopWorker();
    const away = (await client.bulk({ npis: [take()], webhook })).json;
    await eventually(async () => {
      const [row] = await stack.db.drizzle.execute(
        sql`select 1 from batches where id = ${away.batch_id} and deadline_at < clock_timestamp()`,
      );
      return row ?? null;
    });
    await stack.startWorker();
    await save(stack, 'batch-workers-away', away.batch_id);
    // The sweep may have settled it before the batch could start a lookup.
    const lookup = away.requests[0]?.request_id ?? '';
    const started = await workflow(lookup)
      .describe()
      .catch(() => null);
    if (started) await save(stack, 'lookup-workers-away', lookup);
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
    } finally {
      await stop();
    }
  },
);
