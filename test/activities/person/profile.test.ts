import test from 'ava';
import { profileOf } from '../../../activities/person/profile.ts';
import { SUBJECT } from '../../support/vendors.ts';

/** Returns what a profile with a name adds to the record of Dawei Wang. */
function addedBy(full: string, employerDomain: string | null = null) {
  if (SUBJECT.person === null) throw new Error('nobody');
  const name = { first: 'Dawei', last: 'Wang', middle: 'H', otherNames: [] };
  const person = { ...SUBJECT.person, ...name };
  const identity = { npi: null, name: { kind: 'full', full }, state: null } as const;
  return profileOf({ ...identity, employerDomain }, person);
}

for (const [full, givenNames] of [
  ['David Dawei Wang', 'david'],
  ['Dawei (David) Wang', 'david'],
  ['Dawei Henry Wang, MD', 'henry'],
  ['Dawei Wang', null],
  // A couple's profile.
  ['Dawei & Karen Wang', null],
  ['Dawei and Karen Wang', null],
  ['Dawei H. Wang', null],
  // A relative's profile may have our NPI by mistake.
  ['David Wang', null],
  // Perhaps a name after a marriage, which says nothing about given names.
  ['David Dawei Liu', null],
] as const) {
  test(`a profile of ${full} adds ${givenNames ?? 'nothing'} to the record of Dawei Wang`, (t) => {
    const added = addedBy(full);
    t.is(added?.givenNames ?? null, givenNames);
    t.is(added === null, givenNames === null);
  });
}

test("a profile also adds the employer's domain", (t) => {
  const employerDomain = 'clinic.example';
  t.deepEqual(addedBy('Dawei Wang', employerDomain), {
    givenNames: null,
    surname: null,
    employerDomain,
  });
  t.is(addedBy('David Wang', employerDomain), null);
  const name = null;
  const identity = { npi: null, name, state: null, employerDomain };
  t.deepEqual(profileOf(identity, null), {
    givenNames: null,
    surname: null,
    employerDomain,
  });
});

test('a profile with our given name adds a spelling of the surname that nearly equals ours', (t) => {
  if (SUBJECT.person === null) throw new Error('nobody');
  const name = { first: 'Kevin', last: 'Petrovich', middle: null, otherNames: [] };
  const person = { ...SUBJECT.person, ...name };
  const surnameIn = (full: string) => {
    const identity = { npi: null, name: { kind: 'full', full }, state: null } as const;
    return profileOf({ ...identity, employerDomain: null }, person)?.surname;
  };
  t.is(surnameIn('Kevin Petrovitch'), 'petrovitch');
  t.is(surnameIn('Karen Petrovitch'), undefined);
  t.is(surnameIn('Kevin Miller'), undefined);
});
