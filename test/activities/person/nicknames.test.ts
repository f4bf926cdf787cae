import { readFileSync } from 'node:fs';
import test from 'ava';
import { nameWords } from '../../../activities/person/names.ts';
import { commonSpelling, sameGivenName } from '../../../activities/person/nicknames.ts';

const linesOf = (list: string) =>
  readFileSync(new URL(`../../../activities/person/${list}.txt`, import.meta.url), 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));

test('different transliterations of a name, such as md and muhammad, count as the same', (t) => {
  t.is(commonSpelling('md'), commonSpelling('muhammad'));
  t.is(commonSpelling('kovalskiy'), commonSpelling('kovalsky'));
  t.is(commonSpelling('skiy'), 'skiy');
  t.is(commonSpelling('public'), 'public');
});

test('a courtesy suffix such as -bhai may be missing, but two suffixes must be equal', (t) => {
  t.true(sameGivenName('manibhai', 'mani'));
  t.true(sameGivenName('mani', 'maniben'));
  t.false(sameGivenName('manibhai', 'maniben'));
  t.false(sameGivenName('', ''));
});

test('the name lists contain only normalized words, and no spelling is on two lines', (t) => {
  for (const list of ['nicknames', 'spellings']) {
    for (const line of linesOf(list))
      t.deepEqual(nameWords(line), [...new Set(line.split(' '))], line);
  }
  const spellings = linesOf('spellings').flatMap((line) => line.split(' '));
  t.deepEqual(
    spellings.filter((name, index) => spellings.indexOf(name) < index),
    [],
  );
});
