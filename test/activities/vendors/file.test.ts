import { readFileSync } from 'node:fs';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { parsePointer } from '../../../activities/http/fields.ts';
import { createHttpJson } from '../../../activities/vendors/file.ts';
import type { Subject } from '../../../activities/vendors/vendor.ts';
import { fileIn, sourceText } from '../../support/adapters.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendors.ts';

const NEVER = new AbortController().signal;
/** The keys of all vendors in the example. */
const KEYS = {
  VENDOR_LISTED_KEY: 'key-of-a-test',
  VENDOR_HCP_REGISTRY_KEY: 'registry-key',
  VENDOR_NAME_FINDER_KEY: 'finder-key',
  ...{
    ROCKETREACH_API_KEY: 'r',
    HUNTER_API_KEY: 'h',
    ZEROBOUNCE_API_KEY: 'z',
    REACHER_URL: 'http://127.0.0.1',
  },
};
const example = readFileSync(
  new URL('../../../deploy/config/sources.example.json', import.meta.url),
  'utf8',
);

/** Returns the vendor with this id in the example file, at a server of the test. */
async function exampleVendor(t: ExecutionContext, id: string, ...replies: Played[]) {
  const { url, asked } = await playVendor(t, ...replies);
  const source = fileIn(example, KEYS).http.find((one) => one.id === id);
  if (!source) throw new Error(`the example has no ${id}`);
  const here = { ...source, url: source.url.replace(/^https:\/\/[^/]+/, url) };
  return { asked, source, vendor: createHttpJson(here) };
}

async function listedVendor(t: ExecutionContext, rest: object, ...replies: Played[]) {
  const { url, asked } = await playVendor(t, ...replies);
  const [source] = fileIn(sourceText(url, rest), KEYS).http;
  if (!source) throw new Error('the file describes no vendor');
  return { asked, vendor: createHttpJson(source) };
}

async function stepFor(t: ExecutionContext, id: string, reply: Played) {
  const { vendor } = await exampleVendor(t, id, reply);
  return await vendor.submit(SUBJECT, NEVER);
}

test("the sources file's example vendor is called by NPI, with its key in a header", async (t) => {
  const { vendor, asked, source } = await exampleVendor(
    t,
    'hcp-registry',
    recorded('http-json/listed'),
  );
  await vendor.submit({ ...SUBJECT, person: null, organization: null }, NEVER);
  t.like(asked[0], {
    method: 'GET',
    url: '/v1/providers/2000000010/emails',
    headers: { authorization: 'Bearer registry-key' },
  });
  t.deepEqual(
    [vendor.id, vendor.needs, vendor.gives],
    ['hcp-registry', ['npi'], ['professional', 'personal']],
  );
  t.deepEqual(
    [vendor.cost('any'), vendor.repeatIsFree, source.may_store],
    [1, false, true],
  );
});

test('the response of the example vendor in the sources file becomes candidates', async (t) => {
  t.deepEqual(await stepFor(t, 'hcp-registry', recorded('http-json/listed')), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: new Date('2026-11-01T12:00:00Z'),
        isCurrent: false,
        confidence: null,
      },
      {
        email: 'npi2000000010.sim@gmail.com',
        vendorType: 'personal',
        verdict: 'invalid',
        validatedAt: null,
        isCurrent: false,
        confidence: null,
      },
    ],
    identity: {
      npi: '2000000010',
      name: { kind: 'parts', first: 'Mary Jo', last: "O'Malley" },
      state: 'ND',
      employerDomain: null,
    },
    repeatsInput: false,
  });
});

test('the POST example in the sources file sends known fields and omits unknown ones', async (t) => {
  const { vendor, asked } = await exampleVendor(t, 'name-finder', {
    status: 404,
    body: {},
  });
  await vendor.submit(SUBJECT, NEVER);
  const organization = {
    name: null,
    domain: 'clinic.example',
    source: 'affiliation',
    confidence: 1,
  } as const;
  await vendor.submit({ ...SUBJECT, organization }, NEVER);
  const person = { first_name: 'Mary Jo', last_name: "O'Malley" };
  const { name, domain } = SUBJECT.organization ?? {};
  t.deepEqual(
    asked.map(({ method, body }) => [method, body]),
    [
      ['POST', { person, employer: { name, domain }, verify: true }],
      ['POST', { person, employer: { domain: 'clinic.example' }, verify: true }],
    ],
  );
});

test('the JSON pointer to the candidates may select a single object instead of a list', async (t) => {
  const contact = {
    email: 'jo@clinic.com',
    email_status: 'Accept-All',
    full_name: 'Jo Doe',
  };
  t.deepEqual(await stepFor(t, 'name-finder', { status: 200, body: { contact } }), {
    kind: 'found',
    candidates: [
      {
        email: 'jo@clinic.com',
        vendorType: null,
        verdict: 'catch_all',
        validatedAt: null,
        isCurrent: false,
        confidence: null,
      },
    ],
    identity: {
      npi: null,
      name: { kind: 'full', full: 'Jo Doe' },
      state: null,
      employerDomain: null,
    },
    repeatsInput: true,
  });
});

for (const [about, reply] of [
  ['the status', { status: 404, body: {} }],
  ['a value in the body', { status: 200, body: { found: false } }],
] as const) {
  test(`${about} of a response can mean that the vendor has no result`, async (t) => {
    t.deepEqual(await stepFor(t, 'hcp-registry', reply), {
      kind: 'miss',
      reason: 'no_match',
    });
  });
}

test('a value in the body of a 422 can also mean that the vendor has no result', async (t) => {
  const reply = { status: 422, body: { error: { code: 'NO_RESULT' } } };
  t.deepEqual(await stepFor(t, 'name-finder', reply), {
    kind: 'miss',
    reason: 'no_match',
  });
});

for (const [status, step] of [
  [401, { kind: 'fatal', why: 'auth' }],
  [429, { kind: 'retry', why: 'rate_limit', afterMs: null }],
] as const) {
  test(`a response with status ${status} is an error even if its body says "no result"`, async (t) => {
    const reply = { status, body: { error: { code: 'NO_RESULT' } } };
    t.deepEqual(await stepFor(t, 'name-finder', reply), step);
  });
}

test('a vendor whose results have no NPI is called only for a person with a known name', async (t) => {
  const settings = {
    url: 'http://127.0.0.1/{npi}',
    needs: ['npi'],
    identity: { full: '/name' },
  };
  const { vendor, asked } = await listedVendor(t, settings);
  t.deepEqual(vendor.needs, ['npi', 'name']);
  const step = await vendor.submit(
    { ...SUBJECT, person: null, organization: null },
    NEVER,
  );
  t.deepEqual(step, { kind: 'skip', missing: ['name'] });
  t.is(asked.length, 0);
});

test('an error response that the sources file does not list is a fatal error', async (t) => {
  const reply = { status: 422, body: { error: { code: 'BAD_NAME' } } };
  t.deepEqual(await stepFor(t, 'name-finder', reply), {
    kind: 'fatal',
    why: 'protocol',
    field: 'status',
  });
});

for (const results of [
  [],
  null,
  [{ address: null, kind: null, deliverable: null, checked_at: null }],
]) {
  test(`a response whose list of results is ${JSON.stringify(results)} counts as no result`, async (t) => {
    const { body } = recorded('http-json/listed');
    const reply = { status: 200, body: { ...(body as object), results } };
    t.deepEqual(await stepFor(t, 'hcp-registry', reply), {
      kind: 'miss',
      reason: 'no_email',
    });
  });
}

test('a response without an email counts as no result, even with a malformed identity', async (t) => {
  const reply = {
    status: 200,
    body: { found: true, provider: { npi: false, name: '' }, results: [] },
  };
  t.deepEqual(await stepFor(t, 'hcp-registry', reply), {
    kind: 'miss',
    reason: 'no_email',
  });
});

const ENTRY = {
  address: 'jo@clinic.com',
  kind: 'work',
  deliverable: true,
  checked_at: null,
};
for (const [field, about, body] of [
  ['results', 'missing', { found: true }],
  ['results', 'missing', {}],
  ['results[0]', 'text', { results: ['x'] }],
  ['results[0].address', 'missing', { results: [{ ...ENTRY, address: undefined }] }],
  ['results[1].address', 'a number', { results: [ENTRY, { ...ENTRY, address: 5 }] }],
  ['results[0].kind', 'missing', { results: [{ ...ENTRY, kind: undefined }] }],
  ['results[0].kind', 'an object', { results: [{ ...ENTRY, kind: {} }] }],
  ['results[0].checked_at', 'a number', { results: [{ ...ENTRY, checked_at: 5 }] }],
  ['provider.name', 'text', { results: [ENTRY], provider: { name: 'x' } }],
] as const) {
  test(`the error about the response ${JSON.stringify(body)} names ${field}, which is ${about}`, async (t) => {
    const step = await stepFor(t, 'hcp-registry', { status: 200, body });
    t.deepEqual(step, { kind: 'fatal', why: 'protocol', field });
  });
}

for (const word of ['guessed by a child', 'constructor', '']) {
  test(`an email status '${word}', which the sources file does not list, is read as unknown`, async (t) => {
    const contact = { email: 'jo@clinic.com', email_status: word };
    t.like(await stepFor(t, 'name-finder', { status: 200, body: { contact } }), {
      candidates: [{ verdict: 'unknown' }],
    });
  });
}

test('a vendor counts as dated if the sources file says where its validation date is', async (t) => {
  t.true((await exampleVendor(t, 'hcp-registry')).vendor.isDated);
  t.false((await exampleVendor(t, 'name-finder')).vendor.isDated);
});

test('values that are inserted into the URL of a vendor are escaped', async (t) => {
  const person = { ...SUBJECT.person, last: 'a/b?c=d&e#f{npi}%41' } as Subject['person'];
  const { vendor, asked } = await listedVendor(t, {}, { status: 404, body: {} });
  await vendor.submit({ ...SUBJECT, person }, NEVER);
  t.is(asked[0]?.url, '/people/2000000010?last=a%2Fb%3Fc%3Dd%26e%23f%7Bnpi%7D%2541');
});

for (const [template, first, last] of [
  ['/people/{last}/emails', 'Jo', '..'],
  ['/people/{last}/emails', 'Jo', '.'],
  ['/people/{first}{last}', '.', '.'],
  ['/people/.{last}', 'Jo', '.'],
  ['/people/%2E{last}', 'Jo', '.'],
] as const) {
  test(`the URL ${template} is not called for "${first} ${last}", because dots change the path`, async (t) => {
    const { url, asked } = await playVendor(t, { status: 404, body: {} });
    const [source] = fileIn(sourceText(url, { url: url + template }), KEYS).http;
    if (!source) throw new Error('the file describes no vendor');
    const person = { ...SUBJECT.person, first, last } as Subject['person'];
    const step = await createHttpJson(source).submit({ ...SUBJECT, person }, NEVER);
    t.deepEqual([step, asked], [{ kind: 'skip', missing: ['name'] }, []]);
  });
}

test('dots next to other characters of a name stay in the URL of a vendor', async (t) => {
  const { url, asked } = await playVendor(t, { status: 404, body: {} });
  const [source] = fileIn(
    sourceText(url, { url: `${url}/people/{first}/{last}` }),
    KEYS,
  ).http;
  if (!source) throw new Error('the file describes no vendor');
  const person = {
    ...SUBJECT.person,
    first: 'J.',
    last: '..St. John',
  } as Subject['person'];
  await createHttpJson(source).submit({ ...SUBJECT, person }, NEVER);
  t.is(asked[0]?.url, '/people/J./..St.%20John');
});

test("a vendor whose URL contains the organization's name is not called without a name", async (t) => {
  const { vendor, asked } = await listedVendor(t, { url: 'http://127.0.0.1/{company}' });
  const organization = {
    name: null,
    domain: 'clinic.example',
    source: 'affiliation',
    confidence: 1,
  } as const;
  const step = await vendor.submit({ ...SUBJECT, organization }, NEVER);
  t.deepEqual(step, { kind: 'skip', missing: ['organization'] });
  t.is(asked.length, 0);
});

test('a vendor that needs a postal address gets the parts that are known', async (t) => {
  const settings = {
    method: 'POST',
    body: { at: ['{street}', '{city}', '{state} {zip}'], unknown: null },
    needs: ['npi', 'name', 'organization', 'address'],
  };
  const { vendor, asked } = await listedVendor(t, settings, { status: 404, body: {} });
  await vendor.submit(SUBJECT, NEVER);
  t.deepEqual(asked[0]?.body, {
    at: ['12 Cedar & Main St', 'Fargo', 'ND 58102'],
    unknown: null,
  });
  const cityless = { ...SUBJECT.person?.practice, city: null };
  await vendor.submit(
    {
      ...SUBJECT,
      person: { ...SUBJECT.person, practice: cityless } as Subject['person'],
    },
    NEVER,
  );
  t.deepEqual(asked[1]?.body, { at: ['12 Cedar & Main St', 'ND 58102'], unknown: null });
  const practice = { line1: null, city: null, state: 'ND', zip: null, phone: null };
  const step = await vendor.submit(
    { ...SUBJECT, person: { ...SUBJECT.person, practice } as Subject['person'] },
    NEVER,
  );
  t.deepEqual(step, { kind: 'skip', missing: ['address'] });
});

for (const [text, parts] of [
  ['', []],
  ['/', ['']],
  ['/a~1b/~0/0', ['a/b', '~', '0']],
  ['/~01', ['~1']],
  ['a', null],
  ['/~2', null],
  ['/~', null],
] as const) {
  test(`the JSON pointer '${text}' is parsed as ${JSON.stringify(parts)}`, (t) => {
    t.deepEqual(parsePointer(text), parts && [...parts]);
  });
}

test('a JSON pointer does not select properties that all objects inherit', async (t) => {
  const candidates = { list: '/one', email: '/address', validated_at: '/constructor' };
  const body = { one: { address: 'jo@clinic.com' }, npi: SUBJECT.npi };
  const { vendor } = await listedVendor(t, { candidates }, { status: 200, body });
  t.like(await vendor.submit(SUBJECT, NEVER), {
    kind: 'found',
    candidates: [{ validatedAt: null }],
  });
});

test('a JSON pointer selects items of lists only by their index', async (t) => {
  const body = { pages: [{ rows: [] }, { rows: [{ address: 'jo@clinic.com' }] }] };
  const at = (list: string) => ({ candidates: { list, email: '/address' } });
  const { vendor } = await listedVendor(t, at('/pages/1/rows/0'), { status: 200, body });
  t.like(await vendor.submit(SUBJECT, NEVER), { kind: 'found' });
  for (const [pointer, field] of [
    ['/pages/01', 'pages[01]'],
    ['/pages/-', 'pages[-]'],
    ['/pages/length', 'pages[length]'],
    ['/pages/2', 'pages[2]'],
  ] as const) {
    const other = await listedVendor(t, at(pointer), { status: 200, body });
    t.deepEqual(await other.vendor.submit(SUBJECT, NEVER), {
      kind: 'fatal',
      why: 'protocol',
      field,
    });
  }
});
