import test from 'ava';
import { fields, table } from '../../deploy/operator/print.ts';

// Tests the layout of text whose width in a terminal is not its number of characters.

const WIDTH = 80;

test('columns stay aligned next to Chinese text and combining marks', (t) => {
  const rows = [
    { name: '東京病院', note: 'a', credits: 1 },
    { name: 'Ame\u0301lie', note: '서울', credits: 22 },
    { name: '🏥 Acme', note: 'b', credits: 3 },
  ];
  t.deepEqual(table(rows)(WIDTH).split('\n'), [
    'NAME      NOTE  CREDITS',
    '東京病院  a           1',
    'Ame\u0301lie    서울       22',
    '🏥 Acme   b           3',
  ]);
});

test('a wide text is cut between two characters, at the same place as a narrow one', (t) => {
  const rows = [
    { name: '東'.repeat(30), n: 1 },
    { name: 'x'.repeat(60), n: 2 },
    { name: 'x🏥'.repeat(30), n: 3 },
  ];
  const [, ...lines] = table(rows)(WIDTH).split('\n');
  t.deepEqual(lines, [
    `${'東'.repeat(19)}…   1`,
    `${'x'.repeat(39)}…  2`,
    `${'x🏥'.repeat(13)}…  3`,
  ]);
});

test('the text of a record is wrapped at the width of the terminal', (t) => {
  const record = { name: '東京病院 '.repeat(5), url: 'x'.repeat(40) };
  t.deepEqual(fields(record)(40).split('\n'), [
    'name  東京病院 東京病院 東京病院',
    '      東京病院 東京病院',
    `url   ${'x'.repeat(34)}`,
    `      ${'x'.repeat(6)}`,
  ]);
});

test('an unknown value and an infinite number are printed as a dash', (t) => {
  const record = { reason: null, sweepAge: Number.POSITIVE_INFINITY, found: 0 };
  t.is(fields(record)(WIDTH), 'reason     -\nsweep age  -\nfound      0');
});
