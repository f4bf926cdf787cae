import test from 'ava';
import { addSuppression } from '../../db/privacy/suppressions.ts';
import { withCheckDigit } from '../../deploy/local/sim/people.ts';
import { fresh } from '../support/database.ts';
import { BY } from '../support/organization.ts';
import { providersIn } from '../support/providers.ts';
import { type ApiClient, startApi } from '../support/stack.ts';
import { storeEmail as store } from '../support/stored.ts';

// Tests the free check of NPIs before a submit.

interface Report {
  readonly data: readonly {
    readonly npi: string;
    readonly result: string;
    readonly free_types: readonly string[];
    readonly name: string | null;
    readonly city: string | null;
    readonly state: string | null;
  }[];
  readonly totals: Readonly<Record<string, number>>;
  readonly max_credits: Readonly<Record<string, number>>;
}

const api = fresh(test, startApi);
let issued = 0;

/** Returns an NPI with a correct check digit that no other test has. */
function newNpi(): string {
  issued += 1;
  return withCheckDigit(180_000_000 + issued);
}

const storeEmail = (npi: string) => store(api.db, { npi, email: `${npi}@example.com` });

const post = (client: ApiClient, body: object) =>
  client.call<Report>('POST', '/api/v1/check', JSON.stringify(body));
const check = async (client: ApiClient, ...npis: string[]) =>
  (await post(client, { npis })).json;
const NOBODY = { name: null, city: null, state: null };

test('a check shows the result, the public name, and the practice of each NPI', async (t) => {
  const client = await api.organization(0);
  const { insert } = providersIn(api.db);
  const practice = { practiceCity: 'AUSTIN', practiceState: 'TX' };
  const person = {
    entityType: 1,
    firstName: 'JANE',
    middleName: 'Q',
    lastName: 'PUBLIC',
  };
  const [known, group, retired, stranger] = [newNpi(), newNpi(), newNpi(), newNpi()];
  await insert({ npi: known, ...person, ...practice }, null);
  await insert(
    { npi: group, entityType: 2, organizationName: 'A CLINIC', ...practice },
    null,
  );
  await insert({ npi: retired, deactivatedOn: '2020-01-01' }, null);
  const list = [known, group, retired, stranger, '1234567890', 'Jane', ''];
  const { data, totals, max_credits } = await check(client, ...list);
  const at = { city: 'AUSTIN', state: 'TX' };
  const results = [
    { result: 'lookup', name: 'JANE Q PUBLIC', ...at },
    { result: 'organization', name: 'A CLINIC', ...at },
    { result: 'deactivated', ...NOBODY },
    { result: 'lookup', ...NOBODY },
    { result: 'not_an_npi', ...NOBODY },
    { result: 'not_an_npi', ...NOBODY },
    { result: 'not_an_npi', ...NOBODY },
  ];
  t.deepEqual(
    data,
    results.map((one, n) => ({ npi: list[n] ?? '', free_types: [], ...one })),
  );
  t.deepEqual(totals, {
    lookup: 2,
    free_repeat: 0,
    not_an_npi: 3,
    organization: 1,
    deactivated: 1,
  });
  t.deepEqual(max_credits, { any: 2, professional: 2, personal: 6 });
});

test('a check costs one request and no credits, and never more than it says', async (t) => {
  const client = await api.organization(10);
  const [paid, fresh, twice] = [newNpi(), newNpi(), newNpi()];
  for (const npi of [paid, fresh, twice]) await storeEmail(npi);
  await client.single({ npi: paid });
  const before = await client.credits();
  const { data, max_credits } = await check(client, paid, fresh, twice, twice);
  t.deepEqual(await client.credits(), before);
  t.deepEqual(
    data.map(({ result, free_types }) => [result, ...free_types]),
    [['free_repeat', 'any', 'professional'], ['lookup'], ['lookup'], ['lookup']],
  );
  t.deepEqual(max_credits, { any: 2, professional: 2, personal: 9 });
  await client.bulk({ npis: [paid, fresh, twice, twice] });
  t.is((await client.credits()).balance, before.balance - 2);
});

test("another organization's purchases, and our stored emails, are not shown", async (t) => {
  const [client, other] = [await api.organization(0), await api.organization(10)];
  const [stored, unknown] = [newNpi(), newNpi()];
  await storeEmail(stored);
  await other.single({ npi: stored });
  const { data } = await check(client, stored, unknown);
  t.deepEqual({ ...data[0], npi: unknown }, data[1]);
});

test('an NPI that only the registry named, for another customer, stays unknown', async (t) => {
  const client = await api.organization(0);
  const { person } = providersIn(api.db);
  const [active, inactive, unknown] = [newNpi(), newNpi(), newNpi()];
  await person(null, [], { npi: active, origin: 'registry' });
  await person(null, [], { npi: inactive, origin: 'registry', deactivated: true });
  const { data } = await check(client, active, inactive, unknown);
  t.deepEqual(
    data.map((one) => ({ ...one, npi: unknown })),
    Array(3).fill(data[2]),
  );
});

test('a suppressed person looks like any other, and an own purchase stays visible', async (t) => {
  const client = await api.organization(10);
  const { person } = providersIn(api.db);
  const [objecting, other] = [newNpi(), newNpi()];
  for (const npi of [objecting, other]) {
    await person(null, [], { npi });
    await storeEmail(npi);
  }
  const seen = async () => {
    const { data, ...rest } = await check(client, objecting);
    return { ...data[0], ...rest };
  };
  const before = await seen();
  await addSuppression(api.db, BY, { kind: 'npi', value: objecting });
  t.deepEqual(await seen(), before);
  t.is(before.result, 'lookup');
  await client.single({ npi: other });
  const paid = await check(client, other);
  await addSuppression(api.db, BY, { kind: 'npi', value: other });
  t.deepEqual(await check(client, other), paid);
});

test('a test key sees invented results and no real person', async (t) => {
  const live = await api.organization(10);
  const sandbox = await api.sandboxOf(live);
  const npi = newNpi();
  await providersIn(api.db).person(null, [], { npi });
  const replayed = '2000000242';
  const { data } = await check(sandbox, npi, replayed, '1234567890');
  t.deepEqual(data, [
    { npi, result: 'lookup', free_types: [], ...NOBODY },
    {
      npi: replayed,
      result: 'free_repeat',
      free_types: ['any', 'professional', 'personal'],
      ...NOBODY,
    },
    { npi: '1234567890', result: 'not_an_npi', free_types: [], ...NOBODY },
  ]);
});

test('a check of 1 to 1,000 texts is accepted', async (t) => {
  const client = await api.organization(0);
  const full = await check(client, ...Array<string>(1000).fill(newNpi()));
  t.deepEqual([full.data.length, full.max_credits.any], [1000, 1]);
  const faults = async (body: object) => {
    const { status, json } = await post(client, body);
    const { detail } = json as unknown as { detail: { loc: unknown[]; type: string }[] };
    return [status, ...detail.map(({ loc, type }) => `${loc.join('.')} ${type}`)];
  };
  t.deepEqual(await faults({}), [422, 'body.npis missing']);
  t.deepEqual(await faults({ npis: [] }), [422, 'body.npis too_short']);
  t.deepEqual(await faults({ npis: Array(1001).fill('1') }), [422, 'body.npis too_long']);
  t.deepEqual(await faults({ npis: [1234567893] }), [422, 'body.npis.0 string_type']);
});
