import type { Identity, Person } from '../vendors/vendor.ts';
import { GIVEN_NAMES } from '../verification/own-names.ts';
import { nameWords } from './names.ts';
import { sameGivenName } from './nicknames.ts';
import {
  compareSurnames,
  isNearSurname,
  type Reading,
  readName,
  recordReadings,
  shorterFirst,
} from './readings.ts';

/**
 * Checks that a source's response is about the person to whom NPPES assigned the NPI. This is the
 * main protection against returning a stranger's address.
 *
 * - If the response contains an NPI, it must be the requested one. If the response also contains a
 *   name, the name is still compared, because sources sometimes guess the NPI of a profile. A given
 *   name on record is enough, or a surname that is nearly equal, because people marry, go by
 *   another first name, and are misspelled.
 * - If the response contains no NPI, the name must agree with NPPES, and no other detail may
 *   contradict it. These details are the state, the generation (`Sr`, `III`), and the middle
 *   name or initial. They are not compared if the response has the requested NPI, because people
 *   move or write their names differently.
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
  if (claimed !== null && mayBePerson(readings, person)) return null;
  if (claimed === null && isPerson(identity, readings, person)) return null;
  return 'identity_mismatch';
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
    if (one.surnameFirst && !mayBeSurnameFirst(one)) return false;
    return namesAgree(one, person) && !contradicts(one, person);
  });
}

/**
 * Returns true for `SMITH JOHN A` and `GARCIA LOPEZ MARIA`. `Scott James` is probably not James
 * Scott, and two words in the wrong order may be two other people.
 */
function mayBeSurnameFirst({ given, family }: Reading): boolean {
  return given.length + family.length > 2 && !GIVEN_NAMES.has(family.join(''));
}

/** Decides whether a response with the requested NPI is about the person. */
function mayBePerson(readings: readonly Reading[], person: Person): boolean {
  const record = [person, ...person.otherNames].flatMap(recordReadings);
  const middle = nameWords(person.middle);
  const givenNames = fullNames([...record.flatMap(({ given }) => given), ...middle]);
  return readings.some((one) => {
    if (namesAgree(one, person)) return true;
    if (one.surnameFirst && person.first !== '') return false;
    if (record.some(({ family }) => isNearSurname(one.family, family))) return true;
    const kinships = kinshipsOf(one, person);
    if (kinships.includes('same') || kinships.includes('spelled')) return true;
    return fullNames(one.given).some((said) =>
      givenNames.some((name) => sameGivenName(name, said)),
    );
  });
}

function kinshipsOf({ family }: Reading, person: Person) {
  const record = [person, ...person.otherNames].flatMap(recordReadings);
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
  const record = [person, ...person.otherNames].flatMap(recordReadings);
  const kinships = kinshipsOf(reading, person);
  if (kinships.every((kinship) => kinship === 'none')) return false;
  const middle = nameWords(person.middle);
  if (record.some(({ given }) => goesBy(reading.given, given, middle))) return true;
  if (!kinships.includes('same')) return false;
  return record.some(({ given }) => sharesInitial(reading.given, given));
}

function goesBy(
  said: readonly string[],
  first: readonly string[],
  middle: readonly string[],
): boolean {
  const given = fullNames(said);
  const recorded = fullNames([...first, ...middle]);
  if (sameGivenName(given.join(''), first.join(''))) return true;
  // If both sides have several full names, every name of the shorter side must agree with a name of
  // the other side. Otherwise, the sisters Maria Elena and Maria Luisa would count as one person.
  const [few, many] = shorterFirst(given, recorded);
  if (few.length > 1)
    return few.every((name) => many.some((other) => sameGivenName(name, other)));
  // In all other cases, the first full name in the response must agree with a recorded name. In `J.
  // Robert` the first full name is Robert, because initials are ignored.
  const [called] = given;
  return called !== undefined && recorded.some((name) => sameGivenName(name, called));
}

/** Returns the names that are longer than an initial. */
function fullNames(words: readonly string[]): string[] {
  return words.filter((word) => word.length > 1);
}

/**
 * Returns true if one of the two first names is only an initial and both begin with the same
 * letter.
 */
function sharesInitial(
  [said = '']: readonly string[],
  [first = '']: readonly string[],
): boolean {
  const isInitial = said.length === 1 || first.length === 1;
  return isInitial && said[0] === first[0];
}

/**
 * Returns true if the generation or a middle name of a response differs from our record. `John
 * Peter Miller` and `John P Miller` are not John Quincy Miller. A middle name that is not a given
 * name may be a surname from before a marriage, so it contradicts nothing.
 */
function contradicts({ given, middle, generation }: Reading, person: Person): boolean {
  if (generation && person.generation && generation !== person.generation) return true;
  if (person.middle === null) return false;
  const names = [person, ...person.otherNames].flatMap(({ first, last }) => [
    first,
    last,
  ]);
  const recorded = [...names, person.middle].flatMap(nameWords);
  return [...given, ...middle].some((word) => {
    if (word.length === 1) return recorded.every((name) => name[0] !== word);
    if (!GIVEN_NAMES.has(word)) return false;
    return recorded.every((name) => name !== word[0] && !sameGivenName(name, word));
  });
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
