import type { GivenName, PersonName } from '../vendors/vendor.ts';
import { type Generation, isCredential, isParticle, nameWords, stripTitles } from './names.ts';

/** One way to read a name. Everything folded; the words of the surname and of what stands before it. */
export interface Reading {
  readonly given: readonly string[];
  readonly family: readonly string[];
  readonly generation: Generation | null;
}

/** Longer text is no name, and not worth reading in every way. */
const LONGEST = 200;

/**
 * Every way to read a name somebody gives. `Maria Garcia Lopez` may have two given names or two surnames, and
 * `Jane Kim Do` may be a surname or a degree, so each reading is tried; `Public, Jane Q., MD` has one that fits.
 * @returns empty where it has not both a given name and a surname
 */
export function readName(name: GivenName): Reading[] {
  const length = name.kind === 'parts' ? name.first.length + name.last.length : name.full.length;
  if (length > LONGEST) return [];
  if (name.kind === 'parts') return readPair(name.first, name.last);
  const [before = '', ...rest] = name.full.split(',');
  const [given] = rest.filter((part) => !isSetOff(part));
  const { name: bare, generation } = stripTitles(given === undefined ? name.full : before);
  const readings = readWords(bare, generation);
  if (given === undefined) return readings;
  // Surname first, unless what follows is a specialty or a place; behind the given name may still stand `Jr, MD`.
  const behind = stripTitles(name.full.replace(given, ' ')).generation;
  const pairs = readPair(given, before).map((one) => ({ ...one, generation: one.generation ?? behind }));
  return [...pairs, ...readings];
}

function readPair(first: string, last: string): Reading[] {
  const family = stripTitles(last);
  const reading = {
    given: nameWords(stripTitles(first).name),
    family: nameWords(family.name),
    generation: family.generation,
  };
  return reading.given.length > 0 && reading.family.length > 0 ? [reading] : [];
}

/** The surname begins at each word in turn; a last word that may be a degree is read as one, too. */
function readWords(bare: string, generation: Generation | null): Reading[] {
  const words = bare.split(/\s+/);
  const degree = words.length > 2 && isCredential(words.at(-1) ?? '', true);
  const readings = [words, ...(degree ? [words.slice(0, -1)] : [])].flatMap((some) =>
    some.slice(1).map((_, index) => ({
      given: nameWords(some.slice(0, index + 1).join(' ')),
      family: nameWords(some.slice(index + 1).join(' ')),
      generation,
    })),
  );
  return readings.filter(({ given, family }) => given.length > 0 && family.length > 0);
}

/** `MD`, ` Jr.`, ` PA-C MPH`: what people put behind a comma, and no name. */
function isSetOff(part: string): boolean {
  const words = part.split(/\s+/).filter((word) => nameWords(word).length > 0);
  return words.every((word) => isCredential(word, true) || stripTitles(`x ${word}`).generation !== null);
}

/** How much two surnames have in common. */
export type Kinship = 'same' | 'part' | 'none';

/** Words shorter than this are shared by too many names to tell anything. */
const TELLING = 3;

/**
 * Compares surnames. Of a name of several words people often use some, and marriage adds or removes one: all words of
 * the shorter must then stand in the longer (`part`). Names with an initial in them are the same or not: otherwise
 * `A Smith` of `John A Smith` would pass for a surname of two words.
 * @param one folded words, as `other` is
 */
export function compareSurnames(one: readonly string[], other: readonly string[]): Kinship {
  if (one.length === 0 || other.length === 0) return 'none';
  if (one.join('') === other.join('')) return 'same';
  const [few, many] = [one, other].map(ownWords).toSorted((a, b) => a.length - b.length);
  if (few === undefined || many === undefined || few.length === 0) return 'none';
  if ([...one, ...other].some((word) => word.length === 1)) return 'none';
  return few.every((word) => word.length >= TELLING && many.includes(word)) ? 'part' : 'none';
}

function ownWords(words: readonly string[]): string[] {
  return words.filter((word) => !isParticle(word));
}

/** A name on record in the same form. */
export function recordReading({ first, last }: PersonName): Pick<Reading, 'given' | 'family'> {
  return { given: nameWords(first), family: nameWords(last) };
}
