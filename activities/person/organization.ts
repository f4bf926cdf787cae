import { organizationWords } from '../../db/providers/keys.ts';
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
const COMMON: ReadonlySet<string> = new Set(
  `adult advanced associates behavioral cardiology care center centers central chiropractic clinic clinics community
  comprehensive consultants counseling county dental dentistry dermatology diagnostic east emergency endocrinology
  family foot gastroenterology general group health healthcare heart home hospital hospitals imaging institute
  integrated internal internists laboratory management medical medicine mental neurology north northern nursing
  obstetrics oncology ophthalmology optometry orthopaedics orthopedic orthopedics pain partners pediatric pediatrics
  pharmacy physical physicians podiatry practice premier primary professional providers psychiatry pulmonary radiology
  regional rehabilitation service services skin south southern specialist specialists spine sports surgery surgical
  system therapy united urgent urology valley vision wellness west western women womens`.split(/\s+/),
);
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
