import type { VendorProfile } from '../../db/lookups/candidates.ts';
import type { Identity, Person } from '../vendors/vendor.ts';
import { nameWords } from './names.ts';
import { compareSurnames, readName } from './readings.ts';

/**
 * Returns what a vendor's own profile of a person adds to our record. Some people use a name that
 * NPPES does not have: the profile of Dawei Wang may say `David Dawei Wang`.
 * @param identity of a response that is about this person
 * @returns null if it adds nothing
 */
export function profileOf(
  { name, employerDomain }: Identity,
  person: Person | null,
): VendorProfile | null {
  const givenNames = person === null ? null : addedNames(name, person);
  if (givenNames === null && employerDomain === null) return null;
  return { givenNames, employerDomain };
}

/**
 * Returns the given names before the person's surname, or null if our record has all of them.
 * Returns null also if the profile has another surname.
 */
function addedNames(name: Identity['name'], person: Person): string | null {
  const surnames = [person, ...person.otherNames].map(({ last }) => nameWords(last));
  const readings = readName(name).filter(({ family, surnameFirst }) => {
    if (surnameFirst) return false;
    return surnames.some((surname) => compareSurnames(family, surname) === 'same');
  });
  const [reading] = readings;
  if (reading === undefined) return null;
  const names = [person, ...person.otherNames].flatMap(({ first }) => nameWords(first));
  const known = [...names, ...nameWords(person.middle)];
  const added = reading.given.filter((word) => word.length > 1 && !known.includes(word));
  return added.length === 0 ? null : added.join(' ');
}
