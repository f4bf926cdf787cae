import type { GivenName, PersonName } from '../vendors/vendor.ts';
import { isWithinEdits } from './edits.ts';
import {
  ASIDE,
  isCredential,
  isParticle,
  isPlaceholder,
  nameWords,
  type Stripped,
  spellings,
  stripTitles,
} from './names.ts';
import { commonSpelling } from './nicknames.ts';

// Reads the names in vendors' responses, and compares surnames.

/**
 * One possible interpretation of a name: which of its words are given names, and which are the
 * surname. The words are folded.
 */
export interface Reading {
  readonly given: readonly string[];
  readonly family: readonly string[];
  /**
   * The words of the surname that may also be middle names, such as Peter in `John Peter Miller`.
   */
  readonly middle: readonly string[];
  readonly generation: number | null;
  /** True if the surname is read at the start, although no comma follows it. */
  readonly surnameFirst: boolean;
}

/** One spelling of a recorded name. The words are folded. */
export type RecordedName = Pick<Reading, 'given' | 'family'>;

/** Titles that are also names. A name that begins with one is also read without it. */
const NAMES_TOO: ReadonlySet<string> = new Set(
  'bishop brother deacon father gen hon pastor sr'.split(' '),
);

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
    return withAndWithoutAside(name.full).flatMap(spellings).flatMap(readFull);
  }
  const { first, last } = name;
  if (first.length + last.length > MAX_LENGTH) return [];
  const lasts = spellings(last);
  return spellings(first).flatMap((given) =>
    lasts.flatMap((family) => [
      ...readPair(given, family),
      // Some sources mix up the two fields.
      ...readPair(family, given).map((one) => ({ ...one, surnameFirst: true })),
    ]),
  );
}

/**
 * Returns a name with its nickname and without it, because the words in parentheses or quotes may
 * also be a former surname: `Robert (Chip) Smith`, `Jane Smith (Jones)`.
 */
function withAndWithoutAside(full: string): string[] {
  const without = full.replace(ASIDE, ' ');
  return without === full ? [full] : [full, without];
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
export function recordReadings({ first, last }: PersonName): RecordedName[] {
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
  return [
    {
      given: givenWords,
      family: familyWords,
      middle: [],
      generation: family.generation,
      surnameFirst: false,
    },
  ];
}

/**
 * Returns the readings of a name without a comma. Each word except the first may be the start of
 * the surname, or the surname comes first. Credentials that we do not know may follow a known one
 * (`Jane Smith MD FPMRS`), and the last word may be a degree. So readings without these are added.
 */
function readWords({ name, generation }: Stripped): Reading[] {
  const words = name.split(/\s+/);
  const ends = words.flatMap((word, index) => {
    const isLast = index === words.length - 1;
    return index > 1 && isCredential(word, isLast) ? [index] : [];
  });
  const shorter = ends.map((end) => stripTitles(words.slice(0, end).join(' ')));
  const known = [generation, ...shorter.map((one) => one.generation)];
  const latest = known.find((one) => one !== null) ?? null;
  return [name, ...shorter.map((one) => one.name)].flatMap((one) => {
    const whole = one.split(/\s+/);
    const [title] = nameWords(whole[0] ?? '');
    const readings = splitAtEach(whole, latest);
    if (title === undefined || !NAMES_TOO.has(title)) return readings;
    return [...readings, ...splitAtEach(whole.slice(1), latest)];
  });
}

function splitAtEach(words: readonly string[], generation: number | null): Reading[] {
  return words.slice(1).flatMap((_word, index) => {
    const start = nameWords(words.slice(0, index + 1).join(' '));
    const end = nameWords(words.slice(index + 1).join(' '));
    if (start.length === 0 || end.length === 0) return [];
    const middle = nameWords(words.slice(index + 1, -1).join(' '));
    return [
      { given: start, family: end, middle, generation, surnameFirst: false },
      { given: end, family: start, middle: [], generation, surnameFirst: true },
    ];
  });
}

/**
 * Returns true if a text that follows a comma contains only credentials and generations, such as
 * `MD`, ` Jr.`, ` M. D.`, or ` PA-C MPH`.
 */
function isSetOff(part: string): boolean {
  return stripTitles(`x, ${part}`).name === 'x';
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

/**
 * Returns true if two surnames differ only by a typing error or the transliteration: by one letter,
 * or by two if both are long. The first letter must be equal, because errors are rare there and
 * Hernandez is not Fernandez. Short surnames are never near, because Chen is not Cheng.
 * @param one folded words
 * @param other folded words
 */
export function isNearSurname(one: readonly string[], other: readonly string[]): boolean {
  const a = joinPrefixes(one).join('');
  const b = joinPrefixes(other).join('');
  const length = Math.min(a.length, b.length);
  if (length < MIN_NEAR || a[0] !== b[0]) return false;
  return isWithinEdits(a, b, length < MIN_LONG ? 1 : 2);
}

/** The fewest letters of a surname in which an error is accepted, and of one with two errors. */
const MIN_NEAR = 5;
const MIN_LONG = 9;

/** Returns two lists with the shorter one first. */
function shorterFirst<T>(a: readonly T[], b: readonly T[]): [readonly T[], readonly T[]] {
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
