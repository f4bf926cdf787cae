import { organizationKey, organizationWords } from '../../db/providers/keys.ts';
import { readLines } from '../verification/domains.ts';
import { capitalize, isPlaceholder, isShouted, nameWords } from './names.ts';
import { usState } from './us-states.ts';

const SMALL_WORDS: ReadonlySet<string> = new Set(
  'and at by for in of on the to'.split(' '),
);

/**
 * Matches the normalized form of names without information, such as `N/A`, `SELF`, and names that
 * consist only of a legal form.
 */
const SAYS_NOTHING = /^(?:na|notapplicable|same|self)?$/;

/**
 * Returns an organization's name as people write it. The legal form is removed, because people do
 * not search for it.
 * @returns null if the name contains no information, such as `N/A`
 */
export function organizationName(text: string | null): string | null {
  if (text === null) return null;
  const words = organizationWords(text);
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name)) return null;
  if (SAYS_NOTHING.test(organizationKey(name))) return null;
  if (!isShouted(name)) return name;
  return words.map(caseWord).join(' ');
}

/**
 * Changes a word of an organization's name from capitals to mixed case. A word stays in capitals if
 * it looks like an abbreviation: it has no vowels, contains a dot, `&`, or a slash, or is the code
 * of a state at the end of the name.
 */
function caseWord(word: string, index: number, words: readonly string[]): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) {
    return word.toLowerCase();
  }
  const isLast = index > 0 && index === words.length - 1;
  const isState = isLast && /^[A-Z]{2}$/.test(word) && words[index - 1] !== '&';
  if (isState && usState(word, null) !== null) return word;
  const isAbbreviation = /^[^AEIOUY]+$|[.&/]/u.test(word);
  if (isAbbreviation) return word;
  return capitalize(word);
}

/** Words that occur in the names of thousands of practices, so they do not identify one. */
export const PRACTICE_WORDS = readLines(new URL('./practice-words.txt', import.meta.url));
/**
 * The shortest words and initials that we compare with a domain. Shorter ones occur in domains by
 * chance.
 */
const MIN_TELLING = { word: 4, initials: 3 };

/**
 * Returns true if a domain was probably made from an organization's name. Either it contains a rare
 * word of the name, or it consists of the name's initials. A word such as `md` or `clinic` may
 * follow the initials.
 */
export function resembles(domain: string, name: string | null): boolean {
  if (name === null) return false;
  const [label = ''] = domain.replace(/[^a-z0-9.]/g, '').split('.');
  const words = nameWords(name).filter((word) => !SMALL_WORDS.has(word));
  if (words.some((word) => isRare(word) && label.includes(word))) {
    return true;
  }
  const initials = words.map(([letter]) => letter).join('');
  const bareLabel = label.replace(/(?:md|med|health|care|clinic)$/, '');
  return initials.length >= MIN_TELLING.initials && bareLabel === initials;
}

function isRare(word: string): boolean {
  return word.length >= MIN_TELLING.word && !PRACTICE_WORDS.has(word);
}
