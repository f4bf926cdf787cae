import test from 'ava';
import type { Person } from '../../../activities/vendors/vendor.ts';
import type { CheckOptions } from '../../../activities/verification/check.ts';
import { NOBODY_KNOWN } from '../../../activities/verification/local-part.ts';
import type { NamedCandidate } from '../../../activities/verification/policy.ts';
import {
  type Case,
  judge,
  POLICIES,
  POLICY_TABLE,
  VERIFIER_WORDS,
  verifierCanHelp,
} from '../../../activities/verification/policy.ts';
import {
  candidate,
  checkOf,
  DAY_MS,
  FINDER_WORDS,
  inWords,
  NOW,
  verifierOf,
} from '../../support/checks.ts';

const JOHN_SMITH: Person = {
  first: 'John',
  middle: null,
  last: 'Smith',
  generation: null,
  otherNames: [],
  profileNames: [],
  profileSurnames: [],
  practice: { line1: null, city: null, state: null, zip: null },
  otherStates: [],
};

const CASES: readonly Case[] = POLICIES.flatMap((policy) =>
  FINDER_WORDS.flatMap((finder) =>
    VERIFIER_WORDS.flatMap((verifier) =>
      [false, true].map((agreed) => ({ policy, finder, verifier, agreed })),
    ),
  ),
);

/** Returns the cases with a verdict, each in a few words. */
function casesThatAre(verdict: string): string[] {
  return CASES.filter((one) => judge(one)[0] === verdict).map(
    ({ policy, finder, verifier, agreed }) =>
      `${policy}: ${finder}, ${verifier}${agreed ? ', agreed' : ''}`,
  );
}

test('the policy table has a verdict for every case, and every row is used', (t) => {
  t.is(CASES.length, 3 * 9 * 6 * 2);
  for (const row of POLICY_TABLE) {
    t.true(
      CASES.some((one) => judge(one) === row[4]),
      JSON.stringify(row),
    );
  }
});

test('an address is valid exactly in the listed cases of policy, claim, and verifier', (t) => {
  // Written out instead of computed, so that a change of the table must be repeated here on
  // purpose.
  const asking = [
    'valid',
    'stale',
    'undated',
    'catch_all',
    'risky',
    'unknown',
    'registry',
  ];
  const notDoubted = asking.filter((word) => word !== 'risky');
  const verified = (policy: string) =>
    asking.flatMap((word) => [
      `${policy}: ${word}, valid`,
      `${policy}: ${word}, valid, agreed`,
    ]);
  const agreed = (policy: string) =>
    notDoubted.map((word) => `${policy}: ${word}, catch_all, agreed`);
  const untold = (
    policy: string,
    word: string,
    suffix: string,
    verifiers = ['unknown', 'none'],
  ) => verifiers.map((verifier) => `${policy}: ${word}, ${verifier}${suffix}`);
  t.deepEqual(
    casesThatAre('valid').sort(),
    [
      ...verified('vendor-or-verifier'),
      ...agreed('vendor-or-verifier'),
      ...untold('vendor-or-verifier', 'valid', ''),
      ...untold('vendor-or-verifier', 'valid', ', agreed'),
      ...untold('vendor-or-verifier', 'catch_all', ', agreed'),
      ...verified('verify-always'),
      ...agreed('verify-always'),
      ...untold('verify-always', 'valid', '', ['unknown']),
      ...untold('verify-always', 'valid', ', agreed', ['unknown']),
      ...untold('verify-always', 'catch_all', ', agreed', ['unknown']),
      ...verified('verifier-required'),
      ...agreed('verifier-required'),
    ].sort(),
  );
});

test('an address is invalid if and only if its vendor or a verifier calls it invalid', (t) => {
  for (const one of CASES) {
    const isInvalid = judge(one)[0] === 'invalid';
    t.is(
      isInvalid,
      one.finder === 'invalid' || one.verifier === 'invalid',
      JSON.stringify(one),
    );
  }
});

test('a catch-all is valid only if two sources name it or a verifier calls it valid', (t) => {
  for (const one of CASES) {
    if (one.agreed || (one.finder !== 'catch_all' && one.verifier !== 'catch_all'))
      continue;
    t.true(judge(one)[0] !== 'valid' || one.verifier === 'valid', JSON.stringify(one));
  }
});

test('an address known only from NPPES needs a verifier or a second source', (t) => {
  for (const one of CASES) {
    if (one.finder !== 'registry' || judge(one)[0] !== 'valid') continue;
    t.true(
      one.verifier === 'valid' || (one.verifier === 'catch_all' && one.agreed),
      JSON.stringify(one),
    );
  }
});

test('a verifier is called exactly in the cases where it could make an address valid', (t) => {
  const asked = CASES.filter(({ verifier }) => verifier === 'none')
    .filter(verifierCanHelp)
    .map(
      ({ policy, finder, agreed }) => `${policy}: ${finder}${agreed ? ', agreed' : ''}`,
    );
  const words = ['stale', 'undated', 'catch_all', 'risky', 'unknown', 'registry'];
  const both = (policy: string, word: string) => [
    `${policy}: ${word}`,
    `${policy}: ${word}, agreed`,
  ];
  t.deepEqual(
    asked.sort(),
    [
      ...words
        .flatMap((word) => both('vendor-or-verifier', word))
        .filter((one) => one !== 'vendor-or-verifier: catch_all, agreed'),
      ...['valid', ...words].flatMap((word) => both('verify-always', word)),
      ...['valid', ...words].flatMap((word) => both('verifier-required', word)),
    ].sort(),
  );
});

async function verdictOf(
  rest: Partial<NamedCandidate>,
  options: Partial<CheckOptions> = {},
) {
  return inWords(await checkOf(options)(candidate('jo@clinic.com', rest)));
}

for (const [about, rest, verdict] of [
  [
    "a vendor's claim that is 30 days old makes an address valid",
    { validatedAt: new Date(NOW - 30 * DAY_MS) },
    'valid mailbox_ok',
  ],
  [
    "a vendor's claim that is older than 30 days does not make an address valid",
    { validatedAt: new Date(NOW - 30 * DAY_MS - 1) },
    'unknown stale_evidence',
  ],
  [
    "a vendor's claim without a date does not make an address valid",
    { validatedAt: null },
    'unknown no_evidence',
  ],
  [
    "a vendor's claim with an unreadable date does not make an address valid",
    { validatedAt: new Date(Number.NaN) },
    'unknown no_evidence',
  ],
  [
    "a vendor's claim dated two days ahead does not make an address valid",
    { validatedAt: new Date(NOW + 2 * DAY_MS) },
    'unknown no_evidence',
  ],
  [
    'an address that its vendor calls unknown stays unknown',
    { verdict: 'unknown' },
    'unknown no_evidence',
  ],
  [
    'an address that its vendor calls invalid stays invalid',
    { verdict: 'invalid' },
    'invalid mailbox_missing',
  ],
  [
    'an address that its vendor calls a catch-all stays a catch-all',
    { verdict: 'catch_all' },
    'catch_all null',
  ],
  [
    'an address that its vendor calls risky stays risky',
    { verdict: 'risky' },
    'risky null',
  ],
  [
    'an address that is known only from NPPES stays unknown',
    { verdict: 'unknown', source: 'nppes' },
    'unknown no_evidence',
  ],
] as const) {
  test(`if no verifier is configured, ${about}`, async (t) => {
    t.is(await verdictOf(rest), verdict);
  });
}

test("a vendor's date that is slightly in the future is replaced by the current time", async (t) => {
  const checked = await checkOf()(
    candidate('jo@clinic.com', { validatedAt: new Date(NOW + 60_000) }),
  );
  t.like(checked, { verdict: 'valid', validatedAt: new Date(NOW) });
});

const INCONCLUSIVE = {
  kind: 'judgment',
  verdict: 'unknown',
  reason: 'inconclusive',
} as const;

for (const [about, step, rest, verdict, asked] of [
  [
    'says that its mailbox does not exist',
    { kind: 'judgment', verdict: 'invalid', reason: 'mailbox_missing' },
    {},
    'invalid mailbox_missing',
    1,
  ],
  [
    'reports a role address',
    { kind: 'judgment', verdict: 'risky', reason: 'role' },
    {},
    'risky role',
    1,
  ],
  [
    'calls it valid',
    { kind: 'judgment', verdict: 'valid', reason: 'mailbox_ok' },
    {},
    'valid mailbox_ok',
    1,
  ],
  [
    "has no result, and the vendor's claim is dated",
    INCONCLUSIVE,
    {},
    'valid mailbox_ok',
    1,
  ],
  [
    "has no result, and the vendor's claim has no date",
    INCONCLUSIVE,
    { validatedAt: null },
    'unknown inconclusive',
    1,
  ],
  ['is greylisted by the mail server', { kind: 'greylisted' }, {}, 'later greylisted', 1],
  [
    'is down',
    { kind: 'retry', why: 'upstream', afterMs: null },
    {},
    'transient verifier_upstream',
    1,
  ],
  [
    'rejects our API key',
    { kind: 'fatal', why: 'auth' },
    {},
    'transient verifier_unavailable',
    1,
  ],
  [
    'called it invalid an hour ago',
    INCONCLUSIVE,
    {
      lastVerdict: { verdict: 'invalid', reason: 'mailbox_missing', at: NOW - 3_600_000 },
    },
    'invalid mailbox_missing',
    0,
  ],
] as const) {
  test(`under policy verify-always, an address gets "${verdict}" if its verifier ${about}`, async (t) => {
    const verifier = verifierOf('one', step);
    t.is(
      await verdictOf(rest, { policy: 'verify-always', verifiers: [verifier] }),
      verdict,
    );
    t.is(verifier.asked(), asked);
  });
}

test("if an address stays greylisted, its vendor's claim decides", async (t) => {
  const verifiers = [verifierOf('one', { kind: 'greylisted' })];
  const check = checkOf({ policy: 'verify-always', verifiers });
  t.like(await check(candidate('jo@clinic.com')), {
    otherwise: { verdict: 'valid', validatedAt: new Date(NOW - DAY_MS) },
  });
  const undated = await check(candidate('jo@clinic.com', { validatedAt: null }));
  t.like(undated, { otherwise: { verdict: 'unknown', reason: 'greylisted' } });
});

test("if no verifier has a result, a vendor's claim with a validation date decides", async (t) => {
  const verifiers = [
    verifierOf('one', INCONCLUSIVE),
    verifierOf('two', { kind: 'fatal', why: 'auth' }),
  ];
  const checked = await checkOf({ policy: 'verify-always', verifiers })(
    candidate('jo@clinic.com'),
  );
  t.like(checked, { verdict: 'valid' });
});

test('an address that a verifier confirmed an hour ago keeps the date of that check', async (t) => {
  const at = NOW - 3_600_000;
  const lastVerdict = { verdict: 'valid', reason: 'mailbox_ok', at } as const;
  const verifiers = [verifierOf('one', INCONCLUSIVE)];
  const checked = await checkOf({ policy: 'verify-always', verifiers })(
    candidate('jo@clinic.com', { lastVerdict }),
  );
  t.like(checked, { verdict: 'valid', validatedAt: new Date(at) });
});

for (const [about, rest, step, verdict] of [
  [
    'is valid by a dated claim of a vendor that does not repeat our input',
    {},
    null,
    'valid mailbox_ok',
  ],
  [
    'is not valid by a dated claim of a vendor that repeats our input',
    { repeatsInput: true },
    null,
    'unknown unclear_owner',
  ],
  [
    'stays risky if its vendor calls it risky and repeats our input',
    { repeatsInput: true, verdict: 'risky' },
    null,
    'risky null',
  ],
  [
    'is not valid if its vendor repeats our input and a verifier has no result',
    { repeatsInput: true },
    INCONCLUSIVE,
    'unknown unclear_owner',
  ],
  [
    'is not valid if its vendor repeats our input, even if the mailbox exists',
    { repeatsInput: true },
    { kind: 'judgment', verdict: 'valid', reason: 'mailbox_ok' },
    'unknown unclear_owner',
  ],
  [
    'is not valid if two vendors repeat our input, even if the mailbox exists',
    { repeatsInput: true, namedBy: 2 },
    { kind: 'judgment', verdict: 'valid', reason: 'mailbox_ok' },
    'unknown unclear_owner',
  ],
  [
    'is not valid at a catch-all domain if two vendors repeat our input',
    { repeatsInput: true, verdict: 'catch_all', namedBy: 2 },
    { kind: 'judgment', verdict: 'catch_all', reason: null },
    'unknown unclear_owner',
  ],
] as const) {
  test(`an address whose local part does not show its owner ${about}`, async (t) => {
    const verifiers = step === null ? [] : [verifierOf('one', step)];
    t.is(await verdictOf(rest, { verifiers, catchAll: 'two-sources' }), verdict);
  });
}

for (const [title, email, rest, verdict] of [
  [
    'an unclear work address from one source is not valid',
    'mtz4@clinic.com',
    {},
    'unknown unclear_owner',
  ],
  [
    'an unclear work address from two sources is valid',
    'mtz4@clinic.com',
    { namedBy: 2 },
    'valid mailbox_ok',
  ],
  [
    'an employee number from one source is valid',
    'k204417@clinic.com',
    {},
    'valid mailbox_ok',
  ],
  [
    'an employee number from a vendor that repeats our input is not valid',
    'k204417@clinic.com',
    { repeatsInput: true },
    'unknown unclear_owner',
  ],
  ...(
    [
      ['a telephone number', '13035550100@clinic.com'],
      ['a number with three letters that are not the initials', 'kjm7731@clinic.com'],
      ['a surname at the domain of a trade with this surname', 'jsmith@smithlaw.com'],
      ['a name at an agency', 'john.smith@brightpixelmarketing.com'],
      ['a name at a directory of physicians', 'john.smith@doximity.com'],
      ['the surname and other words at free mail', 'smithpuppies@gmail.com'],
    ] as const
  ).flatMap(
    ([what, email]) =>
      [
        [`${what} from one source is not valid`, email, {}, 'unknown unclear_owner'],
        [`${what} from two sources is valid`, email, { namedBy: 2 }, 'valid mailbox_ok'],
      ] as const,
  ),
  [
    'initials at a domain that only contains both names by chance are not valid',
    'qs@johnsmithson.com',
    {},
    'unknown unclear_owner',
  ],
  [
    'initials at a domain with both names of the person are valid',
    'qs@johnsmith.com',
    {},
    'valid mailbox_ok',
  ],
  [
    'an address at a gateway to telephones is not valid',
    'john.smith@vtext.com',
    { namedBy: 2 },
    'risky relay',
  ],
  [
    'a handle at free mail from one source is valid',
    'sunnyday77@gmail.com',
    {},
    'valid mailbox_ok',
  ],
  [
    'a handle at free mail from a vendor that repeats our input is not valid',
    'sunnyday77@gmail.com',
    { repeatsInput: true },
    'unknown unclear_owner',
  ],
] as const) {
  test(title, async (t) => {
    const verifiers = [
      verifierOf('one', { kind: 'judgment', verdict: 'valid', reason: 'mailbox_ok' }),
    ];
    const whose = { ...NOBODY_KNOWN, person: JOHN_SMITH };
    t.is(inWords(await checkOf({ verifiers })(candidate(email, rest), whose)), verdict);
  });
}

test("under policy verifier-required, a vendor's claim does not make an address valid", async (t) => {
  t.is(await verdictOf({}, { policy: 'verifier-required' }), 'unknown not_verified');
});

for (const [namedBy, catchAll, verdict] of [
  [1, 'two-sources', 'catch_all null'],
  [2, 'two-sources', 'valid two_sources'],
  [2, 'reject', 'catch_all null'],
] as const) {
  test(`with CATCH_ALL=${catchAll}, a catch-all that ${namedBy} source(s) named gets "${verdict}"`, async (t) => {
    t.is(await verdictOf({ verdict: 'catch_all', namedBy }, { catchAll }), verdict);
    const verifiers = [
      verifierOf('one', { kind: 'judgment', verdict: 'catch_all', reason: null }),
    ];
    t.is(
      await verdictOf({ verdict: 'unknown', namedBy }, { catchAll, verifiers }),
      verdict,
    );
  });
}

test('a catch-all that is valid because two sources named it gets the current date', async (t) => {
  const check = checkOf({ catchAll: 'two-sources' });
  const checked = await check(
    candidate('jo@clinic.com', { verdict: 'catch_all', namedBy: 2 }),
  );
  t.like(checked, { verdict: 'valid', validatedAt: new Date(NOW) });
});
