import { organizationWords } from '../../db/providers/keys.ts';
import { readLines } from '../verification/domains.ts';
import { capitalize, isPlaceholder, isShouted, nameWords } from './names.ts';
import { usState } from './us-states.ts';

const SMALL_WORDS: ReadonlySet<string> = new Set('and at by for in of on the to'.split(' '));

/**
 * An organization's name as people write it, without its legal form, under which nobody searches for it.
 * @returns null if it says nothing
 */
export function organizationName(text: string | null): string | null {
  const words = organizationWords(text ?? '');
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name)) return null;
  return isShouted(name) ? words.map(caseWord).join(' ') : name;
}

/** Abbreviations keep their capitals as far as they can be told: no vowel, a dot or a sign in them, a state at the end. */
function caseWord(word: string, index: number, words: readonly string[]): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) return word.toLowerCase();
  const isState =
    index > 0 && index === words.length - 1 && /^[A-Z]{2}$/.test(word) && words[index - 1] !== '&';
  if (isState && usState(word, null) !== null) return word;
  return /^[^AEIOUY]+$|[.&/]/u.test(word) ? word : capitalize(word);
}

/** Words that stand in the names and in the domains of thousands of practices. */
const COMMON = readLines(new URL('./practice-words.txt', import.meta.url));
/** Shorter words and initials stand in any domain by chance. */
const TELLING = 4;
const INITIALS = 3;

/** Whether a domain was made of an organization's name: it has a word of it that few have, or begins with its initials. */
export function resembles(domain: string, name: string): boolean {
  const [label = ''] = domain.replace(/[^a-z0-9.]/g, '').split('.');
  const words = nameWords(name).filter((word) => !SMALL_WORDS.has(word));
  const initials = words.map(([letter]) => letter).join('');
  return (
    words.some((word) => word.length >= TELLING && !COMMON.has(word) && label.includes(word)) ||
    (initials.length >= INITIALS && label.replace(/(?:md|med|health|care|clinic)$/, '') === initials)
  );
}
