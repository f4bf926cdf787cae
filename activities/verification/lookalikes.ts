import { domainToUnicode } from 'node:url';
import { readList, registrableDomain } from './domains.ts';

// Domains that pass for another one: a slip of the hand beside a big mail provider's, or letters
// that only look right. Whoever registered them reads what arrives there, so mail servers that
// answer are no sign of a person.

const PROVIDERS = [...readList('mail-providers')];
const REAL = readList('mail-providers', 'near-misses');

/**
 * Whether a domain isn't what it looks like: misspelled free mail (`gmial.com`, `yahoo.cm`,
 * `gmai1.com`), or alphabets mixed within a word. A word that is all of one other alphabet is a
 * word, unless it reads as a provider's name.
 * @param domain as `parseAddress` gives it
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
  // Of so short a name every slip is somebody's: only a wrong suffix (`aol.co`) and a letter typed
  // twice tell.
  if (name.length < 5) {
    return (
      read.replace(/(.)\1+/g, '$1') === provider ||
      (read.startsWith(`${name}.`) && isNear(read, provider, 1))
    );
  }
  // These names are nobody else's under any suffix; an access provider's `.net` name may be.
  if (provider.endsWith('.com') && read.startsWith(`${name}.`)) return true;
  return isNear(read, provider, name.length < 8 ? 1 : 2);
}

/**
 * Whether so many slips at most make `typed` of `meant`: a letter too much or left out, two
 * swapped, the wrong key, or the one before twice.
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
  return (
    rest(1, 0) ||
    rest(0, 1) ||
    ((isWrongKey(one, first) || one === typed[same - 1]) && rest(1, 1)) ||
    (one === second && two === first && rest(2, 2))
  );
}

// Each row of keys is set off to the right of the one above it.
const ROWS = [
  ['qwertyuiop', 0],
  ['asdfghjkl', 0.25],
  ['zxcvbnm', 0.75],
] as const;
const KEYS = new Map(
  ROWS.flatMap(([keys, left], y) => [...keys].map((key, x) => [key, { x: left + x, y }] as const)),
);

/**
 * A key beside the right one, another vowel, or i and l: `gnail`, `gmeil`. Any other makes another
 * word: `grail`.
 */
function isWrongKey(typed: string, meant: string): boolean {
  const [one, other] = [KEYS.get(typed), KEYS.get(meant)];
  const isBeside = one && other && Math.abs(one.x - other.x) <= 1 && Math.abs(one.y - other.y) <= 1;
  return isBeside === true || /^(?:[aeiouy]{2}|il|li)$/.test(typed + meant);
}

const CONFUSABLES = new Map(
  [...readList('confusables')].map((pair) => [pair.slice(0, -1), pair.slice(-1)]),
);

/**
 * As a hurried eye reads a name: without marks over letters, and every letter as the Latin one that
 * it looks like.
 */
function asRead(shown: string): string {
  const bare = shown.normalize('NFKD').replace(/\p{M}/gu, '');
  return [...bare]
    .map((letter) => CONFUSABLES.get(letter) ?? letter)
    .join('')
    .replaceAll('rn', 'm');
}

// Without the scripts of East Asia, which words mix as a matter of course.
const ALPHABETS =
  'Latin Cyrillic Greek Armenian Hebrew Arabic Devanagari Bengali Tamil Thai Georgian Ethiopic Cherokee'
    .split(' ')
    .map((script) => new RegExp(`\\p{Script=${script}}`, 'u'));

function mixesAlphabets(label: string): boolean {
  return ALPHABETS.filter((alphabet) => alphabet.test(label)).length > 1;
}
