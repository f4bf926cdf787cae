import { generationOf, isCredential, nameWords } from '../person/names.ts';
import type { Subject } from '../vendors/vendor.ts';
import { readList, registrableDomain } from './domains.ts';
import { GIVEN_NAMES, type OwnNames, SURNAMES } from './own-names.ts';

// This file reads a local part: it splits it into pieces and names the kind of each. The rules in
// local-part.ts then decide whose address it is.
//
// `jsmith` has no separator, so every way to split it is possible: j+smith, js+mith, and so on.
// Each kind of piece has a cost, and the split with the lowest total cost is used. The costs prefer
// few pieces. They prefer the person's own names over words, and words over other people's names.

const COST = {
  /** One of the person's surnames, or a part that people use, such as `cruz` of De la Cruz. */
  surname: 6,
  /** One of the person's given names, or a nickname of it. */
  given: 6,
  /** The initial of one of the person's given names. */
  initial: 6,
  /** A surname of another provider at the same place. */
  stranger: 7,
  /** The initial of the person's surname. */
  surnameInitial: 8,
  /** `jr`, `iii`, and so on. */
  generation: 11,
  /** `mr`, `mrs`, and other titles that people rarely give themselves in an address. */
  courtesy: 11,
  /** A title or degree, or a word such as `mail`. */
  title: 11,
  /** A word for a role, for the practice, or for a trade. */
  role: 12,
  /** Any other single letter. */
  letter: 12,
  /** A part of one of the person's given names, such as `seun` of Oluwaseun. */
  shortForm: 13,
  /** A longer form of one of the person's given names, such as `maryann` of Mary. */
  longerForm: 13,
  /** A beginning of one of the person's surnames. */
  cutSurname: 13,
  /** Two letters that are a given name or the person's initials, such as `jo` of Jane. */
  initialsOrName: 13,
  /** A given name that is not the person's. */
  otherGiven: 14,
  /** A surname that is not the person's. */
  otherSurname: 15,
  /** An unknown word between two separators. */
  word: 19,
  /** Any other letters. */
  letters: 19,
};
export type Kind = keyof typeof COST;

/**
 * The extra cost per letter of unknown letters. Because of it, a known word inside unknown letters
 * becomes a separate piece.
 */
const UNKNOWN_LETTER = 3;

export interface Piece {
  readonly kind: Kind;
  readonly text: string;
  /** The index of the token that contains it. A token is the text between two separators. */
  readonly token: number;
}

/** The names and words that pieces are compared with. */
export interface Vocabulary {
  readonly own: OwnNames;
  /** Words that may stand for the practice. */
  readonly practice: ReadonlySet<string>;
  readonly strangers: ReadonlySet<string>;
}

const ROLES = readList('roles', 'roles-more', 'trades');
const TITLES = readList('titles');
const COURTESIES: ReadonlySet<string> = new Set(['mr', 'mrs', 'miss', 'sr', 'sra']);

/**
 * Returns the words that may stand for the practice: the words of its name, its domain, and its
 * town, separately and joined; the initials of its name; and names for the person's family, such as
 * `thesmiths`.
 */
export function practiceWords(
  domain: string,
  { person, organization }: Pick<Subject, 'person' | 'organization'>,
  { surnames }: OwnNames,
): ReadonlySet<string> {
  const [label = ''] = (registrableDomain(domain) ?? domain).split('.');
  const name = nameWords(organization === null ? null : organization.name);
  const city = person === null ? null : person.practice.city;
  const called = [name, nameWords(label), nameWords(city)];
  const joined = called.map((some) => some.join(''));
  const families = [...surnames].flatMap((one) => [`the${one}`, `the${one}s`, `${one}s`]);
  const all = [...called.flat(), ...joined, ...families];
  const words = new Set(all.filter(({ length }) => length > 3));
  const acronym = name.map((word) => word.charAt(0)).join('');
  if (acronym.length > 2) words.add(acronym);
  return words;
}

interface Split {
  readonly cost: number;
  readonly pieces: readonly Piece[];
}

/**
 * Splits a local part into pieces with the lowest cost, by dynamic programming over its letters.
 * Digits and other characters only separate tokens.
 */
export function readPieces(local: string, vocabulary: Vocabulary): readonly Piece[] {
  const { own } = vocabulary;
  const tokens = local.match(/[a-z]+/g) ?? [];
  const letters = tokens.join('');
  const tokenOf = tokens.flatMap(({ length }, index) => Array(length).fill(index));
  const best: Split[] = [{ cost: 0, pieces: [] }];
  for (let end = 1; end <= letters.length; end += 1) {
    for (let start = 0; start < end; start += 1) {
      const before = best[start];
      if (before === undefined) continue;
      const text = letters.slice(start, end);
      const kind = kindOf(text, placeOf(tokenOf, start, end), vocabulary);
      if (kind === null) continue;
      const cost = before.cost + costOf(kind, text);
      const known = best[end];
      if (known !== undefined && known.cost <= cost) continue;
      const piece = { kind, text, token: tokenOf[start] };
      best[end] = { cost, pieces: [...before.pieces, piece] };
    }
  }
  const pieces = best[letters.length]?.pieces ?? [];
  if (tokens.length < 2) return pieces;
  return tokens.flatMap((text, token) =>
    mergeUnrelated(
      text,
      pieces.filter((piece) => piece.token === token),
      own,
    ),
  );
}

/** Kinds of pieces that make up another name if they fill only a part of a token. */
const PARTS: readonly Kind[] = [
  'given',
  'initial',
  'surnameInitial',
  'letter',
  'shortForm',
  'longerForm',
  'otherGiven',
  'otherSurname',
  'letters',
];

/** Returns true for a name that is not the person's. */
export function isName(kind: Kind): boolean {
  return kind === 'otherGiven' || kind === 'otherSurname';
}

/**
 * Returns one piece for a token that is another name and only begins like the person's: `alexei` of
 * Alexander is not `alex` with two initials, and `amira` is not Amir A.
 */
function mergeUnrelated(
  text: string,
  pieces: readonly Piece[],
  own: OwnNames,
): readonly Piece[] {
  const [first] = pieces;
  if (first === undefined || pieces.length < 2 || text.length < 4) {
    return pieces;
  }
  const filled = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
  const hasOnlyNames =
    filled === text.length && pieces.every(({ kind }) => PARTS.includes(kind));
  const isFullName = pieces.every(
    ({ kind, text: { length } }) => length > 3 && isName(kind),
  );
  if (isFullName) return pieces;
  if (!hasOnlyNames || own.isGivenWithInitials(text)) return pieces;
  const kind = GIVEN_NAMES.has(text) ? 'otherGiven' : 'word';
  return [{ kind, text, token: first.token }];
}

function costOf(kind: Kind, text: string): number {
  const isUnknown = kind === 'word' || kind === 'letters';
  if (!isUnknown) return COST[kind];
  return COST[kind] + UNKNOWN_LETTER * text.length;
}

/** Where a text stands among the separators. */
interface Place {
  /** It contains no separator. */
  readonly isWhole: boolean;
  /** It is the whole text between two separators. */
  readonly isToken: boolean;
  /** It touches a separator. */
  readonly isEdge: boolean;
  readonly isFirst: boolean;
}

/** @param tokenOf for each letter, the index of its token */
function placeOf(tokenOf: readonly number[], start: number, end: number): Place {
  const token = tokenOf[start];
  const isWhole = token === tokenOf[end - 1];
  const startsToken = isWhole && tokenOf[start - 1] !== token;
  const endsToken = isWhole && tokenOf[end] !== token;
  return {
    isWhole,
    isToken: startsToken && endsToken,
    isEdge: startsToken || endsToken,
    isFirst: start === 0,
  };
}

/** Returns the kind of one piece, or null if the text can't be one piece. */
function kindOf(text: string, place: Place, vocabulary: Vocabulary): Kind | null {
  const { own, strangers } = vocabulary;
  const { isWhole, isToken } = place;
  if (own.isSurname(text)) return 'surname';
  if (own.isGiven(text)) return 'given';
  if (strangers.has(text) && (isToken || text.length > 3)) {
    return 'stranger';
  }
  const title = isWhole ? titleOf(text, place, own) : null;
  if (title !== null) return title;
  if (isRole(text, place, vocabulary)) return 'role';
  if (!isWhole) return null;
  if (text.length === 1) return letterKind(text, own);
  return nameKind(text, place, own);
}

function titleOf(text: string, place: Place, own: OwnNames): Kind | null {
  const { isToken, isFirst, isEdge } = place;
  if (COURTESIES.has(text) && isFirst && (isToken || text.length > 2)) {
    return 'courtesy';
  }
  if (!isFirst && isGeneration(text, isToken, own)) return 'generation';
  if (COURTESIES.has(text)) return null;
  // `asmakhan` is Asma Khan, although `ma` is a degree.
  if (text.length < 4 && !isEdge) return null;
  if (TITLES.has(text)) return 'title';
  return !isFirst && isCredential(text, true) ? 'title' : null;
}

/** Initials of the person, such as `jr` of John R. Smith, are not a generation. */
function isGeneration(text: string, isToken: boolean, { initials }: OwnNames): boolean {
  if (text.length < 2 || generationOf(text) === null) return false;
  if (!isToken && text !== 'jr' && text !== 'sr') return false;
  return ![...text].every((letter) => initials.has(letter));
}

/**
 * Returns true for a word for a role or for the practice. Such a word may contain separators:
 * `front.desk`, `do-not-reply`. A word of three or four letters counts only next to a separator,
 * except `and`, which counts anywhere. A word of two letters, such as `hr`, counts only between
 * separators.
 */
function isRole(text: string, place: Place, { practice }: Vocabulary): boolean {
  if (!ROLES.has(text) && !practice.has(text)) return false;
  if (text.length > 4 || place.isToken) return true;
  return text.length > 2 && (place.isEdge || (place.isWhole && text === 'and'));
}

function letterKind(letter: string, { initials, surnameInitials }: OwnNames): Kind {
  if (initials.has(letter)) return 'initial';
  if (surnameInitials.has(letter)) return 'surnameInitial';
  return 'letter';
}

/** Returns the kind of two or more letters that are not exactly one of the person's names. */
function nameKind(text: string, { isToken }: Place, own: OwnNames): Kind {
  if (text.length === 2 && own.initials.has(text.charAt(0))) {
    return GIVEN_NAMES.has(text) ? 'initialsOrName' : 'letters';
  }
  const isShort = isToken || text.length > 3;
  if (isShort && own.isShortForm(text)) return 'shortForm';
  if (own.isLongerForm(text)) return 'longerForm';
  if (own.isCutSurname(text)) return 'cutSurname';
  if (GIVEN_NAMES.has(text)) return 'otherGiven';
  if (SURNAMES.has(text)) return 'otherSurname';
  return isToken && text.length > 3 ? 'word' : 'letters';
}
