import { listUploadBatches } from '../../../db/uploads/uploads.ts';
import { asRole, withSql } from '../../support/database.ts';
import { auditLedger } from '../../support/ledger.ts';
import { type EnvelopeResponse, eventually, RULES } from '../../support/organization.ts';
import { runProgram } from '../../support/programs.ts';
import { inLanes } from '../lanes.ts';
import type { Books, Customer, Order } from './books.ts';
import { CREDITS, type Market } from './customers.ts';
import { RECEIVERS, WEBHOOK_SCHEDULE, type World } from './world.ts';

// Compares the customers' books with the results, the webhooks, and the ledger at the end of the day.

/** The number of checks at the same time. */
const CHECKS = 12;

/** A promise of the service, and how it was kept. */
export interface Promised {
  readonly name: string;
  /** How often it was given. */
  readonly given: number;
  /** One line per broken promise. */
  readonly broken: readonly string[];
}

/** A delivery in our database, and its attempts at the receiver. */
interface Delivery {
  readonly id: string;
  readonly batch_id: string;
  readonly state: string;
}

/** A settled request, as the customer sees it. */
interface Result {
  readonly organizationId: string;
  readonly type: Order['type'];
  readonly item: EnvelopeResponse['data'][number];
}

/** Compares the books with everything that the service and the receivers have. */
export async function checkPromises(
  books: Books,
  world: World,
  market: Market,
  customers: readonly Customer[],
): Promise<Promised[]> {
  const uploads = await addUploads(books, world);
  const results: Result[] = [];
  const unfinished: string[] = [];
  await inLanes(books.accepted, CHECKS, async ({ customer, id, ids, type }) => {
    const { organizationId } = customer;
    const envelope = await market.send<EnvelopeResponse>(
      customer,
      'check',
      `/api/v1/batch/${id}`,
    );
    const isWhole =
      envelope?.batch.status === 'completed' && ids.length === envelope.data.length;
    if (!isWhole) unfinished.push(id);
    for (const item of envelope?.data ?? []) results.push({ organizationId, type, item });
  });
  const requests = books.accepted.reduce((sum, { ids }) => sum + ids.length, 0);
  return [
    { name: 'response to a request', given: books.calls.length, broken: books.givenUp },
    uploads,
    { name: 'final result of a 202', given: books.accepted.length, broken: unfinished },
    { name: 'result in time', given: requests, broken: await lateIn(world) },
    await webhooks(books, world),
    replays(results),
    charges(results),
    await balances(market, customers, results),
    await batches(books, world, customers),
    await audit(world, customers),
    await doctor(world),
  ];
}

/** Adds the batches of the uploads, which the console made. */
async function addUploads(books: Books, { stack }: World): Promise<Promised> {
  const broken: string[] = [];
  for (const { customer, npis, id } of books.uploads) {
    const ownBatches = await listUploadBatches(stack.db, id);
    const rows = await stack.db.drizzle.$client<{ id: string; batch_id: string }[]>`
      select id, batch_id from requests where batch_id = any(${ownBatches})`;
    if (rows.length !== npis.length)
      broken.push(`${id}: ${rows.length} of ${npis.length}`);
    for (const batchId of ownBatches) {
      const ids = rows.filter((row) => row.batch_id === batchId).map((row) => row.id);
      books.accepted.push({
        customer,
        npis,
        type: 'any',
        mode: null,
        id: batchId,
        ids,
        at: 0,
      });
    }
  }
  return { name: 'requests for a whole upload', given: books.uploads.length, broken };
}

/** Compares the deliveries with what the receivers got. */
async function webhooks({ accepted }: Books, world: World): Promise<Promised> {
  const deliveries = await world.stack.db.drizzle.$client<Delivery[]>`
    select id, batch_id, state from webhook_deliveries`;
  const received = world.received();
  const byBatch = Map.groupBy(deliveries, (delivery) => delivery.batch_id);
  const broken: string[] = [];
  let given = 0;
  for (const { customer, mode, id, ids } of accepted) {
    if (mode === null) continue;
    const own = byBatch.get(id) ?? [];
    const expected = mode === 'batch' ? 1 : ids.length;
    given += expected;
    if (own.length !== expected) broken.push(`${id}: ${own.length} of ${expected}`);
    const { accepts } = RECEIVERS[customer.receiver];
    for (const delivery of own) {
      const attempts = received.get(delivery.id)?.length ?? 0;
      const state = attempts >= accepts ? 'delivered' : 'failed';
      if (delivery.state !== state) {
        broken.push(`${delivery.id}: ${delivery.state} after ${attempts} attempts`);
      }
    }
  }
  return { name: 'webhook delivered, or reported as failed', given, broken };
}

/** Compares the batches that exist with those that customers know. */
async function batches(
  { accepted }: Books,
  { stack }: World,
  customers: readonly Customer[],
): Promise<Promised> {
  const known = new Set(accepted.map(({ id }) => id));
  const ids = customers.map(({ organizationId }) => organizationId);
  const rows = await stack.db.drizzle.$client<{ id: string }[]>`
    select id from batches where organization_id = any(${ids})`;
  const broken = rows.map(({ id }) => id).filter((id) => !known.has(id));
  return { name: 'no batch without a response', given: rows.length, broken };
}

/** Waits until no request and no delivery is open. */
export async function untilQuiet({ stack }: World, hangMs: number): Promise<void> {
  const sql = stack.db.drizzle.$client;
  await eventually(async () => {
    const [row] = await sql<{ open: number }[]>`
      select (select count(*) from requests where settled_at is null)
           + (select count(*) from webhook_deliveries where state = 'pending')
           + (select count(*) from upload_parts where batch_id is null) as open`;
    return row?.open === 0 || null;
  }, hangMs);
}

async function lateIn({ stack }: World): Promise<string[]> {
  const rows = await stack.db.drizzle.$client<{ id: string }[]>`
    select id from requests
     where coalesce(settled_at, now()) > deadline_at + interval '60 seconds'`;
  return rows.map(({ id }) => id);
}

/** An organization pays once for an NPI and type of email. */
function replays(results: readonly Result[]): Promised {
  const found = results.filter(({ item }) => item.status === 'completed');
  const groups = Map.groupBy(found, ({ organizationId, item }) =>
    [organizationId, item.npi, item.email_type].join(' '),
  );
  const repeats = [...groups].filter(([, own]) => own.length > 1);
  const broken = repeats
    .filter(([, own]) => own.filter(({ item }) => !item.replayed).length > 1)
    .map(([what]) => what);
  const given = repeats.reduce((sum, [, own]) => sum + own.length - 1, 0);
  return { name: 'free replay', given, broken };
}

/** A result has an email if it is completed, and only then. */
function charges(results: readonly Result[]): Promised {
  const broken = results
    .filter(({ item }) => (item.status === 'completed') !== (item.email !== null))
    .map(({ item }) => item.request_id);
  const given = results.filter((result) => priceOf(result) > 0).length;
  return { name: 'charge only for an email', given, broken };
}

function priceOf({ type, item }: Result): number {
  if (item.status !== 'completed' || item.replayed) return 0;
  return type === 'personal' ? 3 : 1;
}

/** Compares each balance with what the customer's own results cost. */
async function balances(
  market: Market,
  customers: readonly Customer[],
  results: readonly Result[],
): Promise<Promised> {
  const own = Map.groupBy(results, ({ organizationId }) => organizationId);
  const broken: string[] = [];
  await inLanes(customers, CHECKS, async (customer) => {
    const { organizationId } = customer;
    const used = (own.get(organizationId) ?? []).reduce(
      (sum, one) => sum + priceOf(one),
      0,
    );
    const expected = { balance: CREDITS - used, total: CREDITS, used };
    const credits = await market.send<typeof expected>(
      customer,
      'check',
      '/api/v1/credits',
    );
    const isSame =
      credits?.balance === expected.balance &&
      credits.used === used &&
      credits.total === CREDITS;
    if (!isSame) broken.push(`${organizationId}: ${JSON.stringify([credits, expected])}`);
  });
  return { name: "balance as in the customer's books", given: customers.length, broken };
}

async function audit(
  { stack }: World,
  customers: readonly Customer[],
): Promise<Promised> {
  const ids = customers.map(({ organizationId }) => organizationId);
  const broken = await withSql(stack.databaseUrl, (sql) =>
    auditLedger(sql, ids, RULES.replayMs),
  );
  return { name: 'ledger without a finding', given: ids.length, broken };
}

async function doctor({ stack }: World): Promise<Promised> {
  const { databaseUrl, taskQueue, workerEnvironment } = stack;
  const { code, stdout, stderr } = await runProgram('operator', ['doctor'], {
    env: {
      DATABASE_URL: asRole(databaseUrl, 'operator'),
      TEMPORAL_ADDRESS: workerEnvironment.TEMPORAL_ADDRESS,
      TASK_QUEUE: taskQueue,
      WEBHOOK_SCHEDULE,
    },
  });
  const broken = code === 0 ? [] : [`exit code ${code}`, stdout, stderr];
  return { name: 'doctor without a finding', given: 1, broken };
}
