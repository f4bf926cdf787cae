import test from 'ava';
import { buildSubject, endpointCandidates } from '../../../activities/person/subject.ts';
import { missingOf } from '../../../activities/vendors/vendor.ts';
import { query } from '../../../db/client.ts';
import { providerKeys } from '../../../db/providers/keys.ts';
import { gate, readProvider } from '../../../db/providers/subject.ts';
import {
  providerEndpoints,
  providerLocations,
  providerOtherNames,
  providers,
  suppressions,
} from '../../../db/schema.ts';
import type { EndpointKind } from '../../../db/words.ts';
import { freshDatabase } from '../../support/database.ts';

const { db } = freshDatabase(test);

let issued = 0;
/** An NPI that no other test has, without a meaningful check digit. */
function newNpi(): string {
  issued += 1;
  return `29${String(issued).padStart(8, '0')}`;
}

/** A telephone number and a street that no other test has. */
function newPlace() {
  issued += 1;
  return { phone: `303555${String(1000 + issued)}`, line1: `${1000 + issued} MAIN ST`, postalCode: '80201' };
}

type Place = ReturnType<typeof newPlace>;
type Row = Partial<typeof providers.$inferInsert>;
interface Endpoint {
  readonly kind?: EndpointKind;
  readonly endpoint: string;
  readonly affiliationName?: string;
}

async function insert(row: Row, place: Place | null, endpoints: readonly Endpoint[] = []): Promise<string> {
  const npi = row.npi ?? newNpi();
  await query(db, async (tx) => {
    await tx.insert(providers).values({
      npi,
      origin: 'nppes',
      rowHash: 1,
      practiceLine1: place?.line1 ?? null,
      practicePostalCode: place?.postalCode ?? null,
      practicePhone: place?.phone ?? null,
      ...(place === null ? {} : providerKeys(place)),
      ...row,
    });
    if (endpoints.length === 0) return;
    await tx.insert(providerEndpoints).values(
      endpoints.map(({ kind = 'OTHERS', endpoint, affiliationName = null }) => {
        return { npi, kind, endpoint, affiliationName };
      }),
    );
  });
  return npi;
}

async function person(place: Place | null, endpoints: readonly Endpoint[] = [], row: Row = {}) {
  return await insert({ entityType: 1, firstName: 'JANE', lastName: 'PUBLIC', ...row }, place, endpoints);
}

async function practice(name: string | null, place: Place | null, endpoints: readonly Endpoint[] = []) {
  return await insert({ entityType: 2, organizationName: name }, place, endpoints);
}

async function otherName(npi: string, name: string, typeCode: string) {
  await query(db, (tx) => tx.insert(providerOtherNames).values({ npi, name, typeCode }));
}

async function location(npi: string, state: string, place: Place) {
  const { line1, postalCode, phone } = place;
  const row = { npi, line1, line2: '', city: 'DENVER', state, postalCode, phone, ...providerKeys(place) };
  await query(db, (tx) => tx.insert(providerLocations).values(row));
}

async function subjectOf(npi: string) {
  return buildSubject(npi, await readProvider(db, npi), 'any');
}

async function organizationOf(npi: string) {
  return (await subjectOf(npi)).organization;
}

test('the gate names, for a whole batch at once, whom nobody is asked about', async (t) => {
  const active = await person(null);
  const organization = await practice('A CLINIC', null);
  const gone = await insert({ entityType: null, deactivatedOn: '2024-05-01' }, null);
  const back = await person(null, [], { deactivatedOn: '2024-05-01', reactivatedOn: '2025-01-01' });
  const goneAgain = await person(null, [], { deactivatedOn: '2025-05-01', reactivatedOn: '2025-01-01' });
  const opted = await person(null);
  const optedUnknown = newNpi();
  const unknown = newNpi();
  await query(db, (tx) =>
    tx
      .insert(suppressions)
      .values(
        [opted, optedUnknown].map((value) => ({ kind: 'npi' as const, value, origin: 'operator' as const })),
      ),
  );
  const all = [active, organization, gone, back, goneAgain, opted, optedUnknown, unknown, active];

  const expected = new Map([
    [organization, 'organization_npi'],
    [gone, 'deactivated'],
    [goneAgain, 'deactivated'],
    [opted, 'suppressed'],
    [optedUnknown, 'suppressed'],
  ]);
  const reasons = await gate(db, all);
  t.deepEqual([...reasons].sort(), [...expected].sort());
  t.deepEqual(await gate(db, []), new Map());
});

test("an NPI that isn't an active individual on record is not named to a vendor", async (t) => {
  const nobody = { wantedType: 'any', person: null, organization: null } as const;
  const unknown = newNpi();
  const gone = await person(null, [], { deactivatedOn: '2024-05-01' });
  const organization = await person(newPlace(), [], { entityType: 2, organizationName: 'A CLINIC' });
  const nameless = await insert({ entityType: 1, firstName: 'JANE', lastName: '--' }, null);

  t.is(await readProvider(db, unknown), null);
  for (const npi of [unknown, gone, organization, nameless])
    t.deepEqual(await subjectOf(npi), { npi, ...nobody });
});

test('a person is described as people write names, with every state of practice', async (t) => {
  const place = { phone: '(303) 555-0100', line1: '12 MAIN ST', postalCode: '802010001' };
  const npi = await person(place, [], {
    firstName: 'MARY JO',
    lastName: "O'BRIEN-MCDONALD, M.D.",
    middleName: 'NMN',
    nameSuffix: 'JR.',
    credential: 'M.D.,  PH.D.',
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
    suffix: 'JR.',
    credential: 'M.D., PH.D.',
    otherNames: [],
    practice: {
      line1: '12 MAIN ST',
      city: 'Colorado Springs',
      state: 'CO',
      zip: '80201',
      phone: '3035550100',
    },
    otherStates: ['WY'],
  });
});

const NAMES: readonly (readonly [written: string, read: string])[] = [
  ['SMITH', 'Smith'],
  ['MCDONALD', 'McDonald'],
  ['MACDONALD', 'MacDonald'],
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

test("surnames lose capitals that nobody has chosen and whatever isn't a name", async (t) => {
  for (const [written, expected] of NAMES) {
    const npi = await person(null, [], { lastName: written });
    t.is((await subjectOf(npi)).person?.last, expected, written);
  }
});

test('whoever has one name, or an unknown first one, is asked about by NPI alone', async (t) => {
  for (const [firstName, lastName, name] of [
    ['FNU', 'RAHUL', { first: '', last: 'Rahul' }],
    ['NFN', 'RAHUL', { first: '', last: 'Rahul' }],
    ['--', 'PUBLIC', { first: '', last: 'Public' }],
    ['RAHUL', 'LNU', { first: '', last: 'Rahul' }],
    ['FNU', 'LNU', null],
    ['NULL', 'NULL', null],
  ] as const) {
    const subject = await subjectOf(await person(null, [], { firstName, lastName, middleName: 'NMN' }));
    const { first, last, middle } = subject.person ?? {};
    t.deepEqual(subject.person && { first, last }, name, `${firstName} ${lastName}`);
    t.is(middle ?? null, null);
    t.deepEqual(missingOf(subject, ['npi', 'name']), ['name']);
  }
});

test('what a file writes in small letters, or with a sign between credentials, is read all the same', async (t) => {
  const row = { firstName: 'mary-jo', credential: ' MD | PHD ', practiceCity: 'colorado springs' };
  const { person: mary } = await subjectOf(await person(null, [], row));
  t.is(mary?.first, 'Mary-Jo');
  t.is(mary?.credential, 'MD, PHD');
  t.is(mary?.practice.city, 'Colorado Springs');
});

test('a generation behind the last name is a suffix', async (t) => {
  const suffixOf = async (row: Row) => (await subjectOf(await person(null, [], row))).person?.suffix;
  t.is(await suffixOf({ lastName: 'PUBLIC III' }), 'III');
  t.is(await suffixOf({ lastName: 'PUBLIC, JR., MD' }), 'Jr');
  t.is(await suffixOf({ lastName: 'PUBLIC', nameSuffix: '--' }), null);
});

test('another name on record is one more, its missing half the present one', async (t) => {
  const otherNames = async (row: Row) => (await subjectOf(await person(null, [], row))).person?.otherNames;
  t.deepEqual(await otherNames({ otherFirstName: 'JANIE', otherLastName: 'MAIDEN' }), [
    { first: 'Janie', last: 'Maiden' },
  ]);
  t.deepEqual(await otherNames({ otherLastName: 'MAIDEN' }), [{ first: 'Jane', last: 'Maiden' }]);
  t.deepEqual(await otherNames({ otherFirstName: 'JANE', otherLastName: 'PUBLIC' }), []);
  t.deepEqual(await otherNames({}), []);
});

test("the domain of the provider's own ordinary address comes first", async (t) => {
  const place = newPlace();
  await practice('SOMEBODY ELSE LLC', place, [{ endpoint: 'info@elsewhere.com' }]);
  const npi = await person(place, [
    { endpoint: 'jane@mail.publicclinic.com', affiliationName: 'PUBLIC CLINIC, P.L.L.C.' },
    { kind: 'DIRECT', endpoint: 'jane@direct.otherclinic.com', affiliationName: 'PUBLIC CLINIC PLLC' },
  ]);
  t.deepEqual(await organizationOf(npi), {
    source: 'endpoint_domain',
    name: 'Public Clinic',
    domain: 'publicclinic.com',
    confidence: 0.9,
  });
});

test('a domain of its own takes no name from an organization with another domain', async (t) => {
  const place = newPlace();
  await practice('SOMEBODY ELSE LLC', place, [{ endpoint: 'info@elsewhere.com' }]);
  const npi = await person(place, [{ endpoint: 'jane@publicclinic.com' }]);
  t.is((await organizationOf(npi))?.name, null);
  const hospital = {
    kind: 'DIRECT',
    endpoint: 'x@direct.hospital.org',
    affiliationName: 'HOSPITAL',
  } as const;
  t.is(
    (await organizationOf(await person(null, [{ endpoint: 'jane@publicclinic.com' }, hospital])))?.name,
    null,
  );

  await practice('PUBLIC CLINIC LLC', place, [{ endpoint: 'info@publicclinic.com' }]);
  t.is((await organizationOf(npi))?.name, 'Public Clinic');
});

test('several domains of a provider make the most frequent one less certain', async (t) => {
  const npi = await person(null, [
    { endpoint: 'a@aaclinic.com' },
    { endpoint: 'b@bbclinic.com' },
    { endpoint: 'c@bbclinic.com' },
  ]);
  t.like(await organizationOf(npi), { domain: 'bbclinic.com', confidence: 0.45 });
});

test('Direct addresses, free mail, even misspelled, placeholders, makers of software and URLs name no domain', async (t) => {
  const npi = await person(null, [
    { kind: 'DIRECT', endpoint: 'jane@someclinic.com' },
    { endpoint: 'jane@29651.direct.athenahealth.com' },
    { endpoint: 'jane@updox.com' },
    { endpoint: 'support@athenahealth.com' },
    { endpoint: 'jane.public@gmail.com' },
    { endpoint: 'jane@alumni.harvard.edu' },
    { endpoint: 'jane.public@gmial.com' },
    { endpoint: 'jane@yourdomain.com' },
    { kind: 'DIRECT', endpoint: 'jane.public@yahoo.com' },
    { kind: 'FHIR', endpoint: 'https://fhir.someclinic.com/r4' },
    { endpoint: 'none' },
  ]);
  t.is(await organizationOf(npi), null);
});

test('ordinary addresses of the provider are candidates, each once and normalized', async (t) => {
  const npi = await person(null, [
    { kind: 'CONNECT', endpoint: 'mailto:Jane@PublicClinic.com' },
    { kind: 'DIRECT', endpoint: 'jane.public@gmail.com' },
    { kind: 'DIRECT', endpoint: 'jane@direct.publicclinic.com' },
    { kind: 'FHIR', endpoint: 'https://fhir.publicclinic.com' },
    { endpoint: ' jane@publicclinic.com ' },
    { endpoint: '<UNAVAIL>' },
  ]);
  const facts = await readProvider(db, npi);
  t.deepEqual(facts && endpointCandidates(facts), ['jane@publicclinic.com', 'jane.public@gmail.com']);
});

test('a provider without a domain of its own works for the organization named with an endpoint', async (t) => {
  const place = newPlace();
  await practice('THE BIG HOSPITAL, INC.', place, [{ endpoint: 'info@bighospital.org' }]);
  const direct = {
    kind: 'DIRECT',
    endpoint: 'jane@direct.x.com',
    affiliationName: 'BIG HOSPITAL INC',
  } as const;
  const npi = await person(place, [direct]);
  const organization = { source: 'affiliation', name: 'Big Hospital', confidence: 0.75 } as const;
  t.deepEqual(await organizationOf(npi), { ...organization, domain: 'bighospital.org' });

  const elsewhere = await person(null, [direct, { endpoint: 'x', affiliationName: '<UNAVAIL>' }]);
  t.deepEqual(await organizationOf(elsewhere), { ...organization, domain: null });
});

test('the organization at the same telephone is found by the name on its door, with its own domain', async (t) => {
  const place = newPlace();
  const clinic = await practice('DENVER PROVIDERS 2 PLLC', place, [{ endpoint: 'records@alder.com' }]);
  await otherName(clinic, "ALDER WOMEN'S HEALTH", '3');
  await otherName(clinic, 'FORMER NAME LLC', '4');
  const npi = await person({ ...place, line1: '1 ELSEWHERE AVE', phone: `1-${place.phone}` });
  t.deepEqual(await organizationOf(npi), {
    source: 'same_phone',
    name: "Alder Women's Health",
    domain: 'alder.com',
    confidence: 0.7,
  });
});

test('the organization at the same address is found if no telephone tells', async (t) => {
  const place = newPlace();
  await practice('ALDER CLINIC LLC', place);
  const npi = await person({ ...newPlace(), line1: place.line1.replace('ST', 'STREET') });
  t.deepEqual(await organizationOf(npi), {
    source: 'same_address',
    name: 'Alder Clinic',
    domain: null,
    confidence: 0.4,
  });
});

test('an organization is found by its other locations too', async (t) => {
  const place = newPlace();
  const clinic = await practice('ALDER CLINIC LLC', newPlace());
  await location(clinic, 'CO', place);
  await location(await person(newPlace()), 'CO', place);
  const npi = await person(place);
  const facts = await readProvider(db, npi);
  const found = [facts?.atPhone, facts?.atAddress].map((neighbors) => neighbors?.map((one) => one.npi));
  t.deepEqual(found, [[clinic], [clinic]]);
  t.like(await organizationOf(npi), { source: 'same_phone', name: 'Alder Clinic' });
});

test('nobody works for deactivated organizations or for themselves', async (t) => {
  const place = newPlace();
  await insert({ entityType: 2, organizationName: 'GONE LLC', deactivatedOn: '2024-05-01' }, place);
  await person(place);
  t.is(await organizationOf(await person(place)), null);
});

test('several NPIs of one organization are one organization', async (t) => {
  const place = newPlace();
  await practice('ALDER CLINIC LLC', place);
  await practice('ALDER CLINIC, L.L.C.', place);
  await otherName(await practice('DENVER PROVIDERS 2 PLLC', place), 'ALDER CLINIC', '3');
  await practice('ALDER LABS', place, [{ endpoint: 'a@alder.com' }]);
  await practice('ALDER CLINIC', place, [{ endpoint: 'b@alder.com' }]);
  t.like(await organizationOf(await person(place)), { name: 'Alder Clinic', confidence: 0.7 });
});

test('different organizations at one telephone make each less certain, and many make none', async (t) => {
  const place = newPlace();
  await otherName(await practice('BIRCH PUBLICATIONS LLC', place), '<UNAVAIL>', '3');
  await otherName(await practice('PUBLIC FAMILY MEDICINE LLC', place), '<UNAVAIL>', '3');
  const npi = await person(place);
  t.like(await organizationOf(npi), { name: 'Public Family Medicine', confidence: 0.35 }, 'named after her');

  await practice('CEDAR DENTAL LLC', place);
  await practice('DOGWOOD EYE CARE LLC', place);
  t.is(await organizationOf(npi), null);
});

test('a telephone or an address that hundreds share says nothing', async (t) => {
  const place = newPlace();
  const keys = providerKeys(place);
  const row = { origin: 'nppes' as const, rowHash: 1, entityType: 2, ...keys };
  const rows = Array.from({ length: 500 }, () => ({ ...row, npi: newNpi(), organizationName: 'ONE NAME' }));
  await query(db, (tx) => tx.insert(providers).values(rows));
  const facts = await readProvider(db, await person(place));
  t.is(facts?.atPhone, null);
  t.is(facts?.atAddress, null);
  t.is(facts && buildSubject(facts.npi, facts, 'any').organization, null);
});

const ORGANIZATIONS: readonly (readonly [written: string, read: string])[] = [
  ['CEDAR VALLEY CLINIC PLLC', 'Cedar Valley Clinic'],
  ['CEDAR VALLEY CLINIC, P.L.L.C.', 'Cedar Valley Clinic'],
  ['CENTER FOR SLEEP OF THE ROCKIES INC', 'Center for Sleep of the Rockies'],
  ['JANE PUBLIC MD PA', 'Jane Public MD'],
  ['FAIRHAVEN OB/GYN & FRIENDS', 'Fairhaven OB/GYN & Friends'],
  ["AMBERFIELD WOMEN'S HEALTH", "Amberfield Women's Health"],
  ['Cedar Valley', 'Cedar Valley'],
  ['LLC', 'LLC'],
];

test('organizations are named without their legal form', async (t) => {
  for (const [written, expected] of ORGANIZATIONS) {
    const npi = await person(null, [{ endpoint: 'none', affiliationName: written }]);
    t.is((await organizationOf(npi))?.name, expected, written);
  }
});
