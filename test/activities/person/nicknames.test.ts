import { readFileSync } from 'node:fs';
import test from 'ava';
import { nameWords } from '../../../activities/person/names.ts';
import { commonSpelling, sameGivenName } from '../../../activities/person/nicknames.ts';

const linesOf = (list: string) =>
  readFileSync(new URL(`../../../activities/person/${list}.txt`, import.meta.url), 'utf8')
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));

test('all spellings of a name from another script count as the same name', (t) => {
  t.is(commonSpelling('md'), commonSpelling('muhammad'));
  t.is(commonSpelling('kovalskiy'), commonSpelling('kovalsky'));
  t.is(commonSpelling('skiy'), 'skiy');
  t.is(commonSpelling('public'), 'public');
});

test('a courtesy suffix such as -bhai may be missing in one name, but must not differ', (t) => {
  t.true(sameGivenName('manibhai', 'mani'));
  t.true(sameGivenName('mani', 'maniben'));
  t.false(sameGivenName('manibhai', 'maniben'));
  t.false(sameGivenName('', ''));
});

test('the lists of names contain only normalized words, each spelling in one line', (t) => {
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
