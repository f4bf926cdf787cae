import { spawnSync } from 'node:child_process';
import { mkdirSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { readContacts } from '../../../../api/clients/typescript/contacts.ts';
import { temporaryFolder } from '../../../support/database.ts';

// Tests the client's command with files as spreadsheets, databases, and people write them. Its
// messages must be true, and must name every row that it can't use.

const COMMAND = fileURLToPath(
  new URL('../../../../api/clients/typescript/command.ts', import.meta.url),
);
const folder = temporaryFolder(test.after.always);

interface Case {
  readonly content: string | Buffer;
  readonly args?: readonly string[];
  /** The NPIs that are looked up, in the order of their rows. */
  readonly npis?: readonly string[];
  /** The lines on stderr. */
  readonly says?: readonly string[];
}

const [A, B, C] = ['2000000010', '2000000028', '2000000036'] as const;
const MISTYPED = 'has a wrong check digit, so it is mistyped or not an NPI.';
const SHORTENED =
  'was shortened by Excel. In the workbook, format the column as a number without decimals, and save it as CSV again.';
/** Reading such a cell as a number would take minutes. */
const LONG = `1e${'0'.repeat(100_000)}x`;
const UTF_16 = 'f.csv is UTF-16. The result is UTF-8.';
const NONE = 'npi-email-enrichment: f.csv has no NPI that can be used.';

function utf16(text: string, { swapped = false, bom = true } = {}): Buffer {
  const bytes = Buffer.from(`${bom ? '\ufeff' : ''}${text}`, 'utf16le');
  return swapped ? bytes.swap16() : bytes;
}

function latin1(text: string): Buffer {
  return Buffer.from(text, 'latin1');
}

/** Files with at least one usable row. */
const READ: Readonly<Record<string, Case>> = {
  'UTF-8 with a byte order mark': { content: `\ufeffnpi\n${A}\n`, npis: [A] },
  'UTF-16, little-endian': {
    content: utf16(`npi,n\n${A},\u00fc\n`),
    npis: [A],
    says: [UTF_16],
  },
  'UTF-16, big-endian': {
    content: utf16(`npi\n${A}\n`, { swapped: true }),
    npis: [A],
    says: [UTF_16],
  },
  'UTF-16 without a mark': {
    content: utf16(`npi\r\n${A}\r\n`, { bom: false }),
    npis: [A],
    says: [UTF_16],
  },
  'UTF-16, big-endian, without a mark': {
    content: utf16(`npi\n${A}\n`, { swapped: true, bom: false }),
    npis: [A],
    says: [UTF_16],
  },
  'Windows-1252': {
    content: latin1(`npi,name\n${A},Jos\xe9 \x93Pepe\x94\n`),
    npis: [A],
    says: ['f.csv is not UTF-8, so it was read as Windows-1252.'],
  },
  semicolons: { content: `name;npi\n"a;b,c,d";${A}\n`, npis: [A] },
  'a column name with a line break': {
    content: `"first\nname";npi\r\nx;${A}\r\n`,
    npis: [A],
  },
  tabs: { content: `name\tnpi\nx\t${A}\n`, npis: [A] },
  bars: { content: `name|npi\nx|${A}\n`, npis: [A] },
  'a first line with sep=': { content: `sep=;\r\nna,me;npi\r\nx;${A}\r\n`, npis: [A] },
  'quotes inside cells': {
    content: `name,npi\nJo "Doc" Smith,${A}\n"Jo" Smith,${B}\n6" tall,${C}\n`,
    npis: [A, B, C],
  },
  'old Mac line ends': { content: `npi\r${A}\r${B}\r`, npis: [A, B] },
  'mixed line ends': { content: `npi\r\n${A}\n${B}\r\n`, npis: [A, B] },
  'line breaks in cells': {
    content: `name,npi\r\n"a\r\nb\nc",${A}\r\nx,1\r\n`,
    npis: [A],
    says: ['Line 5: npi "1" has 1 instead of 10 digits.'],
  },
  'empty and ragged rows': {
    content: `\n\nname,npi,x\n\n , ,\n${A}\nx,${B},,,,\n,,\n`,
    npis: [B],
    says: ['Line 6: no NPI.'],
  },
  'floats of a spreadsheet': {
    content: `npi\n${A}.0\n${B}.\n"2000000036,00"\n`,
    npis: [A, B, C],
  },
  'numbers in scientific notation': {
    content: 'npi\n2.000000010E+09\n2.00000001E9\n1.23E+09\n2E+09\n',
    npis: [A, A],
    says: [`Line 4: npi "1.23E+09" ${SHORTENED}`, `Line 5: npi "2E+09" ${SHORTENED}`],
  },
  'separators of thousands': {
    content: `npi\n"2,000,000,010"\n2.000.000.028\n2\u202f000\u00a0000 036\n"2,000,000,010.00"\n`,
    npis: [A, B, C, A],
  },
  'formulas that keep text': {
    content: `npi\n="${A}"\n"=""${B}"""\n=${C}\n'${A}\n`,
    npis: [A, B, C, A],
  },
  'invisible characters': {
    content: `\u200bnpi\n\u200b2000\u200d000010\u00a0\n\ufeff${B}\u202c\n\t${C} \n`,
    npis: [A, B, C],
  },
  'labels and wide digits': {
    content: `npi\nNPI: ${A}\nNPI# ${B}\nnpi no. ${C}\n\uff12000000010\n`,
    npis: [A, B, C, A],
  },
  'all kinds of cells that are not an NPI': {
    content: `npi,n\n,x\n20000000,x\n20000000101,x\n2000000011,x\n2000000010.5,x\n#N/A,x\n=VLOOKUP(A1),x\n${A}/${B},x\n(415) 555-0100,x\nn/a,x\n${LONG},x\n${A},x`,
    npis: [A],
    says: [
      'Line 2: no NPI.',
      'Line 3: npi "20000000" has 8 instead of 10 digits.',
      'Line 4: npi "20000000101" has 11 instead of 10 digits.',
      `Line 5: npi "2000000011" ${MISTYPED}`,
      'Line 6: npi "2000000010.5" is not a whole number.',
      'Line 7: npi "#N/A" is a formula, or the error of one. Replace it with its value.',
      'Line 8: npi "=VLOOKUP(A1)" is a formula, or the error of one. Replace it with its value.',
      `Line 9: npi "${A}/${B}" has several numbers. Put each NPI into its own row.`,
      'Line 10: npi "(415) 555-0100" is not a number of 10 digits.',
      'Line 11: npi "n/a" is not a number of 10 digits.',
      `Line 12: npi "${LONG}" is too long for an NPI.`,
    ],
  },
  'more unusable rows than are printed': {
    content: `npi\n${A}\n${'x\n'.repeat(25)}`,
    npis: [A],
    says: [
      ...Array.from(
        { length: 20 },
        (_, n) => `Line ${n + 3}: npi "x" is not a number of 10 digits.`,
      ),
      "5 more rows can't be used.",
    ],
  },
  'a header in upper case, with spaces': { content: `Name, NPI \nx,${A}\n`, npis: [A] },
  'another name of the column': {
    content: `Name,National Provider Identifier\nx,${A}\n`,
    npis: [A],
    says: ['The NPIs are in column "National Provider Identifier".'],
  },
  'several names with npi, of which one has NPIs': {
    content: `npi_type,npi_number\n1,${A}\n`,
    npis: [A],
    says: ['The NPIs are in column "npi_number".'],
  },
  'a column with a meaningless name': {
    content: `id,who\n7,${A}\n8,${B}\n9,\n`,
    npis: [A, B],
    says: [
      'Line 1 is read as column names, because it has no NPI.',
      'The NPIs are in column "who".',
      'Line 4: no NPI.',
    ],
  },
  'a column by its number': {
    content: `Billing NPI,Rendering NPI\n${A},${B}\n`,
    args: ['--column', '2'],
    npis: [B],
  },
  'rows without column names': {
    content: `x,${A}\ny,${B}\n`,
    npis: [A, B],
    says: [
      'f.csv has no column names, so its columns are numbered.',
      'The NPIs are in column "2".',
    ],
  },
  'control characters': {
    content: `npi\n${A}\n\u001b[2J\u202e7\n`,
    npis: [A],
    says: ['Line 3: npi "\\u001b[2J\\u202e7" is not a number of 10 digits.'],
  },
};

/** Files from which nothing can be looked up. */
const REJECTED: Readonly<Record<string, Case>> = {
  'only shortened numbers': {
    content: 'npi\n1.23E+09\n',
    says: [`Line 2: npi "1.23E+09" ${SHORTENED}`, NONE],
  },
  'an Excel workbook': {
    content: latin1('PK\x03\x04\x14\0\x06\0'),
    says: [
      'npi-email-enrichment: f.csv is not CSV but an Excel workbook or another ZIP file. Save it as "CSV UTF-8", or upload it in the console.',
    ],
  },
  'an old Excel workbook': {
    content: latin1('\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1'),
    says: [
      'npi-email-enrichment: f.csv is not CSV but an old Excel workbook, or one with a password. Save it as "CSV UTF-8".',
    ],
  },
  'a web page': {
    content: '\ufeff\n<!DOCTYPE html><table>',
    says: [
      'npi-email-enrichment: f.csv is not CSV but a web page or XML. Save it as "CSV UTF-8".',
    ],
  },
  'a PDF': {
    content: '%PDF-1.7',
    says: ['npi-email-enrichment: f.csv is not CSV but a PDF. Save it as "CSV UTF-8".'],
  },
  'a compressed file': {
    content: latin1('\x1f\x8b\x08\0'),
    says: [
      'npi-email-enrichment: f.csv is not CSV but a compressed file. Save it as "CSV UTF-8".',
    ],
  },
  JSON: {
    content: `[{"npi": "${A}"}]`,
    says: ['npi-email-enrichment: f.csv is not CSV but JSON. Save it as "CSV UTF-8".'],
  },
  'NUL bytes': {
    content: `npi\n${A}\n\0\0\0\n`,
    says: [
      'npi-email-enrichment: f.csv contains NUL bytes, so it is damaged or not CSV. Save it as "CSV UTF-8".',
    ],
  },
  'no bytes': { content: '', says: ['npi-email-enrichment: f.csv is empty.'] },
  'only white space': {
    content: '\ufeff\r\n \r\n',
    says: ['npi-email-enrichment: f.csv is empty.'],
  },
  'only delimiters': {
    content: ',,,\n,,\n',
    says: ['npi-email-enrichment: f.csv has no rows.'],
  },
  'only column names': {
    content: 'name,npi\n',
    says: ['npi-email-enrichment: f.csv has column names, but no rows below them.'],
  },
  'a quote that is never closed': {
    content: `name,npi\r\n"a\r\nb",${A}\r\n"x,${B}\r\ny,${C}\r\n`,
    says: [
      'npi-email-enrichment: f.csv has a quote (") in the row of line 4 that is not closed. Close or remove it.',
    ],
  },
  'a quote that swallows the next row': {
    content: `n,npi,m\na,${A},"x\nb,${B},"y\nc,${C},z\n`,
    says: [
      'npi-email-enrichment: f.csv has a quote (") in the row of line 2 that is not closed. Close or remove it.',
    ],
  },
  'no column with NPIs': {
    content: 'name,phone\nx,4155550100\n',
    says: [
      'npi-email-enrichment: f.csv has no column with NPIs. It has: name, phone. Choose one with --column.',
    ],
  },
  'several columns with NPIs': {
    content: `Billing NPI,Rendering NPI\n${A},${B}\n`,
    says: [
      'npi-email-enrichment: f.csv has several columns with NPIs. Choose --column 1 (Billing NPI) or --column 2 (Rendering NPI).',
    ],
  },
  'two columns with the same name': {
    content: `npi,NPI\n${A},${B}\n`,
    args: ['--column', 'npi'],
    says: [
      'npi-email-enrichment: f.csv has several columns "npi". Choose --column 1 (npi) or --column 2 (NPI).',
    ],
  },
  'phone numbers in the chosen column': {
    content: 'npi,phone\n1,4155550100\n',
    args: ['--column', 'phone'],
    says: [`Line 2: phone "4155550100" ${MISTYPED}`, NONE],
  },
};

function enrich(cwd: string, args: readonly string[]) {
  const options = { cwd, env: {}, encoding: 'utf8' } as const;
  return spawnSync(process.execPath, [COMMAND, 'enrich', ...args], options);
}

for (const [title, { content, args = [], npis = [], says = [] }] of Object.entries(
  READ,
)) {
  test(`the command reads ${title}`, async (t) => {
    const folder = temporaryFolder(t.teardown);
    const file = join(folder, 'f.csv');
    writeFileSync(file, content);
    const { status, stdout, stderr } = enrich(folder, ['f.csv', '--dry-run', ...args]);
    t.deepEqual(stderr.split('\n').slice(0, -1), says);
    t.regex(
      stdout,
      new RegExp(`: ${new Set(npis).size} different NPIs? to look up\\.\n`),
    );
    t.is(status, 0);
    const { rows } = await readContacts(file, args[1]);
    t.deepEqual(
      rows.flatMap(({ npi }) => npi ?? []),
      npis,
    );
  });
}

for (const [title, { content, args = [], says = [] }] of Object.entries(REJECTED)) {
  test(`the command rejects ${title}`, (t) => {
    const folder = temporaryFolder(t.teardown);
    writeFileSync(join(folder, 'f.csv'), content);
    const { status, stdout, stderr } = enrich(folder, ['f.csv', '--dry-run', ...args]);
    t.deepEqual(stderr.split('\n').slice(0, -1), says);
    t.deepEqual([status, stdout], [2, '']);
  });
}

test('the command says why a file cannot be opened', (t) => {
  mkdirSync(join(folder, 'folder'));
  const cases = { missing: 'does not exist.', folder: 'is a folder. Name a CSV file.' };
  for (const [file, problem] of Object.entries(cases)) {
    const { status, stderr } = enrich(folder, [file, '--dry-run']);
    t.is(stderr, `npi-email-enrichment: ${file} ${problem}\n`);
    t.is(status, 2);
  }
});

test('the command rejects a file of more than 100 MB without reading it', (t) => {
  const file = join(folder, 'large.csv');
  writeFileSync(file, '');
  truncateSync(file, 5_000_000_000);
  const { status, stderr } = enrich(folder, ['large.csv', '--dry-run']);
  t.is(
    stderr,
    'npi-email-enrichment: large.csv has more than 100 MB. Split it into files of fewer rows.\n',
  );
  t.is(status, 2);
});
