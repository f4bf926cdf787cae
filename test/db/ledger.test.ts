import test from 'ava';
import type { Sql, TransactionSql } from 'postgres';
import { newId } from '../../db/connection/ids.ts';
import { forgetOld } from '../../db/requests/retention.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { auditLedger } from '../support/ledger.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';

// Tests the constraints and triggers that keep the ledger correct. The tests write SQL directly,
// without the service's code.

const { db, sql } = freshDatabase(test);

const NPI = '2000000010';

/** Opens an organization with one open request. */
async function openRequest(credits = 10) {
  const organization = await openOrganization(db, credits);
  const outcome = await submit(db, submitCommand(organization, { npis: [NPI] }), RULES);
  const { batchId, requestIds } = acceptedIds(outcome);
  return { ...organization, requestId: requestIds[0] ?? '', batchId };
}

const refusedBy = (constraint: string) => ({ message: new RegExp(constraint) });

test('the database rejects spending more credits than an organization has', async (t) => {
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

/** Returns the ledger entries of requests, oldest first. */
const entriesOf = async (ids: readonly string[]) =>
  (
    await sql`select kind, amount::int, created_at from ledger_entries where request_id = any(${[...ids]}) order by id`
  ).map(({ kind, amount, created_at }) => [kind, amount, created_at]);

test('database triggers write the hold, charge, and release of each request', async (t) => {
  const organization = await openOrganization(db, 50);
  const { batchId } = await submitAccepted(db, organization, {
    npis: Array.from({ length: 8 }, () => NPI),
  });
  const { organizationId } = organization;
  const [accepted, settled] = [
    new Date('2026-01-01T00:00:00Z'),
    new Date('2026-01-01T00:01:00Z'),
  ];
  const insert = (
    position: number,
    { status, replayed = false }: { status: string; replayed?: boolean },
  ) => {
    const id = newId('req');
    const found =
      status === 'completed' ? { email: 'a@b.com', type: 'personal', at: settled } : null;
    return sql<{ id: string }[]>`
      insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, replayed, email, email_type,
                            email_last_validated_at, accepted_at, deadline_at, settled_at)
      values (${id}, ${batchId}, ${organizationId}, ${position}, ${NPI}, 'any', 3, ${status}, ${replayed},
              ${found?.email ?? null}, ${found?.type ?? null}, ${found?.at ?? null}, ${accepted}, ${settled},
              ${status === 'accepted' ? null : settled})
      returning id`.then(([row]) => row?.id ?? '');
  };
  const hold = ['hold', 3, accepted];
  t.deepEqual(await entriesOf([await insert(10, { status: 'completed' })]), [
    hold,
    ['charge', 3, settled],
  ]);
  t.deepEqual(await entriesOf([await insert(11, { status: 'not_found' })]), [
    hold,
    ['release', 3, settled],
  ]);
  t.deepEqual(
    await entriesOf([await insert(12, { status: 'completed', replayed: true })]),
    [],
  );
  for (const [position, end, settlement] of [
    [
      13,
      sql`status = 'completed', email = 'a@b.com', email_type = 'personal', email_last_validated_at = now()`,
      'charge',
    ],
    [
      14,
      sql`status = 'completed', email = 'a@b.com', email_type = 'personal', email_last_validated_at = now(),
            replayed = true`,
      'release',
    ],
    [15, sql`status = 'not_found'`, 'release'],
    [16, sql`status = 'failed'`, 'release'],
  ] as const) {
    const id = await insert(position, { status: 'accepted' });
    t.deepEqual(await entriesOf([id]), [hold]);
    await sql`update requests set status = 'in-progress', started_at = now() where id = ${id}`;
    t.deepEqual(await entriesOf([id]), [hold]);
    await sql`update requests set ${end}, settled_at = ${settled} where id = ${id}`;
    t.deepEqual(await entriesOf([id]), [hold, [settlement, 3, settled]]);
  }
  const [repaired] =
    await sql`select count(settle_hold(id))::int as n from requests where batch_id = ${batchId}`;
  t.is(repaired?.n, 0, 'a repair gives nothing of it back');
  // This test charges one person several times and writes to a batch without counting, so L5 and S1
  // don't hold here.
  const findings = await auditLedger(sql, [organizationId], 0);
  t.deepEqual(
    findings.filter((finding) => !/^(L5|S1) /.test(finding)),
    [],
  );
});

test('the database rejects a request of an organization that lacks the credits for it', async (t) => {
  const { batchId, organizationId } = await openRequest(1);
  const insert = sql`
    insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at, deadline_at)
    values (${newId('req')}, ${batchId}, ${organizationId}, 1, ${NPI}, 'any', 1, 'accepted', now(), now())`;
  await t.throwsAsync(insert, refusedBy('credit_balances_available'));
});

test('holds, charges, and releases are written only by triggers, and only once', async (t) => {
  const { organizationId, requestId } = await openRequest();
  const post = (tx: Sql | TransactionSql, id: string, kind: string) => tx`
    insert into ledger_entries (organization_id, request_id, kind, amount) values (${organizationId}, ${id}, ${kind}, 1)`;
  for (const kind of ['hold', 'charge', 'release']) {
    for (const id of [requestId, newId('req')]) {
      await t.throwsAsync(
        post(sql, id, kind),
        refusedBy('is written only by the triggers'),
      );
    }
  }
  await settle(db, requestId, 'failed', 'test', RULES);
  for (const kind of ['hold', 'charge', 'release']) {
    const byOwner = sql.begin(async (tx) => {
      await tx`set local role npe_owner`;
      await post(tx, requestId, kind);
    });
    await t.throwsAsync(byOwner, refusedBy('ledger_entries_once'));
  }
});

test('an entitlement requires a charge for the same organization, NPI, and type', async (t) => {
  const { requestId, organizationId } = await openRequest();
  const other = await openOrganization(db, 1);
  const entitle = (
    organization: string,
    npi: string,
    id: string,
    type = 'personal',
  ) => sql`
    insert into entitlements as e (organization_id, npi, email_type, request_id, charged_at)
    values (${organization}, ${npi}, ${type}, ${id}, '2026-01-01')
        on conflict (organization_id, npi, email_type) do update set request_id = excluded.request_id`;
  const refused = refusedBy('an entitlement must have a charge');
  const missing = newId('req');
  await t.throwsAsync(entitle(organizationId, NPI, missing), refused);
  await t.throwsAsync(entitle(organizationId, NPI, requestId), refused);
  await sql`update requests set status = 'completed', email = 'a@b.com', email_type = 'personal',
    email_last_validated_at = now(), settled_at = now() where id = ${requestId}`;
  await t.throwsAsync(entitle(other.organizationId, NPI, requestId), refused);
  await t.throwsAsync(entitle(organizationId, '2000000028', requestId), refused);
  await t.throwsAsync(entitle(organizationId, NPI, requestId, 'professional'), refused);
  await entitle(organizationId, NPI, requestId);
  await t.throwsAsync(entitle(organizationId, NPI, missing), refused);
});

test('an entitlement cannot be dated in the future', async (t) => {
  const { requestId, organizationId } = await openRequest();
  await sql`update requests set status = 'completed', email = 'a@b.com', email_type = 'personal',
    email_last_validated_at = now(), settled_at = now() where id = ${requestId}`;
  const entitle = (at: Date) => sql`
    insert into entitlements as e (organization_id, npi, email_type, request_id, charged_at)
    values (${organizationId}, ${NPI}, 'personal', ${requestId}, ${at})
        on conflict (organization_id, npi, email_type) do update set charged_at = excluded.charged_at`;
  const future = new Date(Date.now() + 3_600_000);
  await t.throwsAsync(entitle(future), refusedBy('dated in the future'));
  await entitle(new Date());
  await t.throwsAsync(entitle(future), refusedBy('dated in the future'));
});

test('ledger entries cannot be changed or deleted', async (t) => {
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

test('a final request cannot change, and a started request cannot become "accepted"', async (t) => {
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

test('a request cannot be completed with an email of a type that was not requested', async (t) => {
  const organization = await openOrganization(db, 10);
  const { requestIds } = await submitAccepted(db, organization, {
    npis: [NPI],
    requestedType: 'professional',
  });
  await t.throwsAsync(
    sql`update requests set status = 'completed', email = 'a@b.com', email_type = 'personal',
          email_last_validated_at = now(), settled_at = now() where id = ${requestIds[0] ?? ''}`,
    refusedBy('requests_requested_type_is_a_filter'),
  );
});

test('a batch is completed as soon as all of its requests are final, and not before', async (t) => {
  const organization = await openOrganization(db, 10);
  const { batchId, requestIds } = await submitAccepted(db, organization, {
    npis: [NPI, NPI, NPI],
  });
  const batch = async () =>
    (await sql`select status, completed_count from batches where id = ${batchId}`)[0];
  for (const [index, requestId] of requestIds.entries()) {
    t.like(await batch(), { status: 'in-progress', completed_count: index });
    await settle(db, requestId, 'failed', 'test', RULES);
  }
  t.like(await batch(), { status: 'completed', completed_count: 3 });
});

test('every ledger entry sums to zero, and the entries add up to the balance', async (t) => {
  const { organizationId, requestId } = await openRequest(7);
  await settle(db, requestId, 'failed', 'test', RULES);
  const [row] = await sql`
    select bool_and(granted + available + held + used = 0) as balanced, -sum(granted)::int as total,
           sum(available)::int as available, sum(held)::int as held, sum(used)::int as used
      from ledger_entries where organization_id = ${organizationId}`;
  t.deepEqual({ ...row }, { balanced: true, total: 7, available: 7, held: 0, used: 0 });
});

test('a request is added to the usage of a UTC day once, when it becomes final', async (t) => {
  const organization = await openOrganization(db, 10);
  const { organizationId } = organization;
  const usage = () => sql`
    select day::text, requested_type as type, found::int, replayed::int, not_found::int as none,
           failed::int, credits_charged::int as credits
      from daily_usage where organization_id = ${organizationId} order by day`;
  const { requestIds } = await submitAccepted(db, organization, {
    npis: [NPI, NPI, NPI],
    requestedType: 'personal',
  });
  const [first = '', second = '', third = ''] = requestIds;
  await sql`update requests set status = 'in-progress', started_at = now() where id = ${first}`;
  t.deepEqual([...(await usage())], [], 'no request is final yet');
  const completed = sql`status = 'completed', email = 'a@b.com', email_type = 'personal', email_last_validated_at = now()`;
  await sql`
    update requests set ${completed}, settled_at = '2026-01-02T01:59:59.999+02:00' where id = ${first}`;
  await sql`
    update requests set ${completed}, replayed = true, settled_at = '2026-01-02T02:00:00+02:00' where id = ${second}`;
  await sql`update requests set status = 'not_found', settled_at = '2026-01-02Z' where id = ${third}`;
  const expected = [
    { day: '2026-01-01', found: 1, replayed: 0, none: 0, failed: 0, credits: 3 },
    { day: '2026-01-02', found: 0, replayed: 1, none: 1, failed: 0, credits: 0 },
  ].map((row) => ({ type: 'personal', ...row }));
  t.like([...(await usage())], expected);
  await sql`
    update requests set email = null, email_type = null, email_last_validated_at = null, erased_at = now()
     where id = any(${[first, second]})`;
  t.like([...(await usage())], expected, 'an erasure changes nothing');
});

test('a request must belong to the same organization as its batch', async (t) => {
  const { batchId } = await openRequest();
  const other = await openOrganization(db, 10);
  await t.throwsAsync(
    sql`insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at, deadline_at)
        values (${newId('req')}, ${batchId}, ${other.organizationId}, 1, ${NPI}, 'any', 1, 'accepted', now(), now())`,
    refusedBy('must have the same organization'),
  );
});

test('batches and requests cannot be deleted or moved to another organization', async (t) => {
  const { batchId, requestId } = await openRequest();
  const other = await openOrganization(db, 10);
  for (const [table, id] of Object.entries({ batches: batchId, requests: requestId })) {
    const one = sql`${sql(table)} where id = ${id}`;
    await t.throwsAsync(sql`delete from ${one}`, refusedBy('append-only'));
    const moved = sql`update ${sql(table)} set organization_id = ${other.organizationId} where id = ${id}`;
    await t.throwsAsync(moved, refusedBy('append-only'));
  }
});

test('the database refuses an NPI that is not ten ASCII digits', async (t) => {
  const { batchId, organizationId } = await openRequest();
  for (const npi of ['٢٠٠٠٠٠٠٠١٠', '200000001', '2000000010\n', '２０００００００１０']) {
    await t.throwsAsync(
      sql`insert into requests (id, batch_id, organization_id, position, npi, requested_type, cost, status, accepted_at, deadline_at)
          values (${newId('req')}, ${batchId}, ${organizationId}, 1, ${npi}, 'any', 1, 'accepted', now(), now())`,
      refusedBy('requests_npi_check'),
    );
  }
});

test('Idempotency-Keys are deleted only after they have expired', async (t) => {
  const organization = await openOrganization(db, 10);
  for (const key of ['over', 'kept']) {
    const idempotency = {
      key,
      method: 'POST',
      path: '/api/v1/email',
      fingerprint: Buffer.alloc(32),
    };
    await submit(db, submitCommand(organization, { npis: [NPI], idempotency }), RULES);
  }
  await sql`update idempotency_keys set expires_at = clock_timestamp() where key = 'over'`;
  const yearMs = 365 * 86_400_000;
  await forgetOld(db, {
    resultsMs: yearMs,
    evidenceMs: yearMs,
    customDataMs: yearMs,
    webhookLogMs: yearMs,
    sandboxMs: yearMs,
  });
  const rows =
    await sql`select key from idempotency_keys where organization_id = ${organization.organizationId}`;
  t.deepEqual(
    rows.map((row) => row.key),
    ['kept'],
  );
});
