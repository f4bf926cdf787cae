import words from './key-words.json' with { type: 'json' };

/**
 * Returns keys that match a provider's location with an organization's, even if they are spelled
 * differently.
 * @param at the practice location from NPPES or the NPI Registry
 */
export function providerKeys(
  at: Readonly<Record<'phone' | 'line1' | 'line2' | 'postalCode', string | null>>,
) {
  const lines = [at.line1, at.line2].filter((line) => line).join(' ');
  return { phoneKey: phoneKey(at.phone), addressKey: addressKey(lines, at.postalCode) };
}

/** Maps words of street addresses to their standard abbreviation. */
const STREET_WORDS = new Map(Object.entries(words.streetWords));

/** Returns the last ten digits. Null if there are fewer, or if all are the same digit. */
function phoneKey(phone: string | null): string | null {
  if (phone === null) return null;
  const digits = phone.replace(/[^0-9]/g, '').slice(-10);
  if (digits.length < 10 || /^([0-9])\1*$/.test(digits)) return null;
  return digits;
}

/**
 * Returns the street, number, and suite in one spelling, `|`, and five digits of ZIP code. It does
 * not matter on which line they stand. Null if the street or the ZIP code is missing. An address
 * without a suite does not match the tenants' addresses.
 */
function addressKey(lines: string, postalCode: string | null): string | null {
  if (lines === '' || postalCode === null) return null;
  const zip = postalCode.slice(0, 5);
  if (!/^[0-9]{5}$/.test(zip)) return null;
  const spelled = lines
    .toUpperCase()
    .replace(/[.']/g, '')
    .replaceAll('#', ' STE ')
    .split(/[^\p{L}\p{N}]+/u)
    .filter((word) => word !== '')
    .map((word) => STREET_WORDS.get(word) ?? word)
    // `STE # 5`
    .filter((word, index, all) => word !== 'STE' || all[index + 1] !== 'STE');
  if (spelled.length === 0) return null;
  return `${spelled.join(' ')}|${zip}`;
}

/**
 * Returns the id of a group in Medicare's enrollment system: ten digits. Spreadsheets drop the
 * leading zeros, so they are added again.
 */
export function pacIdOf(text: string): string | null {
  return /^[0-9]{1,10}$/.test(text) ? text.padStart(10, '0') : null;
}

/** Legal forms that are also postal codes of states: `Cardiology of PA` is in Pennsylvania. */
const FORMS_AND_STATES: ReadonlySet<string> = new Set(['co', 'pa', 'sc']);
const FORMS: ReadonlySet<string> = new Set(words.legalForms);
/** The words before a state, or before a `Co` that is part of the name. */
const BEFORE_STATE = /(?: (?:of|in|and)(?: (?:north|south|east|west)(?:ern)?| central)?|&)$/;
const PHRASE = new RegExp(` (?:${words.legalPhrases.join('|')})$`);
const DOING_BUSINESS_AS = /\b(?:d[./]?b[./]?a\b[.:]?|doing business as\b)/i;

/**
 * Returns the words of an organization's name in their original spelling, without the legal form.
 * For a name with "doing business as", returns the words after that.
 * @returns at least one word if the name has one
 */
export function organizationWords(text: string): string[] {
  const [legal = '', door = ''] = text.split(DOING_BUSINESS_AS);
  const name = /\p{L}/u.test(door) ? door : legal;
  const left = name
    // `P. A.`
    .replace(/\b(\p{L})\. (?=\p{L}\.)/gu, '$1.')
    .split(/[\s,]+/)
    .filter((word) => /[\p{L}\p{N}&]/u.test(word));
  while (left.length > 1) {
    const count = legalFormLength(left);
    if (count === 0) break;
    left.splice(-count);
  }
  return left;
}

/** Returns the number of words at the end that are a legal form. */
function legalFormLength(name: readonly string[]): number {
  const plain = name.map((word) => word.toLowerCase().replace(/[^a-z&]/g, ''));
  const text = ` ${plain.join(' ')}`;
  const phrase = PHRASE.exec(text)?.[0].trim().split(' ');
  if (phrase && phrase.length < name.length) return phrase.length;
  const last = plain.at(-1) ?? '';
  if (FORMS.has(last)) return 1;
  const before = text.slice(0, -last.length - 1);
  return FORMS_AND_STATES.has(last) && !BEFORE_STATE.test(before) ? 1 : 0;
}

/**
 * Returns one key for all spellings of an organization's name: without legal form, article, case,
 * and punctuation.
 */
export function organizationKey(name: string): string {
  const said = organizationWords(name)
    .join(' ')
    .toLowerCase()
    .normalize('NFKD')
    .replace(/[\p{M}.'’]/gu, '')
    .replace(/&/g, ' and ')
    .split(/[^\p{L}\p{N}]+/u);
  return said.filter((word) => word !== 'the' && !FORMS.has(word)).join('');
}
