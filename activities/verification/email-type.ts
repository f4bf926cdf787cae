import { parse } from 'tldts';
import type { EmailType } from '../../db/words.ts';
import { nameWords } from '../person/names.ts';
import { PRACTICE_WORDS } from '../person/organization-name.ts';
import type { Subject } from '../vendors/vendor.ts';
import { INSTITUTION, isFreeMail, readList, registrableDomain } from './domains.ts';
import { OwnNames } from './own-names.ts';
import { type Kind, readPieces } from './pieces.ts';

const ALUMNI = /(?:^|\.)(?:alum|[^.]*alumni)(?:\.|$)/;
/** Words for a family, and suffixes for its domains. */
const FAMILY: ReadonlySet<string> = new Set(['family', 'home', 'house', 'clan', 'folks']);
const FAMILY_SUFFIX = /\.(?:family|name)$/;
/** Suffixes under which practices have domains. */
const CARE_SUFFIX =
  /\.(?:care|clinic|dental|dentist|doctor|health|hospital|md|surgery|vision)$/;
const TRADES = readList('trades');

/**
 * Returns the email type that follows from the domain of an address. Listed domains of free mail
 * and internet access are always personal. So are alumni domains, which are free mail for life. The
 * employer's own domain is professional, and so are `.edu`, `.gov`, and `.mil`, which only
 * institutions in the United States receive (RFC 1591). Vendors call addresses at large health
 * systems personal, so their word counts only for a domain with the person's names and nothing else,
 * such as `hartley.net`. A family's domain, such as `thehartleys.net`, is personal even without it.
 * All other domains are professional.
 * @param domain in the form that `parseAddress` returns
 */
export function classify(
  domain: string,
  vendorType: EmailType | null,
  { person, organization }: Pick<Subject, 'person' | 'organization'>,
): EmailType {
  if (isOpenToAnyone(domain)) return 'personal';
  if (INSTITUTION.test(domain) || isEmployers(domain, organization))
    return 'professional';
  const named = person === null ? null : readNamedDomain(domain, new OwnNames(person));
  if (named === 'family') return 'personal';
  if (named === 'person' && vendorType === 'personal') {
    return 'personal';
  }
  return 'professional';
}

/** Returns true for the domain of the person's likeliest employer, and for hosts below it. */
export function isEmployers(
  domain: string,
  organization: Subject['organization'],
): boolean {
  const employerDomain = organization?.domain ?? null;
  if (employerDomain === null) return false;
  return registrableDomain(domain) === registrableDomain(employerDomain);
}

/**
 * The kind of a domain that has the person's surname in its name:
 * - `family`: `thehartleys.net`, `hartley-family.net`
 * - `practice`: `hartleydental.com`, `drhartley.com`, `hartley.clinic`
 * - `person`: `hartley.net`, `janehartley.com`
 * - `business`: the surname with any other word, such as `hartleyroofing.com`. Its owner may be
 *   anybody with this surname.
 */
type NamedDomain = 'family' | 'practice' | 'person' | 'business';

/** The fewest unknown letters next to a surname in a domain that name a business, such as `law`. */
const MIN_UNKNOWN = 3;

/** The fewest letters of a trade that counts anywhere in a domain. */
const MIN_INSIDE = 7;
const UNKNOWN: readonly Kind[] = [
  'otherGiven',
  'otherSurname',
  'word',
  'letters',
  'letter',
];

/**
 * Reads the name of a domain like a local part.
 * @returns null if it does not have the person's surname
 */
export function readNamedDomain(domain: string, own: OwnNames): NamedDomain | null {
  const { domainWithoutSuffix } = parse(domain);
  const label = (domainWithoutSuffix ?? '').replace(/^the(?=.*s$)/, '');
  const plain = label.replace(/(?<=[a-z]{4})s$/, '');
  const isPlural = plain !== label && own.surnames.has(plain);
  if (isPlural && label !== domainWithoutSuffix) return 'family';
  const vocabulary = { own, practice: PRACTICE_WORDS, strangers: new Set<string>() };
  const pieces = readPieces(label, vocabulary);
  if (!pieces.some(({ kind, text }) => kind === 'surname' && text.length > 3))
    return null;
  const words = pieces.filter(({ kind }) => kind === 'role' || kind === 'title');
  const isPractice = words.some(({ text }) => !FAMILY.has(text));
  if (isPractice || CARE_SUFFIX.test(domain)) return 'practice';
  const isFamily = pieces.some(({ text }) => FAMILY.has(text));
  if (isFamily || FAMILY_SUFFIX.test(domain)) return 'family';
  const unknown = pieces.filter(({ kind }) => UNKNOWN.includes(kind));
  const length = unknown.reduce((sum, { text }) => sum + text.length, 0);
  return length >= MIN_UNKNOWN ? 'business' : 'person';
}

/**
 * Returns true if the name of a domain says that the company there does not treat patients. Words of
 * the person's own organization don't count. Shorter words count only at the end of the name, because
 * others contain them by chance.
 * @param organization the name of the person's organization
 */
export function isTrade(domain: string, organization: string | null): boolean {
  const label = parse(domain).domainWithoutSuffix ?? '';
  const own = nameWords(organization).join('');
  return [...TRADES].some((word) => {
    const isHere =
      word.length >= MIN_INSIDE ? label.includes(word) : label.endsWith(word);
    return isHere && !own.includes(word);
  });
}

/** Returns true if a domain offers personal mailboxes: free mail, internet access, or alumni. */
export function isOpenToAnyone(domain: string): boolean {
  return isFreeMail(domain) || ALUMNI.test(domain);
}
