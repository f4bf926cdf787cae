import { isCredential, isParticle, nameWords } from '../person/names.ts';
import { formsOf, sameGivenName } from '../person/nicknames.ts';
import type { Subject } from '../vendors/vendor.ts';
import { readList, registrableDomain } from './domains.ts';
import type { Address } from './syntax.ts';

/**
 * Whom an address belongs to, as far as what stands before its @ tells. `shared`: several people
 * read it, and it outlives each of them. `unclear` says nothing for or against the person.
 */
export type Owner = 'person' | 'other_person' | 'shared' | 'unclear';

/** Whom an address should belong to, and where they work. */
export type Whose = Pick<Subject, 'person' | 'organization'>;
export const NOBODY_KNOWN: Whose = { person: null, organization: null };

const ROLES = readList('roles');
const TITLES = readList('titles');
const GIVEN_NAMES = readList('given-names');
const SURNAMES = readList('surnames');

/**
 * What a piece of a local part can be, and what it costs to take it for that: the cheapest reading
 * counts, so few pieces, and the person's own names before words, before other people's names.
 * - `S`, `G`: a surname, a given name of the person; `p`: the beginning or a longer form of one
 * - `i`: the initial of a given name of theirs; `l`: of their surname; `x`: another letter
 * - `T`: a title, a degree; `R`: a word of a role or a practice
 * - `N`, `F`: anybody's given name, surname
 * - `U`: nothing known between two separators, `V` if it begins as a given name of theirs; `u`: any
 *   other letters
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
 * Each letter of what is not known: a known word in it is worth telling only if it is not short.
 */
const UNKNOWN_LETTER = 3;

/**
 * What a reading comes to, without its titles. The first that matches counts; if none does, it is
 * unclear.
 */
const MEANING: readonly (readonly [reading: RegExp, owner: Owner])[] = [
  // `doctor`, `mail`.
  [/^$/, 'shared'],
  // `jcare`, if it isn't ours, may be a person of that name.
  [/^xR$/, 'other_person'],
  // Whoever is named beside it: `smithoffice`, `frontdesk`, `karen.billing`; `johnandkaren`.
  [/R/, 'shared'],
  // `john.q.smith`, `smith_john1970`.
  [/S.*G|G.*S/, 'person'],
  // `jsmith`, `jqsmith`, `smithj`, `jsmithjones` after a marriage that nobody has told us of.
  [/^i[ilxF]*S|^S+i/, 'person'],
  // `drsmith`, `maryjo`, `johns`, `jquincy`.
  [/^S+$|^i?G+[il]*$/, 'person'],
  // `karen.smith`, `ksmith`, `smithk`: the spouse in the same practice.
  [/[NUF].*S|S.*[NU]|^[lx][ilx]*S|^S[lx]/, 'other_person'],
  // `maria.gonzalez`, `mgonzalez`, `gonzalezm`, `maria`, `john.gonzalez`.
  [/^[GNilx]*[NF][ilx]*$|^F[GN]$|^xx$/, 'other_person'],
  // `chidi.okwuosa`, `john.okwuosa`, `okwuosa.c`: nobody we know, in the form of a name.
  [/^[GNUVilx][UV]$|^[UV][GNFilx]$|^F[UV]$/, 'other_person'],
];

/**
 * Compares a local part with the names of the person who should be behind it, with the words of
 * roles, and with the names of the practice and its domain, at separators and where all is written
 * in one. Pure.
 * @param whose with no person known, nothing is theirs or somebody else's
 */
export function ownerOf({ local, domain }: Pick<Address, 'local' | 'domain'>, whose: Whose): Owner {
  const own = ownNames(whose.person);
  const plain = meaningOf(local, own, new Set());
  // Many practices bear the name of the person: only what is not theirs is the practice's.
  if (plain === 'person' || plain === 'shared') return plain;
  const owner = meaningOf(local, own, practiceWords(domain, whose, own));
  return whose.person === null && owner === 'other_person' ? 'unclear' : owner;
}

type OwnNames = Readonly<ReturnType<typeof ownNames>>;

function ownNames(person: Whose['person']) {
  const names = person === null ? [] : [person, ...person.otherNames];
  const families = names.map(({ last }) => nameWords(last));
  const words = [...names.map(({ first }) => first), person?.middle ?? ''].map(nameWords);
  const given = [...new Set([...words.flat(), ...words.map((some) => some.join(''))])].filter(
    Boolean,
  );
  const called = given.filter((name) => name.length > 1);
  // A nickname has an initial of its own: Bill is William's.
  const nicknames = called.flatMap((name) => [...formsOf(name)]);
  return {
    surnames: new Set(families.flatMap(surnameForms)),
    given: called,
    initials: new Set([...given, ...nicknames].map((name) => name.charAt(0))),
    surnameInitials: new Set(families.flat().map((word) => word.charAt(0))),
  };
}

/**
 * `delacruz`, `lacruz` and `cruz` for De la Cruz; `smithjones`, `smith` and `jones` for
 * Smith-Jones.
 */
function surnameForms(words: readonly string[]): string[] {
  const ends = words.map((_, index) => words.slice(index).join(''));
  const forms = [...ends, ...words.filter((word) => word.length > 2 && !isParticle(word))];
  // `muller` for Mueller, as whoever has no umlaut writes it.
  return forms.flatMap((form) => [
    form,
    form.replace(/^saint(?=.)/, 'st'),
    form.replace(/([aou])e/g, '$1'),
  ]);
}

/**
 * Of its name, its domain and its town, each in one too, the first letters of its name, and what a
 * family is called.
 */
function practiceWords(
  domain: string,
  { person, organization }: Whose,
  { surnames }: OwnNames,
): ReadonlySet<string> {
  const [label = ''] = (registrableDomain(domain) ?? domain).split('.');
  const called = [organization?.name, label, person?.practice.city].map((text) =>
    nameWords(text ?? ''),
  );
  const families = [...surnames].flatMap((one) => [`the${one}`, `the${one}s`, `${one}s`]);
  const words = [...called.flat(), ...called.map((some) => some.join('')), ...families];
  const acronym = called[0]?.map((word) => word.charAt(0)).join('') ?? '';
  return new Set([
    ...words.filter(({ length }) => length > 3),
    ...(acronym.length > 2 ? [acronym] : []),
  ]);
}

/** Reads the local part in the cheapest way, by dynamic programming over its letters. */
function meaningOf(local: string, own: OwnNames, practice: ReadonlySet<string>): Owner {
  // What follows a plus sign is a note of their own.
  const tokens = local.replace(/\+.*/, '').match(/[a-z]+/g) ?? [];
  const letters = tokens.join('');
  if (letters === '') return 'unclear';
  const tokenOf = tokens.flatMap(({ length }, index) => Array<number>(length).fill(index));
  const best: { readonly cost: number; readonly kinds: string }[] = [{ cost: 0, kinds: '' }];
  for (let end = 1; end <= letters.length; end += 1) {
    for (let start = 0; start < end; start += 1) {
      const text = letters.slice(start, end);
      const [token = 0, last] = [tokenOf[start], tokenOf[end - 1]];
      const isWhole = token === last;
      const isToken = isWhole && text.length === tokens[token]?.length;
      const isEdge = isWhole && (tokenOf[start - 1] !== token || tokenOf[end] !== token);
      const kind = kindOf(text, { isWhole, isToken, isEdge, isFirst: start === 0 }, own, practice);
      const before = best[start];
      if (kind === null || before === undefined) continue;
      const cost =
        before.cost + COST[kind] + (COST[kind] === COST.u ? UNKNOWN_LETTER * text.length : 0);
      if (cost < (best[end]?.cost ?? Number.POSITIVE_INFINITY))
        best[end] = { cost, kinds: before.kinds + kind };
    }
  }
  const reading = (best[letters.length]?.kinds ?? '').replaceAll('T', '');
  return MEANING.find(([pattern]) => pattern.test(reading))?.[1] ?? 'unclear';
}

type Place = Readonly<Record<'isWhole' | 'isToken' | 'isEdge' | 'isFirst', boolean>>;

/**
 * @param place `isWhole`: no separator stands inside; `isToken`: it fills the room between two;
 * `isEdge`: it stands at one
 * @returns null if it can't be one piece
 */
function kindOf(
  text: string,
  { isWhole, isToken, isEdge, isFirst }: Place,
  own: OwnNames,
  practice: ReadonlySet<string>,
): Kind | null {
  if (own.surnames.has(text)) return 'S';
  if (own.given.some((name) => sameGivenName(text, name))) return 'G';
  if (isWhole && (TITLES.has(text) || (!isFirst && isCredential(text, true)))) return 'T';
  // `front.desk`, `do-not-reply`; `list` not inside a word, but `and`; `hr` by itself.
  const isRole = ROLES.has(text) || practice.has(text);
  if (isRole && (text.length > 4 || ((isEdge || text === 'and') && text.length > 2) || isToken))
    return 'R';
  if (!isWhole) return null;
  if (text.length === 1)
    return own.initials.has(text) ? 'i' : own.surnameInitials.has(text) ? 'l' : 'x';
  // Before it is anybody's name it may be two initials, of which we know one.
  if (text.length === 2 && own.initials.has(text.charAt(0))) return 'p';
  if (isCloseTo(own, text)) return 'p';
  if (GIVEN_NAMES.has(text)) return 'N';
  if (SURNAMES.has(text)) return 'F';
  if (!isToken || text.length < 4) return 'u';
  return own.initials.has(text.charAt(0)) ? 'V' : 'U';
}

/** `hart` for Hartley and `chri` for Christina, as systems cut names; `maryann` for Mary. */
function isCloseTo({ surnames, given }: OwnNames, text: string): boolean {
  const isLonger = (name: string) =>
    name.length > 2 && text.startsWith(name) && GIVEN_NAMES.has(text);
  // Juan isn't Juana.
  const isCut = (name: string) =>
    text.length > 3 && name.startsWith(text) && !GIVEN_NAMES.has(text);
  return given.some(isLonger) || [...surnames, ...given].some(isCut);
}
