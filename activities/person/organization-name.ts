import { capitalize, isPlaceholder, isShouted } from './names.ts';

const LEGAL_FORMS: ReadonlySet<string> = new Set(
  'llc pllc plc lc inc incorporated corp corporation co ltd limited llp lllp lp pc pa psc apc apmc sc chartered'.split(
    ' ',
  ),
);
const SMALL_WORDS: ReadonlySet<string> = new Set('and at by for in of on the to'.split(' '));

/** One key for the spellings of an organization's name: no legal form, no article, no case, no marks. */
export function organizationKey(name: string): string {
  const words = name
    .toLowerCase()
    .normalize('NFKD')
    .replace(/[\p{M}.'’]/gu, '')
    .replace(/&/g, ' and ')
    .split(/[^\p{L}\p{N}]+/u);
  return words.filter((word) => word !== 'the' && !LEGAL_FORMS.has(word)).join('');
}

/**
 * An organization's name as people write it, without its legal form, under which nobody searches for it.
 * @returns null where it says nothing
 */
export function organizationName(text: string | null): string | null {
  const words = (text ?? '').split(/[\s,]+/).filter((word) => /[\p{L}\p{N}&]/u.test(word));
  while (words.length > 1 && isLegalForm(words.at(-1) ?? '')) words.pop();
  const name = words.join(' ');
  if (!/\p{L}/u.test(name) || isPlaceholder(name)) return null;
  return isShouted(name) ? words.map(caseWord).join(' ') : name;
}

function isLegalForm(word: string): boolean {
  return LEGAL_FORMS.has(word.toLowerCase().replace(/[^a-z]/g, ''));
}

/** Abbreviations keep their capitals as far as they can be told: no vowel, a dot, or a sign in them. */
function caseWord(word: string, index: number): string {
  if (index > 0 && SMALL_WORDS.has(word.toLowerCase())) return word.toLowerCase();
  return /^[^AEIOUY]+$|[.&/]/u.test(word) ? word : capitalize(word);
}
