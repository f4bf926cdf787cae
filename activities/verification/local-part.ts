import { generationOf } from '../person/names.ts';
import type { Subject } from '../vendors/vendor.ts';
import { isOpenToAnyone } from './email-type.ts';
import { GIVEN_NAMES, OwnNames } from './own-names.ts';
import {
  isName,
  type Kind,
  type Piece,
  practiceWords,
  readPieces,
  type Vocabulary,
} from './pieces.ts';
import type { Address } from './syntax.ts';

// Decides whose address a local part is. The problem: an address of somebody else must not be
// returned, and most clinicians use a nickname, an initial, or a cut name. Many have names that no
// list has. Comparing with a generated list of formats misses short forms and cut names, and lists
// of names miss most of the world. So a local part is split into pieces (pieces.ts), each piece is
// compared with the person's own names by its shape (own-names.ts), and rules in order judge the
// kinds of the pieces. The rules for the forms that people use come before those for other people.
//
// We measured this with the names of 3,885 clinicians from Medicare. It refuses 0.02 % of their
// addresses in twelve usual formats, and 0.1 % of their cut names. It accepts 0.1 % of the
// `first.last` addresses of other clinicians at the same employer, and none of their `flast`. It
// cannot distinguish a relative with the same initial (`jsmith`). The test of clinicians holds these
// figures for 1,000 of the names.

/**
 * The owner of an address, judged by its local part, the part before the @:
 * - `person`: the person that we look for
 * - `other_person`: somebody else
 * - `shared`: several people read the mailbox, and it stays when one of them leaves
 * - `unclear`: the local part does not show whose address it is
 */
export type Owner = 'person' | 'other_person' | 'shared' | 'unclear';

/** The person that an address should belong to, their employer, and the people around them. */
export type Whose = Pick<Subject, 'person' | 'organization' | 'strangers' | 'patterns'>;
export const NOBODY_KNOWN: Whose = {
  person: null,
  organization: null,
  strangers: [],
  patterns: [],
};

/**
 * Returns the owner of an address by its local part. Compares it with the person's names, with role
 * words, and with the names of the practice and its domain, with and without separators.
 * @param whose if the person is null, the result is never `person` or `other_person`
 */
export function ownerOf(address: Pick<Address, 'local' | 'domain'>, whose: Whose): Owner {
  const own = new OwnNames(whose.person);
  const strangers = new Set(
    whose.strangers.filter((name) => !own.surnames.has(name) && !own.isShortForm(name)),
  );
  // Many practices are named after the person, so the person's own names are matched first.
  const plain = readOwner(new Reading(address, { own, strangers, practice: new Set() }));
  if (plain === 'person' || plain === 'shared') return plain;
  const practice = practiceWords(address.domain, whose, own);
  const owner = readOwner(new Reading(address, { own, strangers, practice }));
  if (whose.person === null && owner === 'other_person') return 'unclear';
  return owner;
}

/** A local part, its pieces without titles, and the names to compare it with. */
class Reading {
  /** Without the text after a plus sign, which is a tag that the owner picks. */
  readonly local: string;
  readonly letters: string;
  readonly pieces: readonly Piece[];
  readonly own: OwnNames;
  /** True if the address begins with `mrs` or a similar title. */
  readonly hasCourtesy: boolean;
  /** True at free mail, internet access, and alumni domains. */
  readonly isFreeMail: boolean;

  constructor(
    { local, domain }: Pick<Address, 'local' | 'domain'>,
    vocabulary: Vocabulary,
  ) {
    this.local = local.replace(/\+.*/, '');
    this.letters = this.local.replaceAll(/[^a-z]/g, '');
    this.own = vocabulary.own;
    const pieces = readPieces(this.local, vocabulary);
    this.hasCourtesy = pieces.some(({ kind }) => kind === 'courtesy');
    this.pieces = pieces.filter(({ kind }) => kind !== 'title' && kind !== 'courtesy');
    this.isFreeMail = isOpenToAnyone(domain);
  }

  has(...kinds: readonly Kind[]): boolean {
    return this.pieces.some(({ kind }) => kinds.includes(kind));
  }

  hasOnly(...kinds: readonly Kind[]): boolean {
    return this.pieces.every(({ kind }) => kinds.includes(kind));
  }

  /** Returns the first piece of these kinds. */
  find(...kinds: readonly Kind[]): Piece | undefined {
    return this.pieces.find(({ kind }) => kinds.includes(kind));
  }

  /** Returns true if the first piece is of one of these kinds. */
  startsWith(...kinds: readonly Kind[]): boolean {
    const [first] = this.pieces;
    return first !== undefined && kinds.includes(first.kind);
  }

  /** Returns true if a piece is followed by a piece of one of these kinds. */
  follows(before: Kind, ...kinds: readonly Kind[]): boolean {
    return this.pieces.some(
      ({ kind }, index) =>
        kinds.includes(kind) && this.pieces[index - 1]?.kind === before,
    );
  }

  /** Returns true if all pieces before the first surname are of these kinds. */
  hasBeforeSurname(...kinds: readonly Kind[]): boolean {
    const end = this.pieces.findIndex(({ kind }) => kind === 'surname');
    return this.pieces.slice(0, end).every(({ kind }) => kinds.includes(kind));
  }
}

interface Rule {
  readonly owner: Owner;
  /** Where the rule holds; everywhere by default. Anyone can have a mailbox at free mail. */
  readonly at?: 'work' | 'free mail';
  /** Returns true if the rule decides. */
  readonly decides: (reading: Reading) => boolean;
}

const LETTERS: readonly Kind[] = ['initial', 'surnameInitial', 'letter'];
const GIVEN: readonly Kind[] = ['given', 'shortForm'];
const OTHER_NAMES: readonly Kind[] = ['otherGiven', 'otherSurname', 'word'];
const UNRELATED: readonly Kind[] = [...LETTERS, ...OTHER_NAMES, 'letters'];
const UNRELATED_NAME: readonly Kind[] = ['letter', ...OTHER_NAMES, 'letters'];

/**
 * The rules, in order. The first rule that decides is used, and the default is `unclear`. People
 * pick handles at free mail, and English words are surnames too. So only a complete name of
 * somebody else counts there, but at work a surname is enough.
 */
const RULES: readonly Rule[] = [
  // Nothing is left without titles and similar words: `doctor`, `mail`.
  { owner: 'shared', decides: ({ pieces }) => pieces.length === 0 },
  // `jcare`: the letter is not the person's initial, and Care may be somebody's surname.
  {
    owner: 'other_person',
    decides: (reading) =>
      reading.pieces.length === 2 && reading.startsWith('letter') && reading.has('role'),
  },
  // `eyedocvera`, `bookworm42`: a handle that begins with a word for a role.
  { at: 'free mail', owner: 'unclear', decides: isHandle },
  // `smithoffice`, `frontdesk`, `karen.billing`: a role word, even with a name.
  { owner: 'shared', decides: (reading) => reading.has('role') },
  // `robert.kessler.jr`: the son of Robert Kessler.
  { owner: 'other_person', decides: hasOtherGeneration },
  // `mrs.delgado`: people rarely call themselves so in an address, and their spouses have the name.
  {
    owner: 'other_person',
    decides: (reading) => reading.hasCourtesy && reading.hasOnly('surname'),
  },
  // `agarcia`: Garcia works at the same place, and the person has another surname.
  {
    owner: 'other_person',
    decides: (reading) => reading.has('stranger') && !reading.has('surname'),
  },
  // `john.q.smith`, `smith_john1970`, `emekaokafor`: a given name and the surname.
  {
    owner: 'person',
    decides: (reading) => reading.has(...GIVEN) && reading.has('surname'),
  },
  // `jsmith`, `jqsmith`, and `jsmithjones` after a marriage that NPPES does not know.
  {
    owner: 'person',
    decides: (reading) =>
      reading.startsWith('initial') &&
      reading.has('surname') &&
      reading.hasBeforeSurname(...LETTERS, 'otherSurname'),
  },
  // `smithj`, `smith.jq`: the surname and an initial.
  {
    owner: 'person',
    decides: (reading) =>
      reading.startsWith('surname') && reading.follows('surname', 'initial'),
  },
  // `whitlj`, `mcallisk`, `john.hartl`: a cut surname with an initial or a given name.
  { owner: 'person', decides: ({ own, letters }) => own.isCutName(letters) },
  {
    owner: 'person',
    decides: (reading) =>
      reading.has('cutSurname') &&
      reading.has(...GIVEN) &&
      reading.hasOnly('cutSurname', ...GIVEN, ...LETTERS),
  },
  // `drsmith`, `smithjones`: only the surname.
  { owner: 'person', decides: (reading) => reading.hasOnly('surname') },
  // `maryjo`, `johns`, `jquincy`, `ntanh` of Nguyen Thi Anh: only given names and initials.
  {
    owner: 'person',
    decides: (reading) =>
      reading.has(...GIVEN) && reading.hasOnly(...GIVEN, 'initial', 'surnameInitial'),
  },
  // `davida` of David Abbott, although Davida is a name too.
  { owner: 'person', decides: ({ own, local }) => own.isGivenWithInitial(local) },
  // `jks1234`, `ejw`: the person's initials.
  { owner: 'person', decides: isInitials },
  // `abc9`, `mtz12`: letters that are probably not a name, with a number.
  { at: 'work', owner: 'unclear', decides: isNumbered },
  // `david.wang` of Dawei Wang, `shireen.bitar` of Shirin Bitar: perhaps the person's.
  { owner: 'unclear', decides: mayBeAlias },
  // `karen.smith`, `smith.karen`: another given name with the surname, perhaps a spouse.
  {
    owner: 'other_person',
    decides: (reading) =>
      reading.has('surname', 'cutSurname') && reading.has('otherGiven'),
  },
  // `chidi.okwuosa`, `maria.gonzalez`: a full name, and nothing of the person's.
  { owner: 'other_person', decides: isOtherPair },
  // `ksmith`, `smithk`: another initial with the surname.
  {
    owner: 'other_person',
    decides: (reading) =>
      reading.has('surname') && reading.hasOnly('surname', ...LETTERS),
  },
  // `zorblat.smith`, `bakersmith`, `ksmithtx`: another name or initial with the surname.
  {
    at: 'work',
    owner: 'other_person',
    decides: (reading) =>
      reading.has('surname') &&
      (reading.has('word') ||
        reading.startsWith('otherSurname', 'surnameInitial', 'letter')),
  },
  // `hendersm`, `tmontgom`: another initial with the cut surname.
  {
    at: 'work',
    owner: 'other_person',
    decides: (reading) =>
      reading.pieces.length === 2 && reading.has('cutSurname') && reading.has('letter'),
  },
  // `maria.gonzalez`, `mgonzalez`, `maria`, `john.gonzalez`, `chidi.okwuosa`: another name.
  { at: 'work', owner: 'other_person', decides: isOtherName },
  // `pm`: two initials, none of them the person's.
  {
    at: 'work',
    owner: 'other_person',
    decides: ({ pieces, local }) =>
      pieces.length === 2 &&
      !/[0-9]/.test(local) &&
      pieces.every(({ kind }) => kind === 'letter'),
  },
  // `zorblat.smith`, `smith_tou81`: another name with the surname.
  { at: 'free mail', owner: 'other_person', decides: isOtherWithSurname },
  // `thomas.greer` of Thomas Whitlow: the given name with another surname.
  { at: 'free mail', owner: 'other_person', decides: isGivenWithOtherSurname },
  // `mgonzalez`, `gonzalezm`: another initial with another surname.
  { at: 'free mail', owner: 'other_person', decides: isOtherInitialWithName },
  // `mariagonzalez`, `gonzalez_maria`, `john.karen.gonzalez`: another full name.
  { at: 'free mail', owner: 'other_person', decides: isOtherFullName },
];

function readOwner(reading: Reading): Owner {
  if (reading.letters === '') return 'unclear';
  const place = reading.isFreeMail ? 'free mail' : 'work';
  const rule = RULES.find(
    ({ at, decides }) => (at === undefined || at === place) && decides(reading),
  );
  return rule === undefined ? 'unclear' : rule.owner;
}

/** `kesslerjr` may be John R. Kessler, but letters after a given name and a dot aren't initials. */
function hasOtherGeneration(reading: Reading): boolean {
  const suffix = reading.find('generation')?.text ?? suffixOf(reading);
  if (suffix === null) return false;
  return generationOf(suffix) !== reading.own.generation;
}

function suffixOf(reading: Reading): string | null {
  if (!reading.has(...GIVEN)) return null;
  const match = /[._-](jr|sr|i{2,3}|iv)$/.exec(reading.local);
  return match?.[1] ?? null;
}

/** `kapoorclinic` and `oakknolldental` are practices, so the role must come first. */
function isHandle({ pieces, letters }: Reading): boolean {
  const [role, ...rest] = pieces;
  if (role?.kind !== 'role' || !letters.startsWith(role.text)) return false;
  if (letters.startsWith(`${role.text}doc`)) return true;
  const isWord = rest.every(({ kind }) => kind === 'letters' || kind === 'otherSurname');
  return rest.length === 1 && isWord;
}

function isInitials({ local, own }: Reading): boolean {
  const [, letters = '', digits = ''] = /^([a-z]+)([0-9]*)$/.exec(local) ?? [];
  if (digits === '' && letters.length < 3) return false;
  return own.areInitials(letters) && (digits !== '' || own.recorded.middle !== '');
}

function isNumbered({ local, pieces }: Reading): boolean {
  const hasNumber = /^[a-z]{1,4}[0-9]+$/.test(local);
  return hasNumber && pieces.every(({ kind, text }) => !isName(kind) || text.length < 4);
}

/**
 * Returns true for the surname with a given name that has the person's initial, if it may be
 * another spelling of theirs, or a usual name that somebody with an unusual one goes by.
 */
function mayBeAlias(reading: Reading): boolean {
  const { own } = reading;
  const name = reading.find('otherGiven', 'word');
  if (!reading.has('surname') || name === undefined) return false;
  const alike = own.given.filter((one) => one.charAt(0) === name.text.charAt(0));
  if (alike.some((one) => isRespelled(name.text, one))) return true;
  return name.kind === 'otherGiven' && alike.some((one) => !GIVEN_NAMES.has(one));
}

/**
 * Returns true for names with the same consonants and the same end, such as Shireen and Shirin, or
 * Kweku and Kwaku. Alejandra and Alejandro end differently, so they are two names.
 */
function isRespelled(text: string, name: string): boolean {
  const consonants = consonantsOf(text);
  if (consonants.length < 3 || consonants !== consonantsOf(name)) return false;
  return text.at(-1) === name.at(-1);
}

function consonantsOf(name: string): string {
  return name.replaceAll(/[aeiouy]/g, '').replaceAll(/(.)\1+/g, '$1');
}

/** `bluesky` is two surnames without a separator, which may also be two words. */
function isOtherName(reading: Reading): boolean {
  const others = reading.pieces.filter(({ kind }) => OTHER_NAMES.includes(kind));
  if (others.length === 0 || !reading.hasOnly(...GIVEN, ...LETTERS, ...OTHER_NAMES)) {
    return false;
  }
  if (reading.pieces.length === 1) return !reading.has('word');
  const surnames = others.filter(({ kind }) => kind === 'otherSurname');
  const tokens = new Set(others.map(({ token }) => token));
  return surnames.length < 2 || tokens.size > 1;
}

/**
 * Returns true for two words with a dot between them, as mail systems write names. Neither word
 * contains a name of the person, and both are longer than an initial.
 */
function isOtherPair({ local, pieces }: Reading): boolean {
  if (!/^[a-z]{2,}\.[a-z]{2,}$/.test(local)) return false;
  const isOther = pieces.every(({ kind }) => UNRELATED.includes(kind));
  return isOther && new Set(pieces.map(({ token }) => token)).size === 2;
}

/** Returns true for the surname and unrelated words, with separators between them. */
function isOtherWithSurname({ local, pieces }: Reading): boolean {
  if (!/^[a-z]{2,}(?:[._-][a-z]{2,})+[0-9]*$/.test(local)) return false;
  const surname = pieces.find(({ kind }) => kind === 'surname');
  const others = pieces.filter((piece) => piece !== surname);
  const length = others.reduce((sum, { text }) => sum + text.length, 0);
  return (
    surname !== undefined &&
    length > 2 &&
    others.every(
      ({ kind, token }) => token !== surname.token && UNRELATED_NAME.includes(kind),
    )
  );
}

/**
 * Returns true for a given name of the person and another surname with a separator between them. An
 * unlisted word counts as a surname only behind a dot, as mail systems write names.
 */
function isGivenWithOtherSurname(reading: Reading): boolean {
  const { local, pieces } = reading;
  if (!/^[a-z]{2,}[._-][a-z]{3,}[0-9]*$/.test(local)) return false;
  if (pieces.length !== 2 || !reading.startsWith(...GIVEN)) return false;
  if (pieces[0]?.token === pieces[1]?.token) return false;
  if (reading.has('otherSurname')) return true;
  return /^[a-z]+\.[a-z]+$/.test(local) && reading.has('word', 'letters');
}

function isOtherInitialWithName(reading: Reading): boolean {
  if (!isPair(reading) || !reading.has('letter')) return false;
  // `sundaramoorthy.k`: the separator shows that the word is a name.
  if (/^(?:[a-z]{4,}\.[a-z]|[a-z]\.[a-z]{4,})$/.test(reading.local)) return true;
  return reading.pieces.some(({ kind, text }) => isName(kind) && text.length > 3);
}

/** Without a separator, only a given name and a surname count: `marathoner` has more pieces. */
function isOtherFullName(reading: Reading): boolean {
  if (!reading.has('otherGiven')) return false;
  const { local, pieces } = reading;
  if (/^[a-z]+[0-9]*$/.test(local)) {
    return isPair(reading) && pieces.every(({ kind }) => isName(kind));
  }
  const others = pieces.filter(({ kind }) => OTHER_NAMES.includes(kind));
  return others.length > 1 && reading.hasOnly(...GIVEN, ...LETTERS, ...OTHER_NAMES);
}

/** Returns true for two pieces, and no title such as the `doc` of `surferdoc88`. */
function isPair({ pieces, letters }: Reading): boolean {
  return pieces.length === 2 && pieces.map(({ text }) => text).join('') === letters;
}
