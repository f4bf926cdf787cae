import { readFile } from 'node:fs/promises';
import test from 'ava';
import { PRICES } from '../../db/accounts/credits.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { auditLedger, mutantLedger } from '../support/ledger.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests that later steps use the price that the submit wrote to the row of the request.

const { db, sql } = freshDatabase(test);

/** The change that raises the price of a personal email from 3 to 5. */
const NEW_PRICE = [
  { file: 'accounts/prices.json', from: '"personal": 3', to: '"personal": 5' },
];

type Submit = typeof submit;

async function openPersonal(by: Submit, npi = '2000000028') {
  const organization = await openOrganization(db, 20);
  const command = submitCommand(organization, { npis: [npi], requestedType: 'personal' });
  const { requestIds } = acceptedIds(await by(db, command, RULES));
  return { organizationId: organization.organizationId, requestId: requestIds[0] ?? '' };
}

async function booksOf(organizationId: string) {
  const [row] = await sql`
    select r.cost, r.credits_used, b.available::int, b.held::int, b.used::int
      from requests r join credit_balances b using (organization_id) where r.organization_id = ${organizationId}`;
  return { ...row };
}

test('a request costs what it cost when it was submitted, even if prices change later', async (t) => {
  const renewed = await mutantLedger(NEW_PRICE);
  const { organizationId, requestId } = await openPersonal(submit, '2000000010');
  t.deepEqual(await booksOf(organizationId), {
    cost: 3,
    credits_used: 0,
    available: 17,
    held: 3,
    used: 0,
  });
  await storeEmail(db, {
    npi: '2000000010',
    email: 'jo@example.org',
    emailType: 'personal',
  });
  t.is(
    (await renewed.settle(db, requestId, 'finished', 'test', RULES)).status,
    'completed',
  );
  t.deepEqual(await booksOf(organizationId), {
    cost: 3,
    credits_used: 3,
    available: 17,
    held: 0,
    used: 3,
  });
  t.deepEqual(await auditLedger(sql, [organizationId], RULES.replayMs), []);
});

test('the page about credits names the price of each type', async (t) => {
  const page = await readFile(
    new URL('../../api/docs/lifecycle.md', import.meta.url),
    'utf8',
  );
  const lines = page.matchAll(
    /^- (?<types>`\w+`(?:, `\w+`)*): (?<price>\d+) credits?$/gm,
  );
  const named = [...lines].flatMap(({ groups: { types = '', price = '' } = {} }) =>
    types.split(', ').map((type) => [type.replaceAll('`', ''), Number(price)]),
  );
  t.deepEqual(Object.fromEntries(named), PRICES);
});

test('a worker that has old prices refunds all credits that a request has held', async (t) => {
  const renewed = await mutantLedger(NEW_PRICE);
  const { organizationId, requestId } = await openPersonal(renewed.submit);
  t.deepEqual(await booksOf(organizationId), {
    cost: 5,
    credits_used: 0,
    available: 15,
    held: 5,
    used: 0,
  });
  await settle(db, requestId, 'failed', 'test', RULES);
  t.deepEqual(await booksOf(organizationId), {
    cost: 5,
    credits_used: 0,
    available: 20,
    held: 0,
    used: 0,
  });
  t.deepEqual(await auditLedger(sql, [organizationId], RULES.replayMs), []);
});

test('the database rejects any change to the price of an existing request', async (t) => {
  const { requestId } = await openPersonal(submit);
  await t.throwsAsync(sql`update requests set cost = 1 where id = ${requestId}`, {
    message: /the price of request req_\w+ does not change/,
  });
});
