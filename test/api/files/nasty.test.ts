import test from 'ava';
import fc from 'fast-check';
import { inspect } from '../../../api/console/file-reader.ts';
import { isNpi, readNpi } from '../../../api/files/cell.ts';
import { readCsv } from '../../../api/files/csv.ts';
import { readSheet } from '../../../api/files/file.ts';
import { resultRows } from '../../../api/files/result-rows.ts';
import { contactsIn, tableOf } from '../../../api/files/table.ts';
import { type Cell, workbookOf, zipOf } from '../../support/workbook.ts';

// Reads files as people have them, which are rarely a table that begins with its column names. In each
// file, a row of data is either looked up, or named with the reason why not.

interface Case {
  readonly content: string | Buffer | (() => Promise<Buffer>);
  readonly sheet?: string;
  readonly column?: number;
  /** The NPIs to look up, without repetitions. */
  readonly npis?: readonly string[];
  readonly repeated?: number;
  /** The rows that are not used: the number of each, and how its reason begins. */
  readonly unused?: Readonly<Record<number, string>>;
  /** The names of the columns, if they are worth a look. */
  readonly header?: readonly string[];
  readonly says?: readonly string[];
  /** Why the file can't be used at all. */
  readonly problem?: RegExp;
}

const [A, B, C, D] = ['2000000010', '2000000028', '2000000036', '2000000044'] as const;
/** A phone number with the check digit of an NPI. */
const PHONE = '2125550105';
const MISTYPED = 'has a wrong check digit';
const WORDS = 'is not a number of 10 digits';
const SEVERAL = 'has several numbers. Put each NPI into its own row';
const UNCLEAR = 'is in a row with more cells than the column names';
const NUMBERED = 'f has no column names, so its columns are numbered.';

const EMPTY = ','.repeat(300);
const many = (count: number) => Array.from({ length: count }, () => A);
const above = (...lines: string[]) =>
  `Above the table, and not looked up: ${lines.join(', ')}.`;
const guessed = (line: number, place = 'Line') =>
  `${place} ${line} is read as column names, because it has no NPI.`;

const CSV: Readonly<Record<string, Case>> = {
  'a title above the column names': {
    content: `Provider list Q3\nname,npi\nx,${A}\ny,${B}\n`,
    npis: [A, B],
    header: ['name', 'npi'],
    says: [above('Line 1: "Provider list Q3"')],
  },
  'a title of three lines, with an empty one': {
    content: `Provider list\nExported: 2026-11-30\n\n"Confidential; do not share"\nname;npi\nx;${A}\n`,
    npis: [A],
    says: [
      above(
        'Line 1: "Provider list"',
        'Line 2: "Exported: 2026-11-30"',
        'Line 4: "Confidential; do not share"',
      ),
    ],
  },
  'a title that mentions NPIs': {
    content: `List of NPIs\nname,number\nx,${A}\n`,
    npis: [A],
    header: ['name', 'number'],
    says: [above('Line 1: "List of NPIs"'), guessed(2)],
  },
  'a title that is merged over all columns': {
    content: `Provider list,,\nname,npi,note\nx,${A},\n`,
    npis: [A],
    says: [above('Line 1: "Provider list"')],
  },
  'a title with the delimiter of another format': {
    content: `Providers, Ohio, Q3, 2026\nnpi;name\n${A};x\n`,
    npis: [A],
    says: [above('Line 1: "Providers, Ohio, Q3, 2026"')],
  },
  'a title with two cells': {
    content: `Report date:,2026-11-30,,\nname,who,city,npi\nx,y,z,${A}\n`,
    npis: [A],
    says: [above('Line 1: "Report date: 2026-11-30"')],
  },
  'a title, but no column names': {
    content: `Provider list\nx,${A}\ny,${B}\n`,
    npis: [A, B],
    says: [above('Line 1: "Provider list"'), NUMBERED],
  },
  'a title above one column': {
    content: `My list\nNPI\n${A}\n`,
    npis: [A],
    says: [above('Line 1: "My list"')],
  },
  'a heading above one column': {
    content: `My providers\n${A}\n${B}\n`,
    npis: [A, B],
    says: [guessed(1)],
  },
  'a sum below the rows': {
    content: `name,npi\nx,${A}\nTotal,1\n`,
    npis: [A],
    unused: { 3: 'has 1 instead of 10 digits' },
  },
  'a mistyped first NPI without column names': {
    content: `2000000011\n${B}\n`,
    npis: [B],
    unused: { 1: MISTYPED },
    says: [NUMBERED],
  },
  'a first NPI with a letter, without column names': {
    content: `x,2OOO000010\ny,${B}\n`,
    npis: [B],
    unused: { 1: WORDS },
    says: [NUMBERED],
  },
  'a short first NPI without column names': {
    content: `x,20000000\ny,${B}\n`,
    npis: [B],
    unused: { 1: 'has 8 instead of 10 digits' },
    says: [NUMBERED],
  },
  'a shortened first NPI without column names': {
    content: `1.23E+09,x\n${B},y\n`,
    npis: [B],
    unused: { 1: 'was shortened by Excel' },
    says: [NUMBERED],
  },
  'a missing first NPI without column names': {
    content: `x y,\nz,${B}\nw,${C}\n`,
    npis: [B, C],
    says: [above('Line 1: "x y"'), NUMBERED],
  },
  'a missing first NPI in wide rows without column names': {
    content: `x,y,\nz,v,${B}\nw,u,${C}\n`,
    npis: [B, C],
    unused: { 1: 'no NPI' },
    says: [NUMBERED],
  },
  'a first row with only an NPI, without column names': {
    content: `${A},\n${B},x\n${C},y\n`,
    npis: [A, B, C],
    says: [NUMBERED],
  },
  'a first row with only a mistyped NPI, without column names': {
    content: `2000000011,\n${B},x\n${C},y\n`,
    npis: [B, C],
    unused: { 1: MISTYPED },
    says: [NUMBERED],
  },
  'words in place of the first NPI': {
    content: `x,unknown\ny,${B}\n`,
    npis: [B],
    header: ['x', 'unknown'],
    says: [guessed(1)],
  },
  'column names again between the rows': {
    content: `name,npi\nx,${A}\nname,npi\ny,${B}\n`,
    npis: [A, B],
    unused: { 3: 'no NPI' },
  },
  'column names in two lines': {
    content: `Provider,Provider\nname,npi\nx,${A}\n`,
    npis: [A],
    says: [above('Line 1: "Provider Provider"')],
  },
  'numbers as column names': {
    content: `1,2\nx,${A}\n`,
    npis: [A],
    unused: { 1: 'has 1 instead of 10 digits' },
    says: [NUMBERED],
  },
  'column names with the commas of another format': {
    content: `npi;name, first;name, last\n${A};Jo;Smith\n${B};Al;Jones\n`,
    npis: [A, B],
    header: ['npi', 'name, first', 'name, last'],
  },
  'names with commas, but without quotes': {
    content: `name,npi,city\nSmith, Jo,${A},Rome\nCher,${B},Bern\n`,
    npis: [A, B],
    says: [
      'These rows have more cells than the column names, and their NPI is further right: line 2.',
    ],
  },
  'a comma without quotes behind the NPI': {
    content: `npi,city\n${A},Rome, NY\n${B},Bern\n`,
    npis: [A, B],
  },
  'a comma without quotes in every name': {
    content: `name,npi,city\nSmith, Jo,${A},Rome\nDoe, Al,${B},Bern\n`,
    npis: [A, B],
    header: ['name', 'npi', 'city'],
  },
  'a mistyped NPI left of the NPI of somebody else': {
    content: `npi,name\n2000000011,${B},x\n,${C},y\n${D},z\n`,
    npis: [D],
    unused: { 2: MISTYPED, 3: 'no NPI' },
  },
  'a comma without quotes in a row with two NPIs': {
    content: `name,npi,boss\nSmith, Jo,${A},${B}\nCher,${C},${D}\n`,
    column: 1,
    npis: [A, C],
    says: [
      'These rows have more cells than the column names, and their NPI is further right: line 2.',
    ],
  },
  'a row in which two cells could be the NPI': {
    content: `name,npi,boss\nSmith, Jo,${A},${B},\nx,y,${D},${B},z\nCher,${C},\n`,
    npis: [A, C],
    unused: { 3: UNCLEAR },
    says: [
      'These rows have more cells than the column names, and their NPI is further right: line 2.',
    ],
  },
  'a comma without quotes in front of a phone number and an NPI': {
    content: `name,phone,npi\nx,1,${A}\ny,2,${B}\nDoe, Al,${PHONE},${C}\n`,
    npis: [A, B],
    unused: { 4: UNCLEAR },
  },
  'a comma without quotes in front of a phone number that is no NPI': {
    content: `name,phone,npi\nx,1,${A}\nDoe, Al,9000000015,${C}\n`,
    npis: [A, C],
    says: [
      'These rows have more cells than the column names, and their NPI is further right: line 3.',
    ],
  },
  'several NPIs in each cell': {
    content: `Clinic,NPIs\nSmith,${A};${B}\nJones,${C};${D}\nRoe,${B}\n`,
    npis: [B],
    unused: { 2: SEVERAL, 3: SEVERAL },
  },
  'two columns with NPIs, and a comma in each name': {
    content: `last, first\tnpi\tboss\nSmith, Jo\t${A}\t${B}\nRoe, Al\t${C}\t${D}\n`,
    npis: [A, C],
  },
  'a first row that says that its NPI is pending': {
    content: `who,provider\nSmith,NPI pending\nJones,${A}\n`,
    npis: [A],
    header: ['who', 'provider'],
    unused: { 2: WORDS },
    says: [guessed(1)],
  },
  'an address with the letters npi': {
    content: `name,address,id\nx,100 Turnpike Rd,\ny,5 Main St,${A}\n`,
    npis: [A],
    unused: { 2: 'no NPI' },
    says: [guessed(1)],
  },
  'names of NPI columns as programs write them': {
    content: `Clinic,billingProviderNPINumber\nx,${A}\n`,
    npis: [A],
  },
  'two stray quotes around rows': {
    content: `npi,name\n${A},"Bob\n${B},Al\n${C},Jim"\n${D},Roe\n`,
    npis: [A, D],
    says: [
      'A cell in quotes has several lines, and an NPI that is not looked up: line 2. If these lines are rows, remove the quotes.',
    ],
  },
  '300 empty columns on the right': {
    content: `name,npi${EMPTY}\nx,${A}${EMPTY}\ny,${B}${EMPTY}\n`,
    npis: [A, B],
    header: ['name', 'npi'],
    says: ['Empty columns on the right that are left out: 300.'],
  },
  '300 empty column names': { content: `name,npi${EMPTY}\nx,${A}\n`, npis: [A] },
  'an empty column on the left': {
    content: `,npi,name\n,${A},x\n,${B},y\n`,
    npis: [A, B],
  },
  'an NPI column without a name': {
    content: `name\nx,${A}\ny,${B}\n`,
    npis: [A, B],
    says: [above('Line 1: "name"'), NUMBERED],
  },
  'rows with fewer cells than names': {
    content: `npi,name,city\n${A}\n${B},x\n`,
    npis: [A, B],
  },
  'two delimiters in one file': {
    content: `name,npi\nx,${A}\n"Smith; Jo";${B}\ny,${C}\n`,
    npis: [A, B, C],
    says: ['Most rows have "," between their cells, but not line 3.'],
  },
  'mostly tabs, with commas in a few rows': {
    content: `npi\tname\n${A}\tx\n${B},y\n${C}\tz\n`,
    npis: [A, B, C],
    says: ['Most rows have a tab between their cells, but not line 3.'],
  },
  'tabs, and commas in each name': {
    content: `name, degree\tnpi\nSmith, Jo, MD\t${A}\nDoe, Al, DO\t${B}\n`,
    npis: [A, B],
  },
  'bars, and semicolons in each name': {
    content: `who|npi\na;b;c|${A}\na;b;d|${B}\n`,
    npis: [A, B],
  },
  'a first line that names the wrong delimiter': {
    content: `sep=;\nname,npi\nx,${A}\n`,
    npis: [A],
  },
  'decimal commas between semicolons': {
    content: `npi;price\n${A},00;1,5\n${B},00;2,5\n`,
    npis: [A, B],
  },
  'quotes around everything': {
    content: `"npi","name"\n"${A}","a ""b"" c"\n`,
    npis: [A],
  },
  'curly quotes': { content: `npi,name\n\u201c${A}\u201d,x\n'${B}',y\n`, npis: [A, B] },
  'a byte order mark in the middle': {
    content: `\ufeffnpi\n${A}\n\ufeff${B}\n`,
    npis: [A, B],
  },
  'two byte order marks': { content: `\ufeff\ufeffnpi\n${A}\n`, npis: [A] },
  'UTF-16 with a title': {
    content: Buffer.from(`\ufeffListe\r\nname\tnpi\r\nJos\u00e9\t${A}\r\n`, 'utf16le'),
    npis: [A],
    says: ['f is UTF-16. The result is UTF-8.', above('Line 1: "Liste"')],
  },
  'Windows-1252 with a title': {
    content: Buffer.from(`Liste f\xfcr \x96 Q3\nname;npi\nJos\xe9;${A}\n`, 'latin1'),
    npis: [A],
    says: [
      'f is not UTF-8, so it was read as Windows-1252.',
      above('Line 1: "Liste f\u00fcr \u2013 Q3"'),
    ],
  },
  'the end mark of DOS': {
    content: `npi\r\n${A}\r\n\u001a`,
    npis: [A],
    unused: { 3: WORDS },
  },
  'line ends of old Macs, with a title': {
    content: `Title\rname,npi\rx,${A}\r`,
    npis: [A],
    says: [above('Line 1: "Title"')],
  },
  'a column npi that has no NPIs': {
    content: `npi,id\nY,${A}\nN,${B}\n`,
    npis: [A, B],
  },
  'a column npi that has few NPIs': {
    content: `npi,id\n?,${A}\n?,${B}\n${C},${D}\n`,
    npis: [C],
    unused: { 2: WORDS, 3: WORDS },
  },
  'the type of an NPI next to the NPI': {
    content: `NPI Type,Provider NPI\n1,${A}\n2,${B}\n`,
    npis: [A, B],
  },
  'a name with the letters npi': {
    content: `Turnpike,who\nx,${A}\ny,${B}\n`,
    npis: [A, B],
    says: [guessed(1)],
  },
  'only mistyped NPIs': {
    content: 'name,npi\nx,2000000011\ny,2000000012\n',
    unused: { 2: MISTYPED, 3: MISTYPED },
  },
  'one NPI and nothing else': { content: A, npis: [A], says: [NUMBERED] },
  'rows without an NPI': {
    content: `name,npi\nx,\ny,${A}\nz, \n`,
    npis: [A],
    unused: { 2: 'no NPI', 4: 'no NPI' },
  },
  'repeated NPIs': { content: `npi\n${A}\n${A}.0\n${B}\n`, npis: [A, B], repeated: 1 },
  'NPIs with the prefix of cards': {
    content: `npi\n80840${A}\n${B}\n`,
    npis: [B],
    unused: { 2: 'has 15 instead of 10 digits' },
  },
  'separators of thousands without quotes': {
    content: `npi,name\n2,000,000,010,x\n${B},y\n`,
    npis: [B],
    unused: { 2: 'has 1 instead of 10 digits' },
  },
  'a result of an earlier run, with its title': {
    content: `List,,,,,,\nname,npi,enriched_email,enriched_email_type,enriched_email_last_validated,enriched_status,enriched_reason\nx,${A},a@b.example,professional,2026-11-01T00:00:00Z,completed,\ny,${B},,,,failed,\n`,
    npis: [B],
    says: [above('Line 1: "List"'), 'Rows that keep an email from an earlier run: 1.'],
  },
  'a result of an earlier run without column names': {
    content: `1,enriched_email,enriched_email_type,enriched_email_last_validated,enriched_status,enriched_reason\n${A},a@b.example,professional,2026-11-01T00:00:00Z,completed,\n${B},,,,failed,\n`,
    npis: [B],
    says: ['Rows that keep an email from an earlier run: 1.'],
  },
  'line breaks and delimiters in column names': {
    content: `"first;\nname";"NPI\n(10 digits)"\nx;${A}\n`,
    npis: [A],
  },
  'a form above the table': {
    content: `Client:,Acme\nContact:,jo@acme.example\nPhone:,(415) 555-0100\n\nNPI,Name\n${A},x\n${B},y\n`,
    npis: [A, B],
    says: [
      above(
        'Line 1: "Client: Acme"',
        'Line 2: "Contact: jo@acme.example"',
        'Line 3: "Phone: (415) 555-0100"',
      ),
    ],
  },
  'more rows than an upload may have': {
    content: ['npi', ...many(10_001)].join('\n'),
    problem: /^f has more than 10000 rows\. Split it/,
  },
  'more columns than an upload may have': {
    content: `npi\n${A}${','.repeat(200)}x\n`,
    problem: /^f has 201 columns\. Remove all but 200\.$/,
  },
  'a web page that is called a spreadsheet': {
    content: `<html><table><tr><td>${A}</td></tr></table></html>`,
    problem: /^f is not CSV but a web page or XML/,
  },
  'an old Excel workbook': {
    content: Buffer.from('\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1', 'latin1'),
    problem: /^f is not CSV but an old Excel workbook, or one with a password\. Save/,
  },
  'a quote that is never closed': {
    content: `name,npi\n"x,${A}\ny,${B}\n`,
    problem: /^f has a quote \("\) in the row of line 2 that is not closed/,
  },
};

const sheet = (...rows: (readonly Cell[] | null)[]) => workbookOf([{ name: 'A', rows }]);
const xml = (cells: string) =>
  `<worksheet xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>${cells}</sheetData></worksheet>`;
/** Returns a workbook whose only sheet has these rows without an end. */
const cutOff = (rows: string) =>
  workbookOf([{ name: 'A', rows: xml(rows).replace('</sheetData></worksheet>', '') }]);
const rowOf = (value: string) => `<row><c><v>${value}</v></c></row>`;
const VISIBLE = { name: 'Data', rows: [['npi'], [A]] };
const UNREADABLE = /^f is not an Excel workbook that can be read\. Open it in Excel/;
const WITHOUT_VALUES =
  /^f has formulas without their values\. Open it in Excel, and save it again\.$/;
const TOO_LARGE = /^f unpacks to more than 50 MB\. Remove rows, sheets, and pictures/;

const XLSX: Readonly<Record<string, Case>> = {
  'NPIs as numbers and as text': {
    content: () => sheet(['npi'], [Number(A)], [B], ['2000000036.0'], [`'${D}`]),
    npis: [A, B, C, D],
  },
  'numbers that are shown in scientific notation': {
    content: () =>
      sheet(
        ['npi'],
        [{ attributes: 's="1"', xml: `<v>${A}</v>` }],
        [{ attributes: 's="1"', xml: '<v>2.000000028E9</v>' }],
      ),
    npis: [A, B],
  },
  'text that was shortened': {
    content: () => sheet(['npi'], ['1.23E+09'], [A]),
    npis: [A],
    unused: { 2: 'was shortened by Excel' },
  },
  'formulas with their last values': {
    content: () =>
      sheet(
        ['npi'],
        [{ attributes: '', xml: `<f>B2*1</f><v>${A}</v>` }],
        [{ attributes: 't="str"', xml: `<f>TEXT(B3,"0")</f><v>${B}</v>` }],
      ),
    npis: [A, B],
  },
  'formulas with errors, and with an empty text': {
    content: () =>
      sheet(
        ['npi', 'name'],
        [{ attributes: 't="str"', xml: '<f>B2</f><v></v>' }, 'x'],
        [{ attributes: 't="e"', xml: '<f>B3</f><v>#N/A</v>' }, 'y'],
        [A, 'z'],
      ),
    npis: [A],
    unused: { 2: 'no NPI', 3: 'is a formula, or the error of one' },
  },
  'formulas without values': {
    content: () => sheet(['npi'], [{ attributes: 's="1"', xml: '<f>B2</f>' }], [A]),
    problem: WITHOUT_VALUES,
  },
  'formulas with an empty value': {
    content: () => sheet(['npi'], [{ attributes: '', xml: '<f>B2</f><v></v>' }], [A]),
    problem: WITHOUT_VALUES,
  },
  'a formula of several cells without a value': {
    content: () =>
      sheet(['npi'], [{ attributes: '', xml: '<f t="shared" si="0"/><v/>' }], [A]),
    problem: WITHOUT_VALUES,
  },
  'a merged title': {
    content: () =>
      workbookOf([
        {
          name: 'A',
          rows: [['Provider list'], null, ['name', 'npi'], ['x', Number(A)]],
          after: '<mergeCells count="1"><mergeCell ref="A1:B1"/></mergeCells>',
        },
      ]),
    npis: [A],
    says: [above('Row 1: "Provider list"')],
  },
  'a hidden first sheet': {
    content: () =>
      workbookOf([{ name: 'Old', state: 'hidden', rows: [['npi'], [B]] }, VISIBLE]),
    npis: [A],
    says: ['Only the sheet "Data" is read, and not "Old" (hidden).'],
  },
  'a very hidden sheet': {
    content: () =>
      workbookOf([VISIBLE, { name: 'Lists', state: 'veryHidden', rows: [['x']] }]),
    npis: [A],
    says: ['Only the sheet "Data" is read, and not "Lists" (hidden).'],
  },
  'a cover sheet': {
    content: () =>
      workbookOf([
        { name: 'Cover', rows: [['Read me'], ['Version', 3]] },
        { name: 'Empty', rows: [] },
        VISIBLE,
      ]),
    npis: [A],
    says: ['Only the sheet "Data" is read, and not "Cover", "Empty".'],
  },
  'a sheet with one phone number that could be an NPI': {
    content: () =>
      workbookOf([
        { name: 'Offices', rows: [['Main', PHONE]] },
        { name: 'Data', rows: [['npi'], [A], [B]] },
      ]),
    npis: [A, B],
    says: ['Only the sheet "Data" is read, and not "Offices".'],
  },
  'a chart in front of the data': {
    content: () =>
      workbookOf([{ name: 'Chart', rows: [] }, VISIBLE], {
        'xl/worksheets/sheet1.xml': null,
      }),
    npis: [A],
    says: ['Only the sheet "Data" is read, and not "Chart".'],
  },
  'two sheets with NPIs': {
    content: () => workbookOf([VISIBLE, { name: 'More', rows: [['npi'], [B]] }]),
    npis: [A],
    says: ['Only the sheet "Data" is read, and not "More".'],
  },
  'a sheet that the visitor chose': {
    content: () => workbookOf([VISIBLE, { name: 'R&D "x"', rows: [['npi'], [B]] }]),
    sheet: 'R&D "x"',
    npis: [B],
    says: ['Only the sheet "R&D "x"" is read, and not "Data".'],
  },
  'a sheet that is not there': {
    content: () => workbookOf([VISIBLE]),
    sheet: 'Nope',
    problem: /^f has no sheet "Nope"\. It has: Data\.$/,
  },
  'a mistyped first NPI without column names': {
    content: () => sheet(['x', 2_000_000_011], ['y', Number(B)]),
    npis: [B],
    unused: { 1: MISTYPED },
    says: [NUMBERED],
  },
  'empty rows and columns': {
    content: () =>
      sheet(null, null, [null, 'name', null, 'npi'], null, [null, 'x', null, A]),
    npis: [A],
  },
  'texts in the cells themselves': {
    content: () =>
      sheet(
        [{ attributes: 't="inlineStr"', xml: '<is><t>npi</t></is>' }],
        [
          {
            attributes: 't="inlineStr"',
            xml: `<is><r><t>${A.slice(0, 4)}</t></r><r><t>${A.slice(4)}</t></r></is>`,
          },
        ],
      ),
    npis: [A],
  },
  'texts with formats and phonetic signs': {
    content: () =>
      workbookOf(
        [
          {
            name: 'A',
            rows: [
              ['npi'],
              [{ attributes: 't="s"', xml: '<v>0</v>' }],
              [{ attributes: 't="s"', xml: '<v>1</v>' }],
            ],
          },
        ],
        {
          'xl/sharedStrings.xml': `<sst><si><t>npi</t></si><si><r><rPr><b/></rPr><t>${A}</t></r><rPh sb="0" eb="1"><t>no</t></rPh></si></sst>`,
        },
      ),
    npis: [A],
    unused: { 2: 'no NPI' },
  },
  'cells without their positions': {
    content: () =>
      workbookOf([
        {
          name: 'A',
          rows: xml(`<row><c t="str"><v>npi</v></c></row><row><c><v>${A}</v></c></row>`),
        },
      ]),
    npis: [A],
  },
  'tags with prefixes, as some programs write them': {
    content: () =>
      workbookOf([
        {
          name: 'A',
          rows: `<x:worksheet xmlns:x="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><x:sheetData><x:row r="1"><x:c r="A1"><x:v>${A}</x:v></x:c></x:row></x:sheetData></x:worksheet>`,
        },
      ]),
    npis: [A],
    says: [NUMBERED],
  },
  'dates, and an NPI that is formatted as a date': {
    content: () =>
      sheet(
        [{ attributes: 's="2"', xml: '<v>46000</v>' }, 'npi'],
        ['x', Number(A)],
        ['y', { attributes: 's="2"', xml: `<v>${B}</v>` }],
      ),
    npis: [A],
    header: ['2025-12-09', 'npi'],
    unused: { 3: 'is a formula, or the error of one' },
  },
  'truth values': {
    content: () =>
      sheet(['npi', 'active'], [A, { attributes: 't="b"', xml: '<v>1</v>' }]),
    npis: [A],
  },
  'a text number that does not exist': {
    content: () => sheet(['npi'], [{ attributes: 't="s"', xml: '<v>99</v>' }, 'x'], [A]),
    npis: [A],
    unused: { 2: 'no NPI' },
  },
  'control characters in texts': {
    content: () => sheet(['npi'], [`${A}_x000D_`], [`_x0000_${B}`]),
    npis: [A, B],
  },
  'more rows than an upload may have': {
    content: () => sheet(['npi'], ...many(10_001).map((npi) => [Number(npi)])),
    problem: /^f has more than 10000 rows\. Split it/,
  },
  'more rows than an upload may have, of which the first have only an NPI': {
    content: () => {
      const rows = many(10_450).map((npi, n) => [Number(npi), n < 450 ? null : 'x']);
      return sheet(...rows);
    },
    problem: /^f has more than 10000 rows\. Split it/,
  },
  'many more rows than an upload may have': {
    content: () => sheet(['npi'], ...many(20_000).map((npi) => [Number(npi)])),
    problem: /^f has more than 10000 rows\. Split it/,
  },
  'a cell in the last row and column': {
    content: () =>
      workbookOf([
        {
          name: 'A',
          rows: xml(
            `<row r="1"><c r="A1"><v>${A}</v></c></row><row r="1048576"><c r="XFD1048576"><v>1</v></c></row>`,
          ),
        },
      ]),
    problem: /^f has 16384 columns\. Remove all but 200\.$/,
  },
  'a column beyond the last one': {
    content: () =>
      workbookOf([
        { name: 'A', rows: xml('<row r="1"><c r="ZZZZZ1"><v>1</v></c></row>') },
      ]),
    problem: UNREADABLE,
  },
  'a ZIP file that unpacks to 60 MB': {
    content: () => workbookOf([VISIBLE], { 'xl/media/x.xml': ' '.repeat(60_000_000) }),
    problem: TOO_LARGE,
  },
  'a ZIP file that lies about its size': {
    content: async () => {
      const large = xml(
        `<row r="1"><c r="A1"><v>${' '.repeat(60_000_000)}</v></c></row>`,
      );
      return withSize(await workbookOf([{ name: 'A', rows: large }]), large.length, 100);
    },
    problem: UNREADABLE,
  },
  'a ZIP file that hides its size': {
    content: async () => {
      const large = xml(
        `<row r="1"><c r="A1"><v>${' '.repeat(60_000_000)}</v></c></row>`,
      );
      return withSize(await workbookOf([{ name: 'A', rows: large }]), large.length, 0);
    },
    problem: UNREADABLE,
  },
  'entities that grow': {
    content: () =>
      workbookOf([VISIBLE], {
        'xl/sharedStrings.xml': `<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><sst><si><t>&b;</t></si><si><t>${A}</t></si></sst>`,
      }),
    npis: [A],
    says: [guessed(1, 'Row')],
  },
  'more sheets than a page can list': {
    content: () =>
      workbookOf(Array.from({ length: 201 }, (_, n) => ({ ...VISIBLE, name: `S${n}` }))),
    problem: /^f has 201 sheets\. Copy the one with the NPIs into a new workbook\.$/,
  },
  'a sheet with a name like a book': {
    content: () => workbookOf([{ ...VISIBLE, name: 'x'.repeat(256) }]),
    problem: UNREADABLE,
  },
  'no sheets': {
    content: () => workbookOf([]),
    problem: /^f has no rows\.$/,
  },
  'only hidden sheets': {
    content: () => workbookOf([{ name: 'A', state: 'hidden', rows: [['npi'], [A]] }]),
    problem: /^f has no rows\.$/,
  },
  'only column names': {
    content: () => sheet(['name', 'npi']),
    problem: /^f has column names, but no rows below them\.$/,
  },
  'a text document': {
    content: () =>
      workbookOf([], { 'xl/workbook.xml': null, 'xl/_rels/workbook.xml.rels': null }),
    problem: UNREADABLE,
  },
  'a ZIP file with a CSV file': {
    content: () => zipOf({ 'npis.csv': `npi\n${A}\n` }),
    problem: UNREADABLE,
  },
  'half of a workbook': {
    content: async () => (await sheet(['npi'], [A])).subarray(0, 1000),
    problem: UNREADABLE,
  },
  'a sheet that is cut off in a row': {
    content: () => cutOff(`${rowOf(A)}<row><c`),
    problem: UNREADABLE,
  },
  'a sheet that is cut off between two rows': {
    content: () => cutOff(rowOf(A)),
    problem: UNREADABLE,
  },
  'a row without an end': {
    content: () =>
      workbookOf([{ name: 'A', rows: xml(`${rowOf(A)}<row><c><v>${B}${rowOf(C)}`) }]),
    problem: UNREADABLE,
  },
  'rows and a sheet without cells': {
    content: () =>
      workbookOf([
        { name: 'A', rows: xml(`<row/>${rowOf('npi')}<row ><c><v>${A}</v></c></row >`) },
        { name: 'B', rows: '<worksheet><sheetData /></worksheet>' },
      ]),
    npis: [A],
    says: ['Only the sheet "A" is read, and not "B".'],
  },
  'a missing sheet': {
    content: () => workbookOf([VISIBLE], { 'xl/worksheets/sheet1.xml': null }),
    problem: UNREADABLE,
  },
};

/** Changes the size that a ZIP file declares for a part. */
function withSize(zip: Buffer, from: number, to: number): Buffer {
  const old = Buffer.alloc(4);
  old.writeUInt32LE(from);
  // The list of parts is at the end of the file.
  zip.writeUInt32LE(to, zip.lastIndexOf(old));
  return zip;
}

for (const [kind, cases] of Object.entries({ CSV, xlsx: XLSX })) {
  for (const [title, one] of Object.entries(cases)) {
    test(`${kind}: ${title}`, async (t) => {
      const { content, sheet = null, column = null, npis = [], unused = {} } = one;
      const bytes =
        typeof content === 'function' ? await content() : Buffer.from(content);
      const draft = await inspect({
        file: { fileName: 'f', content: bytes },
        sheet,
        column,
      });
      if (draft.kind === 'unusable') {
        t.regex(draft.problem, one.problem ?? /^no problem is expected$/);
        return;
      }
      t.is(one.problem, undefined);
      t.deepEqual(draft.npis, npis);
      const reasons = draft.unusable.map(({ line, problem }) => [line, problem] as const);
      t.deepEqual(
        reasons.map(([line]) => line),
        Object.keys(unused).map(Number),
      );
      for (const [line, problem] of reasons)
        t.true(problem.startsWith(unused[line] ?? '?'), problem);
      t.is(draft.duplicates, one.repeated ?? 0);
      if (one.header) t.deepEqual(draft.header, one.header);
      t.deepEqual(draft.notes, one.says ?? []);
      const kept = /earlier run: (\d+)\./.exec(draft.notes.join(' '))?.[1] ?? 0;
      const told =
        draft.npis.length + draft.duplicates + draft.unusable.length + Number(kept);
      t.is(draft.rows, told);
      const { rows } = await readSheet('f', bytes, { sheet: sheet ?? undefined });
      t.is(rows.length, saidAbove(draft.notes) + draft.rows);
    });
  }
}

/** Returns the number of rows above the data: the titles that the notes name, and the column names. */
function saidAbove(notes: readonly string[]): number {
  const titles = notes.find((note) => note.startsWith('Above the table')) ?? '';
  const count = titles.match(/(?:Line|Row) \d+: "/g)?.length ?? 0;
  return notes.includes(NUMBERED) ? count : count + 1;
}

/** A text that a spreadsheet may have, with everything that a reader of CSV could take for more. */
const text = fc.string({
  unit: fc.constantFrom('a', 'B', '7', ' ', ',', ';', '|', '\t', '"', '\n', '\u00e9'),
  maxLength: 8,
});

test('each row of a random table is looked up, or named as not used', async (t) => {
  const npi = fc.constantFrom(A, B, C, D, '2000000011', '', 'n/a', `${A}.0`);
  const form = fc.record({
    rows: fc.array(fc.tuple(text, npi, text), { minLength: 1, maxLength: 20 }),
    titles: fc.array(fc.constantFrom('Q3 list', 'Exported 2026-11-30'), { maxLength: 3 }),
    delimiter: fc.constantFrom(',', ';', '\t', '|'),
    end: fc.constantFrom('\n', '\r\n'),
  });
  const reads = async ({ rows, titles, delimiter, end }: Values<typeof form>) => {
    const quoted = (cell: string) => `"${cell.replaceAll('"', '""')}"`;
    const table = [['who', 'npi', 'note'], ...rows].map((row) =>
      row.map(quoted).join(delimiter),
    );
    const content = Buffer.from([...titles, ...table].join(end));
    const file = { fileName: 'f', content };
    const draft = await inspect({ file, sheet: null, column: null });
    const kept = rows.filter((row) => row.some((cell) => cell.trim() !== ''));
    if (draft.kind === 'unusable') {
      t.is(kept.length, 0, draft.problem);
      return;
    }
    const npis = kept.flatMap((row) => readNpi(row[1]).npi ?? []);
    t.deepEqual(draft.npis, [...new Set(npis)]);
    t.is(draft.rows, kept.length);
    t.is(draft.rows, npis.length + draft.unusable.length);
    t.is(saidAbove(draft.notes), titles.length + 1);
  };
  await fc.assert(fc.asyncProperty(form, reads), { numRuns: 200 });
});

test('a result has whole titles, and no formulas that a workbook had as text', async (t) => {
  const formula = '=HYPERLINK("https://a.example","x")';
  const content = await sheet(
    ['List', '2026', 'Ohio'],
    ['npi', 'x'],
    [A, formula],
    [B, -5],
  );
  const table = tableOf('f', await readSheet('f', content));
  const rows = [...resultRows(contactsIn(table, 0), new Map(), '')];
  t.deepEqual(
    rows.map((row) => row.slice(0, 3)),
    [
      ['List', '2026', 'Ohio'],
      ['npi', 'x', ''],
      [A, `'${formula}`, ''],
      [B, '-5', ''],
    ],
  );
});

test('the command keeps the public facts of a result that the console has written', (t) => {
  const content = Buffer.from(
    `npi,enriched_npi_name,enriched_npi_state,enriched_email\n${A},ANA,TX,old@x.example\n`,
  );
  const table = tableOf('f', readCsv('f', content));
  const [header, row] = [...resultRows(contactsIn(table, 0), new Map(), 'x')];
  t.deepEqual(header?.slice(0, 4), [
    'npi',
    'enriched_npi_name',
    'enriched_npi_state',
    'enriched_email',
  ]);
  t.deepEqual(row?.slice(0, 4), [A, 'ANA', 'TX', '']);
});

test('no row of a random table without column names vanishes', async (t) => {
  const npi = fc.constantFrom(A, B, C, '2000000011', '', 'n/a');
  const name = fc.constantFrom('', 'x', 'NPI pending', '100 Turnpike Rd');
  const form = fc.array(fc.tuple(npi, name, name), { minLength: 1, maxLength: 40 });
  const reads = async (rows: Values<typeof form>) => {
    const content = Buffer.from([...rows, ['', '', 'end']].join('\n'));
    const draft = await inspect({
      file: { fileName: 'f', content },
      sheet: null,
      column: 0,
    });
    const kept = rows.filter((row) => row.some((cell) => cell !== ''));
    const npis = kept.flatMap(([cell]) => (isNpi(cell) ? cell : []));
    if (draft.kind === 'unusable') {
      t.is(kept.length, 0);
      return;
    }
    t.deepEqual(draft.npis, [...new Set(npis)]);
    t.is(draft.rows + saidAbove(draft.notes), kept.length + 1);
    t.is(draft.rows, npis.length + draft.unusable.length);
  };
  await fc.assert(fc.asyncProperty(form, reads), { numRuns: 200 });
});

type Values<T> = T extends fc.Arbitrary<infer V> ? V : never;
