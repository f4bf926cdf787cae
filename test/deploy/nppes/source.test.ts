import { mkdir, readFile, rename, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { headerLine, rowLine, writeZip } from '../../../deploy/local/sample.ts';
import LAYOUT from '../../../deploy/nppes/layout.json' with { type: 'json' };
import { openProgress } from '../../../deploy/nppes/output.ts';
import {
  contentOf,
  memberName,
  npi,
  openNppesWorld,
  personRow,
  writeMember,
} from '../../support/nppes.ts';

const DAY = '20260809';

const mainFile = () =>
  Buffer.from(headerLine('npidata') + rowLine('npidata', personRow(npi(1))));
const endpointFile = () =>
  Buffer.from(
    headerLine('endpoint') +
      rowLine('endpoint', {
        NPI: npi(1),
        'Endpoint Type': 'DIRECT',
        Endpoint: 'a@direct.cedar-sim.com',
      }),
  );

test('importing a zip, its unpacked folder, or its single files has the same result', async (t) => {
  const zipped = await openNppesWorld(t);
  const zip = join(zipped.folder, 'NPPES_Data_Dissemination_August_2026_V2.ZIP');
  await writeZip(zip, [
    { name: 'NPPES_Readme_and_CodeValues.pdf', content: Buffer.from('%PDF') },
    {
      name: `__MACOSX/._${memberName('npidata', DAY)}`,
      content: Buffer.from('resource'),
    },
    {
      name: memberName('npidata', DAY).replace('.csv', '_FileHeader.csv'),
      content: Buffer.from(headerLine('npidata')),
    },
    {
      name: `data/${memberName('endpoint', DAY).toUpperCase()}`,
      content: endpointFile(),
    },
    { name: memberName('npidata', DAY), content: mainFile() },
  ]);
  t.like((await zipped.imported(zip)).files, {
    npidata: { inserted: 1 },
    endpoint: { inserted: 1 },
  });

  const unpacked = await openNppesWorld(t);
  const folder = join(unpacked.folder, 'set');
  await mkdir(folder);
  await writeFile(join(folder, memberName('npidata', DAY)), mainFile());
  await writeFile(join(folder, memberName('endpoint', DAY)), endpointFile());
  await writeFile(join(folder, 'notes.csv'), 'of somebody else');
  await unpacked.imported(folder);

  const single = await openNppesWorld(t);
  await single.imported(join(folder, memberName('npidata', DAY)));
  await single.imported(join(folder, memberName('endpoint', DAY)));

  t.is(await contentOf(unpacked.sql), await contentOf(zipped.sql));
  t.is(await contentOf(single.sql), await contentOf(zipped.sql));
});

test('a zip file is recognized by its content, not by its name', async (t) => {
  const { folder, imported } = await openNppesWorld(t);
  const path = join(folder, 'a.zip');
  await writeZip(path, [{ name: memberName('npidata', DAY), content: mainFile() }]);
  await imported(path);
  await rename(path, join(folder, 'b.zip'));
  t.is((await imported(join(folder, 'b.zip'))).outcome, 'already');
  const other = Buffer.from(mainFile().toString().replace('TAMSIN', 'VALETA'));
  await writeZip(path, [{ name: memberName('npidata', DAY), content: other }]);
  t.like((await imported(path)).files, { npidata: { updated: 1 } });
});

test('nothing is imported if the list of rejected rows cannot be written', async (t) => {
  const { folder, operator, sql } = await openNppesWorld(t);
  const path = join(folder, memberName('npidata', DAY));
  await writeFile(path, mainFile());
  const { code, stderr } = await operator(
    path,
    '--rejects',
    join(folder, 'none', 'r.csv'),
  );
  t.is(code, 1);
  t.regex(
    stderr,
    /cannot write the rejects file \S+r\.csv .*choose another one with --rejects/,
  );
  t.is((await sql`select from import_runs`).length, 0);
});

test('a file that ends in the middle of a row is not imported', async (t) => {
  const { folder, operator, imported, sql } = await openNppesWorld(t);
  const path = join(folder, 'cut.zip');
  const name = memberName('npidata', DAY);
  const whole = mainFile().toString();
  const last = rowLine('npidata', personRow(npi(2), { 'Provider Middle Name': 'A\nB' }));
  const ends = [',"THORN', 'THORNBURY"', 'THORNBURY",', '"A\n'];
  for (const end of ends) {
    const cut = last.slice(0, last.indexOf(end) + end.length);
    await writeZip(path, [{ name, content: Buffer.from(whole + cut) }]);
    const { code, stderr } = await operator(path);
    t.is(code, 1, end);
    t.true(
      stderr.includes(`${name} ends in the middle of a row; download it again`),
      stderr,
    );
    t.is((await sql`select from providers`).length, 0);
  }
  await writeZip(path, [{ name, content: Buffer.from(whole + last.trimEnd()) }]);
  t.like((await imported(path)).files, { npidata: { inserted: 2, rejected: 0 } });
});

test('each kind of unreadable zip has its own error message, and nothing is imported', async (t) => {
  const { folder, operator, sql } = await openNppesWorld(t);
  const path = join(folder, 'good.zip');
  await writeZip(path, [{ name: memberName('npidata', DAY), content: mainFile() }]);
  const good = await readFile(path);
  const local = 4;
  const central = good.indexOf(Buffer.from([0x50, 0x4b, 1, 2])) + 6;
  const changed = (change: (bytes: Buffer) => void) => {
    const bytes = Buffer.from(good);
    change(bytes);
    return bytes;
  };
  const bad: [name: string, content: Buffer, says: RegExp][] = [
    ['text.zip', Buffer.from('not a zip'), /text\.zip is not a zip file, or is damaged/],
    [
      'half.zip',
      good.subarray(0, good.length / 2),
      /is damaged or incomplete; download it again/,
    ],
    [
      'bits.zip',
      changed((bytes) => bytes.writeUInt8(0xff, 120)),
      /bits\.zip is .*damaged/,
    ],
    [
      'crc.zip',
      changed((bytes) => bytes.writeUInt32LE(7, central + 10)),
      /crc\.zip is .*damaged/,
    ],
    [
      'deflate64.zip',
      changed((bytes) => {
        for (const at of [local + 4, central + 4]) bytes.writeUInt16LE(9, at);
      }),
      /packed by Deflate64, which cannot be read here; unpack it first \("unzip deflate64\.zip/,
    ],
    [
      'secret.zip',
      changed((bytes) => {
        for (const at of [local + 2, central + 2]) bytes.writeUInt16LE(0x0801, at);
      }),
      /is encrypted/,
    ],
  ];
  for (const [name, content, says] of bad) {
    await writeFile(join(folder, name), content);
    const { code, stdout, stderr } = await operator(join(folder, name));
    t.is(code, 1, name);
    t.is(stdout, '', name);
    t.regex(stderr, /^operator: [^\n]+\n$/, name);
    t.regex(stderr, says, name);
  }
  t.is((await sql`select from providers`).length, 0);
});

test('a folder without NPPES files, or with several downloads, is rejected', async (t) => {
  const { folder, operator } = await openNppesWorld(t);
  t.regex(
    (await operator(join(folder, 'nothing.zip'))).stderr,
    /cannot open .*: there is no such file/,
  );
  t.regex(
    (await operator(folder)).stderr,
    /has no NPPES file: their names are npidata_pfile_/,
  );
  await writeMember(folder, 'npidata', DAY, [personRow(npi(1))]);
  await writeMember(folder, 'npidata', '20260816', [personRow(npi(1))]);
  t.regex(
    (await operator(folder)).stderr,
    /has 2 npidata files; import each .* the oldest first/,
  );
});

test('control characters in the names of zipped files are escaped when printed', async (t) => {
  const { folder, operator } = await openNppesWorld(t);
  const zip = join(folder, 'named.zip');
  const name = memberName('npidata', '20990104').replace('.csv', '\u009b2J\u202e.csv');
  await writeZip(zip, [{ name, content: mainFile() }]);
  const { code, stderr } = await operator(zip);
  t.is(code, 1);
  t.true(
    stderr.includes('-20990104\\u009b2J\\u202e.csv has the date 2099-01-04 '),
    stderr,
  );
  t.notRegex(stderr.trimEnd(), /[\p{Cc}\p{Cf}]/u);
});

test('NPPES columns are found in any order and spelling, even among unknown columns', async (t) => {
  const { folder, imported, sql } = await openNppesWorld(t);
  const turned = LAYOUT.npidata.toReversed();
  const values: Readonly<Record<string, string>> = personRow(npi(1));
  const header = turned.map((name) => ` ${name.toUpperCase().replaceAll(' ', '  ')}`);
  await writeFile(
    join(folder, memberName('npidata', DAY)),
    `\ufeff"${header.join('","')}"\r\n"${turned.map((name) => values[name] ?? '').join('","')}"\r\n`,
  );
  await writeFile(
    join(folder, memberName('othername', DAY)),
    `"Mood","${[...LAYOUT.othername, 'Created Date'].join('","')}"\n"good","${npi(1)}","THE CLINIC","3","01/01/2026"\n`,
  );
  t.like((await imported(folder)).files, {
    npidata: { inserted: 1 },
    othername: { inserted: 1 },
  });
  t.is((await sql`select first_name from providers`)[0]?.first_name, 'TAMSIN');
  t.is((await sql`select name from provider_other_names`)[0]?.name, 'THE CLINIC');
});

test('an NPPES file with missing or repeated columns is rejected before the import', async (t) => {
  const { folder, operator, sql } = await openNppesWorld(t);
  await writeMember(folder, 'npidata', DAY, [personRow(npi(1))]);
  const endpoints = join(folder, memberName('endpoint', DAY));
  const header = headerLine('endpoint');
  for (const [changed, wrong] of [
    [header.replace('"Endpoint",', '"Endpoint Address",'), 'Endpoint'],
    [header.replace('"Endpoint",', '"Endpoint","Endpoint",'), 'Endpoint'],
    [header.replace('"NPI",', '').replace('"Endpoint Type",', ''), 'NPI, Endpoint Type'],
  ] as const) {
    await writeFile(endpoints, changed);
    const { code, stderr } = await operator(folder);
    t.is(code, 1);
    t.true(
      stderr.includes(
        `is not an NPPES endpoint file: it must have each of these columns once: ${wrong}. Download it again from download.cms.gov/nppes/NPI_Files.html, version 2 or 3`,
      ),
      stderr,
    );
  }
  t.is((await sql`select from providers`).length, 0);
});

test('a file is rejected if an unknown column may mark inactive providers', async (t) => {
  const { folder, operator } = await openNppesWorld(t);
  const path = join(folder, memberName('npidata', DAY));
  for (const name of [
    'npi_state_of_activity',
    'NPI Status',
    'npi_activation_status","NPI Activation Status',
  ]) {
    await writeFile(path, headerLine('npidata').replace('\n', `,"${name}"\n`));
    const { code, stderr } = await operator(path);
    t.is(code, 1, name);
    t.regex(
      stderr,
      /may say that an NPI is out of service; import the file .* _V2\.zip/,
      name,
    );
  }
});

test("the error about a missing header does not print the file's first row", async (t) => {
  const { folder, operator } = await openNppesWorld(t);
  const path = join(folder, memberName('npidata', DAY));
  await writeFile(path, rowLine('npidata', personRow(npi(1))));
  const { stderr } = await operator(path);
  t.regex(
    stderr,
    /is not an NPPES npidata file: .* once: NPI, Entity Type Code, .* and 12 more\. /,
  );
  t.notRegex(stderr, /THORNBURY|TAMSIN/);
});

test('an import prints a table, or only JSON with --json', async (t) => {
  const { folder, operator } = await openNppesWorld(t);
  const path = await writeMember(folder, 'npidata', DAY, [
    personRow(npi(1)),
    personRow('1'),
  ]);
  const { stdout } = await operator(path);
  t.regex(stdout, /as of 2026-08-09: imported/);
  t.regex(stdout, /^FILE +READ +INSERTED/m);
  t.regex(stdout, /^npidata +2 +1 /m);
  t.regex(stdout, /Rejected rows are listed in .*rejects\.csv/);
  const again = await operator(path, '--again', '--json');
  t.is(JSON.parse(again.stdout).files.npidata.unchanged, 1);
  t.is(again.stderr, '');
});

test('an import prints its progress, rate, and remaining time every ten seconds', (t) => {
  const lines: string[] = [];
  let now = 0;
  performance.now = () => now;
  try {
    const show = openProgress({ line: (text) => lines.push(text) }, 4_000_000);
    for (const [seconds, bytes, rows] of [
      [9, 500_000, 1_000],
      [10, 500_000, 1_000],
      [11, 0, 0],
      [20, 1_000_000, 4_000],
      [3_700, 2_000, 1],
    ] as const) {
      now = seconds * 1000;
      show('npidata.csv', bytes, rows);
    }
  } finally {
    Reflect.deleteProperty(performance, 'now');
  }
  t.deepEqual(lines, [
    'import: 25 %, 1 of 4 MB, 2,000 rows, 200 rows/s, 00:30 left, npidata.csv\n',
    'import: 50 %, 2 of 4 MB, 6,000 rows, 300 rows/s, 00:20 left, npidata.csv\n',
    'import: 50 %, 2 of 4 MB, 6,001 rows, 2 rows/s, 01:01:32 left, npidata.csv\n',
  ]);
});

test('a zip with too long names or too many files is rejected before it is read', async (t) => {
  const { folder, operator } = await openNppesWorld(t);
  const content = Buffer.from('x');
  const long = join(folder, 'long.zip');
  await writeZip(long, [{ name: `${'a'.repeat(60_000)}.csv`, content }]);
  const many = join(folder, 'many.zip');
  await writeZip(
    many,
    Array.from({ length: 1_001 }, (_, n) => ({ name: `${n}.csv`, content })),
  );
  for (const path of [long, many]) {
    const { code, stderr } = await operator(path);
    t.is(code, 1);
    t.regex(
      stderr,
      /has more than 1000 files, or names of more than 4096 bytes, which no zip of CMS has/,
    );
    t.true(stderr.length < 300);
  }
});
