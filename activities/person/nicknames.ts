import { readLines } from '../verification/domains.ts';

/** Reads a list beside this file, a line as its words. @throws if it is missing */
export function readTable(
  list: 'nicknames' | 'spellings' | 'credentials' | 'mac-names',
): string[][] {
  return [...readLines(new URL(`./${list}.txt`, import.meta.url))].map((line) => line.split(' '));
}

/** Names from other scripts, each spelling with the one that stands for all. */
const SPELLINGS: ReadonlyMap<string, string> = new Map(
  readTable('spellings').flatMap((names) => names.map((name) => [name, names[0] ?? name])),
);

/**
 * The spelling that stands for all those in which a name from another script is met: `muhammad` and
 * `md` are `mohammed`, `kovalskiy` and `kovalsky` are `kovalski`. A name that has one spelling is
 * its own.
 * @param name folded
 */
export function commonSpelling(name: string): string {
  return SPELLINGS.get(name) ?? name.replace(/(?<=\p{L}sk)(?:y|yi|yy|iy|ii|ij)$/u, 'i');
}

/** By given name, all that share a line with it, in their common spellings. */
const FORMS = new Map<string, Set<string>>();
for (const line of readTable('nicknames')) {
  const names = line.map(commonSpelling);
  for (const name of names) FORMS.set(name, new Set([...(FORMS.get(name) ?? []), ...names]));
}

/** What else the bearer of a given name may be called, in common spellings. */
export function formsOf(name: string): ReadonlySet<string> {
  return FORMS.get(commonSpelling(name)) ?? new Set([commonSpelling(name)]);
}

/**
 * What Gujaratis add to a given name, `brother` and `sister`; they leave it away in other company.
 */
const COURTESY = /(?<=\p{L}{4}|\p{L}{2}[aeiou])(?:bhai|ben)$/u;

/**
 * Whether two given names are the same one, or forms of the same one: `bob` and `robert`, `rob` and
 * `bob`, `ahmad` and `ahmed`, `ramesh` and `rameshbhai` (but `manibhai` isn't `maniben`).
 * @param one folded, as `other` is
 */
export function sameGivenName(one: string, other: string): boolean {
  const [plain = '', plainOther = ''] = [one, other].map((name) => name.replace(COURTESY, ''));
  return isForm(one, other) || isForm(plain, other) || isForm(one, plainOther);
}

function isForm(one: string, other: string): boolean {
  const [a, b] = [commonSpelling(one), commonSpelling(other)];
  return a === b ? a !== '' : (FORMS.get(a)?.has(b) ?? false);
}
