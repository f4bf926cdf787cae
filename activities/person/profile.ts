import type { VendorProfile } from '../../db/lookups/candidates.ts';
import type { Identity, Person, Subject } from '../vendors/vendor.ts';
import { contradictsGivenNames, isCouple } from './identity.ts';
import { nameWords } from './names.ts';
import { sameGivenName } from './nicknames.ts';
import { compareSurnames, isNearSurname, type Reading, readName } from './readings.ts';
import { employerDomainsOf } from './subject.ts';

const NOTHING = { givenNames: null, surname: null };

/**
 * Returns what a vendor's own profile of a person adds to our record. Some people use a name that
 * NPPES does not have: the profile of Dawei Wang may say `David Dawei Wang`, and that of Ani Sargsyan
 * `Ani Sarkissyan`. A profile without any of the given names on record adds nothing. It may be a
 * relative's, even if it has our NPI. A couple's profile adds nothing either.
 * @param identity of a response that is about this person
 * @returns null if it adds nothing
 */
export function profileOf(
  { name, employerDomain }: Identity,
  person: Person | null,
): VendorProfile | null {
  let added: Pick<VendorProfile, 'givenNames' | 'surname'> = NOTHING;
  if (person !== null && name !== null) {
    if (isCouple(name) || contradictsGivenNames(name, person)) {
      return null;
    }
    const readings = readName(name).filter((reading) => hasOwnGivenName(reading, person));
    if (readings.length === 0) return null;
    added = namesIn(readings, person);
  }
  const profile = { ...added, employerDomain };
  return Object.values(profile).every((value) => value === null) ? null : profile;
}

function namesIn(readings: readonly Reading[], person: Person) {
  const surnames = [person, ...person.otherNames].map(({ last }) => nameWords(last));
  const inOrder = readings.filter(({ surnameFirst }) => !surnameFirst);
  const own = inOrder.find(({ family }) =>
    surnames.some((surname) => compareSurnames(family, surname) === 'same'),
  );
  if (own !== undefined) {
    const isNew = (word: string) => word.length > 1 && !isOwnGivenName(word, person);
    const givenNames = own.given.filter(isNew).join(' ');
    return { givenNames: givenNames || null, surname: null };
  }
  const near = inOrder.find(({ family }) =>
    surnames.some((surname) => isNearSurname(family, surname)),
  );
  return { givenNames: null, surname: near?.family.join(' ') ?? null };
}

function hasOwnGivenName({ given }: Reading, person: Person): boolean {
  return given.some((word) => isOwnGivenName(word, person));
}

function isOwnGivenName(word: string, person: Person): boolean {
  const names = [person, ...person.otherNames];
  const first = names.flatMap((one) => nameWords(one.first));
  const known = [...first, ...nameWords(person.middle)];
  return known.some((own) => sameGivenName(word, own));
}

/** Returns true if a profile has a name or a domain that we did not know before. */
export function addsTo(profile: VendorProfile, subject: Subject) {
  const { givenNames, surname, employerDomain } = profile;
  const { profileNames = [], profileSurnames = [] } = subject.person ?? {};
  if (nameWords(givenNames).some((name) => !profileNames.includes(name))) {
    return true;
  }
  if (surname !== null && !profileSurnames.includes(surname)) {
    return true;
  }
  return employerDomain !== null && !employerDomainsOf(subject).includes(employerDomain);
}
