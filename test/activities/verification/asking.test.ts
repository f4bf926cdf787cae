import test from 'ava';
import { NOBODY_KNOWN } from '../../../activities/verification/local-part.ts';
import type { NamedCandidate } from '../../../activities/verification/policy.ts';
import type {
  Verifier,
  VerifierStep,
} from '../../../activities/verification/verifiers/verifier.ts';
import {
  candidate,
  checkOf,
  DAY_MS,
  FOR_NOBODY,
  inWords,
  NOW,
  verifierOf,
} from '../../support/checks.ts';
import { aborted } from '../../support/vendors.ts';

const VALID: VerifierStep = { kind: 'judgment', verdict: 'valid', reason: 'mailbox_ok' };
const MISSING: VerifierStep = {
  kind: 'judgment',
  verdict: 'invalid',
  reason: 'mailbox_missing',
};
const INCONCLUSIVE: VerifierStep = {
  kind: 'judgment',
  verdict: 'unknown',
  reason: 'inconclusive',
};
const GREYLISTED: VerifierStep = { kind: 'greylisted' };
const WORKING: VerifierStep = { kind: 'working', afterMs: 5000 };
const LIMITED: VerifierStep = { kind: 'retry', why: 'rate_limit', afterMs: 2000 };
const AWAY: VerifierStep = {
  kind: 'retry',
  why: 'unsent',
  cause: 'ECONNREFUSED',
  afterMs: null,
};
const BROKE: VerifierStep = { kind: 'fatal', why: 'credits' };

const UNKNOWN = { verdict: 'unknown', validatedAt: null } as const;

async function checkedBy(
  steps: readonly Parameters<typeof verifierOf>[1][],
  rest: Partial<NamedCandidate> = UNKNOWN,
) {
  const verifiers = steps.map((step, index) => verifierOf(`v${index + 1}`, step));
  const checked = await checkOf({ verifiers })(candidate('jo@clinic.com', rest));
  return { checked, asked: verifiers.map((verifier) => verifier.asked()).join() };
}

for (const [about, step, rest, verdict] of [
  [
    'can make an address valid whose vendor calls it unknown',
    VALID,
    UNKNOWN,
    'valid mailbox_ok',
  ],
  [
    'can make an address valid whose vendor calls it risky',
    VALID,
    { verdict: 'risky' },
    'valid mailbox_ok',
  ],
  [
    'can make an address valid whose vendor calls it a catch-all',
    VALID,
    { verdict: 'catch_all' },
    'valid mailbox_ok',
  ],
  [
    'can make an address from NPPES valid',
    VALID,
    { ...UNKNOWN, source: 'nppes' },
    'valid mailbox_ok',
  ],
  ['can make an address invalid', MISSING, UNKNOWN, 'invalid mailbox_missing'],
  [
    'that reports a role address makes the address risky, with the reason role',
    { kind: 'judgment', verdict: 'risky', reason: 'role' },
    UNKNOWN,
    'risky role',
  ],
  [
    'without a result leaves an address unknown whose vendor calls it unknown',
    INCONCLUSIVE,
    UNKNOWN,
    'unknown inconclusive',
  ],
  [
    'without a result leaves an address a catch-all whose vendor calls it that',
    INCONCLUSIVE,
    { verdict: 'catch_all' },
    'catch_all null',
  ],
] as const) {
  test(`a verifier ${about}`, async (t) => {
    const { checked } = await checkedBy([step], rest);
    t.is(inWords(checked), verdict);
  });
}

test('an old address that a verifier confirms gets the current date', async (t) => {
  const old = { validatedAt: new Date(NOW - 40 * DAY_MS) };
  const { checked } = await checkedBy([VALID], old);
  t.like(checked, { verdict: 'valid', validatedAt: new Date(NOW) });
});

test('an old address that no verifier confirms keeps its date and is not valid', async (t) => {
  const validatedAt = new Date(NOW - 40 * DAY_MS);
  const { checked } = await checkedBy([INCONCLUSIVE], { validatedAt });
  t.like(checked, { verdict: 'unknown', reason: 'inconclusive', validatedAt });
});

for (const [about, rest] of [
  ['an address that its vendor validated recently', {}],
  ['an address whose vendor calls it invalid', { verdict: 'invalid' }],
  ['an address of a role such as info@', { ...UNKNOWN, email: 'info@clinic.com' }],
  ['an address for Direct messages', { ...UNKNOWN, email: 'jo@direct.clinic.com' }],
] as const) {
  test(`no verifier is called for ${about}`, async (t) => {
    const { asked } = await checkedBy([VALID], rest);
    t.is(asked, '0');
  });
}

for (const [about, steps, verdict, asked] of [
  [
    'is called if the first has no result',
    [INCONCLUSIVE, VALID],
    'valid mailbox_ok',
    '1,1',
  ],
  ['is called if the first is rate-limited', [LIMITED, VALID], 'valid mailbox_ok', '1,1'],
  [
    'is called if our account at the first has no credits',
    [BROKE, MISSING],
    'invalid mailbox_missing',
    '1,1',
  ],
  [
    'is called if the first is still working',
    [WORKING, VALID],
    'valid mailbox_ok',
    '1,1',
  ],
  [
    'is called if the mail server greylisted the first',
    [GREYLISTED, VALID],
    'valid mailbox_ok',
    '1,1',
  ],
  [
    'is not called if the first has a result',
    [MISSING, VALID],
    'invalid mailbox_missing',
    '1,0',
  ],
  [
    'is not called if the first reports a catch-all',
    [{ kind: 'judgment', verdict: 'catch_all', reason: null }, VALID],
    'catch_all null',
    '1,0',
  ],
] as const) {
  test(`the second verifier ${about}`, async (t) => {
    const outcome = await checkedBy(steps);
    t.is(inWords(outcome.checked), verdict);
    t.is(outcome.asked, asked);
  });
}

test('when a check is repeated, a verifier that had no result is not called again', async (t) => {
  const { checked, asked } = await checkedBy([VALID, LIMITED], {
    ...UNKNOWN,
    undecided: { v1: 'inconclusive' },
  });
  t.is(inWords(checked), 'transient verifier_rate_limit');
  t.is(asked, '0,1');
});

for (const [about, steps, outcome] of [
  [
    'all verifiers are rate-limited',
    [LIMITED, AWAY],
    { reason: 'verifier_rate_limit', afterMs: 2000 },
  ],
  ['a verifier cannot be reached', [AWAY], { reason: 'verifier_unsent', afterMs: null }],
  [
    'a verifier has no result and another is rate-limited',
    [INCONCLUSIVE, LIMITED],
    { reason: 'verifier_rate_limit', afterMs: 2000 },
  ],
  [
    'our account at one verifier has no credits and another is rate-limited',
    [BROKE, LIMITED],
    { reason: 'verifier_rate_limit', afterMs: 2000 },
  ],
  [
    'several verifiers ask us to wait, after the shortest of these waits',
    [LIMITED, { kind: 'retry', why: 'upstream', afterMs: 1000 }, LIMITED],
    { reason: 'verifier_upstream', afterMs: 1000 },
  ],
] as const) {
  test(`the check of an address is repeated later if ${about}`, async (t) => {
    const { checked } = await checkedBy(steps);
    t.like(checked, { kind: 'transient', ...outcome });
  });
}

test('the evidence of an address records why a verifier could not be reached', async (t) => {
  const { checked } = await checkedBy([AWAY]);
  const [, asked] = checked.evidence;
  t.like(asked, {
    kind: 'verifier',
    verdict: 'unknown',
    reason: 'verifier_unsent: ECONNREFUSED',
  });
});

test('the check of an address is repeated later if its only verifier is unavailable', async (t) => {
  const { checked } = await checkedBy([
    { kind: 'unavailable', why: 'unavailable', afterMs: 30_000 },
  ]);
  t.like(checked, { kind: 'transient', reason: 'verifier_unavailable', afterMs: 30_000 });
});

for (const [about, steps] of [
  [
    "all verifiers need an operator's help",
    [BROKE, { kind: 'fatal', why: 'protocol', field: 'body' }],
  ],
  [
    "one verifier has no result and the other needs an operator's help",
    [INCONCLUSIVE, BROKE],
  ],
] as const) {
  test(`the check of an address is repeated later if ${about}`, async (t) => {
    t.is(inWords((await checkedBy(steps)).checked), 'transient verifier_unavailable');
  });
}

test('a greylisted address is checked again later, even if a verifier is rate-limited', async (t) => {
  const { checked } = await checkedBy([GREYLISTED, LIMITED]);
  t.like(checked, {
    kind: 'later',
    reason: 'greylisted',
    otherwise: { verdict: 'unknown', reason: 'greylisted' },
  });
});

test('a check that loses its turn keeps the results of the verifiers before', async (t) => {
  for (const [step, result] of [
    [GREYLISTED, 'later greylisted'],
    [INCONCLUSIVE, 'transient verifier_unavailable'],
  ] as const) {
    const second = verifierOf('two', VALID);
    const check = checkOf({ verifiers: [verifierOf('one', step), second] });
    const work = { ...FOR_NOBODY, renewTurn: async () => false };
    const checked = await check(candidate('jo@clinic.com', UNKNOWN), NOBODY_KNOWN, work);
    t.is(inWords(checked), result);
    t.is(second.asked(), 0);
    t.true(checked.evidence.some(({ source }) => source === 'one'));
  }
});

test('a greylisted address becomes valid if the mail server accepts it later', async (t) => {
  const verifier = verifierOf('one', GREYLISTED, VALID);
  const check = checkOf({ verifiers: [verifier] });
  const named = candidate('jo@clinic.com', UNKNOWN);
  t.is(inWords(await check(named)), 'later greylisted');
  t.is(inWords(await check(named)), 'valid mailbox_ok');
});

test('the evidence of an address lists the local checks and every verifier, in order', async (t) => {
  const { checked } = await checkedBy([GREYLISTED, LIMITED, INCONCLUSIVE, MISSING]);
  t.deepEqual(
    checked.evidence.map(
      ({ kind, source, verdict, reason }) => `${kind} ${source}: ${verdict} ${reason}`,
    ),
    [
      'local service: valid local_checks',
      'verifier v1: unknown greylisted',
      'verifier v2: unknown verifier_rate_limit',
      'verifier v3: unknown inconclusive',
      'verifier v4: invalid mailbox_missing',
    ],
  );
  t.true(
    checked.evidence.every(
      ({ durationMs }) => Number.isInteger(durationMs) && (durationMs ?? -1) >= 0,
    ),
  );
});

test('the evidence of an address records why it was rejected without a verifier', async (t) => {
  const checked = await checkOf()(candidate('info@clinic.com'));
  t.deepEqual(
    checked.evidence.map(({ kind, source, verdict, reason }) => [
      kind,
      source,
      verdict,
      reason,
    ]),
    [['local', 'service', 'risky', 'shared']],
  );
});

test('verifiers get the address in the normalized form that we would return', async (t) => {
  const asked: string[] = [];
  const verifier: Verifier = {
    id: 'one',
    cost: 1,
    async check(email) {
      asked.push(email);
      return { ...VALID, durationMs: 1, waitedMs: 0 };
    },
  };
  await checkOf({ verifiers: [verifier] })(candidate(' Jo@Bücher.de', UNKNOWN));
  t.deepEqual(asked, ['jo@xn--bcher-kva.de']);
});

test('a check that is aborted throws the reason for the abort', async (t) => {
  const verifier: Verifier = {
    id: 'one',
    cost: 1,
    check: (_email, { signal }) => aborted(signal),
  };
  const reason = new Error('stopped');
  const check = checkOf({ verifiers: [verifier], signal: AbortSignal.abort(reason) });
  const error = await t.throwsAsync(check(candidate('jo@clinic.com', UNKNOWN)));
  t.is(error, reason);
});
