import test from 'ava';
import { sql } from 'drizzle-orm';
import { PATTERN } from '../../activities/vendors/pattern.ts';
import type { Step } from '../../activities/vendors/vendor.ts';
import { PRACTICE_DOMAINS } from '../../deploy/local/sim/people.ts';
import { fresh } from '../support/database.ts';
import { operatorOn } from '../support/operator.ts';
import { type Place, providersIn } from '../support/providers.ts';
import { startStack, vendorSource } from '../support/stack.ts';
import { storeEmail } from '../support/stored.ts';
import { createScriptedVendor, ordinaryNpis } from '../support/vendors.ts';

// Tests what a lookup learns from the people around a provider: colleagues with addresses in the
// directory, other clinicians in NPPES, and the vendors' own profiles. Reacher is simulated, and
// the vendor is scripted.

const vendor = createScriptedVendor();
const stack = fresh(test, () =>
  startStack({
    allSources: true,
    vendors: [vendorSource(PATTERN), vendorSource(vendor)],
  }),
);
const client = fresh(test, () => stack.organization(1000));
const npis = ordinaryNpis('found', 80, 300_000).values();
const take = () => npis.next().value ?? '';
const domains = PRACTICE_DOMAINS.slice(10).values();
const takeDomain = () => domains.next().value ?? '';
const run = (statement: ReturnType<typeof sql>) => stack.db.drizzle.execute(statement);

interface Name {
  readonly first: string;
  readonly last: string;
}

async function insertPerson(
  { first, last }: Name,
  place: Place,
  row: { readonly practiceState?: string; readonly deactivatedOn?: string } = {},
): Promise<string> {
  const npi = take();
  const { person } = providersIn(stack.db);
  return await person(place, [], { npi, firstName: first, lastName: last, ...row });
}

/**
 * Inserts three colleagues at a place, whose addresses at the domain a verifier has found.
 * @param local writes the local part of each address
 */
async function insertColleagues(
  place: Place,
  domain: string,
  local: (name: Name) => string,
): Promise<void> {
  for (const name of [
    { first: 'OLIVIA', last: 'BRANDT' },
    { first: 'PETER', last: 'CASTELLANO' },
    { first: 'RUTH', last: 'DIMITROV' },
  ]) {
    const npi = await insertPerson(name, place);
    const email = `${local(name).toLowerCase()}@${domain}`;
    await storeEmail(stack.db, { npi, email, source: 'crm' });
    await run(sql`
      insert into email_checks (npi, email, kind, source, verdict)
      values (${npi}, ${email}, 'verifier', 'reacher', 'valid')`);
  }
}

/** Records that a verifier has seen that a domain accepts mail for all addresses. */
async function acceptAll(domain: string): Promise<void> {
  await run(sql`
    insert into stored_emails (npi, email, source, verdict)
    values (${take()}, ${`nobody@${domain}`}, 'crm', 'catch_all')`);
}

/** Returns a place that no other provider of this file has. */
const takePlace = (() => {
  const { newPlace } = providersIn(stack.db);
  return () => newPlace('STE 7');
})();

const fullName = ({ first, last }: Name) => `${first}.${last}`;

interface Named {
  readonly email: string;
  readonly isCurrent?: boolean;
}

/** Returns a vendor's response about a person, by the NPI. */
function profileStep(
  npi: string,
  named: readonly Named[],
  about: { readonly full?: string; readonly employerDomain?: string } = {},
): Step {
  const { full, employerDomain = null } = about;
  const name = full === undefined ? null : ({ kind: 'full', full } as const);
  return {
    kind: 'found',
    identity: { npi, name, state: null, employerDomain },
    repeatsInput: false,
    candidates: named.map(({ email, isCurrent = false }) => {
      return {
        email,
        vendorType: 'professional',
        verdict: 'unknown',
        validatedAt: null,
        isCurrent,
        confidence: null,
      };
    }),
  };
}

async function lookUp(npi: string) {
  const { json: submitted } = await client.single({ npi });
  const { data } = await client.completed(submitted.batch_id);
  return data[0]?.email ?? data[0]?.status;
}

test('an address in the format that colleagues have is returned without a vendor call', async (t) => {
  const domain = takeDomain();
  const place = takePlace();
  await insertColleagues(place, domain, fullName);
  const npi = await insertPerson({ first: 'LEONIE', last: 'ABERG' }, place);
  t.is(await lookUp(npi), `leonie.aberg@${domain}`);
  t.is(vendor.asked(npi, 'submit'), 0);
  const explained = await operatorOn(stack.databaseUrl).text('explain', npi);
  t.regex(explained, /pattern returns found/);
});

test('an address that the directory has for a namesake is not written', async (t) => {
  const domain = takeDomain();
  const place = takePlace();
  await insertColleagues(place, domain, fullName);
  const name = { first: 'MARISOL', last: 'QUILL' };
  const namesake = await insertPerson(name, takePlace(), { practiceState: 'WY' });
  const email = `marisol.quill@${domain}`;
  await storeEmail(stack.db, { npi: namesake, email, source: 'crm' });
  const npi = await insertPerson(name, place, { practiceState: 'CO' });
  t.is(await lookUp(npi), 'not_found');
});

test('no address is written if an active clinician in the state has the same name', async (t) => {
  const domain = takeDomain();
  const place = takePlace();
  await insertColleagues(place, domain, fullName);
  const inColorado = { practiceState: 'CO' };
  for (const [first, namesake, row, isWritten] of [
    ['EDDA', { first: 'Edda', last: 'OGRADY' }, inColorado, false],
    ['FREYA', { first: 'FREYA MARIE', last: "O'GRADY" }, {}, false],
    ['GRETA', { first: 'GRETA', last: "O'GRADY" }, { practiceState: 'WY' }, true],
    ['HILDA', { first: 'HILDA', last: "O'GRADY" }, { deactivatedOn: '2026-01-01' }, true],
    ['INGRID', { first: 'INGA', last: "O'GRADY" }, inColorado, true],
  ] as const) {
    await insertPerson(namesake, takePlace(), row);
    const npi = await insertPerson({ first, last: "O'GRADY" }, place, inColorado);
    const written = `${first.toLowerCase()}.ogrady@${domain}`;
    t.is(await lookUp(npi), isWritten ? written : 'not_found', first);
  }
});

test('no address is written at a domain that accepts mail for every mailbox', async (t) => {
  const domain = takeDomain();
  const place = takePlace();
  await insertColleagues(place, domain, fullName);
  await acceptAll(domain);
  const npi = await insertPerson({ first: 'ODETTE', last: 'HALVORSEN' }, place);
  t.is(await lookUp(npi), 'not_found');
});

test('an initial with the surname needs two sources if colleagues have full names', async (t) => {
  const [domain, other] = [takeDomain(), takeDomain()];
  const place = takePlace();
  await insertColleagues(place, domain, fullName);
  await acceptAll(domain);
  for (const [at, end] of [
    [domain, 'not_found'],
    [other, `svarga@${other}`],
  ]) {
    const npi = await insertPerson({ first: 'SIMONE', last: 'VARGA' }, place);
    vendor.script(npi, () => profileStep(npi, [{ email: `svarga@${at}` }]));
    t.is(await lookUp(npi), end);
  }
});

test('a numbered address needs one source if colleagues have numbered addresses', async (t) => {
  const domain = takeDomain();
  const place = takePlace();
  let number = 100;
  await insertColleagues(place, domain, ({ first }) => {
    number += 1;
    return `${first.slice(0, 2)}x${number}`;
  });
  const npi = await insertPerson({ first: 'SIMONE', last: 'VARGA' }, place);
  vendor.script(npi, () => profileStep(npi, [{ email: `qz417@${domain}` }]));
  t.is(await lookUp(npi), `qz417@${domain}`);
  const other = await insertPerson({ first: 'SIMONE', last: 'VARGA' }, takePlace());
  vendor.script(other, () => profileStep(other, [{ email: `qz418@${domain}` }]));
  t.is(await lookUp(other), 'not_found');
});

test("an address with a colleague's surname belongs to the colleague", async (t) => {
  const domain = takeDomain();
  const place = takePlace();
  await insertPerson({ first: 'IMRE', last: 'ZWORYKIN' }, place);
  const npi = await insertPerson({ first: 'SIMONE', last: 'VARGA' }, place);
  const email = `zworykinmd@${domain}`;
  vendor.script(npi, () => profileStep(npi, [{ email }]));
  t.is(await lookUp(npi), 'not_found');
  const [row] = await run(sql`select reason from stored_emails where npi = ${npi}`);
  t.is(row?.reason, 'other_person');
});

test('the current address at the employer is checked first, and the others are not', async (t) => {
  const [employer, earlier] = [takeDomain(), takeDomain()];
  const npi = await insertPerson({ first: 'SIMONE', last: 'VARGA' }, takePlace());
  await run(sql`
    insert into employer_domains (key, domain) values (${`npi:${npi}`}, ${employer})`);
  const current = `s.varga@${employer}`;
  vendor.script(npi, () =>
    profileStep(npi, [
      { email: `aa.simone.varga@${earlier}` },
      { email: `simone.varga@${earlier}`, isCurrent: true },
      { email: `simonevarga@${employer}` },
      { email: current, isCurrent: true },
    ]),
  );
  t.is(await lookUp(npi), current);
  const checked = await run(sql`
    select email from email_checks where npi = ${npi} and kind = 'verifier'`);
  t.deepEqual([...checked], [{ email: current }]);
});

test("a given name in the vendor's profile counts as the person's own", async (t) => {
  const domain = takeDomain();
  const plain = await insertPerson({ first: 'DAWEI', last: 'WANG' }, takePlace());
  const email = `leonard.wang@${domain}`;
  vendor.script(plain, () => profileStep(plain, [{ email }]));
  t.is(await lookUp(plain), 'not_found');
  const known = await insertPerson({ first: 'DAWEI', last: 'WANG' }, takePlace());
  const full = 'Leonard Dawei Wang';
  vendor.script(known, () =>
    profileStep(known, [{ email }], { full, employerDomain: domain }),
  );
  t.is(await lookUp(known), email);
  const profiles = await run(sql`
    select npi, given_names, employer_domain from vendor_profiles where npi in (${plain}, ${known})`);
  t.deepEqual(
    [...profiles],
    [{ npi: known, given_names: 'leonard', employer_domain: domain }],
  );
});
