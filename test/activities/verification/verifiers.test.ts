import type { ExecutionContext } from 'ava';
import test from 'ava';
import {
  VERIFIER_IDS,
  VERIFIERS,
  type VerifierId,
} from '../../../activities/verification/verifiers/catalogue.ts';
import { createVerifier } from '../../../activities/verification/verifiers/verifier.ts';
import { createSimulator } from '../../../deploy/local/simulator.ts';
import {
  closedUrl,
  type Played,
  playVendor,
  responsesOf,
  serveVendor,
} from '../../support/vendors.ts';
import { MEANINGS } from '../../support/verifier-responses/meanings.ts';

const KEY = 'key-of-a-test';
const EMAIL = 'jo+npi@clinic.com';
const NEVER = new AbortController().signal;

const make = (id: VerifierId, baseUrl: string, apiKey = KEY) =>
  createVerifier(VERIFIERS[id], { baseUrl, apiKey });

/** Returns the step for a response, in a few words. */
async function stepOf(
  t: ExecutionContext,
  id: VerifierId,
  played: Played,
): Promise<string> {
  const { url } = await playVendor(t, played);
  return await inWords(make(id, url));
}

async function inWords(
  verifier: ReturnType<typeof make>,
  email = EMAIL,
): Promise<string> {
  const step = await verifier.check(email, NEVER);
  switch (step.kind) {
    case 'judgment':
      return `${step.verdict} ${step.reason}`;
    case 'greylisted':
      return step.kind;
    case 'working':
      return `working ${step.afterMs}`;
    case 'retry':
      return `retry ${step.why} ${step.afterMs}`;
    case 'fatal':
      return step.why === 'protocol' ? `protocol ${step.field}` : `fatal ${step.why}`;
  }
}

for (const id of VERIFIER_IDS) {
  test(`the ${id} adapter reads every documented response as expected`, async (t) => {
    const seen: Record<string, string> = {};
    for (const [name, body] of responsesOf(id))
      seen[name] = await stepOf(t, id, { status: 200, body });
    t.deepEqual(seen, MEANINGS[id]);
  });
}

test('the adapters send every verifier its documented request', async (t) => {
  const seen: unknown[] = [];
  for (const id of VERIFIER_IDS) {
    const { url, asked } = await playVendor(t, { status: 500, body: '' });
    await make(id, `${url}/base/`).check(EMAIL, NEVER);
    seen.push(...asked.map(({ method, url: path, body }) => [method, path, body]));
  }
  t.deepEqual(seen, [
    ['POST', '/base/v1/check_email', { to_email: EMAIL }],
    [
      'GET',
      `/base/v2/validate?api_key=${KEY}&email=jo%2Bnpi%40clinic.com&ip_address=`,
      null,
    ],
    [
      'GET',
      `/base/v4.2/single/check?key=${KEY}&email=jo%2Bnpi%40clinic.com&address_info=0`,
      null,
    ],
    ['GET', '/base/email-verifier?email=jo%2Bnpi%40clinic.com', null],
  ]);
});

test('the hunter-verifier adapter sends the API key in a header, not in the URL', async (t) => {
  const { url, asked } = await playVendor(t, { status: 500, body: '' });
  await make('hunter-verifier', url).check(EMAIL, NEVER);
  t.is(asked[0]?.headers['x-api-key'], KEY);
});

for (const [status, headers, step] of [
  [202, {}, 'working 5000'],
  [202, { 'retry-after': '7' }, 'working 7000'],
  [222, {}, 'greylisted'],
] as const) {
  test(`the hunter-verifier adapter reads HTTP ${status} as "${step}"`, async (t) => {
    t.is(await stepOf(t, 'hunter-verifier', { status, headers, body: {} }), step);
  });
}

test('the reacher adapter sends its secret in two headers, or none if it has no secret', async (t) => {
  const { url, asked } = await playVendor(t, { status: 500, body: '' });
  await make('reacher', url).check(EMAIL, NEVER);
  await make('reacher', url, '').check(EMAIL, NEVER);
  const secrets = asked.map(({ headers }) => [
    headers['x-reacher-secret'],
    headers.authorization,
  ]);
  t.deepEqual(secrets, [
    [KEY, KEY],
    [undefined, undefined],
  ]);
});

for (const [id, about, name, change, step] of [
  [
    'reacher',
    'an unknown word',
    'safe',
    { is_reachable: 'splendid' },
    'unknown inconclusive',
  ],
  [
    'zerobounce',
    'an unknown word',
    'valid',
    { status: 'splendid' },
    'unknown inconclusive',
  ],
  [
    'zerobounce',
    'a status in capitals',
    'valid',
    { status: 'Valid' },
    'valid mailbox_ok',
  ],
  [
    'zerobounce',
    'a status with an underscore',
    'catch-all',
    { status: 'catch_all' },
    'catch_all null',
  ],
  [
    'zerobounce',
    'an unknown detail',
    'invalid',
    { sub_status: 'splendid' },
    'invalid mailbox_missing',
  ],
  [
    'neverbounce',
    'an unknown result',
    'valid',
    { result: 'splendid' },
    'unknown inconclusive',
  ],
  ['neverbounce', 'no flags', 'valid', { flags: null }, 'valid mailbox_ok'],
  ['reacher', 'no verdict', 'safe', { is_reachable: undefined }, 'protocol is_reachable'],
  [
    'reacher',
    'a number for its verdict',
    'safe',
    { is_reachable: 1 },
    'protocol is_reachable',
  ],
  [
    'reacher',
    'text for a flag',
    'catch_all',
    { smtp: { is_catch_all: 'yes' } },
    'protocol smtp.is_catch_all',
  ],
  ['reacher', 'no smtp', 'catch_all', { smtp: null }, 'protocol smtp'],
  ['reacher', 'a list for mx', 'missing', { mx: [] }, 'protocol mx'],
  [
    'reacher',
    'text for its error',
    'greylisted',
    { smtp: { error: 'greylisted' } },
    'protocol smtp.error',
  ],
  ['zerobounce', 'no status', 'valid', { status: null }, 'protocol status'],
  [
    'zerobounce',
    'a number for its detail',
    'valid',
    { sub_status: 7 },
    'protocol sub_status',
  ],
  ['neverbounce', 'no status', 'valid', { status: undefined }, 'protocol status'],
  [
    'neverbounce',
    'an unknown status',
    'valid',
    { status: 'splendid' },
    'protocol status',
  ],
  ['neverbounce', 'a number for its result', 'valid', { result: 0 }, 'protocol result'],
  [
    'neverbounce',
    'text for its flags',
    'valid',
    { flags: 'role_account' },
    'protocol flags',
  ],
] as const) {
  test(`the ${id} adapter reads a response with ${about} as "${step}"`, async (t) => {
    t.is(
      await stepOf(t, id, {
        status: 200,
        body: { ...responsesOf(id).get(name), ...change },
      }),
      step,
    );
  });
}

for (const [about, body, step] of [
  [
    'an error about a wrong key',
    { error: 'Invalid API Key or your account ran out of credits' },
    'fatal auth',
  ],
  [
    'an error about a wrong key, in a list,',
    { error: ['Invalid API Key or your account ran out of credits'] },
    'fatal auth',
  ],
  [
    'an error about missing credits',
    { error: 'Your account ran out of credits' },
    'fatal credits',
  ],
  ['any other error', { error: 'Something else' }, 'protocol error'],
  [
    'a response whose error is empty',
    { error: '', status: 'valid', sub_status: '' },
    'valid mailbox_ok',
  ],
] as const) {
  test(`the zerobounce adapter reads ${about} as "${step}", with status 200 and with 400`, async (t) => {
    for (const status of [200, 400])
      t.is(await stepOf(t, 'zerobounce', { status, body }), step);
  });
}

test('the reacher adapter reads a 400 about x-reacher-secret as a wrong API key', async (t) => {
  const body = { error: 'Missing or invalid x-reacher-secret header.' };
  t.is(await stepOf(t, 'reacher', { status: 400, body }), 'fatal auth');
  t.is(
    await stepOf(t, 'reacher', { status: 400, body: { error: 'to_email is required' } }),
    'protocol status',
  );
});

for (const id of VERIFIER_IDS) {
  for (const [status, meaning] of [
    [302, 'protocol status'],
    [401, 'fatal auth'],
    [402, 'fatal credits'],
    // At ZeroBounce, 403 is its protection against attacks and not about our account. At Hunter, it
    // is the rate limit.
    [
      403,
      {
        '': 'fatal plan',
        zerobounce: 'retry upstream 7000',
        'hunter-verifier': 'retry rate_limit 7000',
      },
    ],
    [404, 'protocol status'],
    // Hunter's plan is used up.
    [429, { '': 'retry rate_limit 7000', 'hunter-verifier': 'fatal credits' }],
    // The owner of the address has opted out at Hunter.
    [451, { '': 'protocol status', 'hunter-verifier': 'risky null' }],
    [500, 'retry upstream 7000'],
    [502, 'retry unanswered 7000'],
    [504, 'retry unanswered 7000'],
    [524, 'retry unanswered 7000'],
  ] as const satisfies [number, string | Partial<Record<VerifierId | '', string>>][]) {
    const all: Partial<Record<VerifierId | '', string>> =
      typeof meaning === 'string' ? { '': meaning } : meaning;
    const step = all[id] ?? all[''] ?? '';
    test(`the ${id} adapter reads HTTP ${status} as "${step}"`, async (t) => {
      const headers = { 'retry-after': '7', location: 'http://127.0.0.1:1/' };
      const body = responsesOf(id).get('valid') ?? responsesOf(id).get('safe');
      t.is(await stepOf(t, id, { status, headers, body }), step);
    });
  }

  for (const [about, body] of [
    ['nothing', ''],
    ['null', 'null'],
    ['a list', '[]'],
    ['a word', '"valid"'],
    ['a web page', '<html></html>'],
    ['half a response', '{"status":"val'],
  ] as const) {
    test(`the ${id} adapter reads a response body of ${about} as a protocol error`, async (t) => {
      t.is(await stepOf(t, id, { status: 200, body }), 'protocol body');
    });
  }

  test(`the ${id} adapter says that a call to an unreachable server was not sent`, async (t) => {
    const url = await serveVendor(t, (request) => request.socket.destroy());
    t.is(await inWords(make(id, url)), 'retry unanswered null');
    t.is(await inWords(make(id, await closedUrl())), 'retry unsent null');
  });

  test(`the ${id} adapter throws the reason if its call is aborted`, async (t) => {
    const asked = Promise.withResolvers<void>();
    const url = await serveVendor(t, () => asked.resolve());
    const controller = new AbortController();
    const check = make(id, url).check(EMAIL, controller.signal);
    await asked.promise;
    const reason = new Error('stopped');
    controller.abort(reason);
    t.is(await t.throwsAsync(check), reason);
  });

  test(`the ${id} adapter never repeats the address or the API key in its steps`, async (t) => {
    const bodies = [
      ...responsesOf(id).values(),
      { error: `${EMAIL} ${KEY}` },
      { status: EMAIL, is_reachable: EMAIL, message: KEY },
    ];
    for (const body of bodies) {
      const { url } = await playVendor(t, { status: 200, body });
      const step = JSON.stringify(await make(id, url).check(EMAIL, NEVER));
      t.false(step.includes('clinic.com') || step.includes(KEY), step);
    }
  });
}

/** Starts the simulated Reacher of the local stack. */
async function simulated(t: ExecutionContext, key = KEY) {
  const simulator = await createSimulator({ port: 0, speed: 1000, apiKey: KEY });
  t.teardown(() => simulator.close());
  const verifier = make('reacher', simulator.urls.reacher, key);
  return (local: string) => inWords(verifier, `${local}@cedarvalleyclinic-sim.com`);
}

test("the simulated Reacher derives a mailbox's state from the start of its name", async (t) => {
  const ask = await simulated(t);
  const locals = [
    'jo.ashdown',
    'missing.jo',
    'catchall.jo',
    'full.jo',
    'unknown.jo',
    'info',
  ];
  t.deepEqual(await Promise.all(locals.map((local) => ask(local))), [
    'valid mailbox_ok',
    'invalid mailbox_missing',
    'catch_all null',
    'risky mailbox_full',
    'unknown inconclusive',
    'risky role',
  ]);
});

test('the simulated Reacher rejects a wrong API key, and greylists an address once', async (t) => {
  t.is(await (await simulated(t, 'another'))('jo.ashdown'), 'fatal auth');
  const ask = await simulated(t);
  t.deepEqual(
    [await ask('greylisted.jo'), await ask('greylisted.jo')],
    ['greylisted', 'valid mailbox_ok'],
  );
});
