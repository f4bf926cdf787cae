import test from 'ava';
import { sql } from 'drizzle-orm';
import type { RegistryStep } from '../../activities/person/registry.ts';
import type { Subject, Vendor } from '../../activities/vendors/vendor.ts';
import { suppressFromVendor } from '../../db/privacy/suppressions.ts';
import { fresh } from '../support/database.ts';
import { countEvents } from '../support/histories.ts';
import { eventually } from '../support/organization.ts';
import { startStack, vendorSource } from '../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
  person,
} from '../support/vendors.ts';

// Tests lookups of NPIs that no import contains. The registry identifies the person before any
// vendor is called. Registry and vendors are scripted. Everything else is as in production.

const byNpi = createScriptedVendor('by_npi');
const byName = createScriptedVendor('by_name');
/** The subjects that the second vendor received in submits and polls, in order. */
const told: Subject[] = [];
const registry = new Map<string, () => RegistryStep | Promise<RegistryStep>>();
const npis = ordinaryNpis('found', 20, 60_000).values();
const take = () => npis.next().value ?? '';

const nosy: Vendor = {
  ...byName,
  needs: ['name'],
  submit: async (subject, signal) => {
    told.push(subject);
    return await byName.submit(subject, signal);
  },
  poll: async (jobRef, subject, signal) => {
    told.push(subject);
    return await byName.poll(jobRef, subject, signal);
  },
};

const stack = fresh(test, () =>
  startStack({
    lookupTimeoutMs: 60_000,
    vendors: [vendorSource(byNpi), vendorSource(nosy)],
    registry: {
      find: async (npi) =>
        (await registry.get(npi)?.()) ?? { kind: 'inactive_or_unknown' },
    },
  }),
);
const client = fresh(test, () => stack.organization(1000));

async function lookUp(npi: string) {
  const { json } = await client.single({ npi });
  const requestId = json.requests[0]?.request_id ?? '';
  const envelope = await client.completed(json.batch_id);
  const [row] = await stack.db.drizzle.execute<{ reason: string | null }>(
    sql`select reason from requests where id = ${requestId}`,
  );
  const { batch_id: batchId } = json;
  return {
    batchId,
    requestId,
    status: envelope.data[0]?.status,
    reason: row?.reason ?? null,
  };
}

test('if the NPI Registry is down, vendors that need a name are skipped', async (t) => {
  const npi = take();
  registry.set(npi, () => ({ kind: 'retry', why: 'upstream', afterMs: 60_000 }));
  const { status, reason } = await lookUp(npi);
  t.deepEqual([status, reason], ['failed', 'upstream']);
  t.deepEqual([byNpi.asked(npi, 'submit'), byName.asked(npi, 'submit')], [1, 0]);
});

test('no vendor is called if the NPI is suppressed while its lookup waits', async (t) => {
  const npi = take();
  registry.set(npi, async () => {
    await suppressFromVendor(stack.db, npi, 'test');
    return person(npi);
  });
  const { status, reason } = await lookUp(npi);
  t.deepEqual([status, reason], ['not_found', 'suppressed']);
  t.deepEqual([byNpi.asked(npi, 'submit'), byName.asked(npi, 'submit')], [0, 0]);
});

test('all vendor calls of a lookup use the same name, even if provider data changes', async (t) => {
  const npi = take();
  registry.set(npi, () => person(npi));
  byName.script(npi, async ({ operation }) => {
    if (operation === 'poll') return foundStep(npi);
    await stack.db.drizzle.execute(
      sql`update providers set last_name = 'ROE' where npi = ${npi}`,
    );
    return { kind: 'pending', jobRef: 'job', pollAfterMs: 100 };
  });
  t.is((await lookUp(npi)).status, 'completed');
  const names = told
    .filter((subject) => subject.npi === npi)
    .map(({ person }) => person?.last);
  // On a busy machine, a call may be repeated.
  t.true(names.length >= 2);
  t.deepEqual([...new Set(names)], ['Doe']);
});

/**
 * Submits these NPIs as one bulk. Returns the response, the batch workflow, and a function that
 * reads the status of an NPI.
 */
async function submitAll(...npis: string[]) {
  const { json } = await client.bulk({ npis });
  const workflow = await stack.startedWorkflow(json.batch_id);
  const statusOf = async (npi: string) => {
    const { data } = await client.batch(json.batch_id);
    return data.find((item) => item.npi === npi)?.status;
  };
  return { ...json, workflow, statusOf };
}

test('the lookups of a batch call the NPI Registry, and then vendors for active NPIs', async (t) => {
  const npis = [take(), take(), take()];
  const [one = '', two = '', gone = ''] = npis;
  for (const npi of [one, two]) {
    registry.set(npi, () => person(npi));
    byName.script(npi, () => foundStep(npi));
  }
  const { batch_id, requests, workflow, statusOf } = await submitAll(...npis);
  await client.completed(batch_id);
  await workflow.result();
  t.deepEqual(await Promise.all(npis.map(statusOf)), [
    'completed',
    'completed',
    'not_found',
  ]);
  t.is(countEvents(await workflow.fetchHistory()).ActivityTaskScheduled, undefined);
  const lookups = requests.map(({ request_id }) =>
    stack.client.workflow.getHandle(request_id),
  );
  t.is(
    countEvents((await lookups[0]?.fetchHistory()) ?? {}).ActivityTaskScheduled,
    3,
    'two vendors',
  );
  t.is(
    countEvents((await lookups[2]?.fetchHistory()) ?? {}).ActivityTaskScheduled,
    1,
    'the registry',
  );
  t.is(byNpi.asked(gone, 'submit'), 0);
});

test('an NPI that waits for the NPI Registry does not delay the others of its batch', async (t) => {
  const [known, quick, slow] = [take(), take(), take()];
  registry.set(known, () => person(known));
  for (const npi of [known, quick, slow]) byName.script(npi, () => foundStep(npi));
  await lookUp(known);
  await stack.db.drizzle.execute(sql`delete from stored_emails where npi = ${known}`);
  await stack.db.drizzle.execute(sql`delete from entitlements where npi = ${known}`);
  registry.set(quick, () => person(quick));
  let isBack = false;
  registry.set(slow, () =>
    isBack ? person(slow) : { kind: 'retry', why: 'upstream', afterMs: 100 },
  );
  const { batch_id, statusOf } = await submitAll(slow, quick, known);
  for (const npi of [quick, known]) {
    await eventually(async () => ((await statusOf(npi)) === 'completed' ? true : null));
  }
  t.is(await statusOf(slow), 'accepted');
  isBack = true;
  await client.completed(batch_id);
  t.is(await statusOf(slow), 'completed');
});
