import { domainToUnicode } from 'node:url';
import { isWithinEdits } from '../person/edits.ts';
import { INSTITUTION, readList, registrableDomain } from './domains.ts';

// Finds domains that look like another domain: a typo of a big mail provider's name, or letters of
// another alphabet that look similar. The owner of such a domain can read all mail sent to it. So a
// mail server that accepts an address there does not prove that the person exists.

const PROVIDERS = [...readList('mail-providers')];
const REAL = readList('mail-providers', 'near-misses');

/**
 * Returns true if a domain looks like another one. Such a domain is a misspelled free-mail domain
 * (`gmial.com`, `yahoo.cm`, `gmai1.com`), resembles the domain of the person's employer
 * (`stbrendan.com` for `stbrendan.org`), or contains a word that mixes alphabets. A word in a
 * single other alphabet is fine, unless it looks like a provider's name.
 * @param domain in the form that `parseAddress` returns
 * @param employerDomain the domain of the person's employer, or null if unknown
 */
export function isLookalike(domain: string, employerDomain: string | null): boolean {
  if (domainToUnicode(domain).split('.').some(mixesAlphabets)) {
    return true;
  }
  const registrable = registrableDomain(domain) ?? domain;
  if (REAL.has(registrable)) return false;
  if (employerDomain !== null && resemblesEmployer(registrable, employerDomain)) {
    return true;
  }
  const read = asRead(domainToUnicode(registrable));
  return PROVIDERS.some((provider) => isMistakenFor(read, provider));
}

function isMistakenFor(read: string, provider: string): boolean {
  const [name = ''] = provider.split('.');
  // Most typos of a short provider name are real domains of other companies. So only a wrong suffix
  // (`aol.co`) and a repeated letter count as typos.
  if (name.length < 5) {
    if (read.replace(/(.)\1+/g, '$1') === provider) return true;
    return read.startsWith(`${name}.`) && isNear(read, provider, 1);
  }
  // A big provider with a `.com` domain owns its name under every real suffix, so any other suffix
  // is a typo. The name of an internet provider with a `.net` domain may have other owners under
  // other suffixes.
  if (provider.endsWith('.com') && read.startsWith(`${name}.`)) {
    return true;
  }
  const slips = name.length < 8 ? 1 : 2;
  return isNear(read, provider, slips);
}

/**
 * The shortest employer's name whose domain is compared. Companies with shorter names often differ
 * by one letter or by the suffix: `uhs.com` and `uhs.org`.
 */
const MIN_EMPLOYER_NAME = 5;

function resemblesEmployer(domain: string, employerDomain: string): boolean {
  const employer = registrableDomain(employerDomain);
  if (employer === null || domain === employer) return false;
  const [name = ''] = domain.split('.');
  const [employerName = ''] = employer.split('.');
  // No other organization has an institution's name: `va.org` is not `va.gov`.
  if (INSTITUTION.test(employer) && name === employerName) return true;
  if (employerName.length < MIN_EMPLOYER_NAME) return false;
  // `bright-mill.com` for `brightmill.com`, and `medchu1a.com` for `medchula.com`.
  if (asTyped(name) === asTyped(employerName)) return true;
  return isNear(name, employerName, 1);
}

/** Returns a name without hyphens, and with letters in place of the digits that resemble them. */
function asTyped(name: string): string {
  return name.replaceAll('-', '').replaceAll('1', 'l').replaceAll('0', 'o');
}

/**
 * Returns true if at most `slips` typos turn `meant` into `typed`. A typo is an extra or missing
 * letter, two swapped letters, a wrong key, or the previous letter typed again in place of a
 * letter.
 */
function isNear(typed: string, meant: string, slips: number): boolean {
  return isWithinEdits(
    typed,
    meant,
    slips,
    (one, first, before) => isWrongKey(one, first) || one === before,
  );
}

// The rows of a keyboard, and how far right each row starts, in key widths.
const ROWS = [
  ['qwertyuiop', 0],
  ['asdfghjkl', 0.25],
  ['zxcvbnm', 0.75],
] as const;
const KEYS = new Map<string, { readonly x: number; readonly y: number }>();
for (const [y, [keys, left]] of ROWS.entries()) {
  for (const [index, key] of [...keys].entries()) {
    KEYS.set(key, { x: left + index, y });
  }
}

/**
 * Returns true if a typist may hit one key instead of the other: a neighboring key (`gnail`),
 * another vowel (`gmeil`), or `i` and `l` in place of each other. Any other letter usually makes a
 * different word, such as `grail`.
 */
function isWrongKey(typed: string, meant: string): boolean {
  if (/^(?:[aeiouy]{2}|il|li)$/.test(typed + meant)) return true;
  const one = KEYS.get(typed);
  const other = KEYS.get(meant);
  if (one === undefined || other === undefined) return false;
  return Math.abs(one.x - other.x) <= 1 && Math.abs(one.y - other.y) <= 1;
}

const CONFUSABLES = new Map<string, string>();
for (const pair of readList('confusables')) {
  CONFUSABLES.set(pair.slice(0, -1), pair.slice(-1));
}

/**
 * Returns a name as a quick reader sees it: without accents, and with each letter replaced by the
 * Latin letter that it resembles.
 */
function asRead(shown: string): string {
  const bare = shown.normalize('NFKD').replace(/\p{M}/gu, '');
  const letters = [...bare].map((letter) => CONFUSABLES.get(letter) ?? letter);
  return letters.join('').replaceAll('rn', 'm');
}

// The scripts of East Asia are not included, because words there often mix scripts.
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
