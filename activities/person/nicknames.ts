import { readLines } from '../verification/domains.ts';

/**
 * Reads a list in this folder, one line as its words.
 * @throws if the file is missing
 */
export function readTable(
  list: 'nicknames' | 'spellings' | 'credentials' | 'mac-names',
): string[][] {
  const lines = readLines(new URL(`./${list}.txt`, import.meta.url));
  return [...lines].map((line) => line.split(' '));
}

/** Names from other scripts: each spelling with the common one. */
const SPELLINGS = new Map<string, string>();
for (const [common = '', ...others] of readTable('spellings')) {
  for (const spelling of [common, ...others]) SPELLINGS.set(spelling, common);
}

/**
 * Returns the common spelling of a name from another script: `mohammed` for `muhammad` and `md`,
 * `kovalski` for `kovalskiy` and `kovalsky`. A name with one spelling stays the same.
 * @param name folded
 */
export function commonSpelling(name: string): string {
  return SPELLINGS.get(name) ?? name.replace(/(?<=\p{L}sk)(?:y|yi|yy|iy|ii|ij)$/u, 'i');
}

/** Given names with all names on the same line, in their common spellings. */
const FORMS = new Map<string, Set<string>>();
for (const line of readTable('nicknames')) {
  const names = line.map(commonSpelling);
  for (const name of names) {
    const known = FORMS.get(name) ?? [];
    FORMS.set(name, new Set([...known, ...names]));
  }
}

/** Returns all forms of a given name, in common spellings. */
export function formsOf(name: string): ReadonlySet<string> {
  const common = commonSpelling(name);
  return FORMS.get(common) ?? new Set([common]);
}

/**
 * The suffixes `brother` and `sister` that Gujaratis add to a given name. They often drop them in
 * other company.
 */
const COURTESY = /(?<=\p{L}{4}|\p{L}{2}[aeiou])(?:bhai|ben)$/u;

/**
 * Returns true if two given names are the same or forms of the same one: `bob` and `robert`, `rob`
 * and `bob`, `ahmad` and `ahmed`, `ramesh` and `rameshbhai` (but `manibhai` isn't `maniben`).
 * @param one folded, as `other` is
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
