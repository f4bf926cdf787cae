import test from 'ava';
import fc from 'fast-check';
import { agrees } from '../../../activities/person/identity.ts';
import type { GivenName, Identity, Person, PersonName } from '../../../activities/vendors/vendor.ts';

const NPI = '2000000010';
const OTHER_NPI = '2000000028';

interface Details {
  readonly middle?: string;
  readonly suffix?: string;
  readonly otherNames?: readonly PersonName[];
  readonly state?: string;
  readonly otherStates?: readonly string[];
}

function person(first: string, last: string, details: Details = {}): Person {
  return {
    first,
    last,
    middle: details.middle ?? null,
    suffix: details.suffix ?? null,
    credential: 'MD',
    otherNames: details.otherNames ?? [],
    practice: { line1: null, city: null, state: details.state ?? null, zip: null, phone: null },
    otherStates: details.otherStates ?? [],
  };
}

function full(text: string): GivenName {
  return { kind: 'full', full: text };
}

function parts(first: string, last: string): GivenName {
  return { kind: 'parts', first, last };
}

function named(name: GivenName, more: Partial<Identity> = {}): Identity {
  return { npi: null, name, state: null, ...more };
}

const isSame = (name: GivenName, who: Person, more: Partial<Identity> = {}) =>
  agrees(named(name, more), NPI, who).ok;

test("the source's own NPI decides first", (t) => {
  const jane = person('Jane', 'Public');
  const said = (npi: string | null, name: GivenName | null, who: Person | null) =>
    agrees({ npi, name, state: null }, NPI, who);

  t.deepEqual(said(NPI, null, jane), { ok: true, how: 'npi' });
  t.deepEqual(said(NPI, null, null), { ok: true, how: 'npi' });
  t.deepEqual(said(NPI, parts('Jane', 'Public'), null), { ok: true, how: 'npi' });
  t.deepEqual(said(NPI, parts('Jane', 'Public'), jane), { ok: true, how: 'npi_and_name' });
  t.deepEqual(said(OTHER_NPI, parts('Jane', 'Public'), jane), { ok: false, reason: 'identity_mismatch' });
  t.deepEqual(said(OTHER_NPI, null, null), { ok: false, reason: 'identity_mismatch' });
});

test('our NPI on a profile of somebody else is a wrong guess of the source', (t) => {
  const verdict = agrees(named(parts('Hugo', 'Stranger'), { npi: NPI }), NPI, person('Jane', 'Public'));
  t.deepEqual(verdict, { ok: false, reason: 'identity_mismatch' });
});

test('an answer that does not tell whom it is about is not accepted', (t) => {
  const unknown = { ok: false, reason: 'identity_unknown' } as const;
  t.deepEqual(agrees({ npi: null, name: null, state: 'CO' }, NPI, person('Jane', 'Public')), unknown);
  t.deepEqual(agrees(named(parts('Jane', 'Public')), NPI, null), unknown);
  for (const half of [parts('', 'Public'), parts('Jane', ' '), full('Public'), full(''), full('Dr. , MD')]) {
    t.deepEqual(agrees(named(half), NPI, person('Jane', 'Public')), unknown, JSON.stringify(half));
  }
  t.deepEqual(agrees({ npi: '', name: parts('', ''), state: '' }, NPI, person('Jane', 'Public')), unknown);
});

const SAME: readonly (readonly [said: GivenName, record: Person])[] = [
  // Case, marks, apostrophes, hyphens, spaces.
  [parts('JANE', 'PUBLIC'), person('Jane', 'Public')],
  [parts('José', 'Núñez'), person('Jose', 'Nunez')],
  [parts('Aoife', 'O’Brien'), person('Aoife', 'Obrien')],
  [parts('Aoife', 'O Brien'), person('Aoife', "O'Brien")],
  [parts('Ian', 'Mc Donald'), person('Ian', 'McDonald')],
  [parts('Łukasz', 'Żółć'), person('Lukasz', 'Zolc')],
  [parts('Søren', 'Weiß'), person('Soren', 'Weiss')],
  [parts('Ada', 'St. John'), person('Ada', 'Saint John')],
  [parts('Ada', 'Smith Jones'), person('Ada', 'Smith-Jones')],
  // Titles, credentials, generations.
  [parts('Dr. Jane', 'Public, MD'), person('Jane', 'Public')],
  [parts('Ian', 'Public Jr.'), person('Ian', 'Public', { suffix: 'JR' })],
  [parts('Ian', 'Public II'), person('Ian', 'Public', { suffix: 'Jr.' })],
  [parts('Ian', 'Public'), person('Ian', 'Public', { suffix: 'III' })],
  // One piece, and surname first.
  [full('Dr. Jane Q. Public, MD'), person('Jane', 'Public')],
  [full('Jane Public, M.D., F.A.C.P.'), person('Jane', 'Public')],
  [full('Jane Public PA-C'), person('Jane', 'Public')],
  [full('Public, Jane Q., MD'), person('Jane', 'Public', { middle: 'Quinn' })],
  [full('PUBLIC, JANE'), person('Jane', 'Public')],
  [full('Jane Public, Family Medicine'), person('Jane', 'Public')],
  [full('Ludwig van der Berg'), person('Ludwig', 'Van Der Berg')],
  [full('Maria Garcia Lopez'), person('Maria', 'Garcia Lopez')],
  [full('Mary Jo Public'), person('Mary Jo', 'Public')],
  [full('Jane Kim DO'), person('Jane', 'Kim')],
  [full('Jane Li DO'), person('Jane', 'Li')],
  [full('Kim Do'), person('Kim', 'Do')],
  [full('Yo-Yo Ma'), person('Yo Yo', 'Ma')],
  // Given names: nickname, other spelling, initial, compound, middle name.
  [parts('Bob', 'Public'), person('Robert', 'Public')],
  [parts('Robert', 'Public'), person('Bob', 'Public')],
  [parts('Rob', 'Public'), person('Bob', 'Public')],
  [parts('Katherine', 'Public'), person('Catherine', 'Public')],
  [parts('J', 'Public'), person('Jane', 'Public')],
  [parts('Jane', 'Public'), person('J', 'Public')],
  [parts('J.R.', 'Public'), person('James', 'Public', { middle: 'Robert' })],
  [parts('Mary', 'Public'), person('Mary Jo', 'Public')],
  [parts('Mary Jo', 'Public'), person('Maryjo', 'Public')],
  [parts('Jean-Luc', 'Public'), person('Jean', 'Public')],
  [parts('Jane Q', 'Public'), person('Jane', 'Public')],
  [parts('Robert', 'Public'), person('James', 'Public', { middle: 'Robert' })],
  [parts('J. Robert', 'Public'), person('James', 'Public', { middle: 'Robert' })],
  [parts('Bill', 'Public'), person('James', 'Public', { middle: 'William' })],
  [parts('J. Robert', 'Public'), person('Robert', 'Public')],
  // Surnames of several words, in part, and others on record.
  [parts('Jane', 'Smith'), person('Jane', 'Smith-Jones')],
  [parts('Jane', 'Jones'), person('Jane', 'Smith-Jones')],
  [parts('Jane', 'Smith-Jones'), person('Jane', 'Smith')],
  [parts('Jane', 'Cruz'), person('Jane', 'De la Cruz')],
  [parts('Jane', 'Maiden'), person('Jane', 'Married', { otherNames: [{ first: 'Jane', last: 'Maiden' }] })],
  [parts('Janie', 'Maiden'), person('Ann', 'Married', { otherNames: [{ first: 'Jane', last: 'Maiden' }] })],
];

test('a person stays the same, however the source writes the name', (t) => {
  for (const [said, record] of SAME) t.true(isSame(said, record), `${JSON.stringify(said)} ${record.last}`);
});

const STRANGERS: readonly (readonly [said: GivenName, record: Person])[] = [
  [parts('Jane', 'Private'), person('Jane', 'Public')],
  [parts('Joan', 'Public'), person('Jane', 'Public')],
  [parts('John', 'Public'), person('Jane', 'Public')],
  // Short for both, and not for each other.
  [parts('Christine', 'Public'), person('Christopher', 'Public')],
  [parts('Danielle', 'Public'), person('Daniel', 'Public')],
  [parts('Janet', 'Public'), person('Jane', 'Public')],
  [parts('K', 'Public'), person('Jane', 'Public')],
  // The middle initial is no name to go by, the surname's initial no first name.
  [parts('Robert', 'Public'), person('James', 'Public', { middle: 'R' })],
  [parts('P', 'Public'), person('Jane', 'Public')],
  // Father, son and namesake.
  [parts('Ian', 'Public Sr'), person('Ian', 'Public', { suffix: 'Jr' })],
  [full('Ian Public III, MD'), person('Ian', 'Public', { suffix: 'Jr.' })],
  [full('Public, Ian, Sr., MD'), person('Ian', 'Public', { suffix: 'Jr.' })],
  [full('Ian B. Public'), person('Ian', 'Public', { middle: 'Adam' })],
  [parts('Ian B', 'Public'), person('Ian', 'Public', { middle: 'A' })],
  // A part of a surname tells too little beside an initial, and a shared part too little beside another one.
  [parts('J', 'Smith'), person('Jane', 'Smith-Jones')],
  [parts('Jane', 'Smith-Miller'), person('Jane', 'Smith-Jones')],
  [parts('Jane', 'Van Dyke'), person('Jane', 'Van Buren')],
  [parts('Jane', 'Van'), person('Jane', 'Van Dyke')],
  [parts('Jane', 'Li'), person('Jane', 'Li-Wong')],
  [full('John A Public'), person('Jane', 'Public', { middle: 'A' })],
  [full('Public Jane'), person('Jane', 'Public')],
  [parts('Public', 'Jane'), person('Jane', 'Public')],
  [parts('李', '王'), person('Jane', 'Public')],
  [full(`${'Jane '.repeat(50)}Public`), person('Jane', 'Public')],
];

test('strangers stay strangers, however alike their names are', (t) => {
  for (const [said, record] of STRANGERS)
    t.false(isSame(said, record), `${JSON.stringify(said)} ${record.last}`);
});

test('a state in which the person does not practice tells namesakes apart', (t) => {
  const jane = person('Jane', 'Public', { state: 'CO', otherStates: ['WY'] });
  const at = (state: string | null, who = jane) => isSame(parts('Jane', 'Public'), who, { state });
  t.true(at('CO'));
  t.true(at(' co '));
  t.true(at('WY'));
  t.true(at(null));
  t.false(at('TX'));
  t.true(at('TX', person('Jane', 'Public')), 'no state on record is no difference');
});

test('with our NPI, people may have moved and write themselves differently', (t) => {
  const ian = person('Ian', 'Public', { middle: 'Adam', suffix: 'Jr', state: 'CO' });
  const identity = named(full('Ian B. Public Sr.'), { npi: NPI, state: 'TX' });
  t.deepEqual(agrees(identity, NPI, ian), { ok: true, how: 'npi_and_name' });
});

const letters = fc.string({
  unit: fc.constantFrom(...'abcdefghijklmnopqrstuvwxyz'),
  minLength: 2,
  maxLength: 9,
});
/** No credential, title or generation begins so. */
const word = letters.map((text) => `zo${text}`);
const name = fc.record({ first: word, last: word });

test('whoever is written with other case, marks, titles and order is still themselves', (t) => {
  const dress = (text: string) => `${text.toUpperCase().replace(/A/g, 'Á').replace(/U/g, 'Ü')}`;
  fc.assert(
    fc.property(name, ({ first, last }) => {
      const record = person(first, last);
      const ways = [
        parts(dress(first), dress(last)),
        full(`${first} ${last}`),
        full(`Dr. ${dress(first)} ${last}, MD, PhD`),
        full(`${dress(last)}, ${first}`),
      ];
      return ways.every((way) => isSame(way, record));
    }),
    { numRuns: 300 },
  );
  t.pass();
});

test('another surname of one word is never the same person', (t) => {
  fc.assert(
    fc.property(name, word, fc.boolean(), ({ first, last }, other, inOnePiece) => {
      fc.pre(other !== last);
      const said = inOnePiece ? full(`${first} ${other}`) : parts(first, other);
      return !isSame(said, person(first, last));
    }),
    { numRuns: 500 },
  );
  t.pass();
});

test('a verdict is reached whatever the source writes', (t) => {
  const text = fc.string({ unit: 'binary', maxLength: 60 });
  const given: fc.Arbitrary<GivenName> = fc.oneof(
    fc.record({ kind: fc.constant('parts' as const), first: text, last: text }),
    fc.record({ kind: fc.constant('full' as const), full: text }),
  );
  fc.assert(
    fc.property(given, fc.option(text), (said, state) => {
      const verdict = agrees({ npi: null, name: said, state }, NPI, person('Jane', 'Public'));
      return verdict.ok || ['identity_mismatch', 'identity_unknown'].includes(verdict.reason);
    }),
  );
  t.pass();
});
