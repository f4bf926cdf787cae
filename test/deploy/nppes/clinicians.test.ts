import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import type { Sql } from 'postgres';
import { writeZip } from '../../../deploy/local/sample.ts';
import {
  CLINICIAN_HEADER,
  type ClinicianValues,
  clinicianLine,
  clinicianRow,
} from '../../support/employers.ts';
import { npi, openNppesWorld, versionsOf, WRONG_NPI } from '../../support/nppes.ts';

const SOLO = { 'Facility Name': '', org_pac_id: '', num_org_mem: '' };

async function fileOf(
  folder: string,
  rows: readonly ClinicianValues[],
  name = 'DAC_NationalDownloadableFile.csv',
) {
  const path = join(folder, name);
  await writeFile(path, CLINICIAN_HEADER + rows.map(clinicianLine).join(''));
  return path;
}

async function storedIn(sql: Sql): Promise<unknown[][]> {
  const rows = await sql`select npi, pac_id, name, members, phone_key, address_key
                           from clinician_practices order by npi, pac_id, address_key`;
  return rows.map((one) => Object.values(one));
}

const AT = ['3035550101', '12 N MAIN ST STE 200|80201'] as const;

test('each workplace of a clinician is stored once, even without an employer group', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t, 'clinicians');
  const path = await fileOf(folder, [
    clinicianRow(npi(1)),
    // The same workplace again, with another enrollment ID.
    clinicianRow(npi(1), { Ind_enrl_ID: 'I20040309000221' }),
    clinicianRow(npi(1), {
      org_pac_id: '77',
      'Facility Name': 'BIG HOSPITAL',
      num_org_mem: '1204',
    }),
    clinicianRow(npi(2), { ...SOLO, 'Telephone Number': '', adr_ln_2: '' }),
    clinicianRow(npi(3), { num_org_mem: '', 'ZIP Code': '' }),
  ]);
  t.like(await imported(path), {
    outcome: 'imported',
    as_of: null,
    files: { clinicians: { read: 5, inserted: 4, repeated: 1, rejected: 0 } },
  });
  t.deepEqual(await storedIn(sql), [
    [npi(1), '0000000077', 'BIG HOSPITAL', 1204, ...AT],
    [npi(1), '0042000001', 'CEDAR VALLEY CLINIC, LLC', 17, ...AT],
    [npi(2), '', null, null, '', '12 N MAIN ST|80201'],
    [npi(3), '0042000001', 'CEDAR VALLEY CLINIC, LLC', null, '3035550101', ''],
  ]);
});

test("a clinician file replaces its NPIs' rows; removing over 5 % of all rows needs --yes", async (t) => {
  const { folder, imported, operator, sql } = await openNppesWorld(t, 'clinicians');
  await imported(
    await fileOf(folder, [
      clinicianRow(npi(1)),
      clinicianRow(npi(2)),
      clinicianRow(npi(3)),
    ]),
  );
  // The day of NPPES's data is irrelevant here.
  await sql`insert into providers (npi, entity_type, origin, as_of, row_hash)
            values (${npi(1)}, 1, 'nppes', '2099-01-01', 1), (${npi(3)}, 1, 'nppes', current_date, 1)`;
  const later = await fileOf(folder, [
    clinicianRow(npi(1), { num_org_mem: '18' }),
    // Has left the group.
    clinicianRow(npi(2), SOLO),
    clinicianRow(npi(4)),
  ]);
  const before = await storedIn(sql);
  const refused = await operator(later);
  t.is(refused.code, 1);
  t.regex(
    refused.stderr,
    /would remove 1 of 3 rows of clinician_practices, which is more than 5 %/,
  );
  t.deepEqual(await storedIn(sql), before);
  t.like((await imported(later, '--yes')).files, {
    clinicians: {
      read: 3,
      inserted: 2,
      updated: 1,
      unchanged: 0,
      removed: 1,
      outdated: 0,
    },
  });
  t.deepEqual(
    (await storedIn(sql)).map(([id, pacId, , members]) => [id, pacId, members]),
    [
      [npi(1), '0042000001', 18],
      [npi(2), '', null],
      [npi(3), '0042000001', 17],
      [npi(4), '0042000001', 17],
    ],
  );
});

test('the same clinician file is not imported again, except with --again', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t, 'clinicians');
  const path = await fileOf(folder, [clinicianRow(npi(1)), clinicianRow(npi(2), SOLO)]);
  t.like(await imported(path, '--dry-run'), {
    outcome: 'rehearsed',
    files: { clinicians: { read: 2 } },
  });
  t.deepEqual(await storedIn(sql), []);
  await imported(path);
  const before = await versionsOf(sql);
  t.is((await imported(path)).outcome, 'already');
  t.like((await imported(path, '--again')).files, {
    clinicians: { unchanged: 2, inserted: 0, removed: 0 },
  });
  t.is(await versionsOf(sql), before);
  const actions = await sql`select distinct action from audit_log`;
  t.deepEqual(
    actions.map(({ action }) => action),
    ['clinicians.import'],
  );
});

test('rejected clinician rows are listed with line and reason, but without names', async (t) => {
  const { folder, imported } = await openNppesWorld(t, 'clinicians');
  const path = await fileOf(folder, [
    clinicianRow(npi(1)),
    clinicianRow(WRONG_NPI),
    clinicianRow('THORNBURY'),
    clinicianRow(npi(2), { org_pac_id: 'O20040309' }),
    clinicianRow(npi(3), { num_org_mem: 'many' }),
  ]);
  await writeFile(path, `${await readFile(path, 'utf8')}${npi(4)},only,three\n`);
  const { files, rejects_path } = await imported(path);
  t.like(files, { clinicians: { read: 6, inserted: 1, rejected: 5 } });
  t.deepEqual((await readFile(rejects_path ?? '', 'utf8')).trim().split('\n'), [
    'file,line,npi,reason',
    `DAC_NationalDownloadableFile.csv,3,${WRONG_NPI},NPI has a wrong check digit`,
    'DAC_NationalDownloadableFile.csv,4,,NPI is not 10 digits',
    `DAC_NationalDownloadableFile.csv,5,${npi(2)},PAC id of the group is not a number of 10 digits`,
    `DAC_NationalDownloadableFile.csv,6,${npi(3)},number of members is not a number`,
    `DAC_NationalDownloadableFile.csv,7,${npi(4)},wrong number of columns or a quote that is not closed`,
  ]);
});

const HEADERS: Readonly<Record<string, string>> = {
  'of 2023': CLINICIAN_HEADER,
  'with stray spaces and tabs':
    ' NPI, org_pac_id,num_org_mem ,Facility  Name,adr_ln_1\t,adr_ln_2,ZIP Code,Telephone Number',
  'of 2021':
    'NPI, Ind_PAC_ID, lst_nm, org_nm, org_pac_id, num_org_mem, adr_ln_1, adr_ln_2, cty, st, zip, phn_numbr',
  'of 2017':
    'NPI,PAC ID,Last Name,Organization legal name,Group Practice PAC ID,Number of Group Practice members,Line 1 Street Address,Line 2 Street Address,City,State,Zip Code,Phone Number',
  'from the API of data.cms.gov':
    'npi,ind_pac_id,provider_last_name,facility_name,org_pac_id,num_org_mem,adr_ln_1,adr_ln_2,citytown,state,zip_code,telephone_number',
};

for (const [what, header] of Object.entries(HEADERS)) {
  test(`an import finds the columns of a clinician file ${what} by their names`, async (t) => {
    const { folder, imported, sql } = await openNppesWorld(t, 'clinicians');
    const columns = header.trim().split(',');
    const values: [RegExp, string][] = [
      [/^npi$/i, npi(1)],
      [/facility|org_nm|legal/i, 'CEDAR CLINIC'],
      [/org_pac_id|group practice pac/i, '42'],
      [/num_org|members/i, '3'],
      [/ln_1|line 1/i, '12 MAIN ST'],
      [/ln_2|line 2/i, 'STE 5'],
      [/^zip/i, '80201'],
      [/phone|phn/i, '3035550101'],
    ];
    const cells = columns.map(
      (column) =>
        values.find(([name]) => name.test(column.trim().replace(/\s+/g, ' ')))?.[1] ?? '',
    );
    const path = join(folder, 'file.csv');
    await writeFile(path, `${header.trimEnd()}\n${cells.join(',')}\n`);
    await imported(path);
    t.deepEqual(await storedIn(sql), [
      [npi(1), '0000000042', 'CEDAR CLINIC', 3, '3035550101', '12 MAIN ST STE 5|80201'],
    ]);
  });
}

test('a clinician file that lacks columns is rejected, and a folder with two files too', async (t) => {
  const { folder, operator } = await openNppesWorld(t, 'clinicians');
  const refusal = async (header: string) => {
    const path = join(folder, 'file.csv');
    await writeFile(path, `${header}\n1,2\n`);
    const { code, stderr } = await operator(path);
    t.is(code, 1);
    return stderr;
  };
  t.regex(
    await refusal('NPI,org_pac_id,Facility Name,adr_ln_1,adr_ln_2,ZIP Code'),
    /file\.csv is not the national file of "Doctors and Clinicians": it must have each of these columns once: num_org_mem, Telephone Number\. Download it again from data\.cms\.gov/,
  );
  t.regex(await refusal(`${CLINICIAN_HEADER.trimEnd()},org_nm`), /once: Facility Name\./);
  const two = join(folder, 'two');
  await mkdir(two);
  for (const name of ['a.csv', 'b.csv']) await fileOf(two, [clinicianRow(npi(1))], name);
  t.regex(
    (await operator(two)).stderr,
    /has 2 csv files; give the path of the national file/,
  );
});

test('a zip from the archive of clinician files is read without unpacking it', async (t) => {
  const { folder, imported } = await openNppesWorld(t, 'clinicians');
  const content = Buffer.from(CLINICIAN_HEADER + clinicianLine(clinicianRow(npi(1))));
  const path = join(folder, 'doctors_and_clinicians_10_2026.zip');
  await writeZip(path, [
    { name: 'DAC_NationalDownloadableFile.csv', content },
    { name: 'DAC_DataDictionary.pdf', content: Buffer.from('%PDF') },
  ]);
  t.like((await imported(path)).files, { clinicians: { read: 1, inserted: 1 } });
});
