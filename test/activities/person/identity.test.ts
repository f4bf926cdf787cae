import test from 'ava';
import fc from 'fast-check';
import { mismatchOf, ownAddresses } from '../../../activities/person/identity.ts';
import { generationOf } from '../../../activities/person/names.ts';
import type {
  GivenName,
  Identity,
  Person,
  PersonName,
} from '../../../activities/vendors/vendor.ts';

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
    generation: generationOf(details.suffix ?? null),
    otherNames: details.otherNames ?? [],
    profileNames: [],
    profileSurnames: [],
    practice: { line1: null, city: null, state: details.state ?? null, zip: null },
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
  return { npi: null, name, state: null, employerDomain: null, ...more };
}

const isSame = (name: GivenName, who: Person, more: Partial<Identity> = {}) =>
  mismatchOf(named(name, more), NPI, who) === null;

test('a result with the requested NPI is accepted, and one with another NPI is not', (t) => {
  const jane = person('Jane', 'Public');
  const said = (npi: string | null, name: GivenName | null, who: Person | null) =>
    mismatchOf({ npi, name, state: null, employerDomain: null }, NPI, who);

  t.is(said(NPI, null, jane), null);
  t.is(said(NPI, null, null), null);
  t.is(said(NPI, parts('Jane', 'Public'), null), null);
  t.is(said(NPI, parts('Jane', 'Public'), jane), null);
  t.is(said(OTHER_NPI, parts('Jane', 'Public'), jane), 'identity_mismatch');
  t.is(said(OTHER_NPI, null, null), 'identity_mismatch');
});

test("a vendor's result with the requested NPI but another name is a mismatch", (t) => {
  const verdict = mismatchOf(
    named(parts('Hugo', 'Stranger'), { npi: NPI }),
    NPI,
    person('Jane', 'Public'),
  );
  t.is(verdict, 'identity_mismatch');
});

test("a vendor's result without an NPI and without a full name is not accepted", (t) => {
  const unknown = 'identity_unknown';
  t.is(
    mismatchOf(
      { npi: null, name: null, state: 'CO', employerDomain: null },
      NPI,
      person('Jane', 'Public'),
    ),
    unknown,
  );
  t.is(mismatchOf(named(parts('Jane', 'Public')), NPI, null), unknown);
  for (const half of [
    parts('', 'Public'),
    parts('Jane', ' '),
    full('Public'),
    full(''),
    full('Dr. , MD'),
  ]) {
    t.is(
      mismatchOf(named(half), NPI, person('Jane', 'Public')),
      unknown,
      JSON.stringify(half),
    );
  }
  t.is(
    mismatchOf(
      { npi: '', name: parts('', ''), state: '', employerDomain: null },
      NPI,
      person('Jane', 'Public'),
    ),
    unknown,
  );
});

/**
 * Pairs of names by their kind of difference: the name of a source, `~`, and the name in NPPES. A
 * name is `first|last`, or a full name without a bar. Names in NPPES may continue with
 * `|middle|suffix|other last name`.
 */
const SAME: Readonly<Record<string, string>> = {
  'case, marks, apostrophes, hyphens, spaces': `
    JANE|PUBLIC ~ Jane|Public
    José|Núñez ~ Jose|Nunez
    Aoife|O’Brien ~ Aoife|Obrien
    Aoife|O Brien ~ Aoife|O'Brien
    Aoife|OBrien ~ Aoife|O'Brien-Smith
    Aoife|O Brien ~ Aoife|O'Brien-Smith
    Ian|Mc Donald ~ Ian|McDonald
    Ian|Mac Leod ~ Ian|MacLeod
    Ian|McDonald ~ Ian|Smith-Mc Donald
    Ada|St. John ~ Ada|Saint John
    Ada|St John ~ Ada|StJohn
    Ada|Smith Jones ~ Ada|Smith-Jones
    Ana|De La Cruz ~ Ana|dela Cruz
    Jan|Van Dyke ~ Jan|Vandyke
    Omar|Al-Masri ~ Omar|El Masri
    Omar|Elmasri ~ Omar|El Masri
    Thi|Nguyễn ~ Thi|Nguyen
    Đức|Đặng ~ Duc|Dang
    Kaya|Işık ~ Kaya|Isik
    João|Conceição ~ Joao|Conceicao
    Xiao-Ming|Chen ~ Xiaoming|Chen`,
  'letters with another in their place': `
    Łukasz|Żółć ~ Lukasz|Zolc
    Søren|Weiß ~ Soren|Weiss
    Jürgen|Müller ~ Juergen|Mueller
    Jürgen|Müller ~ Jurgen|Muller
    Jurgen|Muller ~ Jürgen|Müller
    Juergen|Mueller ~ Jürgen|Müller
    Søren|Sørensen ~ Soeren|Soerensen
    Jörg|Schröder ~ Joerg|Schroeder
    Åsa|Bäck ~ Aasa|Baeck
    Jürgen|Müller ~ Jurgen|Mueller
    Bjørn|Ødegård ~ Bjorn|Odegaard
    Ægir|Kjær ~ Aegir|Kjaer`,
  'titles, credentials, generations': `
    Dr. Jane|Public, MD ~ Jane|Public
    Ian|Public Jr. ~ Ian|Public||JR
    Ian|Public II ~ Ian|Public||Jr.
    Ian|Public ~ Ian|Public||III`,
  'in one piece, and surname first': `
    Dr. Jane Q. Public, MD ~ Jane|Public
    Jane Public, M.D., F.A.C.P. ~ Jane|Public
    Jane Public PA-C ~ Jane|Public
    Public, Jane Q., MD ~ Jane|Public|Quinn
    PUBLIC, JANE ~ Jane|Public
    Public Jane ~ Jane|Public
    Public|Jane ~ Jane|Public
    Jane Public, Family Medicine ~ Jane|Public
    Ludwig van der Berg ~ Ludwig|Van Der Berg
    Maria Garcia Lopez ~ Maria|Garcia Lopez
    Mary Jo Public ~ Mary Jo|Public
    Jane Kim DO ~ Jane|Kim
    Jane Li DO ~ Jane|Li
    Kim Do ~ Kim|Do
    Yo-Yo Ma ~ Yo Yo|Ma
    Jane Null ~ Jane|Null
    Robert (Chip) Public ~ Robert|Public|Henry
    Robert "Bob" Public, MD ~ Robert|Public|Henry
    Mary Smith Jones ~ Mary|Jones|Ann
    Aoife O Brien, MD ~ Aoife|O'Brien
    Jürgen Müller ~ Juergen|Mueller`,
  'nickname, abbreviation, other spelling': `
    Bob|Public ~ Robert|Public
    Robert|Public ~ Bob|Public
    Rob|Public ~ Bob|Public
    Katherine|Public ~ Catherine|Public
    Wm.|Public ~ William|Public
    Bill|Public ~ Wm|Public
    Chas|Public ~ Charles|Public
    Geo.|Public ~ George|Public
    Jon|Public ~ John|Public
    Steven|Public ~ Stephen|Public
    Peggy|Public ~ Margaret|Public
    Paco|Ruiz ~ Francisco|Ruiz
    Ma. Elena|Ruiz ~ Maria|Ruiz`,
  'initials, compound and middle names': `
    J|Public ~ Jane|Public
    Jane|Public ~ J|Public
    J.R.|Public ~ James|Public|Robert
    Mary|Public ~ Mary Jo|Public
    Mary Jo|Public ~ Maryjo|Public
    Jean-Luc|Public ~ Jean|Public
    Jane Q|Public ~ Jane|Public
    Robert|Public ~ James|Public|Robert
    J. Robert|Public ~ James|Public|Robert
    Bill|Public ~ James|Public|William
    J. Robert|Public ~ Robert|Public
    James Robert|Public ~ Robert James|Public
    Jim Bob|Public ~ James|Public|Robert
    Juan Alberto|Ruiz ~ Juan Carlos|Ruiz|Alberto`,
  'from Arabic and Urdu': `
    Muhammad|Khan ~ Mohammed|Khan
    Mohamed|Khan ~ Mohammad|Khan
    Mohamad|Saleh ~ Mohd|Saleh
    Md|Rahman ~ Mohammad|Rahman
    Mohammad|Rahman ~ MD|Rahman
    Md. Kamal|Hossain ~ Mohammad Kamal|Hussain
    Md Kamal Hossain, MD ~ Mohammed|Hossain|Kamal
    Kamal|Hossain ~ Mohammad Kamal|Hossain
    Mohammad|Khan ~ Mohammad Asif|Khan
    Abdul Aziz|Khan ~ Abdulaziz|Khan
    Ahmed|ElSayed ~ Ahmed|El Sayed
    Ahmad|Mahmoud ~ Ahmed|Mahmud
    Hussein|Ali ~ Hussain|Aly
    Amina|Husain ~ Amina|Hussein
    Layla|Mohamed ~ Leila|Muhammad
    Yusuf|Haddad ~ Youssef|Haddad
    Joseph|Haddad ~ Yousef|Haddad
    Khaled|Osman ~ Khalid|Othman
    Hüseyin|Ali ~ Hussein|Ali
    Hasan|Tarek ~ Hassan|Tariq
    Abdelrahman|Omar ~ Abdul Rahman|Umar
    Abraham|Issa ~ Ibrahim|Isa
    Syed|Jafri ~ Sayed|Jafri`,
  'from Russian and Ukrainian': `
    Evgeny|Petrov ~ Yevgeniy|Petrov
    Eugene|Petrov ~ Yevgeniy|Petrov
    Gene|Petrov ~ Evgeniy|Petrov
    Aleksandr|Orlov ~ Alexander|Orlov
    Sasha|Orlov ~ Aleksandr|Orlov
    Alex|Orlov ~ Oleksandr|Orlov
    Sergey|Orlov ~ Sergei|Orlov
    Serhiy|Orlov ~ Sergey|Orlov
    Dmitriy|Orlov ~ Dmitry|Orlov
    Michael|Orlov ~ Mikhail|Orlov
    Nicholas|Orlov ~ Nikolay|Orlov
    Yuriy|Orlov ~ Yuri|Orlov
    Tatyana|Orlova ~ Tatiana|Orlova
    Julia|Orlova ~ Yuliya|Orlova
    Katya|Orlova ~ Ekaterina|Orlova
    Inna|Kovalsky ~ Inna|Kovalskiy
    Lev|Brodskii ~ Lev|Brodski`,
  'from India, from Hebrew': `
    Ramesh|Patel ~ Rameshbhai|Patel
    Rameshbhai|Patel ~ Ramesh|Patel
    Jyoti|Patel ~ Jyotiben|Patel
    Hina|Shah ~ Hinaben|Shah
    Ramesh Bhai|Patel ~ Ramesh|Patel
    Laxmi|Rao ~ Lakshmi|Rao
    Sandip|Shah ~ Sandeep|Shah
    Swathi|Rao ~ Swati|Rao
    Isaac|Stern ~ Yitzchak|Stern
    Moe|Stern ~ Moshe|Stern`,
  'surnames in part, and others on record': `
    Jane|Smith ~ Jane|Smith-Jones
    Jane|Jones ~ Jane|Smith-Jones
    Jane|Jones-Smith ~ Jane|Smith-Jones
    Jane|Smith-Jones ~ Jane|Smith
    Jane|Cruz ~ Jane|De la Cruz
    Jane|Hussein ~ Jane|Hussain-Jones
    Jane|Maiden ~ Jane|Married|||Maiden
    Jane|Mueller ~ Jane|Married|||Müller
    Janie|Maiden-Married ~ Jane|Married|||Maiden`,
};

const STRANGERS: Readonly<Record<string, string>> = {
  'another surname': `
    Jane|Private ~ Jane|Public
    Ahmed|Khan ~ Ahmed|Khalil
    Ahmed|Hassan ~ Ahmed|Hussein
    Ahmed|Mahmoud ~ Ahmed|Mohamed
    Omar|Saleh ~ Omar|Salah
    Omar|Salem ~ Omar|Saleem
    Wei|Chen ~ Wei|Cheng
    Wei|Li ~ Wei|Lee
    Wei|Sue ~ Wei|Su
    Jane|Doe ~ Jane|Do
    Jane|Roe ~ Jane|Ro
    Ana|Saenz ~ Ana|Sanz
    Amit|Patel ~ Amit|Patil
    Amit|Agarwal ~ Amit|Aggarwal
    Ian|McDonald ~ Ian|MacDonald
    Ian|O'Neill ~ Ian|Neill
    Mark|Stevens ~ Mark|Stephenson
    Ana|Smith ~ Ana|Smithson
    Ivan|Petrov ~ Ivan|Petrovsky
    Lev|Brodsky ~ Lev|Brodin
    Mark|Williams ~ Mark|William
    Mark|Bill ~ Mark|William
    Jane|Frank ~ Jane|Francis
    Karl|Müller ~ Karl|Miller
    Ada|St. John ~ Ada|John`,
  'another given name': `
    Joan|Public ~ Jane|Public
    John|Public ~ Jane|Public
    Jean|Public ~ John|Public
    Jane|Public ~ Jean|Public
    Maria|Public ~ Marie|Public
    Marie|Public ~ Mary|Public
    Anna|Public ~ Anne|Public
    Christina|Public ~ Christine|Public
    Julia|Public ~ Julie|Public
    Diana|Public ~ Diane|Public
    Lisa|Public ~ Betsy|Public
    Megan|Public ~ Greta|Public
    Kathleen|Public ~ Catherine|Public
    Helen|Public ~ Ellen|Public
    Susan|Public ~ Suzanne|Public
    Sandra|Public ~ Sasha|Public
    Nora|Public ~ Ellie|Public
    Eric|Public ~ Erica|Public
    Paul|Public ~ Paula|Public
    K|Public ~ Jane|Public
    P|Public ~ Jane|Public
    Robert|Public ~ James|Public|R
    Jeffrey|Public ~ Jeremy|Public
    Marc|Public ~ Marcia|Public
    Maria Elena|Ruiz ~ Maria Luisa|Ruiz
    Mary Ann|Public ~ Mary|Public|Beth
    Jean-Luc|Roy ~ Jean-Pierre|Roy
    Jane Elizabeth|Public ~ Jane|Public|Marie`,
  'short for both, and not for each other': `
    Christine|Public ~ Christopher|Public
    Danielle|Public ~ Daniel|Public
    Janet|Public ~ Jane|Public
    Patrick|Public ~ Patricia|Public
    Samuel|Public ~ Samantha|Public
    Edward|Public ~ Edmund|Public
    Theodore|Public ~ Edward|Public
    Alexander|Public ~ Alexandra|Public
    Alfred|Public ~ Albert|Public
    Gerald|Public ~ Jerome|Public`,
  'a name that ends or begins like another': `
    Anna|Public ~ Brianna|Public
    Anna|Public ~ Johanna|Public
    Mary|Public ~ Rosemary|Public
    Linda|Public ~ Rosalinda|Public
    Nathan|Public ~ Johnathan|Public`,
  'names of the same origin, of others': `
    Mahmoud|Khan ~ Mohammed|Khan
    Hamed|Khan ~ Hameed|Khan
    Ahmed|Khan ~ Hamid|Khan
    Salem|Khan ~ Saleem|Khan
    Saleh|Khan ~ Salah|Khan
    Jamal|Khan ~ Jamil|Khan
    Hassan|Khan ~ Hussein|Khan
    Amir|Khan ~ Amer|Khan
    Amin|Khan ~ Amina|Khan
    Karim|Khan ~ Karima|Khan
    Abdullah|Khan ~ Abdulrahman|Khan
    Mohammad Asif|Khan ~ Mohammad Imran|Khan
    Md Asif|Khan ~ Mohammed|Khan|Imran
    Asif|Khan ~ Mohammad Imran|Khan
    Abdul Karim|Shah ~ Abdul Rahim|Shah
    Syed Ali|Shah ~ Syed Hasan|Shah
    Omar|Farouk ~ Omar|Farooqi
    Evgeny|Petrov ~ Evgenia|Petrov
    Yevgeniya|Petrov ~ Eugene|Petrov
    Aleksandr|Petrov ~ Aleksandra|Petrov
    Sergei|Petrov ~ Semyon|Petrov
    Valery|Petrov ~ Valerie|Petrov
    Vladimir|Petrov ~ Vladislav|Petrov
    Manibhai|Patel ~ Maniben|Patel
    Ramesh|Patel ~ Rakesh|Patel
    Rameshbhai|Patel ~ Rakeshbhai|Patel
    Ruben|Patel ~ Ru|Patel
    Torben|Hansen ~ Tor|Hansen
    Vijaya|Rao ~ Vijay|Rao
    Sunita|Rao ~ Sunil|Rao
    Juan|Ruiz ~ Juana|Ruiz`,
  'father, son and namesake': `
    Ian|Public Sr ~ Ian|Public||Jr
    Ian Public III, MD ~ Ian|Public||Jr.
    Public, Ian, Sr., MD ~ Ian|Public||Jr.
    Muhammad Khan Sr ~ Mohammed|Khan||III
    Ian B. Public ~ Ian|Public|Adam
    Ian B|Public ~ Ian|Public|A
    Ahmad B. Khan ~ Ahmed|Khan|Asif`,
  'a part that tells too little': `
    J|Smith ~ Jane|Smith-Jones
    M|Hussain ~ Malik|Hussein
    Jane|Smith-Miller ~ Jane|Smith-Jones
    Jane|Van Dyke ~ Jane|Van Buren
    Jane|Van ~ Jane|Van Dyke
    Jane|Li ~ Jane|Li-Wong
    Omar|Al ~ Omar|Al Masri
    Omar|El Masri ~ Omar|El Sayed
    John A Public ~ Jane|Public|A
    John O Smith ~ Jane|Smith|O
    李|王 ~ Jane|Public`,
  'no first name': `
    FNU|Rahul ~ Jane|Rahul
    Jane|Rahul ~ |Rahul
    Kumar|Singh ~ |Singh|Kumar
    Kumar Singh ~ |Singh|Kumar
    Rahul|LNU ~ |Rahul
    Jane|LNU ~ Jane|Rahul
    Null|Public ~ Jane|Public`,
};

interface Pair {
  readonly text: string;
  readonly said: GivenName;
  readonly record: Person;
}

function pairsOf(text: string): Pair[] {
  return text
    .trim()
    .split(/\n\s*/)
    .map((line) => {
      const [said = '', record = ''] = line.split(' ~ ');
      const [first = '', last] = said.split('|');
      const [recordedFirst = '', recordedLast = '', middle, suffix, other] =
        record.split('|');
      return {
        text: line,
        said: last === undefined ? full(first) : parts(first, last),
        record: person(recordedFirst, recordedLast, {
          ...(middle ? { middle } : {}),
          ...(suffix ? { suffix } : {}),
          otherNames: other ? [{ first: recordedFirst, last: other }] : [],
        }),
      };
    });
}

/**
 * Returns the results for each kind of pair, and the pairs with a wrong result; nothing if all are
 * right.
 */
function confusion(table: Readonly<Record<string, string>>, isOne: boolean): string[] {
  const kinds = Object.entries(table).map(([kind, text]) => {
    const pairs = pairsOf(text);
    return {
      kind,
      pairs,
      wrong: pairs.filter(({ said, record }) => isSame(said, record) !== isOne),
    };
  });
  if (kinds.every(({ wrong }) => wrong.length === 0)) return [];
  const [right, mistaken] = isOne ? ['accepted', 'refused'] : ['refused', 'accepted'];
  const rows = kinds.map(({ kind, pairs, wrong }) =>
    [
      kind.padEnd(45),
      `${right} ${pairs.length - wrong.length}`,
      `wrongly ${mistaken} ${wrong.length}`,
    ].join('  '),
  );
  return [
    '',
    ...rows,
    ...kinds.flatMap(({ wrong }) =>
      wrong.map(({ text }) => `wrongly ${mistaken}: ${text}`),
    ),
  ];
}

test('two notations of the same name count as the same person', (t) => {
  t.is(confusion(SAME, true).join('\n'), '');
});

test('similar names of different people count as different people', (t) => {
  t.is(confusion(STRANGERS, false).join('\n'), '');
  t.false(
    isSame(full(`${'Jane '.repeat(50)}Public`), person('Jane', 'Public')),
    'too long to be a name',
  );
  t.false(
    isSame(parts('ü'.repeat(99), 'ö'.repeat(99)), person('Jane', 'Public')),
    'too many ways to spell it',
  );
});

test("two similar names still differ if the vendor's name and ours are exchanged", (t) => {
  for (const { text, said, record } of Object.values(STRANGERS).flatMap(pairsOf)) {
    if (
      said.kind !== 'parts' ||
      record.first === '' ||
      record.middle !== null ||
      record.generation !== null
    )
      continue;
    t.false(
      isSame(parts(record.first, record.last), person(said.first, said.last)),
      text,
    );
  }
});

test("with the requested NPI, a vendor's name needs only our surname or a given name", (t) => {
  const said = (name: string, record: string) => {
    const [pair] = pairsOf(`${name} ~ ${record}`);
    return pair !== undefined && isSame(pair.said, pair.record, { npi: NPI });
  };
  for (const [name, record] of [
    ['Wendy|Chen', 'Xiaoming|Chen'],
    ['Wendy Chen, MD', 'Xiaoming|Chen'],
    ['Sam|Muhammad', 'Asif|Mohamed'],
    ['Jim|Mueller', 'Hans|Müller'],
    ['Wendy|Maiden', 'Jane|Married|||Maiden'],
    ['Fnu|Rahul', '|Rahul'],
    ['Rahul|LNU', '|Rahul'],
    ['Rahul Lnu', '|Rahul'],
    ['Rahul|Rahul', '|Rahul'],
    ['Jane|Stranger', 'Jane|Public'],
  ] as const)
    t.true(said(name, record), name);
  for (const [name, record] of [
    ['Wendy|Cheng', 'Xiaoming|Chen'],
    ['Wendy|Smith', 'Jane|Smith-Jones'],
    ['Fnu|Stranger', '|Rahul'],
    ['Stranger|LNU', '|Rahul'],
    ['Chen|Wendy', 'Xiaoming|Chen'],
  ] as const)
    t.false(said(name, record), name);
});

test("a vendor's result in a state where the person does not practice is a mismatch", (t) => {
  const jane = person('Jane', 'Public', { state: 'CO', otherStates: ['WY'] });
  const at = (state: string | null, who = jane) =>
    isSame(parts('Jane', 'Public'), who, { state });
  t.true(at('CO'));
  t.true(at(' co '));
  t.true(at('WY'));
  t.true(at(null));
  t.false(at('TX'));
  t.true(at('TX', person('Jane', 'Public')), 'no state on record is no difference');
});

test("a vendor's result with the requested NPI may have another state or middle name", (t) => {
  const ian = person('Ian', 'Public', { middle: 'Adam', suffix: 'Jr', state: 'CO' });
  const said = (name: string) =>
    mismatchOf(named(full(name), { npi: NPI, state: 'TX' }), NPI, ian);
  t.is(said('Ian B. Public'), null);
  t.is(said('Ian B. Public Sr.'), 'identity_mismatch', 'another generation');
  t.is(said('Ian & Sue Public'), 'identity_mismatch', 'a couple');
  t.is(said('Ian Public MD, Obstetrics & Gynecology'), null, 'a specialty');
});

test('without an NPI, names from profiles do not show the person', (t) => {
  const dawei = { ...person('Dawei', 'Wang', {}), profileNames: ['david'] };
  t.is(mismatchOf(named(full('David Wang')), NPI, dawei), 'identity_mismatch');
});

test('a profile with another given name adds only addresses with our whole given name', (t) => {
  const andrea = person('Andrea', 'Howard', { middle: 'June' });
  const candidates = ['ahoward', 'andrea.howard', 'howard'].map((local) => ({
    email: `${local}@clinic.org`,
  }));
  const ownIn = (name: string) =>
    ownAddresses(candidates, named(full(name), { npi: NPI }), andrea).length;
  t.is(ownIn('Andrew Howard'), 1);
  t.is(ownIn('Andrea Louise Howard'), 1, 'another middle name');
  for (const name of ['Andrea Howard', 'Andi Howard', 'A. Howard', 'June Howard', '']) {
    t.is(ownIn(name), 3, name);
  }
});

const letters = fc.string({
  unit: fc.constantFrom(...'abcdefghijklmnopqrstuvwxyz'),
  minLength: 2,
  maxLength: 9,
});
/** Words that are no credential, title or generation. */
const word = letters.map((text) => `zo${text}`);
const name = fc.record({ first: word, last: word });

test('case, accents, titles, and word order make no difference between two names', (t) => {
  const dress = (text: string) =>
    `${text.toUpperCase().replace(/A/g, 'Á').replace(/U/g, 'Ü')}`;
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

test("a vendor's result with another one-word last name is about another person", (t) => {
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

test('comparing names never throws an error, no matter what the text is', (t) => {
  const text = fc.string({ unit: 'binary', maxLength: 60 });
  const given: fc.Arbitrary<GivenName> = fc.oneof(
    fc.record({ kind: fc.constant('parts' as const), first: text, last: text }),
    fc.record({ kind: fc.constant('full' as const), full: text }),
  );
  fc.assert(
    fc.property(given, fc.option(text), (said, state) => {
      const verdict = mismatchOf(
        { npi: null, name: said, state, employerDomain: null },
        NPI,
        person('Jane', 'Public'),
      );
      return (
        verdict === null || ['identity_mismatch', 'identity_unknown'].includes(verdict)
      );
    }),
  );
  t.pass();
});
