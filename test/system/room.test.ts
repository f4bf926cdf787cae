import test from 'ava';
import { settleOnce, tendWorkflows } from '../../activities/sweep.ts';
import { type BatchStart, markStarted } from '../../db/requests/outbox.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { createLog } from '../../deploy/log.ts';
import { fresh, freshDatabase } from '../support/database.ts';
import {
  acceptedIds,
  eventually,
  openOrganization,
  RULES,
  type SubmitAnswer,
  submitCommand,
} from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { createScriptedVendor, foundStep, heldScript, ordinaryNpis } from '../support/vendors.ts';

// An organization has room for so many lookups at once. The rest of its requests wait in PostgreSQL, by their deadline,
// and keep nobody else waiting.

const ROOM = 3;
const ROOM_RULES = { ...RULES, lookupsPerOrganization: ROOM };
const npis = ordinaryNpis('found', 60, 700_000);
const vendor = createScriptedVendor();
const stack = fresh(test, () =>
  startStack({ providers: [vendor], lookupsPerOrganization: ROOM, sweepIntervalMs: 1000 }),
);
const { db, sql: reader } = freshDatabase(test);

/** NPIs whose answers the vendor holds back, how many of them it was asked, and the way to let one go. */
function held(count: number) {
  const scripts = new Map(npis.splice(0, count).map((npi) => [npi, heldScript(foundStep(npi))]));
  for (const [npi, { script }] of scripts) vendor.script(npi, script);
  const all = [...scripts.keys()];
  const asked = () => all.filter((npi) => vendor.asked(npi, 'submit') > 0);
  return {
    all,
    asked,
    askedAfter: (n: number) => eventually(async () => (asked().length >= n ? asked() : null)),
    release: (npi: string) => scripts.get(npi)?.release(),
  };
}

const workflowExists = (id: string) =>
  stack.client.workflow
    .getHandle(id)
    .describe()
    .then(() => true)
    .catch(() => false);

test('an organization has so many lookups at once and the first to be overdue go first, while another one gets in at once', async (t) => {
  const [many, one] = [await stack.organization(), await stack.organization()];
  const { all, asked, askedAfter, release } = held(8);
  const bulk = (await many.bulk({ npis: all.slice(0, 5) })).json;
  const [first, second] = [
    (await many.single({ npi: all[5] })).json,
    (await many.bulk({ npis: all.slice(6) })).json,
  ];
  t.deepEqual(await askedAfter(ROOM), all.slice(0, ROOM));
  const statuses = (await many.batch(bulk.batch_id)).data.map(({ status }) => status);
  t.deepEqual(statuses, [...Array(ROOM).fill('in-progress'), 'accepted', 'accepted']);
  // What waits as a whole costs Temporal nothing.
  t.deepEqual(await Promise.all([first, second].map(({ batch_id }) => workflowExists(batch_id))), [
    false,
    false,
  ]);

  const other = held(1);
  const theirs = (await one.single({ npi: other.all[0] })).json;
  await other.askedAfter(1);
  other.release(other.all[0] ?? '');
  t.is((await one.completed(theirs.batch_id)).data[0]?.status, 'completed');
  t.deepEqual(asked(), all.slice(0, ROOM));

  for (const [index, npi] of all.entries()) {
    release(npi);
    const next = await askedAfter(Math.min(index + 1 + ROOM, all.length));
    t.deepEqual(next, all.slice(0, index + 1 + ROOM));
  }
  for (const { batch_id } of [bulk, first, second]) {
    const { data } = await many.completed(batch_id);
    t.true(data.every(({ status }) => status === 'completed'));
  }
});

test('room that its process could not tell of before it died is found by the sweep, of a batch that runs and of one that waits', async (t) => {
  const client = await stack.organization();
  const { all, askedAfter, release } = held(ROOM + 2);
  const bulk = (await client.bulk({ npis: all.slice(0, ROOM + 1) })).json;
  const single = (await client.single({ npi: all.at(-1) })).json;
  await askedAfter(ROOM);
  // As the process that dies when it has committed.
  for (const n of [0, 1]) {
    await settle(stack.db, bulk.requests[n]?.request_id ?? '', 'failed', 'test', ROOM_RULES);
    await askedAfter(ROOM + n + 1);
  }
  for (const npi of all) release(npi);
  for (const { batch_id } of [bulk, single]) await client.completed(batch_id);
  t.deepEqual(await client.credits(), { balance: 1000 - ROOM, total: 1000, used: ROOM });
});

test('a lookup that is terminated leaves its room to the next', async (t) => {
  const client = await stack.organization();
  const { all, askedAfter, release } = held(ROOM + 1);
  const { batch_id, requests }: SubmitAnswer = (await client.bulk({ npis: all })).json;
  await askedAfter(ROOM);
  await stack.client.workflow.getHandle(requests[0]?.request_id ?? '').terminate('test');
  t.deepEqual(await askedAfter(ROOM + 1), all);
  for (const npi of all) release(npi);
  const { data } = await client.completed(batch_id);
  t.deepEqual(
    data.map(({ status }) => status),
    ['failed', ...Array(ROOM).fill('completed')],
  );
});

test('a batch that is cancelled refunds what waits as well, and asks nobody for it', async (t) => {
  const client = await stack.organization();
  const { all, asked, askedAfter } = held(ROOM + 4);
  const { batch_id } = (await client.bulk({ npis: all })).json;
  await askedAfter(ROOM);
  await stack.client.workflow.getHandle(batch_id).cancel();
  await client.completed(batch_id);
  t.is(asked().length, ROOM);
  t.deepEqual(await client.credits(), { balance: 1000, total: 1000, used: 0 });
});

test('what is overdue leaves its room to what is not, and nobody is told of what still waits', async (t) => {
  const organization = await openOrganization(db, 100);
  const accept = async (count: number) =>
    acceptedIds(await submit(db, submitCommand(organization, { npis: npis.slice(0, count) }), ROOM_RULES));
  const [old, next, soon, last] = [
    await accept(ROOM + 1),
    await accept(ROOM),
    await accept(1),
    await accept(1),
  ];
  await reader`update requests set deadline_at = deadline_at - interval '10 seconds' where batch_id = ${soon.batchId}`;
  await reader`update batches set wake_at = null, started_at = now() where id = ${old.batchId}`;
  await reader`update requests set deadline_at = now() where batch_id = ${old.batchId}`;
  const woken: string[] = [];
  const control = {
    namespace: 'default',
    wakeBatch: async ({ batchId }: { batchId: string }) => void woken.push(batchId),
    tellBatch: async () => {},
    isRunning: async () => true,
    stateOf: async () => 'open' as const,
    startDelivery: async () => {},
  };
  const rules = {
    ...{ ...ROOM_RULES, greylistMs: 1000, webhookScheduleMs: [0] },
    sweep: { startAfterMs: 0, checkEveryMs: 0 },
  };
  const log = createLog('test', 'silent');
  const deps = { db, log, control, rules };
  const { settled } = await settleOnce(deps, new AbortController().signal);
  t.is(settled, ROOM + 1);
  await tendWorkflows(deps, new AbortController().signal);
  t.deepEqual(woken.filter((id) => [old, next, soon, last].some(({ batchId }) => batchId === id)).sort(), [
    next.batchId,
    soon.batchId,
  ]);
  const [row] = await reader`select wake_at from batches where id = ${last.batchId}`;
  t.is(row?.wake_at, null);
});

test('who has told a batch of room does not take a later room for told', async (t) => {
  const organization = await openOrganization(db, 100);
  const command = submitCommand(organization, { npis: npis.slice(0, ROOM + 2) });
  const { requestIds } = acceptedIds(await submit(db, command, ROOM_RULES));
  const rooms: BatchStart[] = [];
  for (const requestId of requestIds.slice(0, 2)) {
    rooms.push(...(await settle(db, requestId, 'failed', 'test', ROOM_RULES)).wake);
  }
  const inOutbox: boolean[] = [];
  for (const start of rooms) {
    await markStarted(db, start);
    const [row] = await reader`select wake_at is not null as waits from batches where id = ${start.batchId}`;
    inOutbox.push(row?.waits);
  }
  t.deepEqual(inOutbox, [true, false]);
});

test('while more wait than there is room for it is given a tenth of all at a time, and the last ones at once', async (t) => {
  const organization = await openOrganization(db, 100);
  const rules = { ...RULES, lookupsPerOrganization: 20 };
  const { batchId, requestIds } = acceptedIds(
    await submit(db, submitCommand(organization, { npis: npis.slice(0, 25) }), rules),
  );
  const inRoom: number[] = [];
  for (const requestId of requestIds.slice(0, 5)) {
    await settle(db, requestId, 'failed', 'test', rules);
    const open =
      await reader`select from requests where batch_id = ${batchId} and settled_at is null and has_room`;
    inRoom.push(open.length);
  }
  t.deepEqual(inRoom, [19, 20, 19, 20, 20]);
});

test('submits and settlements of all processes at once never give more room than there is, and leave none', async (t) => {
  const organization = await openOrganization(db, 1000);
  const { organizationId } = organization;
  const open = () =>
    reader`select id, has_room from requests where organization_id = ${organizationId} and settled_at is null`;
  const accept = () => submit(db, submitCommand(organization, { npis: npis.slice(0, 7) }), ROOM_RULES);
  await Promise.all(Array.from({ length: 5 }, accept));
  for (let round = 0; ; round += 1) {
    const rows = await open();
    const inRoom = rows.filter(({ has_room }) => has_room);
    t.is(inRoom.length, Math.min(ROOM, rows.length));
    if (rows.length === 0) break;
    await Promise.all([
      ...inRoom.map(({ id }) => settle(db, id, 'failed', 'test', ROOM_RULES)),
      ...(round < 5 ? [accept()] : []),
    ]);
  }
});
