import test from 'ava';
import { sql } from 'drizzle-orm';
import type { RegistryStep } from '../../activities/person/registry.ts';
import type { Subject, Vendor } from '../../activities/vendors/vendor.ts';
import { suppressFromVendor } from '../../db/privacy/suppressions.ts';
import { fresh } from '../support/database.ts';
import { countEvents } from '../support/histories.ts';
import { startStack, vendorSource } from '../support/stack.ts';
import { createScriptedVendor, foundStep, ordinaryNpis, person } from '../support/vendors.ts';

// An NPI that no import has brought: the registry says who it is before anybody else is asked. Registry and vendors are
// scripts; everything else is as in production.

const byNpi = createScriptedVendor('by_npi');
const byName = createScriptedVendor('by_name');
/** What the second was told, submits and polls in the order they came. */
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
    lookupTimeoutMs: 20_000,
    vendors: [vendorSource(byNpi), vendorSource(nosy)],
    registry: { find: async (npi) => (await registry.get(npi)?.()) ?? { kind: 'inactive_or_unknown' } },
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
  return { batchId, requestId, status: envelope.data[0]?.status, reason: row?.reason ?? null };
}

test('the registry is asked once, its answer makes the plan, and the lookup stays short', async (t) => {
  const npi = take();
  registry.set(npi, () => person(npi));
  byName.script(npi, () => foundStep(npi));
  const { batchId, status } = await lookUp(npi);
  t.is(status, 'completed');
  const lookup = stack.client.workflow.getHandle(batchId);
  await lookup.result();
  const events = countEvents(await lookup.fetchHistory());
  t.is(events.ActivityTaskScheduled, 3, 'the registry, and two vendors');
  t.is(events.MarkerRecorded, 2, 'the plan of the batch, and the facts at its end');
});

test("while the registry is away, vendors that need a name are left out, which isn't a reason for not_found", async (t) => {
  const npi = take();
  registry.set(npi, () => ({ kind: 'retry', why: 'upstream', afterMs: 60_000 }));
  const { status, reason } = await lookUp(npi);
  t.deepEqual([status, reason], ['failed', 'upstream']);
  t.deepEqual([byNpi.asked(npi, 'submit'), byName.asked(npi, 'submit')], [1, 0]);
});

test('a registry that is back in time is waited for', async (t) => {
  const npi = take();
  let asked = 0;
  registry.set(npi, () => {
    asked += 1;
    return asked === 1 ? { kind: 'retry', why: 'upstream', afterMs: 200 } : person(npi);
  });
  byName.script(npi, () => foundStep(npi));
  t.is((await lookUp(npi)).status, 'completed');
  t.is(asked, 2);
});

test('nobody is asked about an NPI that the registry does not show', async (t) => {
  const npi = take();
  const { status, reason } = await lookUp(npi);
  t.deepEqual([status, reason], ['not_found', 'deactivated']);
  t.deepEqual([byNpi.asked(npi, 'submit'), byName.asked(npi, 'submit')], [0, 0]);
});

test('a suppression that comes after the batch was planned is seen before a vendor is asked', async (t) => {
  const npi = take();
  registry.set(npi, async () => {
    await suppressFromVendor(stack.db, npi, 'test');
    return person(npi);
  });
  const { status, reason } = await lookUp(npi);
  t.deepEqual([status, reason], ['not_found', 'suppressed']);
  t.deepEqual([byNpi.asked(npi, 'submit'), byName.asked(npi, 'submit')], [0, 0]);
});

test('every question of a lookup is about the person as planned', async (t) => {
  const npi = take();
  registry.set(npi, () => person(npi));
  byName.script(npi, async ({ operation }) => {
    if (operation === 'poll') return foundStep(npi);
    await stack.db.drizzle.execute(sql`update providers set last_name = 'ROE' where npi = ${npi}`);
    return { kind: 'pending', jobRef: 'job', pollAfterMs: 100 };
  });
  t.is((await lookUp(npi)).status, 'completed');
  t.deepEqual(
    told.filter((subject) => subject.npi === npi).map(({ person }) => person?.last),
    ['Doe', 'Doe'],
  );
});
