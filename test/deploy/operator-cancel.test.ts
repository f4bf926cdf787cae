import test from 'ava';
import { balanceOf } from '../../db/accounts/credits.ts';
import { diagnose } from '../../db/doctor/doctor.ts';
import { listAudit } from '../../db/operations/audit.ts';
import { settle } from '../../db/requests/settle.ts';
import { claimDelivery } from '../../db/webhooks/attempts.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import { openOrganization, RULES, submitAccepted } from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

const database = freshDatabase(test);
const { db, sql } = database;
const { operator, text, json } = operatorOn(database.url);

const SCHEDULE = { webhookScheduleMs: [0, 1000], webhookLongestRestMs: 1000 };

const npisFrom = (first: number, count: number) =>
  Array.from({ length: count }, (_, n) => String(first + n));

async function submitted(
  organization: Awaited<ReturnType<typeof openOrganization>>,
  npis: readonly string[],
) {
  const webhook = { url: 'https://hooks.example.com/', mode: 'real-time' } as const;
  return await submitAccepted(db, organization, { npis, webhook });
}

test('canceling a batch refunds its open requests and makes their webhooks due', async (t) => {
  const organization = await openOrganization(db, 10);
  const { organizationId } = organization;
  const { batchId, requestIds } = await submitted(organization, npisFrom(2100000001, 3));
  const [first = '', second = ''] = requestIds;
  await settle(db, first, 'finished', 'no_source', RULES);
  const other = await submitted(organization, ['2100000011']);

  const counted = { open_requests: 2, held_credits: 2, canceled: 0 };
  t.like(await json('batch', 'cancel', batchId, '--dry-run', ...WHY), counted);
  const unsure = await operator('batch', 'cancel', batchId, ...WHY);
  t.is(unsure.code, 1);
  t.regex(unsure.stdout, /Nothing was canceled: add --yes/);
  t.is((await balanceOf(db, organizationId)).held, 3);

  t.like(await json('batch', 'cancel', batchId, '--yes', ...WHY), { canceled: 2 });
  t.like(await balanceOf(db, organizationId), { available: 9, held: 1, used: 0 });
  const rows = await sql`
    select status, reason from requests where batch_id = ${batchId} order by position`;
  const canceled = { status: 'failed', reason: 'cancelled' };
  t.like(rows, [{ status: 'not_found', reason: 'no_source' }, canceled, canceled]);
  const [delivery] = await sql<{ id: string }[]>`
    select id from webhook_deliveries where request_id = ${second}`;
  const claimed = await claimDelivery(db, delivery?.id ?? '', SCHEDULE);
  t.is(claimed.kind, 'attempt');

  // A result that arrives after the cancellation charges nothing.
  await storeEmail(db, {
    npi: '2100000002',
    email: 'late@clinic.example.org',
  });
  const late = await settle(db, second, 'finished', 'no_source', RULES);
  t.like(late, { status: 'failed', settledNow: false });
  t.is((await balanceOf(db, organizationId)).used, 0);

  t.like(await json('batch', 'cancel', batchId, '--yes', ...WHY), { canceled: 0 });
  const [entry] = await listAudit(db, organizationId, 1);
  t.like(entry, {
    action: 'batch.cancel',
    subject: batchId,
    details: { requests: 2, credits: 2 },
  });
  const [open] = await sql`
    select settled_at from requests where batch_id = ${other.batchId}`;
  t.is(open?.settled_at, null);
  const checks = await diagnose(db, { ...RULES, ...SCHEDULE });
  t.deepEqual(
    checks.filter(({ findings }) => findings > 0),
    [],
  );
});

test('canceling the requests of an organization takes several transactions', async (t) => {
  const organization = await openOrganization(db, 1000);
  const { organizationId } = organization;
  for (let n = 0; n < 9; n += 1) {
    await submitted(organization, npisFrom(2200000001 + 60 * n, 60));
  }
  const other = await openOrganization(db, 10);
  await submitted(other, ['2200000001']);
  const whole = ['batch', 'cancel', '--organization', organizationId];
  t.like(await json(...whole, '--dry-run', ...WHY), {
    open_batches: 9,
    open_requests: 540,
  });
  t.like(await json(...whole, '--yes', ...WHY), { canceled: 540 });
  t.like(await balanceOf(db, organizationId), { available: 1000, held: 0 });
  t.is((await balanceOf(db, other.organizationId)).held, 1);
  const audit = await listAudit(db, organizationId, 2);
  t.deepEqual(audit.map(({ details }) => details.requests).sort(), [40, 500]);
});

test('a cancellation needs exactly one of a batch and an organization', async (t) => {
  const { organizationId } = await openOrganization(db, 0);
  const both = ['bat_01h2xcejqtf2nbrexx3vqjhp41', '--organization', organizationId];
  for (const given of [[], both]) {
    const { code, stderr } = await operator('batch', 'cancel', ...given, ...WHY);
    t.is(code, 2);
    t.regex(stderr, /give either a batch or --organization/);
  }
  t.regex(
    await text('batch', 'cancel', '--organization', organizationId, '--yes', ...WHY),
    /^canceled +0$/m,
  );
});
