import { readTable } from './nicknames.ts';

// NPPES writes names in capitals, and its name fields may contain titles and other text. This file
// turns such a field into a name as people write it.

/** Maps the suffix of a name to the number of the generation (`Person.generation`). */
const GENERATIONS = new Map(Object.entries({ sr: 1, jr: 2 }));
for (const [index, numeral] of 'i ii iii iv v vi vii viii ix x'.split(' ').entries()) {
  GENERATIONS.set(numeral, index + 1);
}

/** Titles before a name. A title that is also a common name, such as `Major`, is left out. */
const TITLES: ReadonlySet<string> = new Set(
  (
    'the very dr doctor prof professor mr mrs ms miss rev reverend rabbi imam fr sister msgr monsignor ' +
    'honorable lt ltc lcdr cdr cmdr capt cpt captain maj col colonel brig rear vice general adm admiral sgt'
  ).split(' '),
);

const CREDENTIALS: ReadonlySet<string> = new Set(readTable('credentials').flat());

/**
 * Credentials that are also surnames. They count as credentials only if they contain a dot or
 * follow a comma.
 */
const SURNAMES_TOO: ReadonlySet<string> = new Set(['do', 'ma', 'pa']);

/**
 * Words that NPPES has in place of a missing name. `FNU` and `LNU` mean "first name unknown" and
 * "last name unknown". They come from the visas of people with a single name.
 */
const PLACEHOLDERS: ReadonlySet<string> = new Set(
  'unavail fnu lnu nfn nln nmi nmn none null unknown'.split(' '),
);

const PARTICLES: ReadonlySet<string> = new Set(
  'al da das de del della den der di dos du el la las los ten ter van von y'.split(' '),
);

/**
 * Letters that Unicode normalization (NFKD) does not decompose into ASCII letters, with their
 * replacements.
 */
const LETTERS = {
  ß: 'ss',
  ø: 'o',
  ł: 'l',
  æ: 'ae',
  œ: 'oe',
  đ: 'd',
  ð: 'd',
  þ: 'th',
  ı: 'i',
};

/**
 * Letters that some people write as two letters if their keyboard lacks them. Other people only
 * leave out the mark above or through the letter, so we accept both spellings.
 */
const SPELLED_OUT: Readonly<Record<string, string>> = {
  ä: 'ae',
  ö: 'oe',
  ü: 'ue',
  ø: 'oe',
  å: 'aa',
};

/** Matches a nickname inside a name, as in `Robert (Bob) Smith`. */
export const ASIDE = /\([^)]*\)|["“][^"”]*["”]/g;

const APOSTROPHES = /[‘’ʻʼʾʿ`´]/g;

/**
 * Splits a name into lowercase words without accents, which we call folded. Two spellings of one
 * name then give the same words. Spaces, hyphens, and dots separate words, but apostrophes do not.
 * For example, `Núñez-O'Dea` and `NUNEZ ODEA` give the same words.
 */
export function nameWords(text: string | null): string[] {
  if (text === null) return [];
  const plain = text
    .replace(APOSTROPHES, "'")
    .toLowerCase()
    .replace(/[ßøłæœđðþı]/g, (letter) => LETTERS[letter as keyof typeof LETTERS])
    .normalize('NFKD')
    .replace(/['\p{M}]/gu, '');
  const words = plain.split(/[^\p{L}]+/u).filter((word) => word !== '');
  return words.map((word) => word.replace(/^st$/, 'saint'));
}

/**
 * The most umlauts in a text for which both spellings are returned. Each one doubles the number of
 * results.
 */
const MAX_UMLAUTS = 4;

/**
 * Returns the possible spellings of a name. Umlauts and similar letters (`SPELLED_OUT`) can be
 * written as two letters, so `Müller` also gives `Mueller`. This applies only to the first
 * `MAX_UMLAUTS` of them.
 */
export function spellings(text: string): string[] {
  const pieces = text.normalize('NFC').split(/(?=[äöüøå])/iu);
  let ways = [''];
  for (const [index, piece] of pieces.entries()) {
    const written = [piece];
    const two = SPELLED_OUT[piece.charAt(0).toLowerCase()];
    if (two !== undefined && index < MAX_UMLAUTS) {
      written.push(two + piece.slice(1));
    }
    ways = ways.flatMap((way) => written.map((end) => way + end));
  }
  return ways;
}

/** Returns true if a folded word is a particle of a surname, such as `van` or `de`. */
export function isParticle(word: string): boolean {
  return PARTICLES.has(word);
}

/**
 * Returns the number of the generation for a suffix such as `Jr.`, `III`, or `3rd`. Returns null
 * for other suffixes.
 */
export function generationOf(suffix: string | null): number | null {
  if (suffix === null) return null;
  const ordinal = /^\W*([1-9])(?:st|nd|rd|th)\W*$/i.exec(suffix);
  if (ordinal) return Number(ordinal[1]);
  return GENERATIONS.get(letters(suffix)) ?? null;
}

export interface Stripped {
  readonly name: string;
  readonly generation: number | null;
}

/**
 * Removes titles from the start of a name, and credentials and generations from its end (`DR.
 * SMITH, JR., M. D.`). At least one word always stays, so that `Dr. Do` and `Ms. Ma` keep their
 * surnames.
 */
export function stripTitles(text: string): Stripped {
  let words = text.replace(/,/g, ', ').split(/\s+/).filter(hasLetter);
  let generation: number | null = null;
  while (words.length > 1 && TITLES.has(letters(words[0] ?? ''))) {
    words.shift();
  }
  while (words.length > 1) {
    const named = generationAtEnd(words);
    const length = named === null ? credentialLength(words) : 1;
    if (length === 0) break;
    generation = named ?? generation;
    words = words.slice(0, -length);
  }
  return { name: words.join(' ').replace(/,$/, ''), generation };
}

/**
 * Returns the generation that the last word of a name stands for. A single letter is a generation
 * only after a whole name (`John Smith V`). It is an initial after a single name (`John V`) or
 * before a dot (`Smith John V.`).
 */
function generationAtEnd(words: readonly string[]): number | null {
  const last = words.at(-1) ?? '';
  if (letters(last).length === 1 && (words.length < 3 || last.endsWith('.'))) {
    return null;
  }
  return generationOf(last);
}

/**
 * Returns how many words at the end of a name are one credential: one for `MD`, two for `M. D.` and
 * `Pharm. D.`, and three for `D D S`. Zero if the name ends in no credential.
 */
function credentialLength(words: readonly string[]): number {
  const [before = '', last = ''] = words.slice(-2);
  if (isCredential(last, before.endsWith(','))) return 1;
  const spaced = [3, 2].find((length) => {
    const joined = words.slice(-length).map(letters).join('');
    return length < words.length && CREDENTIALS.has(joined);
  });
  return spaced ?? 0;
}

/**
 * Returns true if a word is a credential, such as `MD`, or one with a specialty behind it, such as
 * `LCSW-R`. `BC` means "board certified", so every `…-BC` is a credential.
 * @param set true if a comma separates the word from the name
 */
export function isCredential(word: string, set: boolean): boolean {
  const plain = letters(word);
  if (CREDENTIALS.has(plain)) {
    return set || /\p{L}\./u.test(word) || !SURNAMES_TOO.has(plain);
  }
  const [degree = '', ...specialties] = word.split(/[-/]/).map(letters);
  if (specialties.length === 0) return false;
  if (specialties.at(-1) === 'bc') return true;
  const isShort = specialties.every((one) => one.length < 4 || CREDENTIALS.has(one));
  return isShort && isCredential(degree, set);
}

/**
 * Returns a person's name, or a part of it, as people write it: `Mary Jo`, `O'Brien`, `McDonald`,
 * `De la Cruz`. Removes titles, credentials, and stray punctuation. If the text has both capital
 * and lowercase letters, its case is not changed.
 * @returns null if no name is left
 */
export function personName(text: string | null): string | null {
  if (text === null) return null;
  const bare = text.replace(ASIDE, ' ').replace(APOSTROPHES, "'");
  const words = stripTitles(bare)
    .name.replace(/[?\uFFFD]+/gu, '')
    .replace(/[^\p{L}\p{M}' -]+/gu, ' ')
    .replace(/\b([DLO])' +(?=\p{L})/giu, "$1'")
    .split(/\s+/)
    .map((word) => word.replace(/^['-]+|['-]+$/g, ''))
    .filter(hasLetter);
  if (words.length === 0 || isPlaceholder(words.join(''))) return null;
  const name = words.join(' ');
  if (!hasOneCase(name)) return name;
  return words.map(caseNameWord).join(' ');
}

/**
 * Returns a person's middle name, or null. Some people enter a credential or a generation there,
 * such as `MD` or `Jr`, which is no name.
 */
export function middleName(text: string | null): string | null {
  if (text === null) return null;
  // The `x` stands for the first name, because the last word of a name is never removed.
  return personName(stripTitles(`x ${text}`).name.slice(1));
}

/** The letters that NPPES loses most often, without the marks that they had. */
const LOST_LETTERS = [...'aceinou'];

/**
 * The most lost letters in a name that are restored. Each one multiplies the number of results by
 * seven.
 */
const MAX_LOST = 2;

/**
 * Returns the spellings that a name may have had before NPPES lost letters with marks. `MU?OZ`
 * gives `MUNOZ` and six others. A letter of two bytes is lost as `??`.
 * @returns an empty list if no letter is lost
 */
export function restoreLetters(name: string): string[] {
  const [start = '', ...pieces] = name.split(/(?<=\p{L})[?\uFFFD]+|[?\uFFFD]+(?=\p{L})/u);
  if (pieces.length === 0 || pieces.length > MAX_LOST) return [];
  const lost = isShouted(name)
    ? LOST_LETTERS.map((one) => one.toUpperCase())
    : LOST_LETTERS;
  let ways = [start];
  for (const piece of pieces) {
    ways = ways.flatMap((way) => lost.map((letter) => way + letter + piece));
  }
  return ways;
}

/**
 * Returns true if all letters of a text are capitals, or none of them is. The case of such a text
 * carries no information, so we choose the case ourselves.
 */
export function hasOneCase(text: string): boolean {
  return isShouted(text) || !/\p{Lu}/u.test(text);
}

/** Returns true if a text has no lowercase letters. */
export function isShouted(text: string): boolean {
  return !/\p{Ll}/u.test(text);
}

/**
 * Matches the start of a name such as `O'Brien`: one or two letters, an apostrophe, and the next
 * letter.
 */
const AFTER_APOSTROPHE = /(?<![\p{L}\p{M}'])(\p{L}{1,2}')(\p{L})(?=\p{L})/gu;

/**
 * Capitalizes each part of a word: `Mary`, `Jean-Luc`, `O'Brien`. After three or more letters, the
 * letter behind an apostrophe stays lowercase: `Women's`.
 */
export function capitalize(word: string): string {
  return word
    .toLowerCase()
    .replace(/(?<![\p{L}\p{M}'])\p{L}/gu, (letter) => letter.toUpperCase())
    .replace(AFTER_APOSTROPHE, (_all, start: string, letter: string) => {
      return start + letter.toUpperCase();
    });
}

/** Returns true if a text is one of the words that NPPES has in place of a missing name. */
export function isPlaceholder(text: string): boolean {
  return PLACEHOLDERS.has(letters(text));
}

function caseNameWord(word: string, index: number): string {
  if (/^(?:I{2,3}|IV)$/i.test(word)) return word.toUpperCase();
  if (index > 0 && PARTICLES.has(word.toLowerCase())) {
    return word.toLowerCase();
  }
  return word.split('-').map(caseNamePart).join('-');
}

function caseNamePart(part: string): string {
  const lower = part.toLowerCase();
  if (/^mc\p{L}{2}/u.test(lower)) {
    return `Mc${capitalize(lower.slice(2))}`;
  }
  return capitalize(lower);
}

function hasLetter(text: string): boolean {
  return /\p{L}/u.test(text);
}

function letters(text: string): string {
  return text.toLowerCase().replace(/[^\p{L}]/gu, '');
}
