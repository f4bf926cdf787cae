import type { Identity, Person } from '../vendors/vendor.ts';
import { compareSurnames, nameWords, type Reading, readName, recordReadings } from './names.ts';
import { sameGivenName } from './nicknames.ts';

/**
 * The main defence against handing out a stranger's address: whom the source says its answer is
 * about must be whom NPPES has under the NPI.
 *
 * - The source's NPI, if it gives one, must be ours. Its name, if it gives one too, must still
 *   agree, because sources attach NPIs to profiles by guessing; the same surname is enough, as many
 *   go by a first name that NPPES hasn't.
 * - Without an NPI the name must agree, and nothing else given may speak against it: another state
 *   than any the person practises in, another generation (`Sr`, `III`), another middle initial.
 *   With our NPI these are people who moved or write themselves differently, and decide nothing.
 * - With no person on record only our NPI accepts. Half a name isn't a name.
 *
 * What agrees is said at `namesAgree`. Pure, and throws nothing.
 * @param npi 10 digits
 * @param person null if neither NPPES nor the registry has the NPI
 * @returns why the answer is not accepted; null if it is about this person
 */
export function mismatchOf(identity: Identity, npi: string, person: Person | null) {
  const claimed = identity.npi?.trim() || null;
  if (claimed !== null && claimed !== npi) return 'identity_mismatch';
  const readings = identity.name === null ? [] : readName(identity.name);
  if (person === null || readings.length === 0) return claimed === null ? 'identity_unknown' : null;
  const agreeing = readings.filter((one) => namesAgree(one, person));
  if (claimed !== null) {
    const kinships = readings.flatMap((one) => kinshipsOf(one, person));
    const isSame = agreeing.length > 0 || kinships.includes('same') || kinships.includes('spelled');
    return isSame ? null : 'identity_mismatch';
  }
  // Of one name there are too many.
  if (person.first === '') return 'identity_mismatch';
  const isSame =
    stateAgrees(identity.state, person) && agreeing.some((one) => !contradicts(one, person));
  return isSame ? null : 'identity_mismatch';
}

function kinshipsOf({ family }: Reading, person: Person) {
  const record = [person, ...person.otherNames].flatMap(recordReadings);
  return record.map((one) => compareSurnames(family, one.family));
}

/**
 * A surname on record, the present one or another, with a given name on record: the first name, a
 * form of it (nickname, other spelling), the first or a later word of a compound one, its initial,
 * or the middle name in full, by which many people go. An initial is too little where the surnames
 * share a part only (`Smith` for `Smith-Jones`) or are spelled in two ways.
 */
function namesAgree(reading: Reading, person: Person): boolean {
  const record = [person, ...person.otherNames].flatMap(recordReadings);
  const kinships = kinshipsOf(reading, person);
  if (kinships.every((kinship) => kinship === 'none')) return false;
  const middle = nameWords(person.middle ?? '');
  if (record.some(({ given }) => goesBy(reading.given, given, middle))) return true;
  return (
    kinships.includes('same') && record.some(({ given }) => sharesInitial(reading.given, given))
  );
}

function goesBy(
  said: readonly string[],
  first: readonly string[],
  middle: readonly string[],
): boolean {
  const inFull = (words: readonly string[]) => words.filter((word) => word.length > 1);
  const [given, recorded] = [inFull(said), inFull([...first, ...middle])];
  if (sameGivenName(given.join(''), first.join(''))) return true;
  // Of two who have several names in full each, all names of one agree: sisters may be Maria Elena
  // and Maria Luisa.
  const [few = [], many = []] = [given, recorded].toSorted((a, b) => a.length - b.length);
  if (few.length > 1) return few.every((name) => many.some((other) => sameGivenName(name, other)));
  // `J. Robert` goes by Robert, whatever the J is for.
  return recorded.some((name) => sameGivenName(name, given[0] ?? ''));
}

/** One side has the initial only. */
function sharesInitial([said = '']: readonly string[], [first = '']: readonly string[]): boolean {
  return (said.length === 1 || first.length === 1) && said[0] === first[0];
}

function contradicts({ given, generation }: Reading, person: Person): boolean {
  if (generation && person.generation && generation !== person.generation) return true;
  if (person.middle === null) return false;
  const names = [person, ...person.otherNames].flatMap(({ first, last }) => [first, last]);
  const initials = new Set([...names, person.middle].flatMap(nameWords).map((word) => word[0]));
  return given.some((word) => word.length === 1 && !initials.has(word));
}

/** A state that isn't given, or isn't on record, makes no difference. */
function stateAgrees(given: string | null, { practice, otherStates }: Person): boolean {
  const state = given?.trim().toUpperCase() || null;
  const recorded = [...otherStates, ...(practice.state === null ? [] : [practice.state])];
  return state === null || recorded.length === 0 || recorded.includes(state);
}
