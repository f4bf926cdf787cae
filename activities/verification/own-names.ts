import { isParticle, nameWords, spellings } from '../person/names.ts';
import { commonSpelling, formsOf, sameGivenName } from '../person/nicknames.ts';
import type { Person } from '../vendors/vendor.ts';
import { readList } from './domains.ts';

export const GIVEN_NAMES = readList('given-names');
export const SURNAMES = readList('surnames');

/** The fewest letters that a part of a given name must have, such as `emeka` of Chukwuemeka. */
const MIN_PART = 4;

/** The fewest letters that the beginning of a given name must have, such as `raj` of Rajesh. */
const MIN_BEGINNING = 3;

/**
 * The fewest letters of an unlisted short form that lacks one letter, such as `venkat` of Venkata.
 */
const MIN_UNLISTED = 6;

/** The fewest letters of each name in a blend of two given names, such as `malou`. */
const MIN_BLEND = 2;

/** The fewest letters of a cut surname that identifies a person together with an initial. */
const MIN_CUT = 5;

/**
 * Matches an ending that turns a name into a name for another gender: Juan and Juana, Carl and
 * Carla, Daniel and Danielle, Joseph and Josephine. Anne is a spelling of Ann.
 */
const GENDER_ENDING =
  /^(?:[ao]|(?<!nn)e|i[ae]|n?in[ae]|phine|fina|t?t?[ei]t[aeo]|n?ett[ae]|l+[ae]|el+[ae]|n[ae])$/;

/** The names of a person in all forms in which an address may contain them. All are folded. */
export class OwnNames {
  readonly surnames: ReadonlySet<string>;
  private readonly spelledSurnames: ReadonlySet<string>;
  /**
   * The words of the first and middle names, separately and joined. Families call a Junior Jun or
   * Junior.
   */
  readonly given: readonly string[];
  /** The given names as `transliterate` writes them, in the same order. */
  private readonly sounds: readonly string[];
  /** The length of the longest given name with an ending of affection. */
  private readonly longest: number;
  /**
   * The initials of the given names and of their short forms, such as `b` of Bill for William and
   * `f` of Femi for Oluwafemi.
   */
  readonly initials: ReadonlySet<string>;
  readonly surnameInitials: ReadonlySet<string>;
  /** The initials of the first name, of the middle name, and of the surname, as NPPES has them. */
  readonly recorded: Readonly<Record<'first' | 'middle' | 'last', string>>;
  readonly generation: number | null;
  /** True if the record has more than one given name, or only an initial of a second one. */
  readonly hasMiddleName: boolean;
  /** True if the record has a middle name that is longer than an initial. */
  readonly hasFullMiddleName: boolean;

  constructor(person: Person | null) {
    const names = person === null ? [] : [person, ...person.otherNames];
    const profiled = person === null ? [] : person.profileSurnames;
    const surnames = [...names.map(({ last }) => last), ...profiled];
    const families = surnames.flatMap((one) => spellings(one).map(nameWords));
    const middle = nameWords(person === null ? null : person.middle);
    const words = [...names.map(({ first }) => nameWords(first)), middle];
    // Some people write `ue` for the `ü` of their names.
    const spelled = names.flatMap(({ first }) => spellings(first).map(nameWords));
    const called = person !== null && person.generation === 2 ? ['jun', 'junior'] : [];
    if (person !== null) called.push(...person.profileNames);
    const [firstWords = []] = words;
    const joined = [...words, ...spelled, [...firstWords, ...middle]].map((some) =>
      some.join(''),
    );
    const given = [...words.flat(), ...spelled.flat(), ...joined, ...called]
      .filter((name) => name !== '')
      .flatMap((name) => [name, withoutUmlauts(name)]);
    this.given = [...new Set(given)].filter((name) => name.length > 1);
    this.sounds = this.given.map(transliterate);
    this.longest = Math.max(0, ...this.given.map(({ length }) => length)) + 2;
    const nicknames = this.given.flatMap((name) => [
      ...formsOf(name),
      ...namesAtEnd(name),
    ]);
    this.surnames = new Set(families.flatMap(surnameForms));
    this.spelledSurnames = new Set([...this.surnames].map(commonSpelling));
    this.initials = new Set([...given, ...nicknames].map((name) => name.charAt(0)));
    this.surnameInitials = new Set(families.flat().map((word) => word.charAt(0)));
    this.recorded = {
      first: initialsOf(words.slice(0, -1).flat()),
      middle: initialsOf(middle),
      last: initialsOf(families.flat()),
    };
    this.generation = person === null ? null : person.generation;
    this.hasMiddleName = middle.length > 0 || firstWords.length > 1;
    this.hasFullMiddleName = middle.some(({ length }) => length > 1);
  }

  /** Returns true for a surname, a part of it that people use, or another spelling of it. */
  isSurname(text: string): boolean {
    if (this.surnames.has(text)) return true;
    // `md` is a spelling of Mohammed, but a degree in most addresses.
    return text.length > 2 && this.spelledSurnames.has(commonSpelling(text));
  }

  /** Returns true for a given name, a nickname, or another spelling of it. */
  isGiven(text: string): boolean {
    if (this.given.some((name) => sameGivenName(text, name))) return true;
    if (text.length < MIN_PART || text.length > this.longest) {
      return false;
    }
    const name = this.given[this.sounds.indexOf(transliterate(text))];
    if (name === undefined) return false;
    // If both are in the list, such as Elisha and Elisa, they are different names that sound alike.
    return !GIVEN_NAMES.has(text) || !GIVEN_NAMES.has(name);
  }

  /**
   * Returns true for a part of a given name that people use as a short form: `karthik` of
   * Karthikeyan, `seun` of Oluwaseun, `tobi` of Oluwatobiloba, `slava` of Vyacheslav.
   */
  isShortForm(text: string): boolean {
    if (text.length > this.longest) return false;
    if (this.isBlend(text)) return true;
    const sound = transliterate(text);
    if (this.sounds.some((name) => isPartOf(sound, name))) return true;
    return this.given.some((name) => isPartOf(text, name) || isDiminutive(text, name));
  }

  /**
   * Returns true for the name of a domain that only the person would register, such as `lenavance` or
   * `drlenavancemd`. Short surnames are not searched, because `edwardhospital` is not Ed Ward.
   */
  areBothNames(label: string): boolean {
    const bare = label.replace(/^dr/, '').replace(/(?:md|do|dds|dmd|np|phd)$/, '');
    return [...this.surnames].some(
      (surname) =>
        surname.length >= MIN_PART &&
        this.given.some((given) => [label, bare].includes(given + surname)),
    );
  }

  /** Returns true for the beginnings of two given names, such as `malou` of Maria Lourdes. */
  private isBlend(text: string): boolean {
    return this.given.some((one) => {
      for (let length = MIN_BLEND; length <= text.length - MIN_BLEND; length += 1) {
        if (!one.startsWith(text.slice(0, length))) return false;
        const rest = text.slice(length);
        if (this.given.some((name) => name !== one && name.startsWith(rest))) {
          return true;
        }
      }
      return false;
    });
  }

  /** Returns true for a given name that begins with one of the person's, as Maryann with Mary. */
  isLongerForm(text: string): boolean {
    return GIVEN_NAMES.has(text) && this.given.some((name) => isLongerForm(text, name));
  }

  /**
   * Returns true for a beginning of a surname. Some mail systems cut names, such as `hartl` for
   * Hartley.
   */
  isCutSurname(text: string): boolean {
    if (text.length < MIN_PART || GIVEN_NAMES.has(text)) return false;
    return [...this.surnames].some((name) => name.startsWith(text));
  }

  /**
   * Returns true for a cut surname and initials: `whitlj` for Jared Whitlow, `mcallisk` and
   * `kmcallis` for Karen McAllister. Such names are rarely somebody else's by chance.
   */
  isCutName(letters: string): boolean {
    return [...this.surnames].some((name) => {
      for (let length = MIN_CUT; length < name.length; length += 1) {
        const cut = name.slice(0, length);
        const rest = letters.replace(cut, '');
        const isOuter = letters.startsWith(cut) || letters.endsWith(cut);
        if (isOuter && this.isOneOrTwoInitials(rest)) return true;
      }
      return false;
    });
  }

  private isOneOrTwoInitials(text: string): boolean {
    const isShort = text.length === 1 || text.length === 2;
    return isShort && [...text].every((letter) => this.initials.has(letter));
  }

  /**
   * Returns true for a given name and the beginning of the surname, such as `davida` and `davidab` of
   * David Abbott.
   */
  isGivenWithInitial(letters: string): boolean {
    return this.given.some((given) => {
      const rest = letters.slice(given.length);
      if (rest === '' || !letters.startsWith(given)) return false;
      return [...this.surnames].some((surname) => surname.startsWith(rest));
    });
  }

  /**
   * Returns true for given names with initials in any order, such as `johnq`, `jquincy`, and
   * `maryjo`. Letters behind a given name must be initials of other names: Sravan is not Sravani,
   * and `shreyas` is not Shreya.
   */
  isGivenWithInitials(text: string): boolean {
    return this.given.some((name) => {
      if (!text.includes(name)) return false;
      const rest = text.replace(name, '');
      if (this.given.includes(rest)) return true;
      if (rest.length > 2) return false;
      const isEnding = text.startsWith(name) && /^[aeio]$/.test(rest);
      if (isEnding) return this.recorded.middle.includes(rest);
      const isOwnInitial = text.startsWith(name) && rest === name.charAt(0);
      if (isOwnInitial)
        return `${this.recorded.middle}${this.recorded.last}`.includes(rest);
      return [...rest].every((letter) => this.isAnyInitial(letter));
    });
  }

  private isAnyInitial(letter: string): boolean {
    return this.initials.has(letter) || this.surnameInitials.has(letter);
  }

  /**
   * Returns true if letters are the person's initials in their order: `jks` for John K. Smith. An
   * unknown middle name may have any initial.
   */
  areInitials(text: string): boolean {
    const { first, middle, last } = this.recorded;
    const [start = '', ...rest] = text;
    const end = rest.pop();
    if (end === undefined || rest.length > 1) return false;
    if (!first.includes(start) || !last.includes(end)) return false;
    return middle === '' || rest.every((letter) => middle.includes(letter));
  }
}

function initialsOf(words: readonly string[]): string {
  return words.map((word) => word.charAt(0)).join('');
}

function isPartOf(text: string, name: string): boolean {
  const start = name.indexOf(text);
  if (start === 0) {
    if (text.length < MIN_BEGINNING) return false;
    const ending = name.slice(text.length);
    // Deepa and Deepak are different names, and so are Thu and Thuy. Venkat is short for Venkata.
    if (ending === 'a') {
      return text.length >= MIN_UNLISTED && !GIVEN_NAMES.has(text);
    }
    if (ending.length < 2) return false;
    return !GIVEN_NAMES.has(text) || !GENDER_ENDING.test(ending);
  }
  // Hanna and Anna are different names, but Bimbola is short for Abimbola.
  if (start === 1) {
    return text.length >= MIN_UNLISTED && !GIVEN_NAMES.has(text);
  }
  if (start === -1) return false;
  if (text.length >= MIN_PART) return true;
  // `min` of Sungmin is a syllable, but Brian is not called Ian.
  return text.length === 3 && name.endsWith(text) && !GIVEN_NAMES.has(name);
}

/**
 * Writes a name from another script in one way, so that Deepak equals Dipak, and Karthik Kartik.
 * Covers the letters of names from India and of Arabic names.
 */
function transliterate(name: string): string {
  return name
    .replaceAll('ee', 'i')
    .replaceAll(/oo|ou/g, 'u')
    .replaceAll('x', 'ks')
    .replaceAll('w', 'v')
    .replaceAll(/([stdkgb])h/g, '$1')
    .replaceAll(/(.)\1/g, '$1');
}

/** Returns the listed given names at the end of an unlisted one, such as Femi of Oluwafemi. */
function namesAtEnd(name: string): string[] {
  if (GIVEN_NAMES.has(name)) return [];
  const ends = [...name].map((_, index) => name.slice(index));
  return ends.filter((end) => isPartOf(end, name) && GIVEN_NAMES.has(end));
}

/**
 * Returns true for a part of a name with an ending of affection: `raghu` of Raghavendra, `sunny`
 * of Sunhee, `slava` of Vyacheslav. A listed name, such as Carla, is a different name.
 */
function isDiminutive(text: string, name: string): boolean {
  if (GIVEN_NAMES.has(text)) return false;
  const beginning = text.replace(/(?:u|(.)\1y|y|ya|sha)$/, '$1');
  if (beginning !== text && isPartOf(beginning, name)) {
    return name.startsWith(beginning);
  }
  const end = text.slice(0, -1);
  return text.endsWith('a') && end.length >= MIN_PART && name.indexOf(end) > 1;
}

function isLongerForm(text: string, name: string): boolean {
  if (name.length < MIN_BEGINNING || !text.startsWith(name)) {
    return false;
  }
  return !GENDER_ENDING.test(text.slice(name.length));
}

/**
 * Returns every run of words that people use of a surname: `delacruz`, `delacruzsantos`, `lacruz`,
 * `cruz`, and `santos` for De la Cruz Santos. A run does not end with a particle.
 */
function surnameForms(words: readonly string[]): string[] {
  const forms: string[] = [];
  for (let start = 0; start < words.length; start += 1) {
    for (let end = start + 1; end <= words.length; end += 1) {
      const run = words.slice(start, end);
      const isPart = run.join('').length > 2 && !isParticle(run.at(-1) ?? '');
      if (isPart || end === words.length) forms.push(run.join(''));
    }
  }
  return forms.flatMap((form) => [
    form,
    form.replace(/^saint(?=.)/, 'st'),
    withoutUmlauts(form),
  ]);
}

/** Returns a name with plain vowels, such as `muller` for Mueller. */
function withoutUmlauts(name: string): string {
  return name.replace(/([aou])e/g, '$1');
}
