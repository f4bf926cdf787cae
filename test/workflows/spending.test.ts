import test from 'ava';
import { sql } from 'drizzle-orm';
import { createSpending } from '../../activities/spending.ts';
import type { Step } from '../../activities/vendors/vendor.ts';
import { storePrices } from '../../db/lookups/spending.ts';
import { fresh } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import { startStack, vendorSource } from '../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
  SUBJECT,
} from '../support/vendors.ts';

// Tests what lookups spend: the order by measured costs, the limit per lookup, and the dollars in
// the operator's reports.

const dear = createScriptedVendor('dear');
const cheap = createScriptedVendor('cheap');
const VENDORS = [
  vendorSource({ ...dear, cost: () => 2 }, { dollarsPerCredit: 0.2 }),
  vendorSource(cheap, { dollarsPerCredit: 0.05 }),
];
const npis = ordinaryNpis('found', 20, 500_000).values();
const take = () => npis.next().value ?? '';
const MISS: Step = { kind: 'miss', reason: 'nobody', credits: 1 };

/** Starts the service with the vendors above, and looks up an NPI. */
function serviceWith(settings: Parameters<typeof createSpending>[1]) {
  const stack = fresh(test, () =>
    startStack({ vendors: VENDORS, spendingSettings: settings }),
  );
  const client = fresh(test, () => stack.organization(100));
  const lookUp = async (npi: string) => {
    const { json } = await client.single({ npi });
    const { data } = await client.completed(json.batch_id);
    return data[0]?.status;
  };
  return { stack, lookUp };
}

const auto = serviceWith({ isAuto: true, maxPricePerLookup: null });
// Each test has its own service, because the reports add up all calls of a database.
const LIMITED = { isAuto: false, maxPricePerLookup: 0.4 };
const limited = serviceWith(LIMITED);
const failing = serviceWith(LIMITED);

test('with the order auto, the vendor with the lowest cost per address is first', async (t) => {
  const { stack, lookUp } = auto;
  const npi = take();
  for (const vendor of [dear, cheap]) vendor.script(npi, () => foundStep(npi));
  t.is(await lookUp(npi), 'completed');
  t.deepEqual([dear.asked(npi, 'submit'), cheap.asked(npi, 'submit')], [0, 1]);

  // 100 calls of the cheap vendor found one address.
  const [lookup] = await stack.db.drizzle.execute(sql`
    update lookups set employer = 'domain' returning id`);
  await stack.db.drizzle.execute(sql`
    insert into vendor_attempts (
      lookup_id, vendor, n, request_id, state, credits, returned, started_at, ended_at
    )
    select ${lookup?.id}, 'cheap', n, (select id from requests limit 1), 'miss', 1, false, now(), now()
      from generate_series(2, 101) n`);
  const spending = createSpending(stack.db, { isAuto: true, maxPricePerLookup: null });
  const arranged = await spending.arrange(VENDORS, SUBJECT, 'lkp_0001');
  t.deepEqual(
    arranged.map(({ vendor }) => vendor.id),
    ['dear', 'cheap'],
  );
});

test('a vendor that could exceed the limit of a lookup is skipped', async (t) => {
  const { stack, lookUp } = limited;
  await storePrices(stack.db, new Map([['dear', 0.2]]));
  const [within, beyond] = [take(), take()];
  dear.script(within, () => foundStep(within));
  t.is(await lookUp(within), 'completed');
  dear.script(beyond, () => ({ ...MISS, credits: 2 }));
  cheap.script(beyond, () => foundStep(beyond));
  t.is(await lookUp(beyond), 'not_found');
  t.is(cheap.asked(beyond, 'submit'), 0);
  const { text, json } = operatorOn(stack.databaseUrl);
  const explained = await text('explain', beyond);
  t.regex(explained, /2 credits of the vendor \(\$0\.400\)/);
  t.regex(explained, /cheap not called \(max_price_per_lookup\)/);
  const sources = await json<Record<string, unknown>[]>('vendors');
  const { dollars, dollars_per_returned: each } =
    sources.find(({ source }) => source === 'dear') ?? {};
  t.deepEqual([dollars, each], [0.8, 0.8]);
});

test('a failed call without a cost does not affect the estimated price of a vendor', async (t) => {
  const { stack, lookUp } = failing;
  const npi = take();
  dear.script(npi, () => MISS);
  await lookUp(npi);
  const [request] = await stack.db.drizzle.execute<{ id: string }>(sql`
    update vendor_attempts
       set state = case vendor when 'dear' then 'retry' else 'miss' end,
           credits = case vendor when 'dear' then 0 else 1 end
      from requests
     where requests.npi = ${npi} and vendor_attempts.lookup_id = requests.lookup_id
    returning requests.id`);
  const spending = createSpending(stack.db, LIMITED);
  const [again] = VENDORS;
  if (again === undefined) throw new Error('no vendor');
  t.true(await spending.skipIfTooExpensive(request?.id ?? '', again, VENDORS));
});
