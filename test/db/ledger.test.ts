import test from 'ava';
import { newId } from '../../db/ids.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { acceptedIds, openOrganization, RULES, submitCommand } from '../support/organization.ts';

// What the constraints refuse, whoever asks: here nothing but SQL stands between the wish and the wrong state.

const { db, sql } = freshDatabase(test);

const NPI = '2000000010';

/** An organization with one open request; the id of both. */
async function openRequest(credits = 10) {
  const organization = await openOrganization(db, credits);
  const outcome = await submit(db, submitCommand(organization, { npis: [NPI] }), RULES);
  const { batchId, requestIds } = acceptedIds(outcome);
  return { ...organization, requestId: requestIds[0] ?? '', batchId };
}

const refusedBy = (constraint: string) => ({ message: new RegExp(constraint) });

test('a hold beyond the available credits is refused by the balance itself', async (t) => {
  const { organizationId, requestId } = await openRequest(1);
  await t.throwsAsync(
    sql`insert into ledger_entries (organization_id, kind, amount) values (${organizationId}, 'adjustment', -1)`,
    refusedBy('credit_balances_available'),
  );
  await t.throwsAsync(
    sql`update credit_balances set available = 5 where organization_id = ${organizationId}`,
    refusedBy('credit_balances_conserved'),
  );
  t.truthy(requestId);
});

test('a request is held once and settled once, as a charge or a release', async (t) => {
  const { organizationId, requestId } = await openRequest();
  const post = (kind: string, amount = 1) =>
    sql`insert into ledger_entries (organization_id, request_id, kind, amount)
        values (${organizationId}, ${requestId}, ${kind}, ${amount})`;
  await t.throwsAsync(post('hold'), refusedBy('ledger_entries_once'));
  await settle(db, requestId, 'failed', 'test', RULES);
  await t.throwsAsync(post('charge'), refusedBy('ledger_entries_once'));
  await t.throwsAsync(post('release'), refusedBy('ledger_entries_once'));
});

test('a settlement settles a hold, and exactly its amount', async (t) => {
  const { organizationId, batchId, requestId, ...organization } = await openRequest();
  await submit(db, submitCommand({ organizationId, ...organization }, { npis: [NPI] }), RULES);
  const post = (id: string, kind: string, amount: number) => sql`
    insert into ledger_entries (organization_id, request_id, kind, amount)
    values (${organizationId}, ${id}, ${kind}, ${amount})`;
  const failed = sql`update requests set status = 'failed', settled_at = now() where id = ${requestId}`;
  const refused = refusedBy('ledger entries');
  await t.throwsAsync(sql`with failed as (${failed}) ${post(requestId, 'release', 2)}`, refused);
  const replay = newId('req');
  const replayed = sql`
    insert into requests (id, batch_id, organization_id, position, npi, wanted_type, cost, status, replayed, email,
                          email_type, email_last_validated_at, accepted_at, deadline_at, settled_at)
    values (${replay}, ${batchId}, ${organizationId}, 1, ${NPI}, 'any', 1, 'completed', true, 'a@b.com',
            'personal', now(), now(), now(), now())`;
  for (const kind of ['charge', 'release']) {
    await t.throwsAsync(sql`with replayed as (${replayed}) ${post(replay, kind, 1)}`, refused);
  }
  await sql`with failed as (${failed}) ${post(requestId, 'release', 1)}`;
});

test('a charge without a completed request, and a completed request without a charge, do not commit', async (t) => {
  const { organizationId, requestId } = await openRequest();
  await t.throwsAsync(
    sql`insert into ledger_entries (organization_id, request_id, kind, amount)
        values (${organizationId}, ${requestId}, 'charge', 1)`,
    refusedBy('ledger entries'),
  );
  await t.throwsAsync(
    sql`update requests set status = 'completed', email = 'a@b.com', email_type = 'personal',
          email_last_validated_at = now(), settled_at = now() where id = ${requestId}`,
    refusedBy('ledger entries'),
  );
});

test('a request without its hold does not commit, and with it does, by one statement or two', async (t) => {
  const { organizationId, batchId } = await openRequest();
  const hold = (id: string) => sql`
    insert into ledger_entries (organization_id, request_id, kind, amount) values (${organizationId}, ${id}, 'hold', 1)`;
  const request = (id: string, position: number) => sql`
    insert into requests (id, batch_id, organization_id, position, npi, wanted_type, cost, status, accepted_at, deadline_at)
    values (${id}, ${batchId}, ${organizationId}, ${position}, ${NPI}, 'any', 1, 'accepted', now(), now())`;
  await t.throwsAsync(request(newId('req'), 1), refusedBy('ledger entries'));
  const [once, twice] = [newId('req'), newId('req')];
  await sql`with request as (${request(once, 1)}) ${hold(once)}`;
  await sql.begin(async (tx) => {
    await tx`${request(twice, 2)}`;
    await tx`${hold(twice)}`;
  });
  const held = await sql`select request_id from ledger_entries where request_id in (${once}, ${twice})`;
  t.is(held.length, 2);
  t.deepEqual([...(await sql`select * from contradictions`)], []);
});

test('ledger entries are never changed or removed', async (t) => {
  const { organizationId } = await openRequest();
  await t.throwsAsync(
    sql`update ledger_entries set amount = 5 where organization_id = ${organizationId}`,
    refusedBy('append-only'),
  );
  await t.throwsAsync(
    sql`delete from ledger_entries where organization_id = ${organizationId}`,
    refusedBy('append-only'),
  );
  await t.throwsAsync(sql`truncate ledger_entries`, refusedBy('append-only'));
});

test('a final request never changes, and an open one never goes back to accepted', async (t) => {
  const { requestId } = await openRequest();
  await sql`update requests set status = 'in-progress', started_at = now() where id = ${requestId}`;
  await t.throwsAsync(
    sql`update requests set status = 'accepted' where id = ${requestId}`,
    refusedBy('never goes back'),
  );
  await settle(db, requestId, 'failed', 'test', RULES);
  await t.throwsAsync(
    sql`update requests set status = 'in-progress' where id = ${requestId}`,
    refusedBy('is final'),
  );
  await t.throwsAsync(
    sql`update requests set reason = 'other' where id = ${requestId}`,
    refusedBy('is final'),
  );
});

test('an email of another type than the wanted one does not complete a request', async (t) => {
  const organization = await openOrganization(db, 10);
  const command = submitCommand(organization, { npis: [NPI], wantedType: 'professional' });
  const { requestIds } = acceptedIds(await submit(db, command, RULES));
  await t.throwsAsync(
    sql`update requests set status = 'completed', email = 'a@b.com', email_type = 'personal',
          email_last_validated_at = now(), settled_at = now() where id = ${requestIds[0] ?? ''}`,
    refusedBy('requests_wanted_type_is_a_filter'),
  );
});

test('a batch is completed exactly when all of its requests are final', async (t) => {
  const organization = await openOrganization(db, 10);
  const { batchId, requestIds } = acceptedIds(
    await submit(db, submitCommand(organization, { npis: [NPI, NPI, NPI] }), RULES),
  );
  const batch = async () => (await sql`select status, completed_count from batches where id = ${batchId}`)[0];
  for (const [index, requestId] of requestIds.entries()) {
    t.like(await batch(), { status: 'in-progress', completed_count: index });
    await settle(db, requestId, 'failed', 'test', RULES);
  }
  t.like(await batch(), { status: 'completed', completed_count: 3 });
});

test('every row of the ledger sums to zero, and so does the balance of every organization', async (t) => {
  const { organizationId, requestId } = await openRequest(7);
  await settle(db, requestId, 'failed', 'test', RULES);
  const [row] = await sql`
    select bool_and(granted + available + held + used = 0) as balanced, -sum(granted)::int as total,
           sum(available)::int as available, sum(held)::int as held, sum(used)::int as used
      from ledger_entries where organization_id = ${organizationId}`;
  t.deepEqual({ ...row }, { balanced: true, total: 7, available: 7, held: 0, used: 0 });
});

test('a request cannot be of another organization than its batch', async (t) => {
  const { batchId } = await openRequest();
  const other = await openOrganization(db, 10);
  await t.throwsAsync(
    sql`insert into requests (id, batch_id, organization_id, position, npi, wanted_type, cost, status, accepted_at, deadline_at)
        values (${newId('req')}, ${batchId}, ${other.organizationId}, 1, ${NPI}, 'any', 1, 'accepted', now(), now())`,
    refusedBy('of a batch of its organization'),
  );
});

test('an entry is of a request that there is, and that is of its organization', async (t) => {
  const { organizationId, requestId } = await openRequest();
  const other = await openOrganization(db, 10);
  await submit(db, submitCommand(other, { npis: [NPI] }), RULES);
  const post = (organization: string, id: string, kind: string) => sql`
    insert into ledger_entries (organization_id, request_id, kind, amount) values (${organization}, ${id}, ${kind}, 1)`;
  await t.throwsAsync(post(organizationId, newId('req'), 'hold'), refusedBy('ledger entries'));
  const failed = sql`update requests set status = 'failed', settled_at = now() where id = ${requestId}`;
  const released = sql`with failed as (${failed}) ${post(other.organizationId, requestId, 'release')}`;
  await t.throwsAsync(released, refusedBy('ledger entries'));
});

test('batches and requests are never removed, and never become somebody else’s', async (t) => {
  const { batchId, requestId } = await openRequest();
  const other = await openOrganization(db, 10);
  for (const [table, id] of Object.entries({ batches: batchId, requests: requestId })) {
    const one = sql`${sql(table)} where id = ${id}`;
    await t.throwsAsync(sql`delete from ${one}`, refusedBy('append-only'));
    const moved = sql`update ${sql(table)} set organization_id = ${other.organizationId} where id = ${id}`;
    await t.throwsAsync(moved, refusedBy('append-only'));
  }
});

test('an NPI is ten ASCII digits for the database too', async (t) => {
  const { batchId, organizationId } = await openRequest();
  for (const npi of ['٢٠٠٠٠٠٠٠١٠', '200000001', '2000000010\n', '２０００００００１０']) {
    await t.throwsAsync(
      sql`insert into requests (id, batch_id, organization_id, position, npi, wanted_type, cost, status, accepted_at, deadline_at)
          values (${newId('req')}, ${batchId}, ${organizationId}, 1, ${npi}, 'any', 1, 'accepted', now(), now())`,
      refusedBy('requests_npi_check'),
    );
  }
});

test('Idempotency-Keys are forgotten once their time is over, and not before', async (t) => {
  const organization = await openOrganization(db, 10);
  for (const key of ['over', 'kept']) {
    const idempotency = { key, method: 'POST', path: '/api/v1/email', fingerprint: Buffer.alloc(32) };
    await submit(db, submitCommand(organization, { npis: [NPI], idempotency }), RULES);
  }
  await sql`update idempotency_keys set expires_at = clock_timestamp() where key = 'over'`;
  const yearMs = 365 * 86_400_000;
  await forgetOld(db, { answersMs: yearMs, evidenceMs: yearMs, customDataMs: yearMs, webhookLogMs: yearMs });
  const rows =
    await sql`select key from idempotency_keys where organization_id = ${organization.organizationId}`;
  t.deepEqual(
    rows.map((row) => row.key),
    ['kept'],
  );
});
