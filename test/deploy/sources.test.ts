import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { pino } from 'pino';
import { createNames } from '../../activities/http/names.ts';
import { VENDOR_IDS } from '../../activities/vendors/catalogue.ts';
import { judge } from '../../activities/verification/policy.ts';
import { accountOf } from '../../db/words.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createSources } from '../../deploy/config/sources.ts';
import { startDns } from '../../deploy/local/dns.ts';
import { PRACTICE_DOMAINS } from '../../deploy/local/sim/people.ts';
import { baseUrls, SIMULATED, sourceSettings } from '../../deploy/local/simulator.ts';
import { sourceText } from '../support/adapters.ts';
import { candidate, FINDER_WORDS, FOR_NOBODY } from '../support/checks.ts';
import { freshDatabase, temporaryFolder } from '../support/database.ts';
import { closedUrl, playVendor, recorded, SUBJECT } from '../support/vendors.ts';

// Tests the sources that a worker creates from its environment and its sources file.

const NEVER = new AbortController().signal;
const KEYS = {
  ...{
    HUNTER_API_KEY: 'h',
    ROCKETREACH_API_KEY: 'r',
    FULLENRICH_API_KEY: 'f',
    VENDOR_LISTED_KEY: 'l',
  },
  ...{
    ZEROBOUNCE_API_KEY: 'z',
    NEVERBOUNCE_API_KEY: 'n',
    REACHER_URL: 'http://127.0.0.1:9',
  },
};

const folder = temporaryFolder(test.after.always);
const { db, sql, url: databaseUrl } = freshDatabase(test);

let files = 0;
/** @param file null for a worker without a sources file */
async function sourcesOf(
  file: object | null,
  environment: Readonly<Record<string, string>> = KEYS,
) {
  files += 1;
  const path = join(folder, `${files}.json`);
  if (file !== null) await writeFile(path, JSON.stringify(file));
  const config = loadConfig({
    DATABASE_URL: databaseUrl,
    ...environment,
    ...(file === null ? {} : { SOURCES_FILE: path }),
  });
  return createSources(
    config,
    db,
    createNames(config.dnsServers),
    pino({ level: 'silent' }),
  );
}

async function idsOf(
  file: object | null,
  environment?: Readonly<Record<string, string>>,
) {
  const { vendors, verifiers } = await sourcesOf(file, environment);
  return [vendors.map(({ vendor }) => vendor.id), verifiers.map(({ id }) => id)];
}

test('without a sources file, all sources with a key are called in the default order', async (t) => {
  t.deepEqual(await idsOf(null), [
    ['pattern', 'rocketreach', 'fullenrich', 'fullenrich-personal', 'hunter'],
    ['reacher', 'zerobounce', 'neverbounce', 'hunter-verifier'],
  ]);
  t.deepEqual(await idsOf(null, {}), [[], []]);
  t.is((await sourcesOf(null)).registry, null);
});

test('vendors described in the sources file are called last, unless it sets an order', async (t) => {
  const { http } = JSON.parse(sourceText('https://x.example'));
  t.deepEqual((await idsOf({ http }))[0], [
    'pattern',
    'rocketreach',
    'fullenrich',
    'fullenrich-personal',
    'hunter',
    'listed',
  ]);
  const order = ['listed', 'hunter', 'rocketreach'];
  const verifiers = { order: ['neverbounce', 'reacher'] };
  const listed = ['pattern', ...order];
  t.deepEqual(await idsOf({ http, order, verifiers }), [listed, verifiers.order]);
  t.deepEqual(await idsOf({ order: [], verifiers: { order: [] } }), [[], []]);
});

test('pattern is the first source in any order, unless it is off or no verifier is there', async (t) => {
  const vendorsOf = async (file: object) => (await idsOf(file))[0];
  for (const order of [['hunter'], []]) {
    t.deepEqual(await vendorsOf({ order }), ['pattern', ...order]);
    t.deepEqual(await vendorsOf({ order, pattern: 'off' }), order);
    t.deepEqual(await vendorsOf({ order, verifiers: { order: [] } }), order);
  }
});

test('each vendor has the types, times, limits, and license from the sources file', async (t) => {
  const settings = {
    ...{
      wait: '90s',
      call: '20s',
      rates: ['2/1s', '9/1m'],
      daily_credits: 12.5,
      price_per_credit: 0.04,
      may_store: false,
    },
  };
  const file = {
    vendors: { fullenrich: { ...settings, types: ['personal'] } },
    ...JSON.parse(sourceText('https://x.example', settings)),
  };
  const { vendors } = await sourcesOf(file);
  for (const [id, types] of [
    ['fullenrich-personal', ['personal']],
    ['listed', ['professional']],
  ] as const) {
    const { vendor, ...rest } = vendors.find((one) => one.vendor.id === id) ?? {};
    t.is(vendor?.callMs, 20_000);
    t.deepEqual(rest, {
      ...{ types, capMs: 90_000, mayStore: false, dollarsPerCredit: 0.04 },
      limits: {
        rates: [
          { calls: 2, perMs: 1000 },
          { calls: 9, perMs: 60_000 },
        ],
        dailyCredits: 12.5,
      },
    });
  }
});

for (const settings of [{ order: 'auto' }, { max_price_per_lookup: 1 }]) {
  test(`with ${JSON.stringify(settings)}, every vendor needs a price`, async (t) => {
    const rocketreach = { price_per_credit: 0.3 };
    await t.throwsAsync(sourcesOf({ ...settings, vendors: { rocketreach } }), {
      message:
        /price_per_credit of fullenrich is missing: its dollars per credit[\s\S]*price_per_credit of hunter/,
    });
    const price = { price_per_credit: 0.05 };
    const vendors = { rocketreach, fullenrich: price, hunter: price };
    const sources = await sourcesOf({ ...settings, vendors });
    t.deepEqual(
      [...sources.prices],
      [
        ['rocketreach', 0.3],
        ['fullenrich', 0.05],
        ['hunter', 0.05],
      ],
    );
    t.is(sources.vendors.length, 5);
  });
}

test("the sources file sets each vendor's time-out and FullEnrich's poll interval", async (t) => {
  const keys = Object.fromEntries(
    VENDOR_IDS.map((id) => [`${id.toUpperCase()}_API_KEY`, 'k']),
  );
  const { url } = await playVendor(t, recorded('fullenrich/submitted'));
  const each = Object.fromEntries(VENDOR_IDS.map((id) => [id, { call: '2m' }]));
  const file = { vendors: { ...each, fullenrich: { ...each.fullenrich, poll: '7s' } } };
  const { vendors } = await sourcesOf(file, { ...keys, FULLENRICH_URL: url });
  t.deepEqual(
    vendors.map(({ vendor }) => [vendor.id, vendor.callMs]),
    [
      ['pattern', 1000],
      ['rocketreach', 120_000],
      ['fullenrich', 120_000],
      ['fullenrich-personal', 120_000],
      ['prospeo', 120_000],
      ['hunter', 120_000],
    ],
  );
  const fullenrich = vendors.find(({ vendor }) => vendor.id === 'fullenrich');
  t.like(await fullenrich?.vendor.submit(SUBJECT, NEVER), {
    kind: 'pending',
    pollAfterMs: 7000,
  });
});

test('a vendor is called only if the configuration lets its addresses become valid', async (t) => {
  const [FULLENRICH_API_KEY, PROSPEO_API_KEY] = ['f', 'p'];
  const none = { verifiers: { order: [] } };
  for (const [environment, file, asked, useless] of [
    [{ FULLENRICH_API_KEY }, null, [], ['fullenrich']],
    [{ FULLENRICH_API_KEY, PROSPEO_API_KEY }, null, [], ['fullenrich', 'prospeo']],
    [
      { FULLENRICH_API_KEY, ROCKETREACH_API_KEY: 'r' },
      null,
      ['rocketreach'],
      ['fullenrich'],
    ],
    [
      { FULLENRICH_API_KEY, REACHER_URL: 'http://127.0.0.1:9' },
      null,
      ['pattern', 'fullenrich', 'fullenrich-personal'],
      [],
    ],
    // Hunter's key also enables Hunter's verifier, unless `order` leaves it out. Hunter's results
    // have dates.
    [
      { FULLENRICH_API_KEY, HUNTER_API_KEY: 'h' },
      null,
      ['pattern', 'fullenrich', 'fullenrich-personal', 'hunter'],
      [],
    ],
    [{ FULLENRICH_API_KEY, HUNTER_API_KEY: 'h' }, none, ['hunter'], ['fullenrich']],
    // CATCH_ALL needs two sources that agree.
    [{ FULLENRICH_API_KEY, CATCH_ALL: 'two-sources' }, null, [], ['fullenrich']],
    [
      { FULLENRICH_API_KEY, PROSPEO_API_KEY, CATCH_ALL: 'two-sources' },
      null,
      ['fullenrich', 'fullenrich-personal', 'prospeo'],
      [],
    ],
  ] as const) {
    const sources = await sourcesOf(file, environment);
    t.deepEqual(
      [sources.vendors.map(({ vendor }) => vendor.id), sources.useless],
      [asked, useless],
    );
  }
});

test('without a verifier, a catch-all address needs two sources, others a recent check', (t) => {
  for (const [agreed, believed] of [
    [false, ['valid']],
    [true, ['valid', 'catch_all']],
  ] as const) {
    const known = { policy: 'vendor-or-verifier', verifier: 'none', agreed } as const;
    const words = FINDER_WORDS.filter(
      (finder) => judge({ ...known, finder })[0] === 'valid',
    );
    t.deepEqual(words, [...believed]);
  }
});

test("Hunter's verifier uses the same key and URL as Hunter's email finder", async (t) => {
  const { access } = loadConfig({
    DATABASE_URL: databaseUrl,
    ...{ HUNTER_API_KEY: 'h', HUNTER_URL: 'https://proxy.example/v2' },
  });
  t.deepEqual(access['hunter-verifier'], {
    baseUrl: 'https://proxy.example/v2',
    apiKey: 'h',
  });
  t.deepEqual(access['hunter-verifier'], access.hunter);
});

test('each verifier has the limits from the sources file', async (t) => {
  const dns = await startDns();
  t.teardown(dns.close);
  const given = {
    ZEROBOUNCE_API_KEY: 'z',
    ZEROBOUNCE_URL: await closedUrl(),
    DNS_SERVERS: dns.address,
  };
  const named = candidate(`jo@${PRACTICE_DOMAINS[0]}`, {
    verdict: 'unknown',
    validatedAt: null,
  });
  for (const [credits, reason] of [
    [0, 'verifier_unavailable'],
    [1, 'verifier_unsent'],
  ] as const) {
    const { check } = await sourcesOf(
      { verifiers: { zerobounce: { daily_credits: credits } } },
      given,
    );
    t.like(await check(named, SUBJECT, FOR_NOBODY), { kind: 'transient', reason });
  }
});

test('a verifier that is still checking an address is polled at no cost', async (t) => {
  const dns = await startDns();
  t.teardown(dns.close);
  const { url: HUNTER_URL } = await playVendor(t, { status: 202, body: {} });
  const file = { verifiers: { 'hunter-verifier': { rates: [] } } };
  const { check } = await sourcesOf(file, {
    HUNTER_API_KEY: 'h',
    HUNTER_URL,
    DNS_SERVERS: dns.address,
  });
  const named = candidate(`jo@${PRACTICE_DOMAINS[0]}`, {
    verdict: 'unknown',
    validatedAt: null,
  });
  // Makes more calls than a breaker would allow for a failing source.
  for (let n = 0; n < 7; n += 1)
    t.like(await check(named, SUBJECT, FOR_NOBODY), {
      ...{ kind: 'transient', reason: 'verifier_working', afterMs: 5000 },
    });
  const spent =
    await sql`select sum(credits)::float8 as credits from source_spend where source = 'hunter-verifier'`;
  t.is(spent[0]?.credits, 0);
});

test('the sources file switches the NPI Registry on and sets the times of verification', async (t) => {
  const file = { registry: 'fallback', greylist_wait: '7m', reverify_interval: '3h' };
  const { registry, greylistMs, reverifyMs } = await sourcesOf(file);
  t.truthy(registry);
  t.deepEqual([greylistMs, reverifyMs], [420_000, 10_800_000]);
});

for (const policy of ['verifier-required', 'verify-always']) {
  test(`VERIFY_POLICY ${policy} needs a verifier and is rejected without one`, async (t) => {
    const environment = { ...KEYS, VERIFY_POLICY: policy };
    t.is((await sourcesOf(null, environment)).verifiers.length, 4);
    await t.throwsAsync(sourcesOf({ verifiers: { order: [] } }, environment), {
      name: 'ConfigError',
      message: new RegExp(`^VERIFY_POLICY is ${policy}, but no verifier `),
    });
  });
}

test('a configured verifier checks every address, unless the policy says otherwise', async (t) => {
  const dns = await startDns();
  t.teardown(dns.close);
  const given = { DNS_SERVERS: dns.address };
  const verifier = { NEVERBOUNCE_API_KEY: 'n', NEVERBOUNCE_URL: await closedUrl() };
  const seen = candidate(`jo@${PRACTICE_DOMAINS[0]}`, {
    validatedAt: new Date(),
    begunAt: Date.now(),
  });
  const trusting = { VERIFY_POLICY: 'vendor-or-verifier' };
  const dated = { isDated: true };
  for (const [environment, reason, required] of [
    [given, 'mailbox_ok', []],
    [{ ...given, ...verifier }, 'verifier_unsent', ['neverbounce']],
    [{ ...given, ...verifier, ...trusting }, 'mailbox_ok', []],
  ] as const) {
    const sources = await sourcesOf(null, environment);
    t.like(await sources.check(seen, SUBJECT, FOR_NOBODY), { reason });
    t.deepEqual(
      sources.requiredVerifiers.of(dated).map(({ source }) => source),
      required,
    );
    t.is(
      sources.requiredVerifiers.of({ isDated: false }).length,
      sources.verifiers.length,
      'what is not dated needs one',
    );
  }
});

test('npm start calls only simulated sources, even if real API keys are set', async (t) => {
  const real = Object.fromEntries(
    Object.keys(KEYS).map((name) => [name, 'https://real.example']),
  );
  const simulated = sourceSettings(baseUrls('http://127.0.0.1:9'), 'k');
  const { access, registryUrl } = loadConfig({
    DATABASE_URL: databaseUrl,
    ...real,
    ...simulated,
  });
  const asked = ['rocketreach', 'fullenrich', 'prospeo', 'hunter', 'reacher'] as const;
  for (const url of [registryUrl, ...asked.map((id) => access[id]?.baseUrl ?? '')])
    t.regex(url, /^http:\/\/127\.0\.0\.1:9\//);
  const called = (await idsOf(SIMULATED, { ...real, ...simulated })).flat();
  const accounts = new Set(called.map((id) => accountOf(id ?? '')));
  t.deepEqual([...accounts], ['pattern', ...asked]);
});
