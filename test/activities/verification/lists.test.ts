import { readdir, readFile } from 'node:fs/promises';
import test from 'ava';
import { classify, isDisposable, readList } from '../../../activities/verification/domains.ts';
import { buildLists } from '../../../deploy/build/lists.ts';

const FOLDER = new URL('../../../activities/verification/lists/', import.meta.url);

test('the lists are what the generator makes of the installed packages', async (t) => {
  const lists = buildLists();
  const byHand = ['given-names.txt', 'roles.txt', 'surnames.txt', 'titles.txt'];
  t.deepEqual(await readdir(FOLDER), [...lists.keys(), ...byHand].sort());
  for (const [name, text] of lists) {
    // Not by t.is, which would print thousands of lines.
    t.true((await readFile(new URL(name, FOLDER), 'utf8')) === text, `${name} is old: npm run lists`);
  }
});

test('the lists name their origin, its version and its license', async (t) => {
  t.regex(await readFile(new URL('disposable.txt', FOLDER), 'utf8'), /^#.*\n# From \S+ [0-9.]+ \(CC0-1\.0\)/);
  t.regex(
    await readFile(new URL('personal.txt', FOLDER), 'utf8'),
    /^#.*\n# From \S+ [0-9.]+ \(ISC\)[^\n]*\n# Copyright/,
  );
});

for (const name of ['disposable', 'personal'] as const) {
  test(`every ${name} domain is spelled as addresses are compared`, (t) => {
    const list = [...readList(name)];
    t.true(list.length > 5000);
    t.deepEqual(
      list.filter(
        (domain) => !/^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$/.test(domain),
      ),
      [],
    );
    t.deepEqual(list, [...list].sort());
  });
}

test('no mailbox is both thrown away and kept', (t) => {
  t.deepEqual([...readList('personal')].filter(isDisposable), []);
});

for (const domain of [
  'gmail.com',
  'fastmail.com',
  'spectrum.net',
  'comcast.net',
  'physician.com',
  'doctor.com',
]) {
  test(`${domain} is in the list of personal domains`, (t) => {
    t.is(classify(domain, 'professional'), 'personal');
  });
}
