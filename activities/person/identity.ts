import type { Identity, Person } from '../vendors/vendor.ts';
import {
  compareSurnames,
  nameWords,
  type Reading,
  readName,
  recordReadings,
  shorterFirst,
} from './names.ts';
import { sameGivenName } from './nicknames.ts';

/**
 * Checks that a source's response is about the person whom NPPES has under the NPI. This is the
 * main defense against giving out a stranger's address.
 *
 * - If the source returns an NPI, it must be ours. A name that it also returns must still agree,
 *   because sources guess the NPIs of profiles. The same surname is enough, because many people use
 *   a first name that NPPES does not have.
 * - Without an NPI the name must agree, and no other detail may contradict it: a state in which the
 *   person does not practice, another generation (`Sr`, `III`), or another middle initial. With our
 *   NPI these differences decide nothing, because people move or write their names differently.
 * - If no person is on record, only our NPI is accepted. Half a name does not count as a name.
 *
 * See `namesAgree` for the comparison of names. Pure, and throws nothing.
 * @param npi 10 digits
 * @param person null if neither NPPES nor the registry has the NPI
 * @returns why the response is not accepted, or null if it is about this person
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

/** Decides without an NPI. */
function isPerson({ state }: Identity, readings: readonly Reading[], person: Person): boolean {
  // Too many people have the same single name.
  if (person.first === '' || !stateAgrees(state, person)) return false;
  return readings.some((one) => namesAgree(one, person) && !contradicts(one, person));
}

/** Decides if the response has our NPI. */
function mayBePerson(readings: readonly Reading[], person: Person): boolean {
  return readings.some((one) => {
    if (namesAgree(one, person)) return true;
    const kinships = kinshipsOf(one, person);
    return kinships.includes('same') || kinships.includes('spelled');
  });
}

function kinshipsOf({ family }: Reading, person: Person) {
  const record = [person, ...person.otherNames].flatMap(recordReadings);
  return record.map((one) => compareSurnames(family, one.family));
}

/**
 * Returns true if the name combines a surname and a given name on record. The surname may be the
 * present one or another. The given name may be the first name, a form of it (nickname, other
 * spelling), the first or a later word of a compound one, its initial, or the full middle name,
 * which many people use. An initial is not enough if the surnames share only a part (`Smith` for
 * `Smith-Jones`) or have different spellings.
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
  // If both have several full names, all names of one must agree. Sisters may be Maria Elena and
  // Maria Luisa.
  const [few, many] = shorterFirst(given, recorded);
  if (few.length > 1) return few.every((name) => many.some((other) => sameGivenName(name, other)));
  // `J. Robert` goes by Robert; the J does not matter.
  const [called] = given;
  return called !== undefined && recorded.some((name) => sameGivenName(name, called));
}

/** Leaves out initials. */
function fullNames(words: readonly string[]): string[] {
  return words.filter((word) => word.length > 1);
}

/** Returns true if one side has only the initial of the other. */
function sharesInitial([said = '']: readonly string[], [first = '']: readonly string[]): boolean {
  const isInitial = said.length === 1 || first.length === 1;
  return isInitial && said[0] === first[0];
}

function contradicts({ given, generation }: Reading, person: Person): boolean {
  if (generation && person.generation && generation !== person.generation) return true;
  if (person.middle === null) return false;
  const names = [person, ...person.otherNames].flatMap(({ first, last }) => [first, last]);
  const words = [...names, person.middle].flatMap(nameWords);
  const initials = new Set(words.map((word) => word[0]));
  return given.some((word) => word.length === 1 && !initials.has(word));
}

/** Returns true if the states agree. A missing state, given or on record, agrees with any. */
function stateAgrees(given: string | null, { practice, otherStates }: Person): boolean {
  const state = given?.trim().toUpperCase();
  if (!state) return true;
  const recorded = [...otherStates, practice.state].filter((one) => one !== null);
  return recorded.length === 0 || recorded.includes(state);
}
