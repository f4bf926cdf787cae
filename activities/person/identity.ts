import type { Identity, Person } from '../vendors/vendor.ts';
import { GIVEN_NAMES, OwnNames, SURNAMES } from '../verification/own-names.ts';
import { isParticle, nameWords } from './names.ts';
import { sameGivenName } from './nicknames.ts';
import {
  compareSurnames,
  isNearSurname,
  type Reading,
  type RecordedName,
  readName,
  recordReadings,
} from './readings.ts';

/**
 * Checks that a response is about the person with the requested NPI in NPPES. This is the
 * main protection against returning a stranger's address.
 *
 * - If the response contains an NPI, it must be the requested one. If the response also contains a
 *   name, the name is still compared, because sources sometimes guess the NPI of a profile. A given
 *   name on record is enough, or a surname that is nearly equal, because people marry, go by
 *   another first name, and are misspelled.
 * - A profile with another generation is a relative's: Sr. is not Jr. A couple's profile, such as
 *   `Bill & Sue Ames`, is rejected.
 * - If the response contains no NPI, the name must agree with NPPES, and no other detail may
 *   contradict it. These details are the state and the middle name or initial. They are not compared
 *   if the response has the requested NPI, because people move or write their names differently.
 * - If we do not know the person, only a response with the requested NPI is accepted. A name in a
 *   response is ignored if its surname or its given name is missing.
 *
 * See `namesAgree` for the comparison of names. This function never throws.
 * @param npi 10 digits
 * @param person the person of the NPI, or null if the NPI is not in NPPES
 * @returns the reason for rejecting the response, or null if it is about this person
 */
export function mismatchOf(identity: Identity, npi: string, person: Person | null) {
  const claimed = identity.npi?.trim() || null;
  if (claimed !== null && claimed !== npi) return 'identity_mismatch';
  const readings = readName(identity.name);
  if (person === null || readings.length === 0) {
    if (claimed === null) return 'identity_unknown';
    return null;
  }
  if (isCouple(identity.name) || hasOtherGeneration(readings, person)) {
    return 'identity_mismatch';
  }
  if (claimed !== null && mayBePerson(readings, person)) return null;
  if (claimed === null && isPerson(identity, readings, person)) {
    return null;
  }
  return 'identity_mismatch';
}

/** Returns true for the name of two people, such as `Bill & Sue Ames`. */
export function isCouple(name: Identity['name']): boolean {
  if (name === null) return false;
  const text = name.kind === 'full' ? name.full : `${name.first} ${name.last}`;
  // A specialty may follow a comma: `Jane Doe MD, Obstetrics & Gynecology`.
  const [people = ''] = text.split(',');
  return /\s(?:&|and)\s/i.test(people);
}

function hasOtherGeneration(readings: readonly Reading[], person: Person): boolean {
  return readings.some(
    ({ generation }) =>
      generation !== null &&
      person.generation !== null &&
      generation !== person.generation,
  );
}

/** The fewest letters of a given name that is searched inside a word. */
const MIN_WHOLE = 4;

/**
 * Returns the addresses of a profile that may be the person's. A profile with another given name may
 * be a relative's, even if it has the person's NPI: Andrew Howard is not Andrea. Only an address with
 * the person's whole given name is taken from it.
 */
export function ownAddresses<T extends { readonly email: string }>(
  candidates: readonly T[],
  { name }: Identity,
  person: Person | null,
): readonly T[] {
  if (person === null || person.first === '') return candidates;
  const readings = readName(name).filter(({ surnameFirst }) => !surnameFirst);
  if (readings.length === 0) return candidates;
  const isOther = readings.every((one) => hasOtherGivenName(one, person));
  if (!isOther && !contradictsGivenNames(name, person)) {
    return candidates;
  }
  const whole = nameWords(person.first).join('');
  return candidates.filter(({ email }) => {
    const [local = ''] = email.toLowerCase().split('@');
    const words = local.split(/[^a-z]+/);
    // The letters of a short name occur in other names by chance.
    if (whole.length < MIN_WHOLE) return words.includes(whole);
    return words.join('').includes(whole);
  });
}

function hasOtherGivenName({ given }: Reading, person: Person): boolean {
  const own = namesOnRecord(person);
  const names = fullNames(given);
  if (names.length === 0) return false;
  return !names.some((one) => own.isGiven(one) || own.isShortForm(one));
}

/**
 * Returns true for a name with our surname and given names of which some are others': Maria Elena
 * Ibarra is not Ana Maria Ibarra.
 */
export function contradictsGivenNames(name: Identity['name'], person: Person): boolean {
  const record = recordOf(person);
  const readings = readName(name).filter(
    (one) =>
      !one.surnameFirst && kinshipsOf(one, record).some((kinship) => kinship !== 'none'),
  );
  // `David Dawei Wang` may be Dawei H. Wang, so an initial does not contradict.
  const middle = fullNames(nameWords(person.middle)).join(' ');
  const isOther = (one: Reading) =>
    fullNames([...one.given, ...one.middle]).length > 1 &&
    contradicts(one, { ...person, middle });
  return readings.length > 0 && readings.every(isOther);
}

/** Returns the names without those of vendors' profiles, which may be wrong. */
function namesOnRecord(person: Person): OwnNames {
  return new OwnNames({ ...person, profileNames: [], profileSurnames: [] });
}

/** The fewest letters that an unlisted short form has, and that it leaves out. */
const SHORT_FORM = { letters: 4, missing: 3 };

/**
 * Returns true for a given name of the person, and for a part of it that they may go by: `Seun` for
 * Oluwaseun. A form that lacks only the ending may be a name for another gender.
 */
function isOwnGiven(name: string, person: Person): boolean {
  const own = namesOnRecord(person);
  if (own.isGiven(name)) return true;
  if (name.length < SHORT_FORM.letters || !own.isShortForm(name)) {
    return false;
  }
  return [...nameWords(person.first), ...nameWords(person.middle)].some((one) => {
    // Brianna is not Anna, although both end alike.
    if (GIVEN_NAMES.has(one) && GIVEN_NAMES.has(name)) return false;
    return one.includes(name) && one.length - name.length >= SHORT_FORM.missing;
  });
}

/** Decides whether a response without an NPI is about the person. */
function isPerson(
  { state }: Identity,
  readings: readonly Reading[],
  person: Person,
): boolean {
  // A person with only one name is rejected, because too many people share a single name.
  if (person.first === '' || !stateAgrees(state, person)) return false;
  return readings.some((one) => {
    if (one.surnameFirst && !isSurnameFirst(one, person)) return false;
    return namesAgree(one, person) && !contradicts(one, person);
  });
}

/**
 * Returns true if the surname comes first in a name without a comma. In `Taylor Amy L` it does,
 * because only a given name has an initial behind it. In all other cases both names must be exactly
 * ours, the surname must not be a given name, and the last word must not be another surname: `Smith
 * John` is John Smith, but `Scott James` may be a man named Scott, and so may `Scott John Moll`.
 */
function isSurnameFirst({ given, family }: Reading, person: Person): boolean {
  if (given.length > 1 && given.at(-1)?.length === 1) return true;
  if (!mayStartName(family)) return false;
  const middle = nameWords(person.middle);
  return recordOf(person).some((one) => {
    if (compareSurnames(family, one.family) !== 'same') return false;
    if (one.given.join('') === given.join('')) return true;
    const others = given.filter((name) => !one.given.includes(name));
    const isGiven = others.every(
      (name) => GIVEN_NAMES.has(name) || middle.includes(name),
    );
    return isGiven && one.given.every((name) => given.includes(name));
  });
}

/** Returns true if these words at the start of a name may be a surname. */
function mayStartName(family: readonly string[]): boolean {
  return family.some((word) => !GIVEN_NAMES.has(word));
}

/** Decides whether a response with the requested NPI is about the person. */
function mayBePerson(readings: readonly Reading[], person: Person): boolean {
  const record = recordOf(person);
  const middle = nameWords(person.middle);
  const givenNames = fullNames([...record.flatMap(({ given }) => given), ...middle]);
  return readings.some((one) => {
    if (namesAgree(one, person)) return true;
    const isGiven = fullNames(one.given).some((said) =>
      givenNames.some((name) => sameGivenName(name, said)),
    );
    if (one.surnameFirst && person.first !== '') {
      return isGiven && mayStartName(one.family);
    }
    const kinships = kinshipsOf(one, record);
    const isFamily = kinships.includes('same') || kinships.includes('spelled');
    return (
      isGiven || isFamily || record.some((name) => isNearSurname(one.family, name.family))
    );
  });
}

function recordOf(person: Person): RecordedName[] {
  return [person, ...person.otherNames].flatMap(recordReadings);
}

function kinshipsOf({ family }: Reading, record: readonly RecordedName[]) {
  return record.map((one) => compareSurnames(family, one.family));
}

/**
 * Returns true if the surname and the given name of a response agree with our record of the person.
 *
 * The surname must agree with the person's surname or with one of their other names. The given name
 * must be one of the following:
 * - the person's first name, or a nickname or another spelling of it
 * - one word of a first name with several words
 * - the initial of the first name, if the surnames are equal; it is not enough if they only share a
 *   part (`Smith` for `Smith-Jones`) or have different spellings
 * - the full middle name, because many people use it as their first name
 */
function namesAgree(reading: Reading, person: Person): boolean {
  const record = recordOf(person);
  const kinships = kinshipsOf(reading, record);
  if (kinships.every((kinship) => kinship === 'none')) return false;
  const middle = nameWords(person.middle);
  if (record.some(({ given }) => goesBy(reading.given, given, middle))) {
    return true;
  }
  const [called] = fullNames(reading.given);
  if (called !== undefined && isOwnGiven(called, person)) return true;
  if (!kinships.includes('same')) return false;
  return record.some(({ given }) => sharesInitial(reading.given[0], given[0]));
}

/**
 * Returns true if the first full name in a response is a recorded one. In `J. Robert` this is
 * Robert, because initials are ignored.
 */
function goesBy(
  said: readonly string[],
  first: readonly string[],
  middle: readonly string[],
): boolean {
  const [called] = fullNames(said);
  if (called === undefined) return false;
  if (sameGivenName(fullNames(said).join(''), first.join(''))) {
    return true;
  }
  return fullNames([...first, ...middle]).some((name) => sameGivenName(name, called));
}

/** Returns the names that are longer than an initial. */
function fullNames(words: readonly string[]): string[] {
  return words.filter((word) => word.length > 1);
}

/** Returns true if one of two names is only an initial and both begin with the same letter. */
function sharesInitial(one = '', other = ''): boolean {
  return (one.length === 1 || other.length === 1) && one[0] === other[0];
}

/**
 * Returns true if the given names of a response contradict our record. Names contradict if each side
 * has one that the other lacks: `John Peter Miller` and `John P Miller` are not John Quincy Miller, but
 * may be John Miller. Only a maiden name may stand in place of our middle name: Mary Smith Jones may
 * be Mary Ann Jones, but Maria Lopez Cruz is not Maria Ruiz Cruz.
 */
function contradicts(reading: Reading, person: Person): boolean {
  const middle = nameWords(person.middle);
  return recordOf(person).every(({ given, family }) => {
    const kinship = compareSurnames(reading.family, family);
    if (kinship === 'none') return true;
    // If the surname is ours as a whole, none of its words is a middle name.
    const between = kinship === 'part' ? reading.middle.filter(mayBeMiddle) : [];
    const said = [...reading.given, ...between];
    const { extra, missing } = compareGiven(said, [...given, ...middle]);
    const names = extra.filter(
      (name) => !isOwnGiven(name, person) && !isOurSurname(name, reading, person),
    );
    if (names.length === 0 || missing.length === 0) return false;
    const isMaiden = names.every((name) => between.includes(name) && isSurname(name));
    const isMiddle = missing.every((name) => middle.includes(name) && !isSurname(name));
    return !isMaiden || !isMiddle;
  });
}

/** Returns true unless a word is only a particle. `Van` is also a given name in Vietnam. */
function mayBeMiddle(word: string): boolean {
  return !isParticle(word) || GIVEN_NAMES.has(word);
}

/**
 * Compares the given names of a response with the recorded ones.
 * @returns the names that only one side has
 */
function compareGiven(given: readonly string[], recorded: readonly string[]) {
  const said = joinNames(given, recorded);
  const missing = joinNames(recorded, said);
  const extra: string[] = [];
  // The initials come last, so that the J of `John J` does not stand for John.
  const initials = said.filter((name) => name.length === 1);
  for (const name of [...fullNames(said), ...initials]) {
    let index = missing.findIndex((other) => sameGivenName(name, other));
    if (index < 0) {
      index = missing.findIndex((other) => sharesInitial(name, other));
    }
    if (index < 0) extra.push(name);
    else missing.splice(index, 1);
  }
  return { extra, missing };
}

/** Joins two neighboring names that are one name on the other side: Min Jun and Minjun. */
function joinNames(names: readonly string[], others: readonly string[]): string[] {
  const index = names.findIndex((name, at) => {
    const joined = name + (names[at + 1] ?? '');
    return joined !== name && others.some((other) => sameGivenName(joined, other));
  });
  if (index < 0) return [...names];
  const joined = names.slice(index, index + 2).join('');
  return [...names.slice(0, index), joined, ...names.slice(index + 2)];
}

/** Returns true for a surname on record, or its initial, that a response has as a middle name. */
function isOurSurname(
  name: string,
  { family, middle }: Reading,
  person: Person,
): boolean {
  const last = family.slice(middle.length);
  const surnames = recordOf(person).flatMap((one) => one.family);
  return surnames.some((one) => {
    if (compareSurnames(last, [one]) !== 'none') return false;
    return one === name || sharesInitial(one, name);
  });
}

/**
 * Returns true for a frequent surname that is not also a given name. Rarer ones are often given names
 * that immigrants brought, such as Rahim.
 */
function isSurname(name: string): boolean {
  return SURNAMES.has(name) && !GIVEN_NAMES.has(name);
}

/**
 * Returns true if the person practices in the state that a response names. If the response names no
 * state, or none is on record, the result is also true.
 */
function stateAgrees(given: string | null, { practice, otherStates }: Person): boolean {
  const state = given?.trim().toUpperCase();
  if (!state) return true;
  const recorded = [...otherStates, practice.state].filter((one) => one !== null);
  return recorded.length === 0 || recorded.includes(state);
}
