import type { MailDomain, NamedMailbox } from '../../db/lookups/mail-domains.ts';
import { nameWords } from '../person/names.ts';
import type { Format, Pattern, Person, PersonName } from '../vendors/vendor.ts';

// Finds the form in which an employer writes its addresses, such as `first.last`, from the valid
// addresses of colleagues in the directory.

/** The parts of a name that a form uses. They are folded. Only `middle` may be empty. */
interface NameParts {
  readonly first: string;
  readonly last: string;
  /** The initial of the middle name. */
  readonly middle: string;
}

type Writer = (name: NameParts) => string;

/** The forms with the whole first and last name. Two people rarely share such an address. */
const FULL = {
  'first.last': ({ first, last }) => `${first}.${last}`,
  first_last: ({ first, last }) => `${first}_${last}`,
  'first-last': ({ first, last }) => `${first}-${last}`,
  firstlast: ({ first, last }) => `${first}${last}`,
  'last.first': ({ first, last }) => `${last}.${first}`,
  lastfirst: ({ first, last }) => `${last}${first}`,
} as const satisfies Readonly<Record<string, Writer>>;

/** The forms with the surname and an initial. `jsmith` may be John, Jane, or a relative. */
const INITIAL = {
  flast: ({ first, last }) => `${first.charAt(0)}${last}`,
  'f.last': ({ first, last }) => `${first.charAt(0)}.${last}`,
  fmlast: ({ first, middle, last }) => `${first.charAt(0)}${middle}${last}`,
  lastf: ({ first, last }) => `${last}${first.charAt(0)}`,
  'last.f': ({ first, last }) => `${last}.${first.charAt(0)}`,
  lastfm: ({ first, middle, last }) => `${last}${first.charAt(0)}${middle}`,
} as const satisfies Readonly<Record<string, Writer>>;

const WRITERS = {
  ...FULL,
  ...INITIAL,
  firstl: ({ first, last }) => `${first}${last.charAt(0)}`,
  'first.l': ({ first, last }) => `${first}.${last.charAt(0)}`,
  first: ({ first }) => first,
  last: ({ last }) => last,
} as const satisfies Readonly<Record<string, Writer>>;

type Written = keyof typeof WRITERS;
const FORMATS = Object.keys(WRITERS) as Written[];
const NUMBERED = /^[a-z]{1,4}[0-9]+$/;

/** The fewest people whose addresses show a pattern, and their smallest share of all people. */
const MIN_PEOPLE = 3;
const MIN_SHARE = 0.7;

/**
 * Returns the form that most addresses at a domain have. Returns null if fewer than three people
 * have it, or fewer than 70 % of all people with an address there.
 */
export function patternOf({
  domain,
  mailboxes,
  isVerifiable,
}: MailDomain): Pattern | null {
  const fewest = Math.max(MIN_PEOPLE, MIN_SHARE * mailboxes.length);
  for (const format of [...FORMATS, 'numbered' as const]) {
    const people = mailboxes.filter((mailbox) => isWritten(mailbox, format));
    if (people.length >= fewest) return { domain, format, isVerifiable };
  }
  return null;
}

function isWritten(
  { local, firstName, middleName, lastName }: NamedMailbox,
  format: Format,
): boolean {
  const name = { first: firstName ?? '', last: lastName ?? '', middle: middleName };
  return hasFormat(local, format, name);
}

type FullName = PersonName & Pick<Person, 'middle'>;

function hasFormat(local: string, format: Format, name: FullName): boolean {
  if (format === 'numbered') return NUMBERED.test(local);
  return partsOf(name).some((parts) => WRITERS[format](parts) === local);
}

/**
 * Returns the parts of a name, once for each way to shorten a surname of several words: as one
 * word, or only the last word. Returns nothing if the first or the last name is missing.
 */
function partsOf({ first, last, middle }: FullName): NameParts[] {
  const [given = ''] = nameWords(first);
  const family = nameWords(last);
  const [second = ''] = nameWords(middle);
  if (given === '' || family.length === 0) return [];
  const surnames = new Set([family.join(''), ...family.slice(-1)]);
  return [...surnames].map((surname) => {
    return { first: given, last: surname, middle: second.charAt(0) };
  });
}

/**
 * Returns whether the pattern of a domain speaks for or against an address there. It speaks for a
 * numbered address if such addresses are usual there. It speaks against a surname with an initial
 * if others have full names, because the address is then often a relative's or a colleague's.
 */
export function testimonyOf(
  local: string,
  { format }: Pattern,
  person: Person | null,
): 'for' | 'against' | null {
  if (format === 'numbered') return NUMBERED.test(local) ? 'for' : null;
  if (person === null || !(format in FULL)) return null;
  const names = namesOf(person);
  const isInitial = Object.keys(INITIAL).some((other) =>
    names.some((name) => hasFormat(local, other as Written, name)),
  );
  return isInitial ? 'against' : null;
}

function namesOf(person: Person): FullName[] {
  return [person, ...person.otherNames].map((name) => {
    return { first: name.first, last: name.last, middle: person.middle };
  });
}

/**
 * Returns the address that a person may have at a domain by its pattern. Only forms with the whole
 * first and last name are written, because a verifier can't tell whose mailbox `jsmith` is. Returns
 * null if no verifier can tell existing mailboxes from missing ones.
 */
export function writeEmail(
  { domain, format, isVerifiable }: Pattern,
  person: Person,
): string | null {
  // The first parts have the whole surname in one word.
  const [parts] = partsOf(person);
  if (!isVerifiable || !isFull(format) || parts === undefined) {
    return null;
  }
  if (parts.first.length === 1 || parts.last.length === 1) return null;
  return `${FULL[format](parts)}@${domain}`;
}

function isFull(format: Format): format is keyof typeof FULL {
  return format in FULL;
}
