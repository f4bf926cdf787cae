import { readFileSync } from 'node:fs';
import test from 'ava';
import { nameWords, personName } from '../../../activities/person/names.ts';
import type { Person } from '../../../activities/vendors/vendor.ts';
import { type Owner, ownerOf } from '../../../activities/verification/local-part.ts';
import { SUBJECT } from '../../support/vendors.ts';

// Holds the figures of the rules for address owners. A rule that helps one name often harms many
// others, so each figure is a share over the names of 1,000 clinicians.

const WORK = 'hospital.org';
const FREE_MAIL = 'gmail.com';

const FILE = new URL('./clinicians.txt', import.meta.url);
const PEOPLE = readFileSync(FILE, 'utf8')
  .split('\n')
  .filter((line) => line !== '' && !line.startsWith('#'))
  .map(personOf);

function personOf(line: string): Person {
  const [first = '', middle = '', last = ''] = line.split(',');
  if (SUBJECT.person === null) throw new Error('nobody');
  return {
    first: personName(first) ?? '',
    middle: personName(middle),
    last: personName(last) ?? '',
    generation: null,
    otherNames: [],
    profileNames: [],
    profileSurnames: [],
    practice: SUBJECT.person.practice,
    otherStates: [],
  };
}

type Format = (first: string, last: string, middle: string) => string;
const FORMATS: Readonly<Record<string, Format>> = {
  'first.last': (first, last) => `${first}.${last}`,
  flast: (first, last) => first.charAt(0) + last,
  firstl: (first, last) => first + last.charAt(0),
  lastf: (first, last) => last + first.charAt(0),
  first: (first) => first,
  last: (_first, last) => last,
  'f.last': (first, last) => `${first.charAt(0)}.${last}`,
  first_last: (first, last) => `${first}_${last}`,
  'last.first': (first, last) => `${last}.${first}`,
  firstlast: (first, last) => first + last,
  'first.m.last': (first, last, middle) => `${first}.${middle.charAt(0)}.${last}`,
  fmlast: (first, last, middle) => first.charAt(0) + middle.charAt(0) + last,
};
const CUTS: Readonly<Record<string, Format>> = {
  'the first five letters and an initial': (first, last) =>
    last.slice(0, 5) + first.charAt(0),
  'the first seven letters and an initial': (first, last) =>
    last.slice(0, 7) + first.charAt(0),
  'an initial and the first seven letters': (first, last) =>
    first.charAt(0) + last.slice(0, 7),
};

/** Returns the share of people for whom the address of `named` has one of these owners, in percent. */
function shareOf(
  domain: string,
  format: Format,
  owners: readonly Owner[],
  named: (person: Person, index: number) => Person = (person) => person,
) {
  const wrong: string[] = [];
  for (const [index, person] of PEOPLE.entries()) {
    const { first, last, middle } = named(person, index);
    const joined = [first, last, middle].map((name) => nameWords(name).join(''));
    const [given = '', family = '', second = ''] = joined;
    const local = format(given, family, second);
    const owner = ownerOf(
      { local, domain },
      { person, organization: null, strangers: [], patterns: [] },
    );
    if (owners.includes(owner)) wrong.push(`${local} is ${owner}`);
  }
  return { percent: (100 * wrong.length) / PEOPLE.length, wrong };
}

const stranger = (_person: Person, index: number): Person => {
  const other = PEOPLE[(index + 499) % PEOPLE.length];
  if (other === undefined) throw new Error('no people');
  return other;
};
const relative = (person: Person, index: number): Person => ({
  ...person,
  first: stranger(person, index).first,
});

for (const [name, format] of Object.entries(FORMATS)) {
  test(`clinicians own their address in the format ${name}`, (t) => {
    const refused = shareOf(WORK, format, ['other_person', 'shared', 'unclear']);
    t.true(refused.percent <= 0.2, refused.wrong.join('\n'));
  });
}

for (const [name, format] of Object.entries(CUTS)) {
  test(`clinicians own their address with a cut name of ${name}`, (t) => {
    const refused = shareOf(WORK, format, ['other_person', 'shared', 'unclear']);
    t.true(refused.percent <= 1, refused.wrong.join('\n'));
  });
}

for (const domain of [WORK, FREE_MAIL]) {
  test(`a stranger's first.last address at ${domain} is recognized as another person's`, (t) => {
    const format = FORMATS['first.last'] ?? t.fail();
    const passed = shareOf(domain, format, ['person', 'unclear'], stranger);
    t.true(passed.percent <= 3, passed.wrong.join('\n'));
  });
}

for (const name of ['flast', 'lastf', 'firstlast']) {
  test(`a stranger's address in the format ${name} is never the person's`, (t) => {
    const passed = shareOf(WORK, FORMATS[name] ?? t.fail(), ['person'], stranger);
    t.true(passed.percent <= 0.2, passed.wrong.join('\n'));
  });
}

for (const name of ['first.last', 'firstlast']) {
  test(`a relative's address in the format ${name} is rarely the person's`, (t) => {
    const passed = shareOf(WORK, FORMATS[name] ?? t.fail(), ['person'], relative);
    t.true(passed.percent <= 2, passed.wrong.join('\n'));
  });
}
