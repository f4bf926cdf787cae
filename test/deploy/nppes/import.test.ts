import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { basename, join } from 'node:path';
import test from 'ava';
import type { Sql } from 'postgres';
import { openDatabase } from '../../../db/connection/client.ts';
import { diagnose } from '../../../db/doctor/doctor.ts';
import { eraseSubject } from '../../../db/privacy/privacy.ts';
import { headerLine, type NppesValues, rowLine } from '../../../deploy/local/sample.ts';
import {
  contentOf,
  deactivatedRow,
  memberName,
  npi,
  openNppesWorld,
  personRow,
  versionsOf,
  WRONG_NPI,
  writeMember,
} from '../../support/nppes.ts';
import { ASKED, RULES } from '../../support/organization.ts';

const FULL = '20260809';
const WEEK = '20260816';

const endpointRow = (id: string, endpoint: string, type = 'DIRECT') => ({
  NPI: id,
  'Endpoint Type': type,
  Endpoint: endpoint,
  Affiliation: 'Y',
  'Affiliation Legal Business Name': 'CEDAR VALLEY CLINIC PLLC',
});

const organizationRow = (id: string) => ({
  NPI: id,
  'Entity Type Code': '2',
  'Employer Identification Number (EIN)': '<UNAVAIL>',
  'Provider Organization Name (Legal Business Name)': 'CEDAR VALLEY CLINIC PLLC',
  'Provider Other Organization Name': '<UNAVAIL>',
  'Parent Organization LBN': 'CEDAR HEALTH SYSTEM',
  'Provider First Line Business Practice Location Address': '12 MAIN ST.',
  'Provider Business Practice Location Address Postal Code': '80201',
  'Provider Business Practice Location Address Telephone Number': '3035550101',
  'Last Update Date': '01/15/2026',
});

const locationRow = (id: string, line1: string) => ({
  NPI: id,
  'Provider Secondary Practice Location Address- Address Line 1': line1,
  'Provider Secondary Practice Location Address - City Name': 'CEDAR VALLEY',
  'Provider Secondary Practice Location Address - State Name': 'CO',
  'Provider Secondary Practice Location Address - Postal Code': '80202',
  'Provider Secondary Practice Location Address - Telephone Number': '(303) 555-0102',
});

const otherNameRow = (id: string, name: string) => ({
  NPI: id,
  'Provider Other Organization Name': name,
  'Provider Other Organization Name Type Code': '3',
});

test("an NPPES import stores a provider's values, except columns that we don't use", async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const path = await writeMember(folder, 'npidata', FULL, [
    personRow(npi(1), {
      'Provider Middle Name': 'QUILL',
      'Provider Name Suffix Text': 'JR.',
      'Provider Other Last Name': 'NÉE-HARTIGAN',
      'Provider License Number_1': 'A12345',
    }),
    organizationRow(npi(2)),
  ]);
  t.like(await imported(path), {
    outcome: 'imported',
    as_of: '2026-08-09',
    files: { npidata: { read: 2, inserted: 2, rejected: 0 } },
    rejects_path: null,
  });
  const [person, organization] = await sql`
    select to_jsonb(p) - 'row_hash' - 'imported_at' - 'import_number' as row from providers p order by npi`;
  t.deepEqual(person?.row, {
    npi: npi(1),
    entity_type: 1,
    last_name: 'THORNBURY',
    first_name: 'TAMSIN',
    middle_name: 'QUILL',
    name_suffix: 'JR.',
    credential: 'MD',
    other_last_name: 'NÉE-HARTIGAN',
    other_first_name: null,
    former_last_names: [],
    organization_name: null,
    parent_name: null,
    practice_line_1: '12 MAIN STREET',
    practice_line_2: null,
    practice_city: 'CEDAR VALLEY',
    practice_state: 'CO',
    practice_postal_code: '802011234',
    practice_phone: '3035550101',
    phone_key: '3035550101',
    address_key: '12 MAIN ST|80201',
    updated_on: '2026-01-15',
    deactivated_on: null,
    reactivated_on: null,
    taxonomy: '207Q00000X',
    deactivated: null,
    active: true,
    origin: 'nppes',
    as_of: '2026-08-09',
  });
  t.like(organization?.row, {
    entity_type: 2,
    organization_name: 'CEDAR VALLEY CLINIC PLLC',
    parent_name: 'CEDAR HEALTH SYSTEM',
    phone_key: '3035550101',
    address_key: '12 MAIN ST|80201',
    last_name: null,
  });
});

test('a weekly NPPES file changes only the NPIs that it contains', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  await imported(
    await writeMember(folder, 'npidata', FULL, [
      personRow(npi(1)),
      personRow(npi(2)),
      personRow(npi(3)),
      deactivatedRow(npi(4), '03/14/2024'),
      personRow(npi(5)),
    ]),
  );
  const weekly = await writeMember(folder, 'npidata', WEEK, [
    personRow(npi(1), {
      'Provider Last Name (Legal Name)': 'HARTIGAN',
      'Last Update Date': '08/12/2026',
    }),
    // Backdated, as after a death: before the last update that is stored.
    deactivatedRow(npi(2), '12/01/2025'),
    personRow(npi(3)),
    personRow(npi(4), {
      'NPI Deactivation Date': '03/14/2024',
      'NPI Reactivation Date': '08/11/2026',
    }),
    personRow(npi(6)),
  ]);
  t.like((await imported(weekly)).files, {
    npidata: {
      read: 5,
      inserted: 1,
      updated: 3,
      unchanged: 1,
      deactivated: 1,
      reactivated: 1,
      outdated: 0,
    },
  });
  const rows = await sql`select npi, last_name, active from providers order by npi`;
  t.deepEqual(
    rows.map((row) => [row.npi, row.last_name, row.active]),
    [
      [npi(1), 'HARTIGAN', true],
      [npi(2), null, false],
      [npi(3), 'THORNBURY', true],
      [npi(4), 'THORNBURY', true],
      [npi(5), 'THORNBURY', true],
      [npi(6), 'THORNBURY', true],
    ],
  );
});

test('an import keeps the last three surnames that a person had before', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const SURNAME = 'Provider Last Name (Legal Name)';
  let day = Number(FULL);
  const importNames = async (changes: readonly NppesValues[]) => {
    day += 1;
    const rows = changes.map((values, n) => personRow(npi(n), values));
    const path = await writeMember(folder, 'npidata', String(day), rows);
    await imported(path);
    return path;
  };
  const kept = async () => {
    const rows = await sql`select former_last_names from providers order by npi`;
    return rows.map((row) => row.former_last_names);
  };
  const names = (...surnames: string[]) => surnames.map((name) => ({ [SURNAME]: name }));
  await importNames(names('ASHDOWN', 'BELLOWS', 'CORRIGAN'));
  t.deepEqual(await kept(), [[], [], []]);
  await importNames([
    { [SURNAME]: 'HARTIGAN', 'Provider First Name': 'TAMSIN JO' },
    { [SURNAME]: 'Bellows' },
    { [SURNAME]: 'PRESCOTT', 'Provider First Name': 'OTTO' },
  ]);
  const once = [['ASHDOWN'], [], []];
  t.deepEqual(await kept(), once, 'not if the given name changes too, or only the case');
  await importNames(names('ASHDOWN'));
  t.deepEqual((await kept())[0], ['HARTIGAN'], 'the current surname is not a former one');
  for (const name of ['LINDQVIST', 'MARLOWE']) await importNames(names(name));
  const path = await importNames(names('NEWCOMB'));
  const newest = ['MARLOWE', 'LINDQVIST', 'ASHDOWN'];
  t.deepEqual((await kept())[0], newest, 'the oldest of four is dropped');
  await imported(path, '--again');
  t.deepEqual((await kept())[0], newest);
  await importNames([{ [SURNAME]: 'OTHERSON', 'Provider First Name': 'GWENDOLYN' }]);
  t.deepEqual((await kept())[0], [], 'both names changed, so it was somebody else');
});

test('a provider that was deactivated after its last reactivation is inactive', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const dates = (deactivated: string, reactivated: string) => ({
    'NPI Deactivation Date': deactivated,
    'NPI Reactivation Date': reactivated,
  });
  await imported(
    await writeMember(folder, 'npidata', FULL, [
      personRow(npi(1), dates('05/02/2024', '05/01/2024')),
      personRow(npi(2), dates('05/01/2024', '05/01/2024')),
    ]),
  );
  t.deepEqual(
    (await sql`select active from providers order by npi`).map((row) => row.active),
    [false, true],
  );
});

test('a person has the primary taxonomy, or the first one if none is primary', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const row = (n: number, taxonomies: readonly (readonly [string, string])[]) =>
    personRow(
      npi(n),
      Object.fromEntries(
        taxonomies.flatMap(([code, isPrimary], at) => [
          [`Healthcare Provider Taxonomy Code_${at + 1}`, code],
          [`Healthcare Provider Primary Taxonomy Switch_${at + 1}`, isPrimary],
        ]),
      ),
    );
  const fifteen = Array(14).fill(['207R00000X', 'N'] as const);
  const group = organizationRow(npi(7));
  const full = await writeMember(folder, 'npidata', FULL, [
    row(1, [['207Q00000X', 'Y']]),
    row(2, [...fifteen, ['363LF0000X', 'Y']]),
    row(3, [
      ['', 'X'],
      ['1041C0700X', 'X'],
      ['163W00000X', 'N'],
    ]),
    row(4, [['', '']]),
    row(5, [['Nurse', 'Y']]),
    deactivatedRow(npi(6), '03/14/2024'),
    { ...group, ...row(7, [['261Q00000X', 'Y']]), 'Entity Type Code': '2' },
  ]);
  await imported(full);
  const stored = async () => {
    const rows = await sql`select taxonomy from providers order by npi`;
    return rows.map(({ taxonomy }) => taxonomy);
  };
  const [q, np, social] = ['207Q00000X', '363LF0000X', '1041C0700X'];
  t.deepEqual(await stored(), [q, np, social, null, null, null, null]);

  const week = await writeMember(folder, 'npidata', WEEK, [
    row(1, [['207Q00000X', 'Y']]),
    row(2, [['207Q00000X', 'N'], ...fifteen.slice(1), ['363LF0000X', 'Y']]),
    row(3, [['163W00000X', 'Y']]),
    row(4, [['163W00000X', '']]),
  ]);
  t.like((await imported(week)).files, { npidata: { updated: 2, unchanged: 2 } });
  const nurse = '163W00000X';
  t.deepEqual(await stored(), [q, np, nurse, nurse, null, null, null]);
});

test('a file without the columns of taxonomies is imported', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const full = await writeMember(folder, 'npidata', FULL, [personRow(npi(1))]);
  const text = await readFile(full, 'utf8');
  await writeFile(full, text.replaceAll('Primary Taxonomy', 'Main Specialty'));
  await imported(full);
  t.is((await sql`select taxonomy from providers`)[0]?.taxonomy, '207Q00000X');
  await writeFile(full, text.replaceAll('Taxonomy', 'Specialty'));
  await imported(full);
  t.is((await sql`select taxonomy from providers`)[0]?.taxonomy, null);
});

/** Writes a main file of V3, each row with its activation status. */
async function writeV3(
  folder: string,
  day: string,
  rows: readonly (readonly [NppesValues, string])[],
) {
  const more = (...values: string[]) =>
    `,${values.map((value) => `"${value}"`).join(',')}\n`;
  const names = ['managed_by', 'activation_status', 'activation_change_reason_list'];
  const header = [...names, 'activation_future_change_date', 'fhir_url'].map(
    (name) => `npi_${name}`,
  );
  const path = join(folder, memberName('npidata', day));
  await writeFile(
    path,
    headerLine('npidata').replace('\n', more(...header)) +
      rows
        .map(([row, status]) =>
          rowLine('npidata', row).replace(
            /\n$/,
            more('npd', status, 'A|B', '0000-00-00', ''),
          ),
        )
        .join(''),
  );
  return path;
}

test('in NPPES version 3, an NPI is inactive if its status or its dates say so', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const activeOnes = async () =>
    (await sql`select npi from providers where active order by npi`).map(
      (row) => row.npi,
    );
  const again = {
    'NPI Deactivation Date': '03/14/2024',
    'NPI Reactivation Date': '05/01/2024',
  };
  const twice = {
    'NPI Deactivation Date': '03/14/2025',
    'NPI Reactivation Date': '05/01/2024',
  };
  const full = await writeV3(folder, FULL, [
    [personRow(npi(1)), 'active'],
    [personRow(npi(2)), 'deactive'],
    [{ NPI: npi(3) }, 'Deactive'],
    [personRow(npi(4)), 'soon_to_be_deactivated'],
    [personRow(npi(5), again), 'deactive'],
    [personRow(npi(6), again), 'active'],
    [personRow(npi(7), twice), 'active'],
    [deactivatedRow(npi(8), '03/14/2024'), 'deactive'],
    [personRow(npi(9)), 'asleep'],
    [personRow(npi(10)), ''],
    [{ NPI: npi(11) }, 'active'],
  ]);
  t.like((await imported(full)).files, {
    npidata: { read: 11, inserted: 9, rejected: 2 },
  });
  t.deepEqual(await activeOnes(), [npi(1), npi(4), npi(6), npi(10)]);
  const rejects = await readFile(join(folder, 'rejects.csv'), 'utf8');
  t.regex(rejects, new RegExp(`,10,${npi(9)},unknown activation status\n`));
  t.regex(
    rejects,
    new RegExp(`,12,${npi(11)},no entity type and no deactivation date\n`),
  );

  const week = await writeV3(folder, WEEK, [
    [personRow(npi(1)), 'deactive'],
    [personRow(npi(2)), 'active'],
    [personRow(npi(4)), 'active'],
  ]);
  t.like((await imported(week)).files, {
    npidata: { read: 3, updated: 2, unchanged: 1, deactivated: 1, reactivated: 1 },
  });
  t.deepEqual(await activeOnes(), [npi(2), npi(4), npi(6), npi(10)]);
});

test('imports are recorded in the audit log, but dry runs and skipped files are not', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const path = await writeMember(folder, 'npidata', FULL, [personRow(npi(1))]);
  const why = ['--actor', 'ann', '--reason', 'August'];
  await imported(path, '--dry-run', ...why);
  await imported(path, ...why);
  await imported(path, ...why);
  await sql`update import_runs set state = 'failed'`;
  await imported(path, '--actor', 'bob');
  const [first, second] = await sql`select id from import_runs order by started_at`;
  t.deepEqual(
    (
      await sql`select actor, action, subject, reason, details->>'file' as file from audit_log order by id`
    ).map((row) => Object.values(row)),
    [
      ['ann', 'nppes.import', first?.id, 'August', basename(path)],
      ['bob', 'nppes.import', second?.id, 'import', basename(path)],
    ],
  );
});

test('an older file that is imported late adds missing rows but changes no newer ones', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const newer = join(folder, 'newer');
  const older = join(folder, 'older');
  await mkdir(newer);
  await mkdir(older);
  await writeMember(newer, 'npidata', WEEK, [
    personRow(npi(1), {
      'Provider Last Name (Legal Name)': 'NEWER',
      'Last Update Date': '08/12/2026',
    }),
    deactivatedRow(npi(2), '12/01/2025'),
  ]);
  await writeMember(newer, 'endpoint', WEEK, [
    endpointRow(npi(1), 'new@direct.cedar-sim.com'),
  ]);
  await writeMember(older, 'npidata', FULL, [
    personRow(npi(1)),
    personRow(npi(2)),
    personRow(npi(3)),
  ]);
  await writeMember(older, 'endpoint', FULL, [
    endpointRow(npi(1), 'old@direct.cedar-sim.com'),
    endpointRow(npi(3), 'third@direct.cedar-sim.com'),
  ]);
  await imported(newer);
  t.like((await imported(older)).files, {
    npidata: { inserted: 1, outdated: 2, updated: 0, reactivated: 0 },
    endpoint: { inserted: 1, outdated: 1, removed: 0 },
  });
  t.deepEqual(
    (await sql`select npi, last_name, active from providers order by npi`).map((row) =>
      Object.values(row),
    ),
    [
      [npi(1), 'NEWER', true],
      [npi(2), null, false],
      [npi(3), 'THORNBURY', true],
    ],
  );
  t.deepEqual(
    (await sql`select endpoint from provider_endpoints order by npi`).map(
      (row) => row.endpoint,
    ),
    ['new@direct.cedar-sim.com', 'third@direct.cedar-sim.com'],
  );
});

test('later imports leave out erased addresses and count them as erased', async (t) => {
  const { url, folder, imported, sql } = await openNppesWorld(t);
  await writeMember(folder, 'npidata', FULL, [
    personRow(npi(1)),
    personRow(npi(2)),
    personRow(npi(3)),
  ]);
  await writeMember(folder, 'endpoint', FULL, [
    endpointRow(npi(1), 'Tamsin@direct.cedar-sim.com'),
    endpointRow(npi(1), 'https://fhir.cedar-sim.com/r4', 'FHIR'),
    endpointRow(npi(2), 'mailto:ruth@cedar-sim.com', 'OTHERS'),
    endpointRow(npi(2), 'ruth@direct.cedar-sim.com'),
    endpointRow(npi(3), 'third@direct.cedar-sim.com'),
  ]);
  const endpoints = async () =>
    (await sql`select endpoint from provider_endpoints order by npi, endpoint`).map(
      (row) => row.endpoint,
    );
  const left = [
    'https://fhir.cedar-sim.com/r4',
    'ruth@direct.cedar-sim.com',
    'third@direct.cedar-sim.com',
  ];
  await imported(folder);
  const db = openDatabase({ url, poolSize: 1, applicationName: 'test' });
  t.teardown(() => db.close());
  await eraseSubject(db, ASKED, { npi: npi(1) });
  await eraseSubject(db, ASKED, { email: 'ruth@cedar-sim.com' });
  t.deepEqual(await endpoints(), left);

  // A week later the first person has another address, which stays out too.
  const week = join(folder, 'week');
  await mkdir(week);
  await writeMember(week, 'endpoint', WEEK, [
    endpointRow(npi(1), 'new@direct.cedar-sim.com'),
    endpointRow(npi(1), 'https://fhir.cedar-sim.com/r4', 'FHIR'),
  ]);
  t.like((await imported(folder, '--again')).files, {
    endpoint: { read: 5, inserted: 0, unchanged: 3, removed: 0, erased: 2 },
  });
  t.like((await imported(week)).files, {
    endpoint: { read: 2, inserted: 0, unchanged: 1, erased: 1 },
  });
  t.deepEqual(await endpoints(), left);
  const checks = await diagnose(db, { ...RULES, webhookScheduleMs: [0] });
  t.is(checks.find(({ code }) => code === 'erased_but_held')?.findings, 0);
});

test('an import replaces endpoints, names, and locations only for the NPIs in its file', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const full = join(folder, 'full');
  const week = join(folder, 'week');
  await mkdir(full);
  await mkdir(week);
  await writeMember(full, 'npidata', FULL, [
    personRow(npi(1)),
    organizationRow(npi(2)),
    personRow(npi(3)),
  ]);
  await writeMember(full, 'endpoint', FULL, [
    endpointRow(npi(1), 'tamsin@direct.cedar-sim.com'),
    endpointRow(npi(1), 'npi1.sim@gmail.com'),
    endpointRow(npi(3), 'https://fhir.cedar-sim.com/r4', 'FHIR'),
  ]);
  await writeMember(full, 'othername', FULL, [
    otherNameRow(npi(2), 'CEDAR VALLEY'),
    otherNameRow(npi(2), 'THE CLINIC'),
  ]);
  await writeMember(full, 'pl', FULL, [
    locationRow(npi(1), '9 OAK AVENUE'),
    locationRow(npi(3), '1 ELM RD'),
  ]);
  t.like((await imported(full)).files, {
    endpoint: { read: 3, inserted: 3 },
    othername: { read: 2, inserted: 2 },
    pl: { read: 2, inserted: 2 },
  });
  t.like((await sql`select * from provider_locations where npi = ${npi(1)}`)[0], {
    line_1: '9 OAK AVENUE',
    line_2: '',
    postal_code: '80202',
    phone: '(303) 555-0102',
    phone_key: '3035550102',
    address_key: '9 OAK AVE|80202',
  });

  // The first provider has a changed endpoint and no location. The organization has lost a name.
  // The third provider is not in the file.
  const changed = { 'Last Update Date': '08/12/2026' };
  await writeMember(week, 'npidata', WEEK, [
    personRow(npi(1), changed),
    { ...organizationRow(npi(2)), ...changed },
  ]);
  await writeMember(week, 'endpoint', WEEK, [
    {
      ...endpointRow(npi(1), 'tamsin@direct.cedar-sim.com'),
      'Affiliation Legal Business Name': 'CEDAR GROUP',
    },
  ]);
  await writeMember(week, 'othername', WEEK, [otherNameRow(npi(2), 'THE CLINIC')]);
  await writeMember(week, 'pl', WEEK, []);
  t.like((await imported(week, '--yes')).files, {
    endpoint: { read: 1, inserted: 0, updated: 1, removed: 1 },
    othername: { read: 1, unchanged: 1, removed: 1 },
    pl: { read: 0, removed: 1 },
  });
  t.deepEqual(
    (
      await sql`select npi, kind, endpoint, affiliation_name from provider_endpoints order by npi`
    ).map((row) => Object.values(row)),
    [
      [npi(1), 'DIRECT', 'tamsin@direct.cedar-sim.com', 'CEDAR GROUP'],
      [npi(3), 'FHIR', 'https://fhir.cedar-sim.com/r4', 'CEDAR VALLEY CLINIC PLLC'],
    ],
  );
  t.deepEqual(
    (await sql`select npi from provider_locations`).map((row) => row.npi),
    [npi(3)],
  );
});

/** Writes a download with one file of each kind. */
async function writeDownload(
  folder: string,
  name: string,
  rows: Readonly<
    Record<'npidata' | 'endpoint' | 'othername' | 'pl', readonly NppesValues[]>
  >,
  day = WEEK,
) {
  const path = join(folder, name);
  await mkdir(path);
  for (const kind of ['npidata', 'endpoint', 'othername', 'pl'] as const) {
    await writeMember(path, kind, day, rows[kind]);
  }
  return path;
}

/**
 * Writes a monthly file of forty people with details, and a weekly one of the same day with the
 * first of them and a new one.
 */
async function writeMonthAndWeek(folder: string) {
  const everyone = Array.from({ length: 40 }, (_, n) => npi(n));
  const monthly = await writeDownload(folder, 'monthly', {
    npidata: everyone.map((id) => personRow(id)),
    endpoint: everyone.map((id) => endpointRow(id, `${id}@direct.cedar-sim.com`)),
    othername: everyone.map((id) => otherNameRow(id, `CEDAR ${id}`)),
    pl: everyone.map((id) => locationRow(id, '9 OAK AVENUE')),
  });
  const weekly = await writeDownload(folder, 'weekly', {
    npidata: [personRow(npi(0)), personRow(npi(40))],
    endpoint: [endpointRow(npi(0), `${npi(0)}@direct.cedar-sim.com`)],
    othername: [otherNameRow(npi(0), `CEDAR ${npi(0)}`)],
    pl: [locationRow(npi(0), '9 OAK AVENUE'), locationRow(npi(40), '1 ELM RD')],
  });
  return { monthly, weekly };
}

const DETAILS = ['provider_endpoints', 'provider_other_names', 'provider_locations'];

async function detailCounts(sql: Sql): Promise<number[]> {
  const counts: number[] = [];
  for (const table of DETAILS) counts.push((await sql`select from ${sql(table)}`).length);
  return counts;
}

for (const [order, first, second] of [
  ['monthly file imported first', 'monthly', 'weekly'],
  ['monthly file imported second', 'weekly', 'monthly'],
] as const) {
  test(`a weekly file removes no details of NPIs that it lacks, with the ${order}`, async (t) => {
    const { folder, imported, sql } = await openNppesWorld(t);
    const paths = await writeMonthAndWeek(folder);
    await imported(paths[first]);
    await imported(paths[second]);
    t.deepEqual(await detailCounts(sql), [40, 40, 41]);
    const again = await imported(paths.weekly, '--again');
    for (const kind of ['endpoint', 'othername', 'pl'])
      t.is(again.files[kind]?.removed, 0, kind);
    t.deepEqual(await detailCounts(sql), [40, 40, 41]);
  });
}

test("a newer file removes a provider's endpoints, names, and locations that it lacks", async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  await imported((await writeMonthAndWeek(folder)).monthly);
  const changed = { 'Last Update Date': '08/12/2026' };
  const later = await writeDownload(folder, 'later', {
    npidata: [personRow(npi(3), changed), personRow(npi(4))],
    endpoint: [],
    othername: [],
    pl: [locationRow(npi(4), '9 OAK AVENUE')],
  });
  const { files } = await imported(later);
  t.is(files.endpoint?.removed, 1);
  t.is(files.othername?.removed, 1);
  t.like(files.pl, { removed: 1, unchanged: 1 });
  const left =
    await sql`select npi from provider_endpoints where npi in ${sql([npi(3), npi(4)])}`;
  t.deepEqual(
    left.map((row) => row.npi),
    [npi(4)],
  );
});

test('an import that was killed halfway removes outdated details when it is run again', async (t) => {
  const { folder, imported, operator, sql } = await openNppesWorld(t);
  await imported((await writeMonthAndWeek(folder)).monthly);
  const later = await writeDownload(folder, 'later', {
    npidata: [personRow(npi(3), { 'Last Update Date': '08/12/2026' })],
    endpoint: [],
    othername: [],
    pl: [],
  });
  // Simulates the end of the process between the main file and the first detail file.
  await sql.unsafe(
    `create function refuse() returns trigger language plpgsql as 'begin raise exception ''no''; end'`,
  );
  await sql`create trigger refuse before delete on provider_other_names execute function refuse()`;
  t.is((await operator(later)).code, 1);
  t.is((await sql`select from providers where updated_on = '2026-08-12'`).length, 1);
  await sql`drop trigger refuse on provider_other_names`;
  t.like((await imported(later)).files, {
    npidata: { unchanged: 1 },
    endpoint: { removed: 1 },
    othername: { removed: 1 },
    pl: { removed: 1 },
  });
});

test('an import that would remove more than 5 % of the rows of a table needs --yes', async (t) => {
  const { folder, imported, operator, sql } = await openNppesWorld(t);
  await imported((await writeMonthAndWeek(folder)).monthly);
  const changed = { 'Last Update Date': '08/12/2026' };
  // Two of forty endpoints are 5 %, three are more.
  const later = await writeDownload(folder, 'later', {
    npidata: [
      personRow(npi(1), changed),
      personRow(npi(2), changed),
      personRow(npi(3), changed),
    ],
    endpoint: [],
    othername: [otherNameRow(npi(1), `CEDAR ${npi(1)}`)],
    pl: [1, 2, 3].map((n) => locationRow(npi(n), '9 OAK AVENUE')),
  });
  const before = await contentOf(sql);
  const { code, stderr } = await operator(later);
  t.is(code, 1);
  t.is(
    stderr,
    'operator: this import would remove 3 of 40 rows of provider_endpoints, which is more than 5 %; nothing was changed. If that is right, run it again with --yes\n',
  );
  t.is(await contentOf(sql), before);
  const [run] = await sql`select state from import_runs order by number desc limit 1`;
  t.is(run?.state, 'failed');
  t.like((await imported(later, '--dry-run')).files, {
    endpoint: { removed: 3 },
    othername: { removed: 2 },
  });
  t.is(await contentOf(sql), before);
  t.like((await imported(later, '--yes')).files, {
    endpoint: { removed: 3 },
    othername: { removed: 2 },
  });
  t.deepEqual(await detailCounts(sql), [37, 38, 40]);
});

test('each imported row contains the number of the import that wrote it', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const { monthly, weekly } = await writeMonthAndWeek(folder);
  await imported(monthly);
  await imported(weekly);
  const [first, second] = await sql`select number from import_runs order by number`;
  for (const table of ['providers', 'provider_locations']) {
    const rows = await sql`
      select import_number as number, count(*)::integer from ${sql(table)} group by 1 order by 1`;
    t.deepEqual(
      rows.map((row) => [row.number, row.count]),
      [
        [first?.number, 40],
        [second?.number, 1],
      ],
      table,
    );
  }
});

test('masked values are stored as null, and control characters are removed', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const path = join(folder, memberName('npidata', FULL));
  const last = (id: string, name: string) =>
    rowLine('npidata', personRow(id, { 'Provider Last Name (Legal Name)': name }));
  const masked = ['<UNAVAIL>', '$$$$$$$$$', '*********', '=========', '  '].map(
    (name, n) => last(npi(n), name),
  );
  await writeFile(
    path,
    Buffer.concat([
      Buffer.from(headerLine('npidata') + masked.join('')),
      Buffer.from(last(npi(5), 'MUÑOZ'), 'latin1'),
      Buffer.from(last(npi(6), 'MUÑOZ')),
      Buffer.from(last(npi(7), 'O\0NE\nTWO\\N\tTHREE  ')),
    ]),
  );
  t.like((await imported(path)).files, { npidata: { inserted: 8, rejected: 0 } });
  t.deepEqual(
    (await sql`select last_name from providers order by npi`).map((row) => row.last_name),
    [null, null, null, null, null, 'MUÑOZ', 'MUÑOZ', 'ONE TWO\\N THREE'],
  );
});

test('rejected NPPES rows are listed with line and reason, but without names', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const set = join(folder, 'set');
  await mkdir(set);
  await writeMember(set, 'npidata', FULL, [
    personRow(npi(1)),
    personRow(WRONG_NPI),
    personRow('THORNBURY'),
    personRow(npi(2), { 'Last Update Date': '02/30/2026' }),
    personRow(npi(3), { 'Entity Type Code': '' }),
    personRow(npi(4), { 'Entity Type Code': '3' }),
    personRow(npi(7), {
      'Last Update Date': '1/15/2026',
      'NPI Deactivation Date': '<UNAVAIL>',
    }),
    personRow('1.99E+09'),
    personRow(npi(8), { 'NPI Reactivation Date': '01/15/0206' }),
  ]);
  const path = join(set, memberName('npidata', FULL));
  await writeFile(
    path,
    `${await readFile(path, 'utf8')}"${npi(5)}","1"\n${rowLine('npidata', personRow(npi(6)))}`,
  );
  await writeMember(set, 'endpoint', FULL, [
    endpointRow(npi(1), 'a@direct.cedar-sim.com', 'CARRIER PIGEON'),
    endpointRow(npi(1), ''),
  ]);
  await writeMember(set, 'othername', FULL, [otherNameRow(npi(1), '<UNAVAIL>')]);
  await writeMember(set, 'pl', FULL, [
    locationRow(npi(1), 'X'.repeat(3_000)),
    { NPI: npi(1) },
  ]);
  const { files, rejects_path } = await imported(set);
  t.like(files, {
    npidata: { read: 11, inserted: 2, rejected: 9 },
    endpoint: { rejected: 2 },
  });
  const rejects = await readFile(rejects_path ?? '', 'utf8');
  t.deepEqual(
    rejects
      .trim()
      .split('\n')
      .map((line) => line.replace(/_pfile_\d{8}-\d{8}\.csv/, '')),
    [
      'file,line,npi,reason',
      `othername,2,${npi(1)},other name missing`,
      `pl,2,${npi(1)},Provider Secondary Practice Location Address- Address Line 1 is longer than 1000 characters`,
      `pl,3,${npi(1)},address missing`,
      `endpoint,2,${npi(1)},unknown endpoint type`,
      `endpoint,3,${npi(1)},endpoint missing`,
      `npidata,3,${WRONG_NPI},NPI has a wrong check digit`,
      'npidata,4,,NPI is not 10 digits',
      `npidata,5,${npi(2)},date is not MM/DD/YYYY, or not a day from 1900 to 2099`,
      `npidata,6,${npi(3)},no entity type and no deactivation date`,
      `npidata,7,${npi(4)},entity type is neither 1 nor 2`,
      `npidata,8,${npi(7)},date is not MM/DD/YYYY, or not a day from 1900 to 2099`,
      'npidata,9,,NPI is not 10 digits',
      `npidata,10,${npi(8)},date is not MM/DD/YYYY, or not a day from 1900 to 2099`,
      `npidata,11,${npi(5)},wrong number of columns or a quote that is not closed`,
    ],
  );
  t.deepEqual(
    (await sql`select npi from providers order by npi`).map((row) => row.npi),
    [npi(1), npi(6)],
  );
});

test("a value over 1,000 characters is rejected, except in a column that we don't use", async (t) => {
  const { folder, imported } = await openNppesWorld(t);
  const path = await writeMember(folder, 'npidata', FULL, [
    personRow(npi(1), { 'Provider License Number_1': 'X'.repeat(5_000) }),
    personRow(npi(2), { 'Provider Last Name (Legal Name)': 'X'.repeat(1_001) }),
    personRow(npi(3), { 'Provider Last Name (Legal Name)': 'X'.repeat(1_000) }),
  ]);
  const { files, rejects_path } = await imported(path);
  t.like(files, { npidata: { read: 3, inserted: 2, rejected: 1 } });
  const rejects = await readFile(rejects_path ?? '', 'utf8');
  t.regex(
    rejects,
    new RegExp(
      `,3,${npi(2)},Provider Last Name \\(Legal Name\\) is longer than 1000 characters\n$`,
    ),
  );
});

test('the same NPPES file is not imported again, and --again changes no row', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const set = join(folder, 'set');
  await mkdir(set);
  await writeMember(set, 'npidata', FULL, [
    personRow(npi(1)),
    deactivatedRow(npi(2), '03/14/2024'),
  ]);
  // Two rows with the same key: each run has to choose the same one.
  await writeMember(set, 'endpoint', FULL, [
    endpointRow(npi(1), 'a@direct.cedar-sim.com'),
    {
      ...endpointRow(npi(1), 'a@direct.cedar-sim.com'),
      'Affiliation Legal Business Name': 'CEDAR GROUP',
    },
  ]);
  await writeMember(set, 'pl', FULL, [locationRow(npi(1), '9 OAK AVENUE')]);
  await writeMember(set, 'othername', FULL, [otherNameRow(npi(2), 'THE CLINIC')]);
  t.like((await imported(set)).files, { endpoint: { inserted: 1, repeated: 1 } });
  const before = await versionsOf(sql);
  t.is((await imported(set)).outcome, 'already');
  const again = await imported(set, '--again');
  t.is(again.outcome, 'imported');
  for (const counts of Object.values(again.files)) {
    t.like(counts, { inserted: 0, updated: 0 });
    t.true((counts.unchanged ?? 0) > 0);
  }
  t.is(await versionsOf(sql), before);
});

test('a dry run of an import counts the changes without making them', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const set = join(folder, 'set');
  await mkdir(set);
  await imported(
    await writeMember(folder, 'npidata', FULL, [personRow(npi(1)), personRow(npi(2))]),
  );
  await writeMember(set, 'npidata', WEEK, [
    deactivatedRow(npi(1), '08/12/2026'),
    personRow(npi(3)),
    personRow('1'),
  ]);
  await writeMember(set, 'endpoint', WEEK, [
    endpointRow(npi(1), 'a@direct.cedar-sim.com'),
  ]);
  const before = await contentOf(sql);
  const { outcome, files } = await imported(set, '--dry-run');
  t.is(outcome, 'rehearsed');
  t.like(files, {
    npidata: { read: 3, inserted: 1, updated: 1, deactivated: 1, rejected: 1 },
    endpoint: { read: 1, rejected: 0 },
  });
  t.is(await contentOf(sql), before);
  t.is((await imported(set)).outcome, 'imported');
});

test('an import replaces older data from the NPI Registry, but not newer data', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  for (const [id, asOf] of [
    [npi(1), '2026-08-10'],
    [npi(2), '2026-08-08'],
  ] as const) {
    await sql`
      insert into providers (npi, entity_type, last_name, origin, row_hash, as_of)
      values (${id}, 1, 'REGISTRY', 'registry', 0, ${asOf})`;
  }
  const path = await writeMember(folder, 'npidata', FULL, [
    personRow(npi(1)),
    personRow(npi(2)),
  ]);
  t.like((await imported(path)).files, { npidata: { outdated: 1, updated: 1 } });
  t.deepEqual(
    (await sql`select last_name, origin from providers order by npi`).map((row) =>
      Object.values(row),
    ),
    [
      ['REGISTRY', 'registry'],
      ['THORNBURY', 'nppes'],
    ],
  );
});
