import { readFile } from 'node:fs/promises';
import test from 'ava';
import { ROCKETREACH_PLANS } from '../../activities/vendors/rocketreach.ts';
import { ConfigError } from '../../deploy/config/values.ts';
import { fileIn, sourceText } from '../support/adapters.ts';

// Tests the rules for SOURCES_FILE, and the errors about wrong files.

const MEMBERS =
  'http, order, pattern, max_price_per_lookup, vendors, verifiers, registry, greylist_wait, reverify_interval';
const HTTP_MEMBERS = [
  ...[
    'id',
    'method',
    'url',
    'headers',
    'body',
    'needs',
    'gives',
    'cost',
    'repeat_is_free',
    'may_store',
  ],
  ...[
    'wait',
    'call',
    'rates',
    'daily_credits',
    'price_per_credit',
    'miss',
    'candidates',
    'identity',
  ],
];

test("settings that the sources file leaves out have the source's own defaults", (t) => {
  const { vendors, verifiers, ...rest } = fileIn(
    '{"vendors":{"fullenrich":{"wait":"90s"}}}',
  );
  t.deepEqual(rest, {
    http: [],
    order: null,
    pattern: 'first',
    max_price_per_lookup: null,
    registry: 'off',
    greylist_wait: 300_000,
    reverify_interval: 600_000,
  });
  t.like(vendors.hunter, {
    types: ['professional'],
    wait: 45_000,
    call: 30_000,
    rates: [
      { calls: 15, perMs: 1000 },
      { calls: 500, perMs: 60_000 },
    ],
    daily_credits: null,
    price_per_credit: null,
    may_store: true,
  });
  t.like(vendors.fullenrich, { wait: 90_000, call: 30_000, poll: 300_000 });
  t.is(vendors.rocketreach.api, 'legacy');
  t.deepEqual(vendors.rocketreach.rates, [...ROCKETREACH_PLANS.essentials]);
  t.deepEqual(verifiers.reacher, {
    rates: [{ calls: 5, perMs: 1000 }],
    daily_credits: null,
    price_per_credit: null,
  });
  t.is(verifiers.order, null);
});

test('the plan of RocketReach chooses its rates, unless the file sets them', (t) => {
  const ratesOf = (settings: object) => {
    const { vendors } = fileIn(JSON.stringify({ vendors: { rocketreach: settings } }));
    return vendors.rocketreach.rates;
  };
  t.deepEqual(ratesOf({ plan: 'custom' }), [...ROCKETREACH_PLANS.custom]);
  t.deepEqual(ratesOf({ plan: 'custom', rates: [] }), []);
});

test('a vendor described in the sources file has defaults for most settings', (t) => {
  const [listed] = fileIn(sourceText('https://x.example'), {
    VENDOR_LISTED_KEY: 'k',
  }).http;
  t.like(listed, {
    method: 'GET',
    body: null,
    repeat_is_free: false,
    wait: 60_000,
    call: 30_000,
    rates: [],
    daily_credits: null,
    price_per_credit: null,
    miss: { statuses: [404], when: [] },
  });
});

test('an empty JSON pointer means the whole document', (t) => {
  const { http, ...rest } = JSON.parse(sourceText('https://x.example'));
  const candidates = { ...http[0].candidates, list: '' };
  const file = { ...rest, http: [{ ...http[0], candidates }] };
  const [listed] = fileIn(JSON.stringify(file), { VENDOR_LISTED_KEY: 'k' }).http;
  t.deepEqual(listed?.candidates.list, []);
});

test('"order" may list built-in sources and vendors that the sources file describes', (t) => {
  const { http } = JSON.parse(sourceText('https://x.example'));
  const file = {
    order: ['listed', 'hunter'],
    verifiers: { order: ['zerobounce', 'reacher'] },
    http,
  };
  const keys = {
    VENDOR_LISTED_KEY: 'k',
    HUNTER_API_KEY: 'h',
    ZEROBOUNCE_API_KEY: 'z',
    REACHER_URL: 'http://r',
  };
  const { order, verifiers } = fileIn(JSON.stringify(file), keys);
  t.deepEqual(order, ['listed', 'hunter']);
  t.deepEqual(verifiers.order, ['zerobounce', 'reacher']);
});

/** Returns the problems of a file, for a worker with keys for Hunter and Reacher. */
function problemsOf(text: string): string[] {
  try {
    fileIn(text, {
      VENDOR_LISTED_KEY: 'key-of-a-test',
      HUNTER_API_KEY: 'h',
      REACHER_URL: 'http://127.0.0.1',
    });
    return [];
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    const [title = '', ...problems] = error.message
      .split('\n')
      .map((line) => line.trim());
    if (title !== 'SOURCES_FILE is wrong:') throw error;
    return problems;
  }
}

for (const [rest, problem] of [
  [
    { id: 'Listed!' },
    'http[0].id must be 2 to 31 lowercase letters, digits and hyphens, and not end with -personal',
  ],
  [{ id: 'hunter' }, 'http[0].id is the name of a built-in source'],
  [{ id: 'zerobounce' }, 'http[0].id is the name of a built-in source'],
  [
    { url: 'ftp://x.example/{npi}' },
    'http[0].url must be an https URL; http is for this machine only',
  ],
  [{ url: '/people' }, 'http[0].url must be an https URL; http is for this machine only'],
  [
    { url: 'http://x.example/{npi}' },
    'http[0].url must be an https URL; http is for this machine only',
  ],
  [
    { url: 'http://10.0.0.1/{npi}' },
    'http[0].url must be an https URL; http is for this machine only',
  ],
  [
    { url: 'http://127.0.0.1.x.example/{npi}' },
    'http[0].url must be an https URL; http is for this machine only',
  ],
  [
    { url: 'https://{domain}/x' },
    'http[0].url may have placeholders only in its path and query',
  ],
  [
    { url: 'https://x.example:{npi}/x' },
    'http[0].url must be an https URL; http is for this machine only',
  ],
  [
    { url: 'https://me:pw@x.example/{npi}' },
    'http[0].url may have placeholders only in its path and query',
  ],
  [{ url: 'https://x.example/{ssn}' }, 'http[0].url has no placeholder {ssn}'],
  [
    { method: 'POST', body: { who: ['{first} {age}', '{ssn}'] } },
    'http[0].body has no placeholder {age}, {ssn}',
  ],
  [
    { needs: ['npi'] },
    'http[0].needs must list name: the URL or the body has placeholders for them',
  ],
  [
    { needs: [], method: 'POST', body: { city: '{city}' } },
    'http[0].needs must list npi, name, address: the URL or the body has placeholders for them',
  ],
  [
    { headers: { 'x-key': `\${VENDOR_ABSENT}` } },
    'http[0].headers.x-key needs VENDOR_ABSENT, which is not set',
  ],
  [
    { headers: { 'x-key': `\${VENDOR_ABSENT}:\${VENDOR_AWAY}` } },
    'http[0].headers.x-key needs VENDOR_ABSENT, VENDOR_AWAY, which is not set',
  ],
  [
    { headers: { 'x-key': `\${DATABASE_URL}` } },
    'http[0].headers.x-key may only name variables that begin with VENDOR_',
  ],
  [
    { headers: { 'x-key': `\${VENDOR_LISTED_KEY} \${database_url}` } },
    'http[0].headers.x-key may only name variables that begin with VENDOR_',
  ],
  [{ headers: { 'x-key': 'a\nb' } }, 'http[0].headers.x-key is not a valid header value'],
  [{ method: 'PUT' }, 'http[0].method must be one of [GET, POST]'],
  [{ method: 'POST' }, 'http[0].body is missing'],
  [{ body: {} }, 'http[0].body is allowed with the method POST only'],
  [{ gives: [] }, 'http[0].gives must contain at least 1 items'],
  [{ gives: ['both'] }, 'http[0].gives[0] must be one of [professional, personal]'],
  [{ cost: '1' }, 'http[0].cost must be a number'],
  [{ may_store: undefined }, 'http[0].may_store is missing'],
  [{ call: '5ms' }, 'http[0].call must be between 1000 ms and 200000 ms'],
  [{ wait: '1h' }, 'http[0].wait must be between 1000 ms and 900000 ms'],
  [{ wait: 60_000 }, 'http[0].wait must be a string'],
  [{ rates: ['5/s'] }, 'http[0].rates[0] must be a rate such as 10/1s or 500/1m'],
  [{ daily_credits: -1 }, 'http[0].daily_credits must be greater than or equal to 0'],
  [{ identity: undefined }, 'http[0].identity is missing'],
  [
    { identity: { first: '/first', state: '/state' } },
    'http[0].identity must point at an NPI, a full name, or a first and a last name',
  ],
  [
    { timeout_ms: 5000 },
    `http[0].timeout_ms is unknown; known here: ${HTTP_MEMBERS.join(', ')}`,
  ],
  [
    { miss: { status: [404] } },
    'http[0].miss.status is unknown; known here: statuses, when',
  ],
  [{ headers: { 'x key': 'k' } }, "http[0].headers.x key isn't a valid header name"],
  [
    { miss: { statuses: [500] } },
    'http[0].miss.statuses[0] must be less than or equal to 499',
  ],
  [
    { candidates: { list: 'results', email: '/a' } },
    'http[0].candidates.list must be a JSON pointer such as /results/0/email',
  ],
  [
    {
      candidates: {
        list: '',
        email: '/a',
        status: { pointer: '/s', values: { ok: 'fine' } },
      },
    },
    'http[0].candidates.status.values.ok must be one of [valid, catch_all, risky, invalid, unknown]',
  ],
] as const) {
  test(`a sources file whose vendor has ${JSON.stringify(rest)} is rejected with "${problem}"`, (t) => {
    t.deepEqual(problemsOf(sourceText('https://x.example', rest)), [problem]);
  });
}

for (const [file, problem] of [
  [{ vendor: {} }, `vendor is unknown; known here: ${MEMBERS}`],
  [
    { vendors: { huntr: {} } },
    'vendors.huntr is unknown; known here: rocketreach, fullenrich, prospeo, hunter',
  ],
  [
    { vendors: { hunter: { timeout: '1m' } } },
    'vendors.hunter.timeout is unknown; known here: types, wait, call, rates, daily_credits, price_per_credit, may_store',
  ],
  [
    { verifiers: { oracle: {} } },
    'verifiers.oracle is unknown; known here: order, reacher, zerobounce, neverbounce, hunter-verifier',
  ],
  [
    { verifiers: { reacher: { wait: '1m' } } },
    'verifiers.reacher.wait is unknown; known here: rates, daily_credits, price_per_credit',
  ],
  [{ order: ['huntr'] }, 'order[0] must be a source with a key (Reacher: a URL): hunter'],
  [
    { order: ['hunter', 'prospeo'] },
    'order[1] must be a source with a key (Reacher: a URL): hunter',
  ],
  [{ order: ['hunter', 'hunter'] }, 'order[1] contains a duplicate value'],
  [{ order: 'hunter' }, 'order must be an array'],
  [
    { verifiers: { order: ['zerobounce'] } },
    'verifiers.order[0] must be a source with a key (Reacher: a URL): reacher, hunter-verifier',
  ],
  [
    { vendors: { hunter: { types: ['personal'] } } },
    'vendors.hunter.types[0] must be [professional]',
  ],
  [
    { vendors: { fullenrich: { types: ['personal', 'personal'] } } },
    'vendors.fullenrich.types[1] contains a duplicate value',
  ],
  [
    { vendors: { hunter: { types: [] } } },
    'vendors.hunter.types must contain at least 1 items',
  ],
  [
    { vendors: { hunter: { wait: '16m' } } },
    'vendors.hunter.wait must be between 1000 ms and 900000 ms',
  ],
  [
    { vendors: { hunter: { call: '10m' } } },
    'vendors.hunter.call must be between 1000 ms and 200000 ms',
  ],
  [
    { vendors: { hunter: { rates: ['fast'] } } },
    'vendors.hunter.rates[0] must be a rate such as 10/1s or 500/1m',
  ],
  [
    { vendors: { hunter: { daily_credits: '5' } } },
    'vendors.hunter.daily_credits must be a number',
  ],
  [
    { vendors: { hunter: { may_store: 'no' } } },
    'vendors.hunter.may_store must be a boolean',
  ],
  [
    { vendors: { rocketreach: { api: 'new' } } },
    'vendors.rocketreach.api must be one of [legacy, universal]',
  ],
  [
    { vendors: { rocketreach: { plan: 'huge' } } },
    'vendors.rocketreach.plan must be one of [essentials, pro, ultimate, custom]',
  ],
  [
    { vendors: { fullenrich: { poll: 'often' } } },
    'vendors.fullenrich.poll must be a duration such as 500ms, 30s, 15m, 24h or 30d',
  ],
  [
    { verifiers: { reacher: { rates: '5/1s' } } },
    'verifiers.reacher.rates must be an array',
  ],
  [
    { verifiers: { reacher: { daily_credits: -1 } } },
    'verifiers.reacher.daily_credits must be greater than or equal to 0',
  ],
  [
    { vendors: { hunter: { price_per_credit: -1 } } },
    'vendors.hunter.price_per_credit must be greater than or equal to 0',
  ],
  [
    { max_price_per_lookup: -1 },
    'max_price_per_lookup must be greater than or equal to 0',
  ],
  [{ registry: 'on' }, 'registry must be one of [off, fallback]'],
  [{ greylist_wait: '15m' }, 'greylist_wait must be between 1000 ms and 840000 ms'],
  [
    { reverify_interval: '2d' },
    'reverify_interval must be between 1000 ms and 86400000 ms',
  ],
] as const) {
  test(`a sources file with ${JSON.stringify(file)} is rejected with "${problem}"`, (t) => {
    t.deepEqual(problemsOf(JSON.stringify(file)), [problem]);
  });
}

test('all problems of a sources file are reported at once, each with its place', (t) => {
  const good = JSON.parse(sourceText('https://x.example')).http[0];
  const bad = {
    ...good,
    id: 'x',
    cost: -1,
    candidates: {},
    url: 'https://x.example/{ssn}',
  };
  t.deepEqual(problemsOf(JSON.stringify({ http: [good, bad], registry: 'on' })), [
    'http[1].id must be 2 to 31 lowercase letters, digits and hyphens, and not end with -personal',
    'http[1].url has no placeholder {ssn}',
    'http[1].cost must be greater than or equal to 0',
    'http[1].candidates.list is missing',
    'http[1].candidates.email is missing',
    'registry must be one of [off, fallback]',
  ]);
});

test('a sources file with two vendors of the same id is rejected', (t) => {
  const one = JSON.parse(sourceText('https://x.example')).http[0];
  t.deepEqual(problemsOf(JSON.stringify({ http: [one, one] })), [
    'http[1] contains a duplicate value',
  ]);
});

test('the error about vendors without ids does not call them duplicates', (t) => {
  const { id: _id, ...one } = JSON.parse(sourceText('https://x.example')).http[0];
  t.deepEqual(problemsOf(JSON.stringify({ http: [one, one] })), [
    'http[0].id is missing',
    'http[1].id is missing',
  ]);
});

for (const [text, problem] of [
  ['', 'not JSON'],
  ['{"key":"s3cr3t",}', 'not JSON (line 1 column 17)'],
  ['[]', 'value must be of type object'],
  ['null', 'value must be of type object'],
] as const) {
  test(`a sources file that contains only ${JSON.stringify(text)} is rejected without quoting it`, (t) => {
    t.deepEqual(problemsOf(text), [problem]);
  });
}

test('errors about a sources file contain no secrets and no values', (t) => {
  const rest = {
    url: 'https://me:pa55word@x.example/{npi}',
    cost: 'pa55word',
    headers: { 'x-key': 'pa55word\n' },
  };
  const problems = problemsOf(sourceText('https://x.example', rest));
  t.is(problems.length, 3);
  t.notRegex(problems.join(), /pa55word|key-of-a-test/);
});

test('the sources files for Kubernetes pass the check', async (t) => {
  for (const folder of ['base', 'example']) {
    const file = `../../deploy/kubernetes/${folder}/sources.json`;
    const text = await readFile(new URL(file, import.meta.url), 'utf8');
    t.notThrows(() => fileIn(text), folder);
  }
});
