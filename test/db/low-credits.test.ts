import test from 'ava';
import { adjustCredits } from '../../db/accounts/credits.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import {
  createLowCreditMessage,
  listLowCredits,
  setLowCreditAlert,
} from '../../db/webhooks/low-credits.ts';
import { freshDatabase } from '../support/database.ts';
import {
  acceptedIds,
  grant,
  openOrganization,
  openTestKey,
  RULES,
  submitCommand,
} from '../support/organization.ts';

// Tests when the message `credits.low` is created (api/docs/webhooks.md, Low credits). No worker
// runs here, so the tests do the sweep's part.

const { db, sql } = freshDatabase(test);
const BY = { actor: 'test', reason: 'test' };
const ALERT = { threshold: 10, url: 'https://hooks.example/low' };
const NPI = '1000000010';

/** Opens an organization that has an alert at 10 credits. */
async function watched(credits: number) {
  const organization = await openOrganization(db, credits);
  await setLowCreditAlert(db, BY, organization.organizationId, ALERT);
  return organization;
}

/** Does the sweep's part for an organization. Returns true if a message was created. */
async function sweep(organizationId: string): Promise<boolean> {
  const listed = (await listLowCredits(db, 1000)).includes(organizationId);
  const created = await createLowCreditMessage(db, organizationId);
  if (listed !== created) throw new Error('the list and the creation disagree');
  return created;
}

/** Lets an hour pass since the last message. */
async function anHourLater(organizationId: string): Promise<void> {
  await sql`
    update low_credit_alerts set sent_at = sent_at - interval '1 hour'
     where organization_id = ${organizationId}`;
}

async function bodiesFor(organizationId: string): Promise<unknown[]> {
  const rows = await sql<{ body: string }[]>`
    select body from webhook_deliveries where organization_id = ${organizationId} order by id`;
  return rows.map(({ body }) => JSON.parse(body));
}

test('credits.low is created once when the balance falls below the threshold', async (t) => {
  const organization = await watched(10);
  const { organizationId } = organization;
  t.false(await sweep(organizationId));
  await submit(db, submitCommand(organization, { npis: [NPI] }), RULES);
  t.true(await sweep(organizationId));
  await submit(db, submitCommand(organization, { npis: [NPI] }), RULES);
  await anHourLater(organizationId);
  t.false(await sweep(organizationId));
  const bodies = await bodiesFor(organizationId);
  t.is(bodies.length, 1);
  t.like(bodies[0], {
    type: 'credits.low',
    data: { threshold: 10, available: 9, held: 1 },
  });
});

test('the alert is armed again by a grant that reaches the threshold, not by less', async (t) => {
  const { organizationId } = await watched(5);
  t.true(await sweep(organizationId));
  await anHourLater(organizationId);
  await grant(db, organizationId, 4);
  t.false(await sweep(organizationId));
  await grant(db, organizationId, 1);
  t.false(await sweep(organizationId));
  await adjustCredits(db, BY, organizationId, -1);
  t.true(await sweep(organizationId));
});

test('a released hold arms the alert again', async (t) => {
  const organization = await watched(10);
  const { organizationId } = organization;
  const hold = async () =>
    acceptedIds(await submit(db, submitCommand(organization, { npis: [NPI] }), RULES));
  const [requestId = ''] = (await hold()).requestIds;
  t.true(await sweep(organizationId));
  await anHourLater(organizationId);
  await settle(db, requestId, 'failed', 'test', RULES);
  await hold();
  t.true(await sweep(organizationId));
});

test('a balance that varies around the threshold causes one message an hour', async (t) => {
  const { organizationId } = await watched(10);
  for (let n = 0; n < 5; n += 1) {
    await adjustCredits(db, BY, organizationId, -1);
    t.is(await sweep(organizationId), n === 0);
    await grant(db, organizationId, 1);
  }
  await adjustCredits(db, BY, organizationId, -1);
  await anHourLater(organizationId);
  t.true(await sweep(organizationId));
});

test('a new threshold or URL arms the alert again, and a deleted alert sends nothing', async (t) => {
  const { organizationId } = await watched(5);
  t.true(await sweep(organizationId));
  await anHourLater(organizationId);
  await setLowCreditAlert(db, BY, organizationId, { ...ALERT, threshold: 6 });
  t.true(await sweep(organizationId));
  await anHourLater(organizationId);
  await setLowCreditAlert(db, BY, organizationId, ALERT);
  await setLowCreditAlert(db, BY, organizationId, null);
  t.false(await sweep(organizationId));
});

test('credits.low waits while webhooks are suspended', async (t) => {
  const { organizationId } = await watched(5);
  await suspendWebhooks(db, BY, organizationId, true);
  t.false(await sweep(organizationId));
  await suspendWebhooks(db, BY, organizationId, false);
  t.true(await sweep(organizationId));
});

test('a grant during the creation of a message always arms the alert again', async (t) => {
  const { organizationId } = await watched(9);
  for (let n = 0; n < 30; n += 1) {
    await Promise.all([
      createLowCreditMessage(db, organizationId),
      grant(db, organizationId, 1),
    ]);
    await adjustCredits(db, BY, organizationId, -1);
    await anHourLater(organizationId);
    t.true(await sweep(organizationId), `round ${n}`);
    await anHourLater(organizationId);
    await setLowCreditAlert(db, BY, organizationId, ALERT);
  }
});

test('sandboxes and unknown organizations get no alert', async (t) => {
  const sandbox = await openTestKey(db, await openOrganization(db, 0));
  await t.throwsAsync(setLowCreditAlert(db, BY, sandbox.organizationId, ALERT), {
    code: 'sandbox_alert',
  });
  await t.throwsAsync(setLowCreditAlert(db, BY, 'org_unknown', ALERT), {
    code: 'organization_missing',
  });
});
