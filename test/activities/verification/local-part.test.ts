import test from 'ava';
import {
  type Owner,
  ownerOf,
  type Whose,
} from '../../../activities/verification/local-part.ts';
import { candidate, checkOf, inWords, verifierOf } from '../../support/checks.ts';
import { SUBJECT } from '../../support/vendors.ts';

interface Known {
  readonly generation?: number | null;
  readonly strangers?: readonly string[];
}

/** Parses `First, Middle, Last`, followed by former last names, and adds the practice. */
function whose(
  names: string,
  practice: string | null,
  { generation = null, strangers = [] }: Known = {},
): Whose {
  const [first = '', middle = '', last = '', ...former] = names.split(', ');
  const { person } = SUBJECT;
  if (person === null) throw new Error('nobody');
  return {
    person: {
      ...person,
      ...{
        first,
        last,
        middle: middle || null,
        otherNames: former.map((one) => ({ first, last: one })),
      },
      generation,
      practice: { ...person.practice, city: 'Fargo' },
    },
    organization:
      practice === null
        ? null
        : { name: practice, domain: null, source: 'affiliation', confidence: 1 },
    strangers,
    patterns: [],
  };
}

/** Local parts by owner, for each person, practice and domain. */
const TABLE: readonly (readonly [
  Whose,
  domain: string,
  Partial<Record<Owner, string>>,
])[] = [
  [
    whose('John, Quincy, Hartley', 'Hartley Family Dental, PLLC'),
    'hartleydental.com',
    {
      person: `jhartley hartleyj johnhartley john.hartley hartley.john hartley_john john-hartley john.q.hartley
        johnqhartley jqhartley j.hartley hartley.j jhartley2 jhartley1970 2jhartley hartleyjq q.hartley
        quincy.hartley jquincyhartley drhartley dr.hartley hartleymd hartley.md jhartleydds drjhartley
        drjohnhartley johnhartleymd john.hartley.md hartley john dr.john drjohn johnh john.h johnny
        jack.hartley jackhartley johnny.hartley jhartley+npi jhartley+office johnhartleytx johnhartleyob hartleyjohn1 j_q_hartley jhartl hartlj`,
      other_person: `karen.hartley karenhartley khartley hartleyk k.hartley hartley.k kmhartley hartley.karen
        dr.karen.hartley mariahartley hhartley pahartley zorblat.hartley maria.gonzalez
        mariagonzalez amara.okonkwo bob.smith chidi.okwuosa jedidiahson.okwuosa jxhn.hartley`,
      shared: `drhartleyoffice hartleyoffice office.hartley hartleydental hartleyfamilydental johnhartleydental
        jhartley.office hartleyclinic thehartleys hartleys drs.hartley hartleyfamily hartleybilling johnandkaren
        johnandkarenhartley info office office2 frontdesk front.desk front-desk billing+north contact contactus
        contact-us hello mail doctor dr drs ptcare smilesdental smiles4kids care4u practicemanager officemgr
        office-manager kelly.officemanager kelly.frontdesk newpatients new.patients appointments appts scheduling
        referrals medrec medicalrecords records rxrefills priorauth noreply no-reply do_not_reply hr it billing.dept
        nurse nursing staff team dental smile familydental recepcion citas facturacion consultorio oficina
        secretaria pacientes admisiones recursoshumanos drahartleycitas fargo fargodental consultoriodrhartley`,
      unclear: `jq jqs jh j.h j.s js hart jhart j.hart hartl sunnyday77 skibum bluesky entropy xyzzy golfnut 1234
        h.r jw2 johnk greylisted.jo npi200.sim hartleygolfers npi2000000010 mgonzalez gonzalezm m.gonzalez maria
        karen drgonzalez gonzalez john.wexler johnwexler jwexler wexlerj pnguyen kkim s.patel drbob john.okwuosa
        a.okwuosa okwuosa.c pm`,
    },
  ],
  [
    whose('Juana, , Michaels', null),
    'mercy.org',
    { person: 'juana.michaels jmichaels', other_person: 'juan.michaels michael.juan' },
  ],
  [
    whose('William, , Young', 'Young Smiles'),
    'youngsmiles.com',
    {
      person:
        'byoung billyoung bill.young wyoung willyoung young dryoung youngw youngdoc liam.young',
      other_person: 'karen.young kyoung youngk',
      unclear: 'youngblood',
      shared: 'youngsmiles smiles youngoffice info drs.young',
    },
  ],
  [
    whose('Bill, , Office', null),
    'officefamilycare.com',
    {
      person: 'boffice billoffice office office2 william.office',
      shared: 'officebilling officestaff frontdesk',
    },
  ],
  [
    whose('Jane, , Care', null),
    'mercy.org',
    {
      person: 'care jcare janecare care.jane',
      shared: 'carecenter carecoordinator',
      other_person: 'kcare',
      unclear: 'jocare',
    },
  ],
  [
    whose('Grace, Lee, Baker', 'Grace Family Clinic'),
    'gracefamily.com',
    {
      person: 'grace gbaker bakerg grace.baker graceleebaker gleebaker glbaker',
      shared: 'gracefamily gracefamilyclinic clinic family bakery',
      other_person: 'mbaker tom.baker',
    },
  ],
  [
    whose('Mary, , Smith-Jones, Jones', null),
    'clinic.org',
    {
      person: `msmithjones msmith-jones smith-jones mary.smith-jones msjones mary.smith maryjones mjones marysmith
        smithjonesm mary.jones molly.smith`,
      unclear: 'maryann maryannsmith',
      other_person: 'tsmithjones tjones',
    },
  ],
  [
    whose('Maria, Elena, De la Cruz', 'Lakeside Urology Center'),
    'lakesideurology.com',
    {
      person:
        'mdelacruz delacruzm maria.delacruz mcruz maria.de.la.cruz mecruz melena medelacruz dra.delacruz mariaelena',
      shared: 'lakeside lakesideurology urology lakesideoffice lakesidecitas',
      other_person: 'jdelacruz jose.delacruz',
    },
  ],
  [
    whose('Rebecca, , Thornquist, Holloway', 'Willow Creek Pediatrics'),
    'tidewatr.com',
    {
      person: 'bthornquist becky.holloway rholloway hollowayr',
      shared: 'wcp infowcp willowcreek willowcreekpediatrics tidewatr',
      other_person: 'mholloway',
    },
  ],
  [
    whose("Siobhan, , O'Brien", null),
    'clinic.org',
    {
      person: "sobrien s.obrien so'brien obrien siobhan.obrien siobhan obriens",
      other_person: 'tobrien',
    },
  ],
  [
    whose('Katherine, , St. John', null),
    'clinic.org',
    {
      person: 'kstjohn katestjohn kate.st.john stjohnk k.saintjohn kathy.stjohn',
      other_person: 'tstjohn',
    },
  ],
  [
    whose('Thi, Anh, Nguyen', null),
    'clinic.org',
    {
      person: 'tnguyen tanguyen anh.nguyen anhnguyen nguyent',
      other_person: 'minh.nguyen pnguyen',
    },
  ],
  [
    whose('Paul, , Thomas', null),
    'thomaspt.com',
    {
      person: 'pthomas paulthomaspt thomaspt paul.thomas dr.paul',
      shared: 'info thomasclinic',
    },
  ],
  [
    whose('J, Robert, Müller', null),
    'clinic.org',
    {
      person: 'jmuller bobmuller robert.muller jrmuller rmuller bob',
      other_person: 'karl.muller',
    },
  ],
  // The person is unknown, so no local part can be attributed to another person.
  [
    { person: null, organization: null, strangers: [], patterns: [] },
    'clinic.com',
    {
      shared: 'info front.desk office2 billing+north doctor jcare',
      unclear: 'jo rowan.ashdown informatics.jo h.r khartley',
    },
  ],
];

for (const [who, domain, owners] of TABLE) {
  const { first = 'nobody', last = '' } = who.person ?? {};
  for (const [owner, locals] of Object.entries(owners)) {
    test(`for ${first} ${last}, the owner of these addresses at ${domain} is "${owner}": ${locals.replace(/\s+/g, ' ')}`, (t) => {
      const wrong = locals
        .split(/\s+/)
        .filter((local) => ownerOf({ local, domain }, who) !== owner);
      t.deepEqual(
        wrong.map((local) => `${local} is ${ownerOf({ local, domain }, who)}`),
        [],
      );
    });
  }
}

test('the table of local parts has at least 150 cases', (t) => {
  const cases = TABLE.flatMap(([, , owners]) => Object.values(owners))
    .join(' ')
    .split(/\s+/);
  t.true(cases.length >= 150, `${cases.length} cases`);
});

const NOVAK = whose('Peter, James, Novak', null);
const RULES: readonly (readonly [
  sentence: string,
  Whose,
  domain: string,
  Partial<Record<Owner, string>>,
])[] = [
  [
    'any part of a long given name may be its short form',
    whose('Chukwuemeka, , Okafor', null),
    'clinic.org',
    {
      person: 'emeka.okafor emekaokafor eokafor chuk.okafor drchukwuemeka emeka',
      other_person: 'ngozi.okafor nokafor',
    },
  ],
  [
    'a short form may end in a vowel of affection',
    whose('Vyacheslav, , Ivanchenko', null),
    'clinic.org',
    { person: 'slava.ivanchenko vivanchenko', other_person: 'boris.ivanchenko' },
  ],
  [
    'a syllable at the end of an unlisted given name is a short form',
    whose('Xiaoming, , Zhang', null),
    'clinic.org',
    {
      person: 'ming.zhang xmzhang zhangxm min.xiaoming.zhang',
      other_person: 'wei.li fzhang',
    },
  ],
  [
    'a name that differs by its ending or by one letter is another name',
    whose('Deepak, , Shetty', null),
    'clinic.org',
    {
      other_person: 'deepa.shetty deepaka.shetty',
      person: 'deepak.shetty deepaks',
    },
  ],
  [
    'a word that only begins like a short form is another name',
    whose('Alexander, , Smirnov', null),
    'clinic.org',
    { other_person: 'alexei.smirnov', person: 'alex.smirnov xander.smirnov' },
  ],
  [
    'a long unlisted name may lose its last vowel',
    whose('Venkata, , Reddy', null),
    'clinic.org',
    { person: 'venkat.reddy venkat vreddy' },
  ],
  [
    'a letter behind a given name is not the initial of the name itself',
    whose('Shreya, , Kulkarni', null),
    'clinic.org',
    { other_person: 'shreyas.kulkarni', person: 'shreyak shreya.kulkarni' },
  ],
  [
    'a second initial or a middle name that is not on record is a relative',
    whose('John, Paul, Fowler', null),
    'clinic.org',
    {
      person: 'jpfowler john.paul.fowler john.p.fowler pfowler',
      unclear: 'jqfowler jkfowler',
      doubtful: 'john.q.fowler johnqfowler',
      other_person: 'john.peter.fowler',
    },
  ],
  [
    'a degree is not a spelling of a surname',
    whose('Amir, , Mohammed', null),
    'clinic.org',
    { unclear: 'md', person: 'amohammed amohamed' },
  ],
  [
    'the kind of staff at the end of a military address names no person',
    whose('Luis, Enrique, Ochoa Medrano', null),
    'health.mil',
    {
      person: 'luis.e.ochoamedrano.ctr luis.e.ochoamedrano.mil luis.ochoa.civ',
      other_person: 'ana.ochoamedrano.mil',
    },
  ],
  [
    'at free mail, the surname with other words may be a business',
    whose('Harriet, , Blackwood', null),
    'gmail.com',
    {
      doubtful: 'hblackwoodquilts blackwoodpuppies',
      shared: 'hblackwoodroofing blackwoodcleaning',
      person: 'hblackwoodtx harrietblackwoodgolf blackwoodmd hblackwood1970',
    },
  ],
  [
    'a name may be written with other letters for the same sounds',
    whose('Shivaprasad, , Rao', null),
    'clinic.org',
    { person: 'siva.rao sivaprasad.rao shiva.rao', other_person: 'savita.rao' },
  ],
  [
    'the beginnings of two given names may be blended',
    whose('Maria, Lourdes, Bautista', null),
    'clinic.org',
    { person: 'malou.bautista', other_person: 'mabel.bautista' },
  ],
  [
    'the family name may come first, and initials may stand for all but the last name',
    whose('Anh, Tuan, Pham', null),
    'clinic.org',
    { person: 'phamtuan pham.anhtuan tuanpham phamat ptanh' },
  ],
  [
    'an umlaut may be written as its plain vowel, in given names too',
    whose('Juergen, , Mueller', null),
    'clinic.org',
    { person: 'jurgen.muller jurgen.mueller juergenm' },
  ],
  [
    'every run of words of a long surname may stand for it',
    whose('Jose, Maria, De la Cruz Santos', null),
    'clinic.org',
    { person: 'jdelacruz jose.delacruzsantos delacruzj jsantos jmlacruz' },
  ],
  [
    'a surname cut after five or more letters belongs to the initial with it',
    whose('Karen, , McAllister', null),
    'clinic.org',
    {
      person: 'mcallisk kmcallis mcallk karen.mcalli',
      unclear: 'mcallis mcallisj tmcallis',
    },
  ],
  [
    'a generation that NPPES does not have is somebody else',
    whose('Robert, , Kessler', null),
    'clinic.org',
    {
      other_person:
        'robert.kessler.jr rkesslerjr rkesslersr bob.kessler.iii robert.kessler.sr',
    },
  ],
  [
    'the generation of the record is the person, who may be called Jun',
    whose('Robert, , Kessler', null, { generation: 2 }),
    'clinic.org',
    {
      person: 'robert.kessler.jr robert.kessler.ii rkessler jun.kessler',
      other_person: 'robert.kessler.sr robert.kessler.iii',
    },
  ],
  [
    'the initials J and R after a surname are not a generation',
    whose('John, Ray, Kessler', null),
    'clinic.org',
    { person: 'kesslerjr', other_person: 'john.kessler.jr' },
  ],
  [
    'a title such as mrs with only the surname means a spouse',
    whose('Ramon, , Delgado', null),
    'clinic.org',
    {
      other_person: 'mrs.delgado mrsdelgado mr.delgado',
      doubtful: 'mrs.ramon.delgado mrsramondelgado',
      person: 'dr.delgado mr.ramon.delgado',
    },
  ],
  [
    'initials with a number are the person only if all initials fit',
    NOVAK,
    'clinic.org',
    { person: 'pjn2041 pn123 pjn', unclear: 'abc9 pxn2041 n123 pn mtz12' },
  ],
  [
    'a full name of somebody else at free mail is somebody else',
    NOVAK,
    'gmail.com',
    {
      other_person: `maria.gonzalez mariagonzalez gonzalez_maria chidi.okwuosa mgonzalez gonzalezm karen.novak
        zorblat.novak knovak`,
    },
  ],
  [
    'a handle at free mail does not show its owner',
    NOVAK,
    'gmail.com',
    {
      unclear: 'surferdoc88 eyedocvera skibum goldenretrieverluv marathoner',
      person: 'peternovak88 novakdds',
      shared: 'novakclinic info oakknolldental',
    },
  ],
  [
    'a surname of another provider at the same place is theirs',
    whose('Peter, James, Novak', null, { strangers: ['okwuosa', 'novak', 'abara'] }),
    'clinic.org',
    {
      other_person: 'okwuosa mokwuosa pokwuosa peter.abara',
      person: 'pnovak peter.novak.okwuosa',
    },
  ],
];

for (const [sentence, who, domain, owners] of RULES) {
  test(sentence, (t) => {
    const wrong = Object.entries(owners).flatMap(([owner, locals]) =>
      locals
        .split(/\s+/)
        .filter((local) => ownerOf({ local, domain }, who) !== owner)
        .map((local) => `${local} is ${ownerOf({ local, domain }, who)}`),
    );
    t.deepEqual(wrong, []);
  });
}

for (const [email, verdict] of [
  ["mo'malley@clinic.com", 'valid mailbox_ok'],
  ['karen.omalley@clinic.com', 'risky other_person'],
  ['drsomalley@clinic.com', 'risky shared'],
] as const) {
  test(`for Mary Jo O'Malley, ${email} gets the verdict "${verdict}" if a verifier says valid`, async (t) => {
    const verifier = verifierOf('one', {
      kind: 'judgment',
      verdict: 'valid',
      reason: 'mailbox_ok',
    });
    const check = checkOf({ policy: 'verify-always', verifiers: [verifier] });
    t.is(inWords(await check(candidate(email), SUBJECT)), verdict);
    t.is(verifier.asked(), verdict.startsWith('valid') ? 1 : 0);
  });
}
