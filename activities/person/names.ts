import type { GivenName, PersonName } from '../vendors/vendor.ts';
import { commonSpelling, readTable } from './nicknames.ts';

// NPPES writes names in capitals, and its name fields may contain titles and other text. This file
// turns such a field into a name as people write it. It also decides whether two names may belong
// to the same person.

/** Maps the suffix of a name to the number of the generation (`Person.generation`). */
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
 * Credentials that are also surnames. They count as credentials only if they contain a dot or
 * follow a comma.
 */
const SURNAMES_TOO: ReadonlySet<string> = new Set(['do', 'ma', 'pa']);

/**
 * Words that NPPES has in place of a missing name. `FNU` and `LNU` mean "first name unknown" and
 * "last name unknown". They come from the visas of people with a single name.
 */
const PLACEHOLDERS: ReadonlySet<string> = new Set(
  'unavail fnu lnu nfn nln nmi nmn none null unknown'.split(' '),
);

const PARTICLES: ReadonlySet<string> = new Set(
  'al da das de del della den der di dos du el la las los ten ter van von y'.split(' '),
);

const MAC_NAMES: ReadonlySet<string> = new Set(readTable('mac-names').flat());

/**
 * Letters that Unicode normalization (NFKD) does not decompose into ASCII letters, with their
 * replacements.
 */
const LETTERS = {
  ß: 'ss',
  ø: 'o',
  ł: 'l',
  æ: 'ae',
  œ: 'oe',
  đ: 'd',
  ð: 'd',
  þ: 'th',
  ı: 'i',
};

/**
 * Letters that some people write as two letters if their keyboard lacks them. Other people only
 * leave out the mark above or through the letter, so we accept both spellings.
 */
const SPELLED_OUT: Readonly<Record<string, string>> = {
  ä: 'ae',
  ö: 'oe',
  ü: 'ue',
  ø: 'oe',
  å: 'aa',
};

/** Matches a nickname inside a name, as in `Robert (Bob) Smith`. */
const ASIDE = /\([^)]*\)|["“][^"”]*["”]/g;

const APOSTROPHES = /[‘’ʻʼʾʿ`´]/g;

/**
 * Splits a name into lowercase words without accents, which we call folded. Two spellings of one
 * name then give the same words. Spaces, hyphens, and dots separate words, but apostrophes do not.
 * For example, `Núñez-O'Dea` and `NUNEZ ODEA` give the same words.
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

/**
 * The most umlauts in a text for which both spellings are returned. Each one doubles the number of
 * results.
 */
const MAX_UMLAUTS = 4;

/**
 * Returns the possible spellings of a name. Umlauts and similar letters (`SPELLED_OUT`) can be
 * written as two letters, so `Müller` also gives `Mueller`. This applies only to the first
 * `MAX_UMLAUTS` of them.
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

/** Returns true if a folded word is a particle of a surname, such as `van` or `de`. */
export function isParticle(word: string): boolean {
  return PARTICLES.has(word);
}

/**
 * Returns the number of the generation for a suffix such as `Jr.` or `III`. Returns null for other
 * suffixes.
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
 * SMITH, JR., M.D.`). At least one word always stays, so that `Dr. Do` and `Ms. Ma` keep their
 * surnames.
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
 * Returns true if a word is a credential, such as `MD`.
 * @param set true if a comma separates the word from the name
 */
export function isCredential(word: string, set: boolean): boolean {
  const plain = letters(word);
  if (!CREDENTIALS.has(plain)) return false;
  return set || /\p{L}\./u.test(word) || !SURNAMES_TOO.has(plain);
}

/**
 * Returns a person's name, or a part of it, as people write it: `Mary Jo`, `O'Brien`, `McDonald`,
 * `De la Cruz`. Removes titles, credentials, and stray punctuation. If the text has both capital
 * and lowercase letters, its case is not changed.
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
 * Returns true if all letters of a text are capitals, or none of them is. The case of such a text
 * carries no information, so we choose the case ourselves.
 */
export function hasOneCase(text: string): boolean {
  return isShouted(text) || !/\p{Lu}/u.test(text);
}

/** Returns true if a text has no lowercase letters. */
export function isShouted(text: string): boolean {
  return !/\p{Ll}/u.test(text);
}

/**
 * Matches the start of a name such as `O'Brien`: one or two letters, an apostrophe, and the next
 * letter.
 */
const AFTER_APOSTROPHE = /(?<![\p{L}\p{M}'])(\p{L}{1,2}')(\p{L})(?=\p{L})/gu;

/**
 * Capitalizes each part of a word: `Mary`, `Jean-Luc`, `O'Brien`. After three or more letters, the
 * letter behind an apostrophe stays lowercase: `Women's`.
 */
export function capitalize(word: string): string {
  return word
    .toLowerCase()
    .replace(/(?<![\p{L}\p{M}'])\p{L}/gu, (letter) => letter.toUpperCase())
    .replace(AFTER_APOSTROPHE, (_all, start: string, letter: string) => {
      return start + letter.toUpperCase();
    });
}

/** Returns true if a text is one of the words that NPPES has in place of a missing name. */
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

/**
 * One possible interpretation of a name: which of its words are given names, and which are the
 * surname. The words are folded.
 */
export interface Reading {
  readonly given: readonly string[];
  readonly family: readonly string[];
  readonly generation: number | null;
}

/**
 * The longest text that is read as a name. A longer text is not a name, and trying all its
 * interpretations would take too long.
 */
const MAX_LENGTH = 200;

/**
 * Returns all possible interpretations of a vendor's name for a person. For example, `Maria Garcia
 * Lopez` may have two given names or two surnames, and the last word of `Jane Kim Do` may be a
 * surname or a degree.
 * @returns an empty list if the text does not contain both a given name and a surname
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
  return spellings(first).flatMap((given) =>
    lasts.flatMap((family) => readPair(given, family)),
  );
}

/**
 * Repairs a reading whose surname is a placeholder such as `LNU`. The person has a single name, and
 * we treat that name as the surname. `Null` is a real surname.
 */
function withSurname(reading: Reading): Reading {
  const { given, family } = reading;
  const isUnknown = isPlaceholder(family.join('')) && family[0] !== 'null';
  if (!isUnknown) return reading;
  return { ...reading, given: family, family: given };
}

/** Returns all spellings of a recorded name in the form of readings. */
export function recordReadings({
  first,
  last,
}: PersonName): Pick<Reading, 'given' | 'family'>[] {
  const families = spellings(last).map(nameWords);
  const givens = spellings(first).map(nameWords);
  return givens.flatMap((given) => families.map((family) => ({ given, family })));
}

function readFull(full: string): Reading[] {
  const [before = '', ...rest] = full.split(',');
  const given = rest.find((part) => !isSetOff(part));
  if (given === undefined) return readWords(stripTitles(full));
  // The text before the comma is usually the surname. We also try it as a full name, because a
  // specialty or a place may follow the comma. `Jr` or `MD` may follow the given name.
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
 * Returns the readings of a name without a comma. Each word except the first may be the start of
 * the surname. If the last word may be a degree, readings without it are added.
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
    if (given.length > 0 && family.length > 0)
      readings.push({ given, family, generation });
  }
  return readings;
}

/**
 * Returns true if a text that follows a comma contains only credentials and generations, such as
 * `MD`, ` Jr.`, or ` PA-C MPH`.
 */
function isSetOff(part: string): boolean {
  const words = part.split(/\s+/).filter((word) => nameWords(word).length > 0);
  return words.every(
    (word) => isCredential(word, true) || stripTitles(`x ${word}`).generation !== null,
  );
}

/**
 * When surnames are compared by their parts, a word shorter than this never counts as a shared
 * part.
 */
const MIN_TELLING = 3;

/**
 * Compares two surnames. The result is one of the following:
 * - `same`: they are equal.
 * - `spelled`: they are two spellings of one surname from another script.
 * - `part`: all words of the shorter surname occur in the longer one. People often use only some
 *   words of a long surname, and marriage adds or removes words. A surname that contains an initial
 *   is never a part, because the `A Smith` of `John A Smith` is not a surname of two words.
 * - `none`: they are different.
 * @param one folded words
 * @param other folded words
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

/**
 * Returns true if all words of the shorter surname occur in the other one. Particles are ignored.
 */
function sharesShorter(one: readonly string[], other: readonly string[]): boolean {
  const a = one.filter((word) => !isParticle(word));
  const b = other.filter((word) => !isParticle(word));
  const [few, many] = shorterFirst(a, b);
  if (few.length === 0) return false;
  return few.every((word) => word.length >= MIN_TELLING && many.includes(word));
}

/** Returns two lists with the shorter one first. */
export function shorterFirst<T>(
  a: readonly T[],
  b: readonly T[],
): [readonly T[], readonly T[]] {
  if (a.length <= b.length) return [a, b];
  return [b, a];
}

/**
 * Joins a prefix with the word after it, so that two ways to write a surname compare as equal. For
 * example, `O Brien` becomes `OBrien`, `Mc Donald` becomes `McDonald`, and `St. John` becomes
 * `StJohn`.
 */
function joinPrefixes(words: readonly string[]): string[] {
  const text = words.join(' ').replace(/(?<!\p{L})(o|ma?c|saint) (?=\p{L}{2})/gu, '$1');
  return text.split(' ').map((word) => word.replace(/^saint(?=\p{L})/u, 'st'));
}
