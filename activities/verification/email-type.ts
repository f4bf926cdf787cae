import { parse } from 'tldts';
import type { EmailType } from '../../db/words.ts';
import { nameWords } from '../person/names.ts';
import type { Person, Subject } from '../vendors/vendor.ts';
import { isFreeMail, registrableDomain } from './domains.ts';

const ALUMNI = /(?:^|\.)(?:alum|[^.]*alumni)(?:\.|$)/;
const INSTITUTION = /\.(?:edu|gov|mil)$/;
/** The shortest surname that is searched in a domain. Shorter ones occur there by chance. */
const MIN_SURNAME = 4;

/**
 * Returns the email type that follows from the domain of an address. Listed domains of free mail
 * and internet access are always personal. So are alumni domains, which are free mail for life. The
 * employer's own domain is professional, and so are `.edu`, `.gov`, and `.mil`, which only
 * institutions in the United States receive (RFC 1591). Vendors call addresses at large health
 * systems personal, so their word counts only for a domain with the person's surname, such as
 * `hartley-family.net`. A family's domain, such as `thehartleys.net`, is personal even without it.
 * All other domains are professional.
 * @param domain in the form that `parseAddress` returns
 */
export function classify(
  domain: string,
  vendorType: EmailType | null,
  { person, organization }: Pick<Subject, 'person' | 'organization'>,
): EmailType {
  if (isOpenToAnyone(domain)) return 'personal';
  if (INSTITUTION.test(domain)) return 'professional';
  const employerDomain = organization?.domain ?? null;
  if (employerDomain !== null) {
    const isEmployers = registrableDomain(domain) === registrableDomain(employerDomain);
    if (isEmployers) return 'professional';
  }
  if (person === null) return 'professional';
  const label = labelOf(domain);
  const surnames = surnamesOf(person);
  if (surnames.some((surname) => label === `the${surname}s`)) return 'personal';
  if (vendorType !== 'personal') return 'professional';
  return surnames.some((surname) => label.includes(surname))
    ? 'personal'
    : 'professional';
}

/** Returns true if a domain offers personal mailboxes: free mail, internet access, or alumni. */
export function isOpenToAnyone(domain: string): boolean {
  return isFreeMail(domain) || ALUMNI.test(domain);
}

/** Returns the letters of a domain's name, without its public suffix. */
function labelOf(domain: string): string {
  return (parse(domain).domainWithoutSuffix ?? '').replace(/[^a-z]/g, '');
}

/** Returns the person's surnames as one word each, without the short ones. */
function surnamesOf({ last, otherNames }: Person): string[] {
  const surnames = [last, ...otherNames.map((other) => other.last)];
  const words = surnames.map((surname) => nameWords(surname).join(''));
  return words.filter(({ length }) => length >= MIN_SURNAME);
}
