import { readLines } from '../verification/domains.ts';

/**
 * Reads a list in this folder. Returns the words of each line.
 * @throws if the file is missing
 */
export function readTable(list: 'nicknames' | 'spellings' | 'credentials'): string[][] {
  const lines = readLines(new URL(`./${list}.txt`, import.meta.url));
  return [...lines].map((line) => line.split(' '));
}

/** Maps each spelling of a name from another script to its most common spelling. */
const SPELLINGS = new Map<string, string>();
for (const [common = '', ...others] of readTable('spellings')) {
  for (const spelling of [common, ...others]) {
    SPELLINGS.set(spelling, common);
  }
}

/**
 * Returns the common spelling of a name from another script: `mohammed` for `muhammad` and `md`,
 * `kovalski` for `kovalsky` and for a woman called `kovalskaya`, `ivanov` for `ivanova`, `petrosian`
 * for `petrosyan`. A name without other spellings is returned unchanged.
 * @param name folded
 */
export function commonSpelling(name: string): string {
  return (
    SPELLINGS.get(name) ??
    name
      .replace(/(?<=\p{L}[scz]k)(?:y|yi|yy|iy|ii|ij|a|aya|aia)$/u, 'i')
      .replace(/(?<=\p{L}{3}(?:ov|ev))a$/u, '')
      .replace(/(?<=\p{L}{3})yan$/u, 'ian')
  );
}

/**
 * Maps each given name to all names that share a line with it in nicknames.txt. All names have
 * their common spelling.
 */
const FORMS = new Map<string, Set<string>>();
for (const line of readTable('nicknames')) {
  const names = line.map(commonSpelling);
  for (const name of names) {
    const known = FORMS.get(name) ?? [];
    FORMS.set(name, new Set([...known, ...names]));
  }
}

/** Returns all nicknames and full forms of a given name, each in its common spelling. */
export function formsOf(name: string): ReadonlySet<string> {
  const common = commonSpelling(name);
  return FORMS.get(common) ?? new Set([common]);
}

/**
 * Matches the suffixes `bhai` (brother) and `ben` (sister), which Gujarati speakers add to given
 * names. People often leave them out elsewhere.
 */
const COURTESY = /(?<=\p{L}{4}|\p{L}{2}[aeiou])(?:bhai|ben)$/u;

/**
 * Returns true if two given names are equal or are forms of the same name. Examples are `bob` and
 * `robert`, `rob` and `bob`, `ahmad` and `ahmed`, and `ramesh` and `rameshbhai`. Two names with
 * different suffixes, such as `manibhai` and `maniben`, are different.
 * @param one folded
 * @param other folded
 */
export function sameGivenName(one: string, other: string): boolean {
  const plain = one.replace(COURTESY, '');
  const plainOther = other.replace(COURTESY, '');
  return isForm(one, other) || isForm(plain, other) || isForm(one, plainOther);
}

function isForm(one: string, other: string): boolean {
  const a = commonSpelling(one);
  const b = commonSpelling(other);
  if (a === b) return a !== '';
  return FORMS.get(a)?.has(b) === true;
}
