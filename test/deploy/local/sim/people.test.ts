import test from 'ava';
import { VENDORS } from '../../../../activities/vendors/catalogue.ts';
import { hasNpiCheckDigit } from '../../../../db/providers/npi.ts';
import {
  DEACTIVATED_NPIS,
  KNOWN,
  MAGIC,
  MAGIC_ORGANIZATION_NPI,
  SUPPRESSED_NPIS,
} from '../../../../deploy/local/sim/magic.ts';
import {
  findPerson,
  personOf,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
} from '../../../../deploy/local/sim/people.ts';
import { mailboxOf } from '../../../../deploy/local/sim/reacher.ts';

// Tests the people in the sample of NPPES, whom the simulated vendors know.

const ORGANIZATION_IDS = SAMPLE_ORGANIZATIONS.map(({ npi }) => npi);

function distinct(values: readonly unknown[]): number {
  return new Set(values).size;
}

test('the sample data has 500 people at 60 practices, with NPIs that are valid but unused', (t) => {
  t.is(SAMPLE_NPIS.length, 500);
  t.is(SAMPLE_ORGANIZATIONS.length, 60);
  const npis = [...SAMPLE_NPIS, ...ORGANIZATION_IDS];
  t.is(distinct(npis), 560);
  t.deepEqual(
    npis.filter((npi) => !hasNpiCheckDigit(npi) || !npi.startsWith('2')),
    [],
  );
});

test('the sample data contains every magic NPI, one of them as an organization', (t) => {
  const individuals = [...MAGIC.keys()].filter((npi) => npi !== MAGIC_ORGANIZATION_NPI);
  t.deepEqual(
    individuals.filter((npi) => !SAMPLE_NPIS.includes(npi)),
    [],
  );
  t.true(ORGANIZATION_IDS.includes(MAGIC_ORGANIZATION_NPI));
  for (const npi of [...DEACTIVATED_NPIS, ...SUPPRESSED_NPIS]) t.true(MAGIC.has(npi));
  const words: readonly string[] = KNOWN;
  const known = [...MAGIC.values()].flatMap(({ knows }) => Object.entries(knows));
  t.deepEqual(
    known.filter(([vendor, word]) => !(vendor in VENDORS && words.includes(word))),
    [],
  );
});

test('each sample practice has a different domain, address, and phone, all fictional', (t) => {
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ domain }) => domain)), 60);
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ name }) => name)), 60);
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ phone }) => phone)), 60);
  t.is(
    distinct(
      SAMPLE_ORGANIZATIONS.map(({ address }) => `${address.line1} ${address.zip}`),
    ),
    60,
  );
  for (const { phone, domain, address } of SAMPLE_ORGANIZATIONS) {
    t.regex(phone, /^[0-9]{3}55501[0-9]{2}$/);
    t.regex(domain, /-sim\.(com|org|net)$/);
    t.regex(address.zip, /^[0-9]{5}$/);
  }
});

test('a simulated person is found only by name together with the right employer', (t) => {
  const people = SAMPLE_NPIS.map(personOf);
  const found = (
    { first, last }: { first: string; last: string },
    domain: string | null,
    company: string | null,
  ) =>
    findPerson({ first: first.toUpperCase(), last: last.toUpperCase(), domain, company })
      ?.npi ?? null;
  const wrong = people.filter((one) => {
    const { domain, name, dba } = one.organization;
    const npis = [
      found(one, domain, null),
      found(one, null, name),
      found(one, null, dba ?? name),
    ];
    return npis.some((npi) => npi !== one.npi);
  });
  t.deepEqual(wrong, []);
  const tomas = { first: 'Tomas', last: 'Ferreira' };
  t.is(found(tomas, null, 'Summit Orthopedics'), '2000000077');
  t.is(found(tomas, null, 'Orthopedics'), null);
  t.is(found(tomas, 'summitorthopedics.com', null), null);
  t.is(found(tomas, null, '...'), null);
});

for (const [email, mailbox] of [
  ['rowan.ashdown@cedarvalleyclinic-sim.com', 'ok'],
  ['Rowan.Ashdown@CedarValleyClinic-sim.com', 'ok'],
  ['npi2000000028.sim@gmail.com', 'ok'],
  ['piotr.vasquez@cedarvalleyclinic-sim.com', 'catchall'],
  ['greta.oyelaran@cedarvalleyclinic-sim.com', 'greylisted'],
  ['tomas.ferreira@closedpractice-sim.com', 'missing'],
  ['sunil.harrow@direct.cedarvalleyclinic-sim.com', 'missing'],
  ['frontdesk@lakesidepediatrics-sim.com', 'role'],
  ['full.jones@lakesidepediatrics-sim.com', 'full'],
  ['missing.jones@lakesidepediatrics-sim.com', 'missing'],
  ['unknown.jones@lakesidepediatrics-sim.com', 'unknown'],
  ['jo@elsewhere.com', 'unknown'],
] as const) {
  test(`the simulated Reacher reports the mailbox ${email} as "${mailbox}"`, (t) => {
    t.is(mailboxOf(email), mailbox);
  });
}
