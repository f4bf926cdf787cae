import type { VendorProfile } from '../../db/lookups/candidates.ts';
import type { GivenName, Identity, Person, Subject } from '../vendors/vendor.ts';
import { nameWords } from './names.ts';
import { sameGivenName } from './nicknames.ts';
import { compareSurnames, type Reading, readName } from './readings.ts';
import { employerDomainsOf } from './subject.ts';

/**
 * Returns what a vendor's own profile of a person adds to our record. Some people use a name that
 * NPPES does not have: the profile of Dawei Wang may say `David Dawei Wang`. A profile without any
 * of the given names on record adds nothing. It may be a relative's, even if it has our NPI.
 * @param identity of a response that is about this person
 * @returns null if it adds nothing
 */
export function profileOf(
  { name, employerDomain }: Identity,
  person: Person | null,
): VendorProfile | null {
  let givenNames: string | null = null;
  if (person !== null && name !== null) {
    // A couple's profile, such as `John & Karen Miller`.
    if (/&|\band\b/i.test(fullName(name))) return null;
    const names = [person, ...person.otherNames];
    const first = names.flatMap((one) => nameWords(one.first));
    const known = [...first, ...nameWords(person.middle)];
    const isKnown = (word: string) => known.some((own) => sameGivenName(word, own));
    const readings = readName(name).filter(({ given }) => given.some(isKnown));
    if (readings.length === 0) return null;
    const surnames = names.map(({ last }) => nameWords(last));
    const own = readings.find((reading) => isOfFamily(reading, surnames));
    const added = (own?.given ?? []).filter((word) => word.length > 1 && !isKnown(word));
    if (added.length > 0) givenNames = added.join(' ');
  }
  if (givenNames === null && employerDomain === null) return null;
  return { givenNames, employerDomain };
}

/** Returns true if a profile has a name or a domain that we did not know before. */
export function addsTo({ givenNames, employerDomain }: VendorProfile, subject: Subject) {
  const known = subject.person === null ? [] : subject.person.profileNames;
  if (nameWords(givenNames).some((name) => !known.includes(name))) return true;
  return employerDomain !== null && !employerDomainsOf(subject).includes(employerDomain);
}

function fullName(name: GivenName): string {
  return name.kind === 'full' ? name.full : `${name.first} ${name.last}`;
}

function isOfFamily(
  { family, surnameFirst }: Reading,
  surnames: readonly (readonly string[])[],
): boolean {
  if (surnameFirst) return false;
  return surnames.some((surname) => compareSurnames(family, surname) === 'same');
}
