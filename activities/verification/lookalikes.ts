import { domainToUnicode } from 'node:url';
import { readList, registrableDomain } from './domains.ts';

// Domains that look like another domain: a typo of a big mail provider's name, or similar letters
// of another alphabet. Their owner can read all mail to them, so a responding mail server is not a
// sign of a real person.

const PROVIDERS = [...readList('mail-providers')];
const REAL = readList('mail-providers', 'near-misses');

/**
 * Returns true if a domain looks like another one. This is a misspelled free-mail domain
 * (`gmial.com`, `yahoo.cm`, `gmai1.com`), or a word with mixed alphabets. A word in one other
 * alphabet is fine, unless it reads as a provider's name.
 * @param domain in the form that `parseAddress` returns
 */
export function isLookalike(domain: string): boolean {
  if (domainToUnicode(domain).split('.').some(mixesAlphabets)) return true;
  const registrable = registrableDomain(domain) ?? domain;
  if (REAL.has(registrable)) return false;
  const read = asRead(domainToUnicode(registrable));
  return PROVIDERS.some((provider) => isMistakenFor(read, provider));
}

function isMistakenFor(read: string, provider: string): boolean {
  const [name = ''] = provider.split('.');
  // Most typos of a short name are real domains. Only a wrong suffix (`aol.co`) and a repeated
  // letter count.
  if (name.length < 5) {
    if (read.replace(/(.)\1+/g, '$1') === provider) return true;
    return read.startsWith(`${name}.`) && isNear(read, provider, 1);
  }
  // The owner of such a `.com` name has it under every suffix. An access provider's `.net` name may
  // have other owners elsewhere.
  if (provider.endsWith('.com') && read.startsWith(`${name}.`)) return true;
  const slips = name.length < 8 ? 1 : 2;
  return isNear(read, provider, slips);
}

/**
 * Returns true if at most `slips` typos turn `meant` into `typed`. A typo is an extra or missing
 * letter, two swapped letters, a wrong key, or a repeat of the letter before.
 */
function isNear(typed: string, meant: string, slips: number): boolean {
  if (typed === meant) return true;
  if (slips === 0 || Math.abs(typed.length - meant.length) > slips) return false;
  let same = 0;
  while (typed[same] === meant[same]) same += 1;
  const [one = '', two = ''] = typed.slice(same);
  const [first = '', second = ''] = meant.slice(same);
  const rest = (typedTo: number, meantTo: number) =>
    isNear(typed.slice(same + typedTo), meant.slice(same + meantTo), slips - 1);
  // An extra letter, or a missing one.
  if (rest(1, 0) || rest(0, 1)) return true;
  const isReplaced = isWrongKey(one, first) || one === typed[same - 1];
  if (isReplaced && rest(1, 1)) return true;
  const isSwapped = one === second && two === first;
  return isSwapped && rest(2, 2);
}

// Each row of keys starts farther right than the row above it.
const ROWS = [
  ['qwertyuiop', 0],
  ['asdfghjkl', 0.25],
  ['zxcvbnm', 0.75],
] as const;
const KEYS = new Map<string, { readonly x: number; readonly y: number }>();
for (const [y, [keys, left]] of ROWS.entries()) {
  for (const [index, key] of [...keys].entries()) KEYS.set(key, { x: left + index, y });
}

/**
 * Returns true for a neighboring key, another vowel, or i and l: `gnail`, `gmeil`. Any other letter
 * makes another word: `grail`.
 */
function isWrongKey(typed: string, meant: string): boolean {
  if (/^(?:[aeiouy]{2}|il|li)$/.test(typed + meant)) return true;
  const one = KEYS.get(typed);
  const other = KEYS.get(meant);
  if (one === undefined || other === undefined) return false;
  return Math.abs(one.x - other.x) <= 1 && Math.abs(one.y - other.y) <= 1;
}

const CONFUSABLES = new Map<string, string>();
for (const pair of readList('confusables')) CONFUSABLES.set(pair.slice(0, -1), pair.slice(-1));

/**
 * Returns a name as a quick reader sees it: without accents, and with each letter replaced by the
 * Latin letter that it resembles.
 */
function asRead(shown: string): string {
  const bare = shown.normalize('NFKD').replace(/\p{M}/gu, '');
  const letters = [...bare].map((letter) => CONFUSABLES.get(letter) ?? letter);
  return letters.join('').replaceAll('rn', 'm');
}

// The scripts of East Asia are not included, because their words often mix several.
const ALPHABETS = [
  /\p{Script=Latin}/u,
  /\p{Script=Cyrillic}/u,
  /\p{Script=Greek}/u,
  /\p{Script=Armenian}/u,
  /\p{Script=Hebrew}/u,
  /\p{Script=Arabic}/u,
  /\p{Script=Devanagari}/u,
  /\p{Script=Bengali}/u,
  /\p{Script=Tamil}/u,
  /\p{Script=Thai}/u,
  /\p{Script=Georgian}/u,
  /\p{Script=Ethiopic}/u,
  /\p{Script=Cherokee}/u,
];

function mixesAlphabets(label: string): boolean {
  return ALPHABETS.filter((alphabet) => alphabet.test(label)).length > 1;
}
