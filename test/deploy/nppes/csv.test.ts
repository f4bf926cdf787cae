import test from 'ava';
import fc from 'fast-check';
import { providerKeys } from '../../../db/providers/keys.ts';
import { CsvReader } from '../../../deploy/nppes/csv.ts';

interface Row {
  readonly line: number;
  readonly whole: boolean;
  readonly cells: readonly string[];
}

/** Reads a text in pieces of the given size. */
function rowsOf(
  text: string | Buffer,
  columns: number | null,
  pieceBytes = 1_000,
): Row[] {
  const bytes = Buffer.from(text);
  const reader = new CsvReader(columns);
  const rows: Row[] = [];
  const take: Parameters<typeof reader.end>[0] = (record) => {
    const cells = Array.from({ length: record.columns }, (_, column) =>
      record.text(column),
    );
    rows.push({ line: record.line, whole: record.whole, cells });
  };
  for (let at = 0; at < bytes.length; at += pieceBytes)
    reader.push(bytes.subarray(at, at + pieceBytes), take);
  reader.end(take);
  return rows;
}

const cells = (text: string | Buffer, columns = 2) =>
  rowsOf(text, columns).map((row) => row.cells);

test('CSV values are read unchanged, no matter how the file is cut into pieces', (t) => {
  const value = fc.string({
    unit: fc.constantFrom('a', '"', ',', '\n', '\r', ' ', 'é', '医', '\u{1f600}'),
  });
  fc.assert(
    fc.property(
      fc.array(fc.array(value, { minLength: 3, maxLength: 3 }), {
        minLength: 1,
        maxLength: 6,
      }),
      fc.constantFrom('\n', '\r\n'),
      fc.integer({ min: 1, max: 40 }),
      (rows, lineEnd, pieceBytes) => {
        const text = rows
          .map(
            (row) =>
              row.map((cell) => `"${cell.replaceAll('"', '""')}"`).join(',') + lineEnd,
          )
          .join('');
        t.deepEqual(
          rowsOf(text, 3, pieceBytes).map((row) => row.cells),
          rows,
        );
      },
    ),
  );
});

test('the CSV reader accepts unquoted values, blank lines, and no final line end', (t) => {
  t.deepEqual(cells('a,b\r\n\n"c",d\r\n\r\n,"f"'), [
    ['a', 'b'],
    ['c', 'd'],
    ['', 'f'],
  ]);
});

test('a quote inside a CSV value need not be doubled if no comma follows it', (t) => {
  t.deepEqual(cells('"JOHN "JACK" DOE","x"\n'), [['JOHN "JACK" DOE', 'x']]);
});

test('CSV lines are numbered as in an editor, even if values contain line ends', (t) => {
  t.deepEqual(
    rowsOf('"a","b\nb"\n\n"c","d"\n', 2).map(({ line }) => line),
    [1, 4],
  );
});

test('a CSV row that is not UTF-8 is read as Latin-1, without effect on other rows', (t) => {
  const rows = Buffer.concat([
    Buffer.from('"Ñuñez","utf8"\n'),
    Buffer.from('"Ñuñez","latin1"\n', 'latin1'),
    Buffer.from('"Größe","utf8"\n'),
  ]);
  t.deepEqual(cells(rows), [
    ['Ñuñez', 'utf8'],
    ['Ñuñez', 'latin1'],
    ['Größe', 'utf8'],
  ]);
});

test('a CSV row with too few or too many values does not affect other rows', (t) => {
  const rows = rowsOf('"a","b"\n"c"\n"d","e","f"\n"g","h"\n', 2);
  t.deepEqual(
    rows.map(({ line, whole }) => [line, whole]),
    [
      [1, true],
      [2, false],
      [3, false],
      [4, true],
    ],
  );
});

test('a CSV quote that is never closed invalidates only its own line', (t) => {
  const after = Array.from({ length: 20_000 }, (_, n) => `"${n}","x"\n`).join('');
  for (const broken of ['"open,"x"\n', '"a","open\n']) {
    const rows = rowsOf(broken + after, 2, 10_000);
    t.is(rows.length, 20_001);
    t.deepEqual(
      rows.filter(({ whole }) => !whole).map(({ line }) => line),
      [1],
    );
    t.deepEqual(rows.at(-1), { line: 20_001, whole: true, cells: ['19999', 'x'] });
  }
});

test('a CSV row may span at most fifty lines, so an unclosed quote is found soon', (t) => {
  const [broken, ...rest] = rowsOf(`"open${'\n"x'.repeat(60)}","b"\n"c","d"\n`, 2);
  t.like(broken, { line: 1, whole: false });
  t.deepEqual(rest.at(-1), { line: 62, whole: true, cells: ['c', 'd'] });
  // Four megabytes. Reading the same bytes again for each of a million lines would take minutes.
  const lines = 1_300_000;
  const reader = new CsvReader(2);
  let rows = 0;
  const count = () => {
    rows += 1;
  };
  reader.push(Buffer.from('"a\n'.repeat(lines)), count);
  reader.end(count);
  t.is(rows, lines);
});

test('a CSV value of more than 1,000 characters is marked as too long', (t) => {
  const reader = new CsvReader(2);
  const found: boolean[][] = [];
  const take: Parameters<typeof reader.end>[0] = (row) => {
    found.push([row.isTooLong(0), row.isTooLong(1), row.isTooLong(2)]);
  };
  const most = 'é'.repeat(1_000);
  reader.push(Buffer.from(`"${most}","${most}é"\n`), take);
  reader.end(take);
  t.deepEqual(found, [[false, true, false]]);
});

test('a CSV file without line ends is read as broken rows, so it needs little memory', (t) => {
  const rows = rowsOf(`"${'x'.repeat(1_000_000)}`, 2, 50_000);
  t.true(rows.length > 1);
  t.true(rows.every(({ whole }) => !whole));
});

test('an address or phone has the same comparison key in every spelling', (t) => {
  const same = [
    {
      phone: '(303) 555-0101',
      line1: '12 North Main Street, Suite 200',
      line2: null,
      postalCode: '80201-1234',
    },
    {
      phone: '13035550101',
      line1: '12 N. MAIN ST STE 200',
      line2: '',
      postalCode: '802011234',
    },
    {
      phone: '3035550101X12',
      line1: '12 N MAIN ST STE 200',
      line2: null,
      postalCode: '80201',
    },
    {
      phone: '(303) 555-0101 ext. 7',
      line1: '12 N MAIN ST STE 200',
      line2: null,
      postalCode: '80201',
    },
    { phone: '303.555.0101', line1: '12 n main st.', line2: '#200', postalCode: '80201' },
    {
      phone: '3035550101',
      line1: '12 N MAIN ST',
      line2: 'STE #200',
      postalCode: '80201',
    },
  ];
  for (const place of same) {
    t.deepEqual(providerKeys(place), {
      phoneKey: '3035550101',
      addressKey: '12 N MAIN ST STE 200|80201',
    });
  }
});

test('an incomplete address or phone has no comparison key', (t) => {
  const none = { phoneKey: null, addressKey: null };
  t.deepEqual(
    providerKeys({ phone: null, line1: null, line2: null, postalCode: null }),
    none,
  );
  t.deepEqual(
    providerKeys({
      phone: '555-0101',
      line1: '12 MAIN ST',
      line2: null,
      postalCode: 'SW1A 1AA',
    }),
    none,
  );
  t.deepEqual(
    providerKeys({ phone: '0000000000', line1: ' . ', line2: null, postalCode: '80201' }),
    none,
  );
});
