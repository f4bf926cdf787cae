import words from './key-words.json' with { type: 'json' };

/**
 * Returns a key for the telephone number and one for the address of a location. Equal keys mean the
 * same number or address, even if it is spelled differently. They connect a provider with the
 * organizations at the same location.
 */
export function providerKeys(
  at: Readonly<Record<'phone' | 'line1' | 'line2' | 'postalCode', string | null>>,
) {
  const lines = [at.line1, at.line2].filter((line) => line).join(' ');
  return { phoneKey: phoneKey(at.phone), addressKey: addressKey(lines, at.postalCode) };
}

/** Maps words of street addresses to their standard abbreviations, such as STREET to ST. */
const STREET_WORDS = new Map(Object.entries(words.streetWords));

/**
 * Matches the extension of a telephone number, as in `5551234567X12`, `555-123-4567 ext. 12`, and
 * `555-123-4567 #12`.
 */
const EXTENSION = /(?<=[0-9][ .,;-]*)(?:x|e?xt|#).*/i;

/**
 * Returns the last ten digits of a telephone number without its extension. Null if it has fewer, or
 * if all digits are the same.
 */
function phoneKey(phone: string | null): string | null {
  if (phone === null) return null;
  const digits = phone
    .replace(EXTENSION, '')
    .replace(/[^0-9]/g, '')
    .slice(-10);
  if (digits.length < 10 || /^([0-9])\1*$/.test(digits)) return null;
  return digits;
}

/**
 * Returns a key such as `12 MAIN ST STE 5|02139`: the address lines in a standard spelling, and the
 * five-digit ZIP code. It does not matter how the address is divided into lines. Null if the lines
 * or the ZIP code are missing. The key of a building without a suite does not match the keys of its
 * suites.
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
    // Removes the second STE of `STE STE 5`, which comes from `STE # 5`.
    .filter((word, index, all) => word !== 'STE' || all[index + 1] !== 'STE');
  if (spelled.length === 0) return null;
  return `${spelled.join(' ')}|${zip}`;
}

/**
 * Returns the PAC ID of a group: its id in Medicare's enrollment system, with ten digits.
 * Spreadsheets drop leading zeros, so they are added again. Null if the text is not such an id.
 */
export function pacIdOf(text: string): string | null {
  return /^[0-9]{1,10}$/.test(text) ? text.padStart(10, '0') : null;
}

/**
 * Legal forms that are also abbreviations of states. In `Cardiology of PA`, PA means Pennsylvania.
 */
const FORMS_AND_STATES: ReadonlySet<string> = new Set(['co', 'pa', 'sc']);
const FORMS: ReadonlySet<string> = new Set(words.legalForms);
/**
 * Matches the end of the text in front of a name's last word if that word is not a legal form. This
 * is text such as `of` or `in North` in front of a state, and `&` in front of `Co`.
 */
const BEFORE_STATE =
  /(?: (?:of|in|and)(?: (?:north|south|east|west)(?:ern)?| central)?|&)$/;
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
    // Changes `P. A.` to `P.A.`
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

/** Returns how many words at the end of a name are its legal form. */
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
