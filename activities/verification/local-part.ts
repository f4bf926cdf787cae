import { isCredential, isParticle, nameWords } from '../person/names.ts';
import { formsOf, sameGivenName } from '../person/nicknames.ts';
import type { Subject } from '../vendors/vendor.ts';
import { readList, registrableDomain } from './domains.ts';
import type { Address } from './syntax.ts';

/**
 * The owner of an address, judged by its local part, the part before the @:
 * - `person`: the person that we look for
 * - `other_person`: somebody else
 * - `shared`: several people read the mailbox, and it stays when one of them leaves
 * - `unclear`: the local part does not show whose address it is
 */
export type Owner = 'person' | 'other_person' | 'shared' | 'unclear';

/** The person that an address should belong to, their employer, and the people around them. */
export type Whose = Pick<Subject, 'person' | 'organization' | 'strangers'>;
export const NOBODY_KNOWN: Whose = { person: null, organization: null, strangers: [] };

const ROLES = readList('roles');
const TITLES = readList('titles');
const GIVEN_NAMES = readList('given-names');
const SURNAMES = readList('surnames');

/**
 * A local part is split into pieces, such as an initial and a surname in `jsmith`. Each kind of
 * piece has a cost, and the split with the lowest total cost is used. The costs prefer few pieces.
 * They prefer the person's own names over words, and words over other people's names.
 * - `S`: the person's surname
 * - `G`: one of the person's given names
 * - `p`: the beginning or a longer form of one of these names
 * - `i`: the initial of one of the person's given names
 * - `l`: the initial of the person's surname
 * - `x`: any other single letter
 * - `T`: a title or degree
 * - `R`: a word for a role or for the practice
 * - `N`: a given name that is not the person's
 * - `F`: a surname that is not the person's
 * - `U`: an unknown word between two separators
 * - `V`: an unknown word between two separators that starts with the initial of one of the person's
 *   given names
 * - `u`: any other letters
 */
const COST = {
  S: 6,
  G: 6,
  i: 6,
  l: 8,
  T: 11,
  R: 12,
  x: 12,
  p: 13,
  N: 14,
  F: 15,
  U: 19,
  V: 19,
  u: 19,
};
type Kind = keyof typeof COST;
/**
 * The extra cost per letter of an unknown piece. Because of it, a known word inside unknown letters
 * becomes a separate piece.
 */
const UNKNOWN_LETTER = 3;

/**
 * Maps the kinds of the pieces in their order, without titles, to the owner. For example, `iS` is
 * an initial with the surname. The first match is used, and the default is `unclear`.
 */
const MEANING: readonly (readonly [reading: RegExp, owner: Owner])[] = [
  // Nothing is left without titles and similar words: `doctor`, `mail`.
  [/^$/, 'shared'],
  // `jcare`: the letter is not the person's initial, and Care may be the surname of somebody else.
  [/^xR$/, 'other_person'],
  // A role word, even with a name: `smithoffice`, `frontdesk`, `karen.billing`, `johnandkaren`.
  [/R/, 'shared'],
  // A given name and the surname: `john.q.smith`, `smith_john1970`.
  [/S.*G|G.*S/, 'person'],
  // An initial and the surname: `jsmith`, `jqsmith`, `smithj`, and `jsmithjones` after a marriage
  // that NPPES does not know.
  [/^i[ilxF]*S|^S+i/, 'person'],
  // Only the surname or given names: `drsmith`, `maryjo`, `johns`, `jquincy`.
  [/^S+$|^i?G+[il]*$/, 'person'],
  // Another given name or initial with the surname: `karen.smith`, `ksmith`, `smithk`, perhaps a
  // spouse in the same practice.
  [/[NUF].*S|S.*[NU]|^[lx][ilx]*S|^S[lx]/, 'other_person'],
  // Another person's name: `maria.gonzalez`, `mgonzalez`, `gonzalezm`, `maria`, `john.gonzalez`.
  [/^[GNilx]*[NF][ilx]*$|^F[GN]$|^xx$/, 'other_person'],
  // Unknown words in the form of a name: `chidi.okwuosa`, `john.okwuosa`, `okwuosa.c`.
  [/^[GNUVilx][UV]$|^[UV][GNFilx]$|^F[UV]$/, 'other_person'],
];

/**
 * Returns the owner of an address by its local part. Compares it with the person's names, with role
 * words, and with the names of the practice and its domain, with and without separators.
 * @param whose if the person is null, the result is never `person` or `other_person`
 */
export function ownerOf(
  { local, domain }: Pick<Address, 'local' | 'domain'>,
  whose: Whose,
): Owner {
  const own = ownNames(whose.person);
  const plain = meaningOf(local, own, new Set());
  // Many practices are named after the person, so the person's own names are matched first.
  if (plain === 'person' || plain === 'shared') return plain;
  const owner = meaningOf(local, own, practiceWords(domain, whose, own));
  if (whose.person === null && owner === 'other_person') return 'unclear';
  return owner;
}

type OwnNames = Readonly<ReturnType<typeof ownNames>>;

function ownNames(person: Whose['person']) {
  const names = person === null ? [] : [person, ...person.otherNames];
  const families = names.map(({ last }) => nameWords(last));
  const firstNames = names.map(({ first }) => nameWords(first));
  const words = [...firstNames, nameWords(person?.middle ?? '')];
  const joined = words.map((some) => some.join(''));
  const given = [...words.flat(), ...joined].filter(Boolean);
  const called = [...new Set(given)].filter((name) => name.length > 1);
  // A nickname may have a different initial, such as Bill for William.
  const nicknames = called.flatMap((name) => [...formsOf(name)]);
  return {
    surnames: new Set(families.flatMap(surnameForms)),
    given: called,
    initials: new Set([...given, ...nicknames].map((name) => name.charAt(0))),
    surnameInitials: new Set(families.flat().map((word) => word.charAt(0))),
  };
}

/**
 * Returns `delacruz`, `lacruz`, and `cruz` for De la Cruz, and `smithjones`, `smith`, and `jones`
 * for Smith-Jones.
 */
function surnameForms(words: readonly string[]): string[] {
  const ends = words.map((_, index) => words.slice(index).join(''));
  const parts = words.filter((word) => word.length > 2 && !isParticle(word));
  const forms = [...ends, ...parts];
  // Adds the spelling without an umlaut, such as `muller` for Mueller.
  return forms.flatMap((form) => [
    form,
    form.replace(/^saint(?=.)/, 'st'),
    form.replace(/([aou])e/g, '$1'),
  ]);
}

/**
 * Returns the words that may stand for the practice: the words of its name, its domain, and its
 * town, separately and joined; the initials of its name; and names for the person's family, such as
 * `thesmiths`.
 */
function practiceWords(
  domain: string,
  { person, organization }: Whose,
  { surnames }: OwnNames,
): ReadonlySet<string> {
  const [label = ''] = (registrableDomain(domain) ?? domain).split('.');
  const name = nameWords(organization?.name ?? '');
  const called = [name, nameWords(label), nameWords(person?.practice.city ?? '')];
  const joined = called.map((some) => some.join(''));
  const families = [...surnames].flatMap((one) => [`the${one}`, `the${one}s`, `${one}s`]);
  const all = [...called.flat(), ...joined, ...families];
  const words = new Set(all.filter(({ length }) => length > 3));
  const acronym = name.map((word) => word.charAt(0)).join('');
  if (acronym.length > 2) words.add(acronym);
  return words;
}

/**
 * Finds the split of a local part with the lowest cost, by dynamic programming over its letters,
 * and returns the owner that it means.
 */
function meaningOf(local: string, own: OwnNames, practice: ReadonlySet<string>): Owner {
  // The text after a plus sign is a tag that the owner picks.
  const tokens = local.replace(/\+.*/, '').match(/[a-z]+/g) ?? [];
  const letters = tokens.join('');
  if (letters === '') return 'unclear';
  const tokenOf = tokens.flatMap(({ length }, index) =>
    Array<number>(length).fill(index),
  );
  const best: { readonly cost: number; readonly kinds: string }[] = [
    { cost: 0, kinds: '' },
  ];
  for (let end = 1; end <= letters.length; end += 1) {
    for (let start = 0; start < end; start += 1) {
      const before = best[start];
      if (before === undefined) continue;
      const text = letters.slice(start, end);
      const kind = kindOf(text, placeOf(tokenOf, start, end), own, practice);
      if (kind === null) continue;
      const cost = before.cost + costOf(kind, text);
      const known = best[end];
      if (known === undefined || cost < known.cost) {
        best[end] = { cost, kinds: before.kinds + kind };
      }
    }
  }
  const kinds = best[letters.length]?.kinds ?? '';
  const reading = kinds.replaceAll('T', '');
  for (const [pattern, owner] of MEANING) {
    if (pattern.test(reading)) return owner;
  }
  return 'unclear';
}

function costOf(kind: Kind, text: string): number {
  const cost = COST[kind];
  if (cost !== COST.u) return cost;
  return cost + UNKNOWN_LETTER * text.length;
}

type Place = Readonly<Record<'isWhole' | 'isToken' | 'isEdge' | 'isFirst', boolean>>;

/**
 * @param tokenOf for each letter, the index of its token, which is a text between two separators
 */
function placeOf(tokenOf: readonly number[], start: number, end: number): Place {
  const token = tokenOf[start];
  const isWhole = token === tokenOf[end - 1];
  const startsToken = isWhole && tokenOf[start - 1] !== token;
  const endsToken = isWhole && tokenOf[end] !== token;
  return {
    isWhole,
    isToken: startsToken && endsToken,
    isEdge: startsToken || endsToken,
    isFirst: start === 0,
  };
}

/**
 * Returns the kind of one piece, or null if the text can't be one piece.
 * @param place `isWhole`: contains no separator; `isToken`: is the whole text between two
 * separators; `isEdge`: touches a separator
 */
function kindOf(
  text: string,
  { isWhole, isToken, isEdge, isFirst }: Place,
  own: OwnNames,
  practice: ReadonlySet<string>,
): Kind | null {
  if (own.surnames.has(text)) return 'S';
  if (own.given.some((name) => sameGivenName(text, name))) return 'G';
  if (isWhole && TITLES.has(text)) return 'T';
  if (isWhole && !isFirst && isCredential(text, true)) return 'T';
  // A role word may contain separators, such as `front.desk` or `do-not-reply`. A word of three or
  // four letters counts only next to a separator, except `and`, which counts anywhere. A word of
  // two letters, such as `hr`, counts only between separators.
  const isRole = ROLES.has(text) || practice.has(text);
  const isClear = text.length > 4 || isToken;
  const isShort = text.length > 2 && (isEdge || text === 'and');
  if (isRole && (isClear || isShort)) return 'R';
  if (!isWhole) return null;
  if (text.length === 1) return letterKind(text, own);
  // Two letters that start with a known initial are more likely two initials than a name.
  if (text.length === 2 && own.initials.has(text.charAt(0))) return 'p';
  if (isCloseTo(own, text)) return 'p';
  if (GIVEN_NAMES.has(text)) return 'N';
  if (SURNAMES.has(text)) return 'F';
  if (!isToken || text.length < 4) return 'u';
  if (own.initials.has(text.charAt(0))) return 'V';
  return 'U';
}

function letterKind(letter: string, { initials, surnameInitials }: OwnNames): Kind {
  if (initials.has(letter)) return 'i';
  if (surnameInitials.has(letter)) return 'l';
  return 'x';
}

/**
 * Returns true if the text is the beginning of one of the person's names, because some mail systems
 * cut names: `hart` for Hartley, `chri` for Christina. Also returns true for a given name that
 * starts with one of theirs, such as `maryann` for Mary.
 */
function isCloseTo({ surnames, given }: OwnNames, text: string): boolean {
  const isLonger = (name: string) =>
    name.length > 2 && text.startsWith(name) && GIVEN_NAMES.has(text);
  // `juan` is not the beginning of Juana, because it is a given name itself.
  const isCut = (name: string) =>
    text.length > 3 && name.startsWith(text) && !GIVEN_NAMES.has(text);
  return given.some(isLonger) || [...surnames, ...given].some(isCut);
}
