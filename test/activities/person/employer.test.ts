import test from 'ava';
import { buildSubject } from '../../../activities/person/subject.ts';
import { query } from '../../../db/connection/client.ts';
import { storeEmployerDomains } from '../../../db/providers/employer-domains.ts';
import { organizationKey, providerKeys } from '../../../db/providers/keys.ts';
import { readProvider } from '../../../db/providers/subject.ts';
import { providers } from '../../../db/schema.ts';
import type { EndpointKind } from '../../../db/words.ts';
import { freshDatabase } from '../../support/database.ts';
import { providersIn } from '../../support/providers.ts';

const { db } = freshDatabase(test);
const { insert, person, practice, otherName, location, bills, newNpi, newPlace } =
  providersIn(db);

async function subjectOf(npi: string) {
  return buildSubject(npi, await readProvider(db, npi), 'any');
}

async function employerOf(npi: string) {
  return (await subjectOf(npi)).organization;
}

async function employersOf(npi: string) {
  const { organization, otherOrganizations } = await subjectOf(npi);
  return [...(organization ? [organization] : []), ...otherOrganizations];
}

test("the likeliest employer is the one at the domain of the provider's own address", async (t) => {
  const place = newPlace();
  await practice('SOMEBODY ELSE LLC', place, [{ endpoint: 'info@elsewhere.com' }]);
  const npi = await person(place, [
    {
      endpoint: 'jane.public@mail.cedarclinic.com',
      affiliationName: 'CEDAR CLINIC, P.L.L.C.',
    },
    {
      kind: 'DIRECT',
      endpoint: 'jane@x.direct.otherclinic.com',
      affiliationName: 'CEDAR CLINIC PLLC',
    },
  ]);
  t.deepEqual(await employerOf(npi), {
    source: 'own_mailbox',
    name: 'Cedar Clinic',
    domain: 'cedarclinic.com',
    confidence: 0.94,
  });
});

test('the domain of an office@ address has less confidence than that of a personal one', async (t) => {
  const confidence = async (endpoint: string) =>
    (await employerOf(await person(null, [{ endpoint }])))?.confidence;
  t.is(await confidence('jane.public@cedarclinic.com'), 0.85);
  t.is(await confidence('npi@publicdermatology.com'), 0.85);
  t.is(await confidence('office@cedarclinic.com'), 0.5);
  const lee = await person(null, [{ endpoint: 'office@leesburg.com' }], {
    lastName: 'LEE',
  });
  t.is((await employerOf(lee))?.confidence, 0.5);
});

test("an employer's domain is found in URLs and in the hosts of Direct addresses", async (t) => {
  const domain = async (endpoint: string, kind: EndpointKind = 'OTHERS') =>
    (await employerOf(await person(null, [{ kind, endpoint }])))?.domain ?? null;
  t.is(await domain('https://fhir.cedarclinic.com/r4', 'FHIR'), 'cedarclinic.com');
  t.is(await domain('www.cedarclinic.com/portal'), 'cedarclinic.com');
  t.is(await domain('jpublic@direct.cedarclinic.com', 'DIRECT'), 'cedarclinic.com');
  t.is(await domain('jpublic@cedarclinic.direct.unlisted.com', 'DIRECT'), null);
  t.is(await domain('jpublic@cedarclinic.com', 'DIRECT'), null);
});

test('software vendors, mail services, billers, and free mail are not employers', async (t) => {
  const npi = await person(null, [
    { endpoint: 'jane.public@29651.direct.athenahealth.com' },
    { endpoint: 'jane.public@direct.nextgen.com' },
    { endpoint: 'jane.public@updox.com' },
    { endpoint: 'support@athenahealth.com' },
    { endpoint: 'claims@officeally.com' },
    { endpoint: 'https://fhir4.eclinicalworks.com/fhir/r4/ABC', kind: 'FHIR' },
    { endpoint: 'https://publicclinic.wixsite.com/home' },
    { endpoint: 'jane.public@gmail.com' },
    { endpoint: 'jane@alumni.harvard.edu' },
    { kind: 'DIRECT', endpoint: 'jane.public@yahoo.com' },
    { endpoint: 'none' },
  ]);
  t.is(await employerOf(npi), null);
});

test("a domain that resembles no organization's name counts as a separate employer", async (t) => {
  const place = newPlace();
  await practice('CEDAR VALLEY PEDIATRICS LLC', place);
  const npi = await person(place, [{ endpoint: 'enroll@papersdone.com' }]);
  t.deepEqual(
    (await employersOf(npi)).map(({ name, domain }) => [name, domain]),
    [
      ['Cedar Valley Pediatrics', null],
      [null, 'papersdone.com'],
    ],
  );
});

test('a domain belongs to the organization whose name it resembles', async (t) => {
  const place = newPlace();
  await practice('CEDAR VALLEY PEDIATRICS LLC', place);
  const joined = async (endpoint: string) =>
    (await employersOf(await person(place, [{ endpoint }])))[0];
  for (const domain of ['cedarpeds.com', 'cvp.org', 'cvpmd.com']) {
    t.like(
      await joined(`office@${domain}`),
      { name: 'Cedar Valley Pediatrics', domain },
      domain,
    );
  }
});

test('if a provider has addresses at several domains, each one has less confidence', async (t) => {
  const npi = await person(null, [
    { endpoint: 'a@aaclinic.com' },
    { endpoint: 'b@bbclinic.com' },
    { endpoint: 'c@bbclinic.com' },
  ]);
  t.deepEqual(
    (await employersOf(npi)).map(({ domain, confidence }) => [domain, confidence]),
    [
      ['bbclinic.com', 0.33],
      ['aaclinic.com', 0.17],
    ],
  );
});

test("an organization that NPPES names as an endpoint's affiliation is an employer", async (t) => {
  const place = newPlace();
  await practice('THE BIG HOSPITAL, INC.', place, [{ endpoint: 'info@bighospital.org' }]);
  const direct = {
    kind: 'DIRECT',
    endpoint: 'jane@some.direct.x.com',
    affiliationName: 'BIG HOSPITAL INC',
  } as const;
  t.like(await employerOf(await person(place, [direct])), { domain: 'bighospital.org' });

  const elsewhere = await person(null, [
    direct,
    { endpoint: 'x', affiliationName: '<UNAVAIL>' },
  ]);
  const organization = {
    source: 'affiliation',
    name: 'Big Hospital',
    confidence: 0.6,
  } as const;
  t.deepEqual(await employerOf(elsewhere), { ...organization, domain: null });
});

test("an organization with the provider's phone number is an employer", async (t) => {
  const place = newPlace();
  const clinic = await practice('DENVER PROVIDERS 2 PLLC', place, [
    { endpoint: 'records@alder.com' },
  ]);
  await otherName(clinic, "ALDER WOMEN'S HEALTH", '3');
  await otherName(clinic, 'FORMER NAME LLC', '4');
  const npi = await person({
    ...place,
    line1: '1 ELSEWHERE AVE',
    phone: `1-${place.phone}`,
  });
  t.deepEqual(await employerOf(npi), {
    source: 'same_phone',
    name: "Alder Women's Health",
    domain: 'alder.com',
    confidence: 0.7,
  });
});

test("an organization at the provider's address is likelier if its suite is the same", async (t) => {
  const at = async (line2: string | null) => {
    const place = newPlace(line2);
    await practice('ALDER CLINIC LLC', place);
    const { line1, postalCode } = place;
    return await employerOf(
      await person({
        phone: null,
        line1: line1.replace('ST', 'STREET'),
        line2,
        postalCode,
      }),
    );
  };
  const organization = { name: 'Alder Clinic', domain: null };
  t.deepEqual(await at(null), {
    ...organization,
    source: 'same_address',
    confidence: 0.4,
  });
  t.deepEqual(await at('SUITE 200'), {
    ...organization,
    source: 'same_suite',
    confidence: 0.55,
  });
});

test("an organization in another suite of the provider's building is not an employer", async (t) => {
  const { line1, postalCode } = newPlace();
  const suite = (line2: string) => ({ phone: null, line1, line2, postalCode });
  await practice('ALDER CLINIC LLC', suite('STE 200'));
  await practice('BIRCH DENTAL LLC', suite('STE 210'));
  t.deepEqual(
    (await employersOf(await person(suite('Suite 210')))).map(({ name }) => name),
    ['Birch Dental'],
  );
});

test('employers are found at all locations of the provider and of the organization', async (t) => {
  const [place, other] = [newPlace(), newPlace()];
  const clinic = await practice('ALDER CLINIC LLC', newPlace());
  await location(clinic, 'CO', place);
  await location(await person(newPlace()), 'CO', place);
  const npi = await person(place);
  const facts = await readProvider(db, npi);
  const found = facts?.places.map(({ neighbors }) => neighbors?.map((one) => one.npi));
  t.deepEqual(found, [[clinic], [clinic]]);
  t.like(await employerOf(npi), { source: 'same_phone', name: 'Alder Clinic' });

  await practice('BIRCH CLINIC LLC', other);
  await location(npi, 'CO', other);
  t.deepEqual(
    (await employersOf(npi)).map(({ source, name, confidence }) => [
      source,
      name,
      confidence,
    ]),
    [
      ['same_phone', 'Alder Clinic', 0.7],
      ['elsewhere', 'Birch Clinic', 0.35],
    ],
  );
});

test('deactivated organizations and other people at an address are not employers', async (t) => {
  const place = newPlace();
  await insert(
    { entityType: 2, organizationName: 'GONE LLC', deactivatedOn: '2024-05-01' },
    place,
  );
  await person(place);
  t.is(await employerOf(await person(place)), null);
});

test('organizations with different NPIs and the same name count as one employer', async (t) => {
  const place = newPlace();
  await practice('ALDER CLINIC LLC', place);
  await practice('ALDER CLINIC, L.L.C.', place);
  await otherName(await practice('DENVER PROVIDERS 2 PLLC', place), 'ALDER CLINIC', '3');
  await practice('ALDER LABS', place, [{ endpoint: 'a@alder.com' }]);
  await practice('ALDER CLINIC', place, [{ endpoint: 'b@alder.com' }]);
  t.like(await employerOf(await person(place)), {
    name: 'Alder Clinic',
    confidence: 0.7,
  });
});

test('two parts of the same parent organization count as one employer', async (t) => {
  const place = newPlace();
  const part = { parentName: 'BIG HEALTH SYSTEM, INC.' };
  await practice('EAST SIDE LAB', place, [], part);
  await practice('EAST SIDE FAMILY MEDICINE', place, [], part);
  const employers = await employersOf(await person(place));
  t.deepEqual(
    employers.map(({ name, confidence }) => [name, confidence]),
    [['East Side Lab', 0.7]],
  );
});

test('the more organizations share a phone number, the less confidence each one has', async (t) => {
  const place = { ...newPlace(), line1: null };
  await otherName(await practice('BIRCH PUBLICATIONS LLC', place), '<UNAVAIL>', '3');
  await otherName(await practice('CEDAR FAMILY MEDICINE LLC', place), '<UNAVAIL>', '3');
  const npi = await person(place);
  t.like(await employerOf(npi), { name: 'Birch Publications', confidence: 0.35 });
  await practice('PUBLIC FAMILY MEDICINE LLC', place);
  t.like(
    await employerOf(npi),
    { name: 'Public Family Medicine', confidence: 0.47 },
    'named after her',
  );

  await practice('DOGWOOD EYE CARE LLC', place);
  t.deepEqual(
    (await employersOf(npi)).map(({ name }) => name),
    ['Public Family Medicine'],
  );
  t.deepEqual(await employersOf(await person(place, [], { lastName: 'ROE' })), []);
});

test('a phone or address that hundreds of organizations share is ignored', async (t) => {
  const place = newPlace();
  const keys = providerKeys(place);
  const row = { origin: 'nppes' as const, rowHash: 1, entityType: 2, ...keys };
  const rows = Array.from({ length: 500 }, () => ({
    ...row,
    npi: newNpi(),
    organizationName: 'ONE NAME',
  }));
  await query(db, (tx) => tx.insert(providers).values(rows));
  const facts = await readProvider(db, await person(place));
  t.deepEqual(
    facts?.places.map(({ at, neighbors }) => [at, neighbors]),
    [
      ['phone', null],
      ['address', null],
    ],
  );
  t.is(facts && buildSubject(facts.npi, facts, 'any').organization, null);
});

test('a group that the provider bills for is likelier than a practice at its address', async (t) => {
  const [old, now] = [newPlace(), newPlace()];
  await practice('OLD PRACTICE LLC', old);
  await practice('ALDER MEDICAL GROUP INC', now, [
    { endpoint: 'https://fhir.amg.org', kind: 'FHIR' },
  ]);
  const npi = await person(old);
  await bills(npi, ['0042', 'ALDER MEDICAL GROUP, A PROFESSIONAL CORPORATION'], now);
  const [first, second] = await employersOf(npi);
  t.like(first, {
    source: 'clinician_group',
    name: 'Alder Medical Group',
    domain: 'amg.org',
  });
  t.like(second, { source: 'same_phone', name: 'Old Practice' });
});

test("a group's domain is used by two of its clinicians or resembles the group's name", async (t) => {
  const place = newPlace();
  const group = (pacId: string) => [pacId, 'ALDER MEDICAL GROUP'] as const;
  const employer = async (pacId: string, ...endpoints: string[]) => {
    for (const endpoint of endpoints)
      await bills(await person(null, [{ endpoint }]), group(pacId), newPlace());
    const npi = await person(null);
    await bills(npi, group(pacId), place);
    return (await employerOf(npi))?.domain;
  };
  t.is(await employer('1', 'a@qxz.com', 'b@qxz.com', 'c@other.com'), 'qxz.com');
  t.is(
    await employer('2', 'a@qxz.com'),
    null,
    'one clinician alone may have another employer',
  );
  t.is(await employer('3', 'a@aldermed.com'), 'aldermed.com');
});

test('among groups that a provider bills for, the one at its address is likeliest', async (t) => {
  const place = newPlace();
  const npi = await person(place);
  await bills(npi, ['1', 'ALDER CLINIC'], newPlace());
  await bills(npi, ['2', 'BIRCH CLINIC'], place);
  await bills(npi, null, newPlace());
  t.deepEqual(
    (await employersOf(npi)).map(({ name, confidence }) => [name, confidence]),
    [
      ['Birch Clinic', 0.63],
      ['Alder Clinic', 0.38],
    ],
  );
});

test('the larger of two groups that a provider bills for is the likelier employer', async (t) => {
  const npi = await person(null);
  await bills(npi, ['1', 'ALDER CLINIC'], newPlace(), 4);
  await bills(npi, ['2', 'BIRCH HOSPITAL'], newPlace(), 1200);
  t.deepEqual(
    (await employersOf(npi)).map(({ name, confidence }) => [name, confidence]),
    [
      ['Birch Hospital', 0.6],
      ['Alder Clinic', 0.15],
    ],
  );
});

test("the operator's table of employer domains, by NPI, PAC id, or name, has priority", async (t) => {
  const place = newPlace();
  const clinic = await practice('CHESTNUT CLINIC LLC', place, [
    { endpoint: 'info@wrong.com' },
  ]);
  const npi = await person(place);
  const domain = async () => (await employerOf(npi))?.domain;
  t.is(await domain(), 'wrong.com');

  const know = (kind: 'npi' | 'pac_id' | 'name', value: string, known: string | null) =>
    storeEmployerDomains(db, [{ key: `${kind}:${value}`, domain: known }]);
  await know('name', organizationKey('The Chestnut Clinic, P.L.L.C.'), 'by-name.com');
  t.is(await domain(), 'by-name.com');
  await know('npi', clinic, 'by-npi.com');
  t.is(await domain(), 'by-npi.com');
  await know('npi', npi, 'by-person.com');
  t.like(await employerOf(npi), {
    source: 'operator',
    domain: 'by-person.com',
    confidence: 0.97,
  });
  await know('npi', npi, null);
  t.is(await domain(), 'by-npi.com');

  const biller = await person(null);
  await bills(biller, ['77', 'QUIET GROUP'], newPlace());
  await know('pac_id', '77', 'quiet.org');
  t.like(await employerOf(biller), { name: 'Quiet Group', domain: 'quiet.org' });
});

test('a part of an organization has the domain of its parent organization', async (t) => {
  const place = newPlace();
  await practice('EAST SIDE FAMILY MEDICINE', place, [], {
    parentName: 'VAST HEALTH SYSTEM, INC.',
  });
  await storeEmployerDomains(db, [
    { key: `name:${organizationKey('VAST HEALTH SYSTEM')}`, domain: 'vast.org' },
  ]);
  t.like(await employerOf(await person(place)), {
    name: 'East Side Family Medicine',
    domain: 'vast.org',
  });
});
