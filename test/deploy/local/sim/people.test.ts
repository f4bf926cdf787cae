import test from 'ava';
import { hasNpiCheckDigit } from '../../../../activities/person/npi.ts';
import {
  DEACTIVATED_NPIS,
  findingOf,
  MAGIC,
  SUPPRESSED_NPIS,
  shareOf,
} from '../../../../deploy/local/sim/magic.ts';
import {
  FREE_MAIL_AS_DIRECT,
  findPerson,
  MAGIC_ORGANIZATION_NPI,
  personOf,
  SAMPLE_ENDPOINTS,
  SAMPLE_NPIS,
  SAMPLE_ORGANIZATIONS,
  type SimPerson,
} from '../../../../deploy/local/sim/people.ts';
import { mailboxOf } from '../../../../deploy/local/sim/verifiers.ts';

// The population that the sample of NPPES is written from and that the simulated vendors know.

const ORGANIZATION_IDS = SAMPLE_ORGANIZATIONS.map(({ npi }) => npi);

function distinct(values: readonly unknown[]): number {
  return new Set(values).size;
}

test('the sample is 500 people at 60 practices, with NPIs that are right and not being assigned', (t) => {
  t.is(SAMPLE_NPIS.length, 500);
  t.is(SAMPLE_ORGANIZATIONS.length, 60);
  const npis = [...SAMPLE_NPIS, ...ORGANIZATION_IDS];
  t.is(distinct(npis), 560);
  t.deepEqual(
    npis.filter((npi) => !hasNpiCheckDigit(npi) || !npi.startsWith('2')),
    [],
  );
});

test('every magic NPI is in the sample, the organization among organizations', (t) => {
  const individuals = [...MAGIC.keys()].filter((npi) => npi !== MAGIC_ORGANIZATION_NPI);
  t.deepEqual(
    individuals.filter((npi) => !SAMPLE_NPIS.includes(npi)),
    [],
  );
  t.true(ORGANIZATION_IDS.includes(MAGIC_ORGANIZATION_NPI));
  for (const npi of [...DEACTIVATED_NPIS, ...SUPPRESSED_NPIS]) t.true(MAGIC.has(npi));
});

test('practices share no domain, address or telephone number, and take no number that may be real', (t) => {
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ domain }) => domain)), 60);
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ name }) => name)), 60);
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ phone }) => phone)), 60);
  t.is(distinct(SAMPLE_ORGANIZATIONS.map(({ address }) => `${address.line1} ${address.zip}`)), 60);
  for (const { phone, domain, address } of SAMPLE_ORGANIZATIONS) {
    t.regex(phone, /^[0-9]{3}55501[0-9]{2}$/);
    t.regex(domain, /-sim\.(com|org|net)$/);
    t.regex(address.zip, /^[0-9]{5}$/);
  }
});

test('an NPI is the same person every time, and nobody shares an address', (t) => {
  t.deepEqual(personOf('1234567893'), personOf('1234567893'));
  const people = SAMPLE_NPIS.map(personOf);
  t.is(distinct(people.map(({ workEmail }) => workEmail)), 500);
  t.is(distinct(people.map(({ homeEmail }) => homeEmail)), 500);
});

test('a person is found by name and any name of the employer, and nowhere else', (t) => {
  const people = SAMPLE_NPIS.map(personOf);
  const wrong = people.filter((one) => {
    const { domain, name, dba } = one.organization;
    const upper = { first: one.first.toUpperCase(), last: one.last.toUpperCase() };
    const places = [{ domain }, { domain: `WWW.${domain}` }, { company: name }, { company: dba ?? name }];
    return places.some((at) => findPerson(upper, at)?.npi !== one.npi);
  });
  t.deepEqual(wrong, []);
  const tomas = { first: 'Tomas', last: 'Ferreira' };
  t.is(findPerson(tomas, { company: 'The Summit Orthopedics, P.L.L.C.' })?.npi, '2000000077');
  t.is(findPerson(tomas, { company: 'Summit' }), null);
  t.is(findPerson(tomas, { domain: 'summitorthopedics.com' }), null);
  t.is(findPerson(tomas, { company: 'LLC' }), null);
  t.is(findPerson(tomas, {}), null);
});

test('what the vendors know of ordinary people: as many as promised, and each vendor somebody alone', (t) => {
  const ordinary = SAMPLE_NPIS.filter((npi) => !MAGIC.has(npi)).map(personOf);
  const knownTo = (person: SimPerson) =>
    (['fullenrich', 'prospeo', 'hunter'] as const).filter((vendor) => findingOf(vendor, person) !== null);
  const alone = new Set<string>();
  let nobody = 0;
  for (const person of ordinary) {
    const finders = knownTo(person);
    switch (shareOf(person.npi)) {
      case 'nobody':
        t.deepEqual(finders, []);
        nobody += 1;
        break;
      case 'other_vendor':
        t.is(finders.length, 1);
        alone.add(finders.join());
        break;
      case 'personal':
        t.deepEqual(finders, ['fullenrich']);
        break;
      case 'both':
      case 'found':
      case 'slow':
        t.deepEqual(finders, ['fullenrich', 'prospeo', 'hunter']);
    }
  }
  t.is(alone.size, 3);
  t.true(Math.abs(nobody / ordinary.length - 0.15) < 0.04, String(nobody));
});

test('the endpoints hold every trap of the real file', (t) => {
  const ofType = (type: string) => SAMPLE_ENDPOINTS.filter((one) => one.type === type);
  t.like(
    SAMPLE_ENDPOINTS.find(({ npi }) => npi === '2000000150'),
    { type: 'DIRECT', endpoint: 'sunil.harrow@direct.cedarvalleyclinic-sim.com' },
  );
  t.regex(FREE_MAIL_AS_DIRECT.endpoint, /@gmail\.com$/);
  t.true(ofType('DIRECT').includes(FREE_MAIL_AS_DIRECT));
  t.true(ofType('DIRECT').some(({ affiliation }) => affiliation !== null));
  t.true(ofType('FHIR').every(({ endpoint }) => endpoint.startsWith('https://')));
  t.true(ofType('OTHERS').some(({ npi }) => ORGANIZATION_IDS.includes(npi)));
  t.true(ofType('OTHERS').some(({ npi }) => SAMPLE_NPIS.includes(npi)));
  const known = new Set([...SAMPLE_NPIS, ...ORGANIZATION_IDS]);
  t.deepEqual(
    SAMPLE_ENDPOINTS.filter(({ npi }) => !known.has(npi)),
    [],
  );
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
  test(`the mailbox of ${email} is ${mailbox}`, (t) => {
    t.is(mailboxOf(email), mailbox);
  });
}
