import type { GivenName, PersonName } from '../vendors/vendor.ts';
import { commonSpelling, readTable } from './nicknames.ts';

// NPPES writes names in capitals and may have other text in the field. This file turns them into
// names as people write them, and compares two spellings of one name.

/** The generation of a `Person` by the suffix of the name. */
const GENERATIONS = new Map(Object.entries({ sr: 1, jr: 2, ii: 2, iii: 3, iv: 4, v: 5 }));

const TITLES: ReadonlySet<string> = new Set([
  'dr',
  'doctor',
  'prof',
  'professor',
  'mr',
  'mrs',
  'ms',
  'miss',
]);

const CREDENTIALS: ReadonlySet<string> = new Set(readTable('credentials').flat());

/**
 * Credentials that are also surnames. They count as credentials only with dots or after a comma.
 */
const SURNAMES_TOO: ReadonlySet<string> = new Set(['do', 'ma', 'pa']);

/**
 * Words that mean "nothing" in NPPES. Visas of people with a single name say `FNU` or `LNU`: first
 * or last name unknown.
 */
const PLACEHOLDERS: ReadonlySet<string> = new Set(
  'unavail fnu lnu nfn nln nmi nmn none null unknown'.split(' '),
);

const PARTICLES: ReadonlySet<string> = new Set(
  'al da das de del della den der di dos du el la las los ten ter van von y'.split(' '),
);

const MAC_NAMES: ReadonlySet<string> = new Set(readTable('mac-names').flat());

/** Letters that do not decompose into a base letter and a mark. */
const LETTERS = { ß: 'ss', ø: 'o', ł: 'l', æ: 'ae', œ: 'oe', đ: 'd', ð: 'd', þ: 'th', ı: 'i' };

/**
 * Letters that some people spell with two letters if their keyboard lacks them. As many people only
 * drop the mark.
 */
const SPELLED_OUT: Readonly<Record<string, string>> = {
  ä: 'ae',
  ö: 'oe',
  ü: 'ue',
  ø: 'oe',
  å: 'aa',
};

/** A nickname in a name: `Robert (Bob) Smith`. */
const ASIDE = /\([^)]*\)|["“][^"”]*["”]/g;

const APOSTROPHES = /[‘’ʻʼʾʿ`´]/g;

/**
 * Splits a name into words without case and marks, which are equal for two spellings of one name.
 * Words end at spaces, hyphens, and dots, but not at apostrophes: `Núñez-O'Dea` and `NUNEZ ODEA`
 * give the same words.
 */
export function nameWords(text: string | null): string[] {
  if (text === null) return [];
  const plain = text
    .replace(APOSTROPHES, "'")
    .toLowerCase()
    .replace(/[ßøłæœđðþı]/g, (letter) => LETTERS[letter as keyof typeof LETTERS])
    .normalize('NFKD')
    .replace(/['\p{M}]/gu, '');
  const words = plain.split(/[^\p{L}]+/u).filter((word) => word !== '');
  return words.map((word) => word.replace(/^st$/, 'saint'));
}

/** The number of umlauts that are spelled out. Each one doubles the number of spellings. */
const MAX_UMLAUTS = 4;

/**
 * Returns the ways to write a name. Each of its first umlauts is written both as it is and as two
 * letters: `Mueller` for `Müller`.
 */
export function spellings(text: string): string[] {
  const pieces = text.normalize('NFC').split(/(?=[äöüøå])/iu);
  let ways = [''];
  for (const [index, piece] of pieces.entries()) {
    const written = [piece];
    const two = SPELLED_OUT[piece.charAt(0).toLowerCase()];
    if (two !== undefined && index < MAX_UMLAUTS) written.push(two + piece.slice(1));
    ways = ways.flatMap((way) => written.map((end) => way + end));
  }
  return ways;
}

/** Returns true if a folded word only connects the words of a surname: `van`, `de`. */
export function isParticle(word: string): boolean {
  return PARTICLES.has(word);
}

/**
 * Returns the generation of a suffix as NPPES (`Jr.`, `III`) or a vendor writes it, or null if it
 * names no generation.
 */
export function generationOf(suffix: string | null): number | null {
  if (suffix === null) return null;
  return GENERATIONS.get(letters(suffix)) ?? null;
}

interface Stripped {
  readonly name: string;
  readonly generation: number | null;
}

/**
 * Removes titles from the start of a name, and credentials and generations from its end (`DR.
 * SMITH, JR., M.D.`). At least one word stays, so that Dr. Do and Ms. Ma keep their names.
 */
export function stripTitles(text: string): Stripped {
  const words = text.replace(/,/g, ', ').split(/\s+/).filter(hasLetter);
  let generation: number | null = null;
  while (words.length > 1 && TITLES.has(letters(words[0] ?? ''))) words.shift();
  while (words.length > 1) {
    const [before = '', last = ''] = words.slice(-2);
    const named = GENERATIONS.get(letters(last));
    if (named === undefined && !isCredential(last, before.endsWith(','))) break;
    generation = named ?? generation;
    words.pop();
  }
  return { name: words.join(' ').replace(/,$/, ''), generation };
}

/**
 * Returns true if a word is a credential.
 * @param set true if a comma separates it from the name
 */
export function isCredential(word: string, set: boolean): boolean {
  const plain = letters(word);
  if (!CREDENTIALS.has(plain)) return false;
  return set || /\p{L}\./u.test(word) || !SURNAMES_TOO.has(plain);
}

/**
 * Returns a person's name, or a part of it, as people write it: `Mary Jo`, `O'Brien`, `McDonald`,
 * `De la Cruz`. Removes titles, credentials, and stray punctuation. Text with both capitals and
 * lowercase letters keeps them.
 * @returns null if no name is left
 */
export function personName(text: string | null): string | null {
  if (text === null) return null;
  const bare = text.replace(ASIDE, ' ').replace(APOSTROPHES, "'");
  const words = stripTitles(bare)
    .name.replace(/[^\p{L}\p{M}' -]+/gu, ' ')
    .replace(/\b([DLO])' +(?=\p{L})/giu, "$1'")
    .split(/\s+/)
    .map((word) => word.replace(/^['-]+|['-]+$/g, ''))
    .filter(hasLetter);
  if (words.length === 0 || isPlaceholder(words.join(''))) return null;
  const name = words.join(' ');
  if (!hasOneCase(name)) return name;
  return words.map(caseNameWord).join(' ');
}

/**
 * Returns true if a text is all capitals or all lowercase, so that its case carries no information.
 */
export function hasOneCase(text: string): boolean {
  return isShouted(text) || !/\p{Lu}/u.test(text);
}

/** Returns true if a text has no lowercase letters. */
export function isShouted(text: string): boolean {
  return !/\p{Ll}/u.test(text);
}

/** The letter after an apostrophe that follows one or two letters: `O'B`. */
const AFTER_APOSTROPHE = /(?<![\p{L}\p{M}'])(\p{L}{1,2}')(\p{L})(?=\p{L})/gu;

/**
 * Capitalizes each part of a word: `Mary`, `Jean-Luc`, `O'Brien`. The letter after a longer word's
 * apostrophe stays lowercase: `Women's`.
 */
export function capitalize(word: string): string {
  return word
    .toLowerCase()
    .replace(/(?<![\p{L}\p{M}'])\p{L}/gu, (letter) => letter.toUpperCase())
    .replace(AFTER_APOSTROPHE, (_all, start: string, letter: string) => {
      return start + letter.toUpperCase();
    });
}

/** Returns true if a text is one of the placeholders for "nothing" in NPPES. */
export function isPlaceholder(text: string): boolean {
  return PLACEHOLDERS.has(letters(text));
}

function caseNameWord(word: string, index: number): string {
  if (/^(?:I{2,3}|IV)$/i.test(word)) return word.toUpperCase();
  if (index > 0 && PARTICLES.has(word.toLowerCase())) return word.toLowerCase();
  return word.split('-').map(caseNamePart).join('-');
}

function caseNamePart(part: string): string {
  const lower = part.toLowerCase();
  if (/^mc\p{L}{2}/u.test(lower)) return `Mc${capitalize(lower.slice(2))}`;
  if (MAC_NAMES.has(lower)) return `Mac${capitalize(lower.slice(3))}`;
  return capitalize(lower);
}

function hasLetter(text: string): boolean {
  return /\p{L}/u.test(text);
}

function letters(text: string): string {
  return text.toLowerCase().replace(/[^\p{L}]/gu, '');
}

/** A way to read a name: the folded words of the surname and of the names before it. */
export interface Reading {
  readonly given: readonly string[];
  readonly family: readonly string[];
  readonly generation: number | null;
}

/** The longest text that is read as a name. Longer text is not worth reading in every way. */
const MAX_LENGTH = 200;

/**
 * Returns every way to read a given name. `Maria Garcia Lopez` may have two given names or two
 * surnames, and the last word of `Jane Kim Do` may be a surname or a degree, so each reading is
 * tried. `Public, Jane Q., MD` has one reading that fits.
 * @returns empty unless the text has both a given name and a surname
 */
export function readName(name: GivenName | null): Reading[] {
  if (name === null) return [];
  return everyReading(name).map(withSurname);
}

function everyReading(name: GivenName): Reading[] {
  if (name.kind === 'full') {
    if (name.full.length > MAX_LENGTH) return [];
    return spellings(name.full).flatMap(readFull);
  }
  const { first, last } = name;
  if (first.length + last.length > MAX_LENGTH) return [];
  const lasts = spellings(last);
  return spellings(first).flatMap((given) => lasts.flatMap((family) => readPair(given, family)));
}

/** A person with an unknown surname has a single name, which becomes the surname. */
function withSurname(reading: Reading): Reading {
  const { given, family } = reading;
  const isUnknown = isPlaceholder(family.join('')) && family[0] !== 'null';
  if (!isUnknown) return reading;
  return { ...reading, given: family, family: given };
}

/** Returns the readings of a name on record in the same form. */
export function recordReadings({ first, last }: PersonName): Pick<Reading, 'given' | 'family'>[] {
  const families = spellings(last).map(nameWords);
  const givens = spellings(first).map(nameWords);
  return givens.flatMap((given) => families.map((family) => ({ given, family })));
}

function readFull(full: string): Reading[] {
  const [before = '', ...rest] = full.split(',');
  const given = rest.find((part) => !isSetOff(part));
  if (given === undefined) return readWords(stripTitles(full));
  // The surname comes first, unless a specialty or a place follows the comma. `Jr, MD` may follow
  // the given name.
  const behind = stripTitles(full.replace(given, ' ')).generation;
  const pairs = readPair(given, before);
  const complete = pairs.map((one) => ({ ...one, generation: one.generation ?? behind }));
  return [...complete, ...readWords(stripTitles(before))];
}

function readPair(first: string, last: string): Reading[] {
  const family = stripTitles(last);
  const givenWords = nameWords(stripTitles(first).name);
  const familyWords = nameWords(family.name);
  if (givenWords.length === 0 || familyWords.length === 0) return [];
  return [{ given: givenWords, family: familyWords, generation: family.generation }];
}

/**
 * Returns the readings of a name without a comma. The surname starts at each word in turn. A last
 * word that may be a degree is also read as one.
 */
function readWords({ name, generation }: Stripped): Reading[] {
  const words = name.split(/\s+/);
  const readings = splitAtEach(words, generation);
  const hasDegree = words.length > 2 && isCredential(words.at(-1) ?? '', true);
  if (hasDegree) readings.push(...splitAtEach(words.slice(0, -1), generation));
  return readings;
}

function splitAtEach(words: readonly string[], generation: number | null): Reading[] {
  const readings: Reading[] = [];
  for (let count = 1; count < words.length; count += 1) {
    const given = nameWords(words.slice(0, count).join(' '));
    const family = nameWords(words.slice(count).join(' '));
    if (given.length > 0 && family.length > 0) readings.push({ given, family, generation });
  }
  return readings;
}

/** Returns true if the text after a comma is not a name, such as `MD`, ` Jr.`, or ` PA-C MPH`. */
function isSetOff(part: string): boolean {
  const words = part.split(/\s+/).filter((word) => nameWords(word).length > 0);
  return words.every(
    (word) => isCredential(word, true) || stripTitles(`x ${word}`).generation !== null,
  );
}

/** The length of the shortest words that distinguish surnames. */
const MIN_TELLING = 3;

/**
 * Compares two surnames in all their spellings. `spelled` means two spellings of one surname from
 * another script. People often use only some words of a long surname, and marriage adds or removes
 * one. All words of the shorter one must then occur in the longer one (`part`). Surnames that
 * contain an initial are equal or unrelated: otherwise `A Smith` of `John A Smith` would pass for a
 * surname of two words.
 * @param one folded words, as `other` is
 */
export function compareSurnames(one: readonly string[], other: readonly string[]) {
  if (one.length === 0 || other.length === 0) return 'none';
  const a = joinPrefixes(one);
  const b = joinPrefixes(other);
  if (a.join('') === b.join('')) return 'same';
  const spelledA = a.map(commonSpelling);
  const spelledB = b.map(commonSpelling);
  if (spelledA.join('') === spelledB.join('')) return 'spelled';
  if ([...a, ...b].some((word) => word.length === 1)) return 'none';
  return sharesShorter(spelledA, spelledB) ? 'part' : 'none';
}

/** Returns true if all words of the shorter surname occur in the other. Particles do not count. */
function sharesShorter(one: readonly string[], other: readonly string[]): boolean {
  const a = one.filter((word) => !isParticle(word));
  const b = other.filter((word) => !isParticle(word));
  const [few, many] = shorterFirst(a, b);
  if (few.length === 0) return false;
  return few.every((word) => word.length >= MIN_TELLING && many.includes(word));
}

/** Returns two lists with the shorter one first. */
export function shorterFirst<T>(a: readonly T[], b: readonly T[]): [readonly T[], readonly T[]] {
  if (a.length <= b.length) return [a, b];
  return [b, a];
}

/**
 * Joins prefixes, because some people write `O Brien`, `Mc Donald`, and `St. John` as one word:
 * `OBrien`, `McDonald`, `StJohn`.
 */
function joinPrefixes(words: readonly string[]): string[] {
  const text = words.join(' ').replace(/(?<!\p{L})(o|ma?c|saint) (?=\p{L}{2})/gu, '$1');
  return text.split(' ').map((word) => word.replace(/^saint(?=\p{L})/u, 'st'));
}
