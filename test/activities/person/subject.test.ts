import test from 'ava';
import { buildSubject, endpointCandidates } from '../../../activities/person/subject.ts';
import { missingOf } from '../../../activities/vendors/vendor.ts';
import { addSuppression } from '../../../db/privacy/suppressions.ts';
import { readProvider, refusalOf } from '../../../db/providers/subject.ts';
import { freshDatabase } from '../../support/database.ts';
import { providersIn } from '../../support/providers.ts';

const { db } = freshDatabase(test);

const { insert, person, practice, location, newNpi, newPlace } = providersIn(db);

async function subjectOf(npi: string) {
  return buildSubject(npi, await readProvider(db, npi), 'any');
}

test('an NPI that must not be looked up is refused with a reason', async (t) => {
  const active = await person(null);
  const organization = await practice('A CLINIC', null);
  const gone = await insert({ entityType: null, deactivatedOn: '2024-05-01' }, null);
  const back = await person(null, [], {
    deactivatedOn: '2024-05-01',
    reactivatedOn: '2025-01-01',
  });
  const goneAgain = await person(null, [], {
    deactivatedOn: '2025-05-01',
    reactivatedOn: '2025-01-01',
  });
  const opted = await person(null);
  const optedUnknown = newNpi();
  const unknown = newNpi();
  const optedGone = await insert({ entityType: null, deactivatedOn: '2024-05-01' }, null);
  for (const value of [opted, optedUnknown, optedGone])
    await addSuppression(db, { actor: 'test', reason: 'test' }, { kind: 'npi', value });
  for (const [npi, reason] of [
    [active, null],
    [organization, 'organization_npi'],
    [gone, 'deactivated'],
    [back, null],
    [goneAgain, 'deactivated'],
    [opted, 'suppressed'],
    [optedUnknown, 'suppressed'],
    // A public reason comes first, so that customers can't see the objection.
    [optedGone, 'deactivated'],
    [unknown, null],
  ] as const) {
    t.is(await refusalOf(db, npi), reason);
  }
});

test('vendors get no name for an NPI without an active person whose name we know', async (t) => {
  const nobody = {
    requestedType: 'any' as const,
    person: null,
    organization: null,
    otherOrganizations: [],
    strangers: [],
    patterns: [],
    writtenEmail: null,
  };
  const unknown = newNpi();
  const gone = await person(null, [], { deactivatedOn: '2024-05-01' });
  const organization = await person(newPlace(), [], {
    entityType: 2,
    organizationName: 'A CLINIC',
  });
  const nameless = await insert(
    { entityType: 1, firstName: 'JANE', lastName: '--' },
    null,
  );

  t.is(await readProvider(db, unknown), null);
  for (const npi of [unknown, gone, organization, nameless])
    t.deepEqual(await subjectOf(npi), { npi, ...nobody });
});

test("vendors get a person's name in mixed case and all states of practice", async (t) => {
  const place = {
    phone: '(303) 555-0100',
    line1: '12 MAIN ST',
    line2: null,
    postalCode: '802010001',
  };
  const npi = await person(place, [], {
    firstName: 'MARY JO',
    lastName: "O'BRIEN-MCDONALD, M.D.",
    middleName: 'NMN',
    nameSuffix: 'JR.',
    otherLastName: '<UNAVAIL>',
    practiceCity: 'COLORADO SPRINGS',
    practiceState: 'CO',
  });
  await location(npi, 'WY', newPlace());
  await location(npi, 'CO', newPlace());
  await location(npi, 'ONTARIO', newPlace());

  t.deepEqual((await subjectOf(npi)).person, {
    first: 'Mary Jo',
    last: "O'Brien-McDonald",
    middle: null,
    generation: 2,
    otherNames: [],
    profileNames: [],
    profileSurnames: [],
    practice: {
      line1: '12 MAIN ST',
      city: 'Colorado Springs',
      state: 'CO',
      zip: '80201',
    },
    otherStates: ['WY'],
  });
});

const NAMES: readonly (readonly [written: string, read: string])[] = [
  ['SMITH', 'Smith'],
  ['MCDONALD', 'McDonald'],
  ['MACDONALD', 'Macdonald'],
  ['MACIAS', 'Macias'],
  ['MACK', 'Mack'],
  ["O'BRIEN", "O'Brien"],
  ["O' BRIEN", "O'Brien"],
  ['D’ANGELO', "D'Angelo"],
  ['GARCIA-LOPEZ', 'Garcia-Lopez'],
  ['DE LA CRUZ', 'De la Cruz'],
  ['VAN DER BERG', 'Van der Berg'],
  ['MUÑOZ', 'Muñoz'],
  ['SMITH III', 'Smith'],
  ['SMITH, JR., M.D.', 'Smith'],
  ['SMITH MD PHD', 'Smith'],
  ['SMITH, D.O.', 'Smith'],
  ['DO', 'Do'],
  ['MA', 'Ma'],
  ['TRAN DO', 'Tran Do'],
  ['DOCTOR', 'Doctor'],
  ['SMITH .', 'Smith'],
  ['SMITH (JONES)', 'Smith'],
  ['SMITH *', 'Smith'],
  ['-SMITH-', 'Smith'],
  ['McAllister', 'McAllister'],
  ['deVries', 'deVries'],
  ["o'brien-mcdonald", "O'Brien-McDonald"],
  ['de la cruz', 'De la Cruz'],
  ['el-masri', 'El-Masri'],
  ['garcia iii lopez', 'Garcia III Lopez'],
  ['NULL', 'Null'],
  ['null', 'Null'],
];

test('last names in capitals become mixed case, and placeholders are removed', async (t) => {
  for (const [written, expected] of NAMES) {
    const npi = await person(null, [], { lastName: written });
    t.is((await subjectOf(npi)).person?.last, expected, written);
  }
});

test('a person with only one name is looked up by NPI, not by name', async (t) => {
  for (const [firstName, lastName, name] of [
    ['FNU', 'RAHUL', { first: '', last: 'Rahul' }],
    ['NFN', 'RAHUL', { first: '', last: 'Rahul' }],
    ['--', 'PUBLIC', { first: '', last: 'Public' }],
    ['RAHUL', 'LNU', { first: '', last: 'Rahul' }],
    ['FNU', 'LNU', null],
    ['NULL', 'NULL', null],
  ] as const) {
    const subject = await subjectOf(
      await person(null, [], { firstName, lastName, middleName: 'NMN' }),
    );
    const { first, last, middle } = subject.person ?? {};
    t.deepEqual(subject.person && { first, last }, name, `${firstName} ${lastName}`);
    t.is(middle ?? null, null);
    t.deepEqual(missingOf(subject, ['npi', 'name']), ['name']);
  }
});

test('a name in lowercase also becomes mixed case', async (t) => {
  const row = { firstName: 'mary-jo', practiceCity: 'colorado springs' };
  const { person: mary } = await subjectOf(await person(null, [], row));
  t.is(mary?.first, 'Mary-Jo');
  t.is(mary?.practice.city, 'Colorado Springs');
});

test('a generation such as Jr. is read from the last name or from the suffix', async (t) => {
  const generationOf = async (row: Parameters<typeof person>[2]) =>
    (await subjectOf(await person(null, [], row))).person?.generation;
  t.is(await generationOf({ lastName: 'PUBLIC III' }), 3);
  t.is(await generationOf({ lastName: 'PUBLIC, JR., MD' }), 2);
  t.is(await generationOf({ lastName: 'PUBLIC', nameSuffix: '--' }), null);
});

test("parts that are missing in a person's other NPPES name come from the current name", async (t) => {
  const otherNames = async (row: Parameters<typeof person>[2]) =>
    (await subjectOf(await person(null, [], row))).person?.otherNames;
  t.deepEqual(await otherNames({ otherFirstName: 'JANIE', otherLastName: 'MAIDEN' }), [
    { first: 'Janie', last: 'Maiden' },
  ]);
  t.deepEqual(await otherNames({ otherLastName: 'MAIDEN' }), [
    { first: 'Jane', last: 'Maiden' },
  ]);
  t.deepEqual(await otherNames({ otherFirstName: 'JANE', otherLastName: 'PUBLIC' }), []);
  t.deepEqual(await otherNames({}), []);
});

test('ordinary email addresses in NPPES become candidates, normalized and only once', async (t) => {
  const npi = await person(null, [
    { kind: 'CONNECT', endpoint: 'mailto:Jane@PublicClinic.com' },
    { kind: 'DIRECT', endpoint: 'jane.public@gmail.com' },
    { kind: 'DIRECT', endpoint: 'jane@direct.publicclinic.com' },
    { kind: 'FHIR', endpoint: 'https://fhir.publicclinic.com' },
    { endpoint: ' jane@publicclinic.com ' },
    { endpoint: '<UNAVAIL>' },
  ]);
  const facts = await readProvider(db, npi);
  t.deepEqual(facts && endpointCandidates(facts), [
    'jane@publicclinic.com',
    'jane.public@gmail.com',
  ]);
});
