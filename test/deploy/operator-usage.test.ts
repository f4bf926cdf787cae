import test from 'ava';
import { balanceOf } from '../../db/accounts/credits.ts';
import { listLedger } from '../../db/accounts/ledger.ts';
import { storePrices } from '../../db/lookups/spending.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import type { RequestedType } from '../../db/words.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  acceptedIds,
  type Organization,
  openOrganization,
  openTestKey,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests that the stats for invoices match the ledger, to the credit and to the millisecond.

const { db, sql, url } = freshDatabase(test);
const { json, text } = operatorOn(url);

type Usage = Readonly<Record<string, number>> & { readonly organization_id: string };

type Entry = Readonly<Record<'kind' | 'reference', string | null>>;

const PROFESSIONAL = '2000000301';
const PERSONAL = '2000000319';
/** No vendor knows them. */
const UNKNOWN = ['2000000327', '2000000335'];
const LONG_AGO = ['--since', '2020-01-01T00:00Z'];

test.before(async () => {
  await storeEmail(db, {
    npi: PROFESSIONAL,
    email: 'a@clinic.example',
  });
  await storeEmail(db, {
    npi: PERSONAL,
    email: 'b@home.example',
    emailType: 'personal',
  });
});

async function ask(
  organization: Organization,
  npis: readonly string[],
  requestedType: RequestedType = 'any',
) {
  const command = submitCommand(organization, { npis: [...npis], requestedType });
  return acceptedIds(await submit(db, command, RULES)).requestIds;
}

/**
 * Causes charges of 1 and of 3 credits, two replays, a refund of each kind, and an open request.
 */
async function live(): Promise<Organization> {
  const organization = await openOrganization(db, 100);
  await ask(organization, [PROFESSIONAL]);
  await ask(organization, [PROFESSIONAL]);
  await ask(organization, [PROFESSIONAL], 'professional');
  await ask(organization, [PERSONAL], 'personal');
  const [unknown = '', late = ''] = await ask(organization, UNKNOWN);
  await settle(db, unknown, 'finished', 'no vendor knows one', RULES);
  await settle(db, late, 'failed', 'deadline', RULES);
  await ask(organization, ['2000000343']);
  return organization;
}

async function usageOf(
  { organizationId }: Organization,
  ...args: string[]
): Promise<Usage> {
  const [usage, ...others] = await json<Usage[]>(
    'usage',
    '--organization',
    organizationId,
    ...args,
  );
  if (!usage || others.length > 0) throw new Error(`${others.length + 1} lines`);
  return usage;
}

test('the usage command counts requests by outcome and type, and credits by kind', async (t) => {
  const organization = await live();
  const { organizationId } = organization;
  for (const reference of ['invoice 17', 'invoice 18']) {
    const given = [organizationId, '10', '--reference', reference];
    t.like(await json('credits', 'grant', ...given, ...WHY), { reference });
  }
  await text('credits', 'adjust', organizationId, '-5', ...WHY);
  await storePrices(db, new Map([['rocketreach', 0.3]]));
  await sql`
    insert into source_spend (source, day, organization_id, credits)
    values ('rocketreach', (now() at time zone 'UTC')::date - 1, ${organizationId}, 2.5),
           ('unpriced', (now() at time zone 'UTC')::date - 1, ${organizationId}, 7)`;
  const usage = await usageOf(organization);
  t.like(usage, {
    organization_id: organizationId,
    name: 'Test',
    found_any: 1,
    found_professional: 0,
    found_personal: 1,
    replayed: 2,
    not_found: 1,
    failed: 1,
    charged: 4,
    released: 2,
    granted: 120,
    references: 'opening, invoice 17, invoice 18',
    adjusted: -5,
    source_dollars: 0.75,
  });
  const [, newest] = await json<Entry[]>('credits', 'ledger', organizationId);
  t.like(newest, { kind: 'grant', reference: 'invoice 18' });
  const balance = await balanceOf(db, organizationId);
  t.is(usage.charged, balance.used);
  t.is((usage.granted ?? 0) + (usage.adjusted ?? 0), balance.total);
  const [held] = await sql`select sum(amount)::int as held from ledger_entries
    where organization_id = ${organizationId} and kind = 'hold'`;
  t.is(held?.held - (usage.charged ?? 0) - (usage.released ?? 0), balance.held);
});

test('the usage of consecutive periods adds up to the whole, without double counting', async (t) => {
  const organization = await live();
  const { entries } = await listLedger(db, organization.organizationId, {
    since: null,
    until: null,
    after: null,
    limit: 100,
  });
  const whole = await usageOf(organization, ...LONG_AGO);
  for (const { createdAt } of entries) {
    const at = createdAt.toISOString();
    const before = await usageOf(organization, ...LONG_AGO, '--until', at);
    const after = await usageOf(organization, '--since', at);
    for (const [name, value] of Object.entries(whole)) {
      if (typeof value === 'number')
        t.is((before[name] ?? 0) + (after[name] ?? 0), value, `${name} at ${at}`);
    }
    const ofThatMoment = entries.filter(
      (entry) => entry.createdAt >= createdAt && entry.kind === 'charge',
    );
    t.is(
      after.charged,
      ofThatMoment.reduce((sum, { amount }) => sum + amount, 0),
    );
  }
});

test('the usage of all organizations leaves out sandboxes and unused organizations', async (t) => {
  const organization = await live();
  const sandbox = await openTestKey(db, organization);
  const idle = await openOrganization(db, 0);
  const listed = (await json<Usage[]>('usage')).map(({ organization_id: id }) => id);
  t.true(listed.includes(organization.organizationId));
  t.false(
    listed.some((id) => id.startsWith('sbx_')) || listed.includes(idle.organizationId),
  );
  t.like(await usageOf(sandbox), { granted: 10_000, charged: 0 });
  t.like(await usageOf(idle), { granted: 0, charged: 0 });
});

// Serial, because rows that another test commits between the two queries would be in only one of
// them.
test.serial('the usage of all organizations adds up to the ledger', async (t) => {
  await live();
  const until = new Date().toISOString();
  const lines = await json<Usage[]>('usage', ...LONG_AGO, '--until', until);
  const ledger = await sql`select kind, sum(amount)::int as amount from ledger_entries
    where created_at < ${until} and not is_sandbox(organization_id) group by kind`;
  for (const [kind, name] of Object.entries({
    charge: 'charged',
    release: 'released',
    grant: 'granted',
  })) {
    const sum = lines.reduce((total, line) => total + (line[name] ?? 0), 0);
    t.is(sum, ledger.find((row) => row.kind === kind)?.amount, kind);
  }
});

test('usage has one line per organization, and each line names its period', async (t) => {
  const { organizationId } = await live();
  const time = ['--since', '2026-01-01T00:00Z', '--organization', organizationId];
  const lines = await json<Usage[]>('usage', ...time);
  t.is(lines.length, 1);
  t.like(lines[0], {
    since: '2026-01-01T00:00:00.000Z',
    organization_id: organizationId,
    charged: 4,
    released: 2,
    granted: 100,
  });
  t.regex(
    await text('usage', ...time),
    /^From 2026-01-01T00:00:00.000Z to before .*\n\nNAME +CHARGED +SOURCE DOLLARS +FOUND ANY/,
  );
});
