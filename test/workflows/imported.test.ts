import test from 'ava';
import { sql } from 'drizzle-orm';
import { storeOwnEmails } from '../../db/lookups/imports.ts';
import { CLOSED_DOMAIN, PRACTICE_DOMAINS } from '../../deploy/local/sim/people.ts';
import { fresh, temporaryFolder } from '../support/database.ts';
import { personRow, writeMember } from '../support/nppes.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests addresses that an operator imported, in a stack without a verifier. The service checks
// their domains before it returns them.

const stack = fresh(test, () => startStack());
const [GOOD = '', CLOSED = '', UNDATED = '', MARRIED = ''] = ordinaryNpis('found', 4);
const folder = temporaryFolder(test.after.always);

async function importAddress(
  npi: string,
  email: string,
  validatedAt: Date | null,
): Promise<void> {
  const row = {
    npi,
    email,
    emailType: 'professional',
    source: 'crm',
    validatedAt,
    checked: false,
  } as const;
  await storeOwnEmails(stack.db, [row]);
}

async function storedRow(email: string) {
  const [row] = await stack.db.drizzle.execute(sql`
    select verdict, reason from stored_emails where email = ${email}`);
  return { ...row };
}

const yesterday = () => new Date(Date.now() - 86_400_000);
const askedFor = (npi: string) =>
  stack.simulator.calls().filter(({ subject }) => subject === npi).length;

test('an imported address whose domain accepts mail is returned without vendor calls', async (t) => {
  const client = await stack.organization(10);
  const email = `tquill@${PRACTICE_DOMAINS[0]}`;
  const validatedAt = yesterday();
  await importAddress(GOOD, email, validatedAt);
  const { json } = await client.single({ npi: GOOD });
  const { data } = await client.completed(json.batch_id);
  t.like(data[0], {
    status: 'completed',
    email,
    email_last_validated: validatedAt.toISOString(),
  });
  t.is(askedFor(GOOD), 0);
  t.deepEqual(await storedRow(email), {
    verdict: 'valid',
    reason: 'mailbox_ok',
  });
});

test('an imported address whose domain accepts no mail is never returned', async (t) => {
  const client = await stack.organization(10);
  const email = `tquill@${CLOSED_DOMAIN}`;
  await importAddress(CLOSED, email, yesterday());
  const { json } = await client.single({ npi: CLOSED });
  const { data } = await client.completed(json.batch_id);
  t.not(data[0]?.email, email);
  t.true(askedFor(CLOSED) > 0);
  t.deepEqual(await storedRow(email), {
    verdict: 'invalid',
    reason: 'null_mx',
  });
});

test('without a verifier, an imported address without a validation date is not returned', async (t) => {
  const client = await stack.organization(10);
  const email = `pquill@${PRACTICE_DOMAINS[0]}`;
  await importAddress(UNDATED, email, null);
  const { json } = await client.single({ npi: UNDATED });
  const { data } = await client.completed(json.batch_id);
  t.not(data[0]?.email, email);
  t.like(await storedRow(email), { verdict: 'unknown', reason: 'imported' });
});

test('an address with a surname that NPPES has replaced is still returned', async (t) => {
  const client = await stack.organization(10);
  const { text } = operatorOn(stack.databaseUrl);
  for (const [day, surname] of [
    ['20260809', 'ASHDOWN'],
    ['20260816', 'HARTIGAN'],
  ] as const) {
    const row = personRow(MARRIED, { 'Provider Last Name (Legal Name)': surname });
    const path = await writeMember(folder, 'npidata', day, [row]);
    await text('import', 'nppes', path, ...WHY);
  }
  const email = `tamsin.ashdown@${PRACTICE_DOMAINS[0]}`;
  await importAddress(MARRIED, email, yesterday());
  const { json } = await client.single({ npi: MARRIED });
  const { data } = await client.completed(json.batch_id);
  t.is(data[0]?.email, email);
  t.is(askedFor(MARRIED), 0);
});
