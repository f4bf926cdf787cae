import { readFileSync } from 'node:fs';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { parsePointer } from '../../../activities/http/fields.ts';
import { parseSources } from '../../../activities/vendors/file/config.ts';
import { createHttpJson } from '../../../activities/vendors/file/vendor.ts';
import type { Subject } from '../../../activities/vendors/vendor.ts';
import { sourceText } from '../../support/adapters.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendors.ts';

const NEVER = new AbortController().signal;
const SECRETS: Readonly<Record<string, string>> = {
  VENDOR_LISTED_KEY: 'key-of-a-test',
  VENDOR_HCP_REGISTRY_KEY: 'registry-key',
  VENDOR_NAME_FINDER_KEY: 'finder-key',
};
const secretOf = (name: string) => SECRETS[name];
const example = readFileSync(new URL('../../../deploy/config/vendors.example.json', import.meta.url), 'utf8');

/** The vendor of the example file with this id, at a server of the test's. */
async function exampleVendor(t: ExecutionContext, id: string, ...answers: Played[]) {
  const { url, asked } = await playVendor(t, ...answers);
  const source = parseSources(example, secretOf).find((one) => one.id === id);
  if (!source) throw new Error(`the example has no ${id}`);
  const here = { ...source, url: source.url.replace(/^https:\/\/[^/]+/, url) };
  return { asked, source, vendor: createHttpJson(here) };
}

async function listedVendor(t: ExecutionContext, rest: object, ...answers: Played[]) {
  const { url, asked } = await playVendor(t, ...answers);
  const [source] = parseSources(sourceText(url, rest), secretOf);
  if (!source) throw new Error('the file describes no vendor');
  return { asked, vendor: createHttpJson(source) };
}

async function stepFor(t: ExecutionContext, id: string, answer: Played) {
  const { vendor } = await exampleVendor(t, id, answer);
  return await vendor.submit(SUBJECT, NEVER);
}

test('the example asks by NPI, with its secret in a header', async (t) => {
  const { vendor, asked, source } = await exampleVendor(t, 'hcp-registry', recorded('http-json/listed'));
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
  t.deepEqual([vendor.cost('any'), vendor.repeatIsFree, source.may_store], [1, false, true]);
});

test('what the example maps becomes candidates and whom they are of', async (t) => {
  t.deepEqual(await stepFor(t, 'hcp-registry', recorded('http-json/listed')), {
    kind: 'found',
    candidates: [
      {
        email: 'maryjo.omalley@cedarvalleyclinic-sim.com',
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: new Date('2026-11-01T12:00:00Z'),
      },
      { email: 'npi2000000010.sim@gmail.com', vendorType: 'personal', verdict: 'invalid', validatedAt: null },
    ],
    identity: { npi: '2000000010', name: { kind: 'parts', first: 'Mary Jo', last: "O'Malley" }, state: 'ND' },
  });
});

test('the example that posts says what is known, and leaves out what is not', async (t) => {
  const { vendor, asked } = await exampleVendor(t, 'name-finder', { status: 404, body: {} });
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

test('a list may be the only candidate itself', async (t) => {
  const contact = { email: 'jo@clinic.com', email_status: 'Accept-All', full_name: 'Jo Doe' };
  t.deepEqual(await stepFor(t, 'name-finder', { status: 200, body: { contact } }), {
    kind: 'found',
    candidates: [{ email: 'jo@clinic.com', vendorType: null, verdict: 'catch_all', validatedAt: null }],
    identity: { npi: null, name: { kind: 'full', full: 'Jo Doe' }, state: null },
  });
});

for (const [about, answer] of [
  ['a status of the file', { status: 404, body: {} }],
  ['a value of the file', { status: 200, body: { found: false } }],
] as const) {
  test(`${about} means nobody`, async (t) => {
    t.deepEqual(await stepFor(t, 'hcp-registry', answer), { kind: 'miss', reason: 'no_match' });
  });
}

test('a value of the file means nobody in a refusal as well', async (t) => {
  const answer = { status: 422, body: { error: { code: 'NO_RESULT' } } };
  t.deepEqual(await stepFor(t, 'name-finder', answer), { kind: 'miss', reason: 'no_match' });
});

test('any other refusal is not taken for nobody', async (t) => {
  const answer = { status: 422, body: { error: { code: 'BAD_NAME' } } };
  t.deepEqual(await stepFor(t, 'name-finder', answer), { kind: 'fatal', why: 'protocol', field: 'status' });
});

for (const results of [[], null, [{ address: null, kind: null, deliverable: null, checked_at: null }]]) {
  test(`results of ${JSON.stringify(results)} are a miss`, async (t) => {
    const { body } = recorded('http-json/listed');
    const answer = { status: 200, body: { ...(body as object), results } };
    t.deepEqual(await stepFor(t, 'hcp-registry', answer), { kind: 'miss', reason: 'no_email' });
  });
}

const ENTRY = { address: 'jo@clinic.com', kind: 'work', deliverable: true, checked_at: null };
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
  test(`an answer is fatal, and ${field} is named, if it is ${about} in ${JSON.stringify(body)}`, async (t) => {
    const step = await stepFor(t, 'hcp-registry', { status: 200, body });
    t.deepEqual(step, { kind: 'fatal', why: 'protocol', field });
  });
}

for (const word of ['guessed by a child', 'constructor', '']) {
  test(`a status of '${word}' that the file gives no meaning is unknown`, async (t) => {
    const contact = { email: 'jo@clinic.com', email_status: word };
    t.like(await stepFor(t, 'name-finder', { status: 200, body: { contact } }), {
      candidates: [{ verdict: 'unknown' }],
    });
  });
}

test('a vendor dates what it finds if its file points at a date', async (t) => {
  t.true((await exampleVendor(t, 'hcp-registry')).vendor.isDated);
  t.false((await exampleVendor(t, 'name-finder')).vendor.isDated);
});

test('what stands in a URL cannot be read as another part of it', async (t) => {
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
  test(`${template} for ${first} ${last} is not asked: dots walk up a path in every spelling`, async (t) => {
    const { url, asked } = await playVendor(t, { status: 404, body: {} });
    const [source] = parseSources(sourceText(url, { url: url + template }), secretOf);
    if (!source) throw new Error('the file describes no vendor');
    const person = { ...SUBJECT.person, first, last } as Subject['person'];
    const step = await createHttpJson(source).submit({ ...SUBJECT, person }, NEVER);
    t.deepEqual([step, asked], [{ kind: 'skip', missing: ['name'] }, []]);
  });
}

test('dots beside anything else are part of a value', async (t) => {
  const { url, asked } = await playVendor(t, { status: 404, body: {} });
  const [source] = parseSources(sourceText(url, { url: `${url}/people/{first}/{last}` }), secretOf);
  if (!source) throw new Error('the file describes no vendor');
  const person = { ...SUBJECT.person, first: 'J.', last: '..St. John' } as Subject['person'];
  await createHttpJson(source).submit({ ...SUBJECT, person }, NEVER);
  t.is(asked[0]?.url, '/people/J./..St.%20John');
});

test('a URL that needs the name of the organization that is not known is not asked', async (t) => {
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

test('who needs an address is told of it', async (t) => {
  const settings = {
    method: 'POST',
    body: { at: ['{street}', '{city}', '{state} {zip}'], unknown: null },
    needs: ['npi', 'name', 'organization', 'address'],
  };
  const { vendor, asked } = await listedVendor(t, settings, { status: 404, body: {} });
  await vendor.submit(SUBJECT, NEVER);
  t.deepEqual(asked[0]?.body, { at: ['12 Cedar & Main St', 'Fargo', 'ND 58102'], unknown: null });
  const practice = { line1: null, city: null, state: 'ND', zip: null, phone: null };
  const step = await vendor.submit(
    { ...SUBJECT, person: { ...SUBJECT.person, practice } as Subject['person'] },
    NEVER,
  );
  t.deepEqual(step, { kind: 'skip', missing: ['address'] });
});

test('a vendor is given the time that its file says', async (t) => {
  const [source] = parseSources(sourceText('http://127.0.0.1', { timeout_ms: 60_000 }), secretOf);
  t.is(source?.timeout_ms, 60_000);
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
  test(`the JSON pointer '${text}' is ${JSON.stringify(parts)}`, (t) => {
    t.deepEqual(parsePointer(text), parts && [...parts]);
  });
}

test('a pointer goes through lists by their positions alone', async (t) => {
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
    t.deepEqual(await other.vendor.submit(SUBJECT, NEVER), { kind: 'fatal', why: 'protocol', field });
  }
});

/** The problems that a file with this one vendor has. */
function problemsOf(text: string): string[] {
  try {
    parseSources(text, (name) => (name === 'VENDOR_ABSENT' ? undefined : 'key-of-a-test'));
    return [];
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'SourcesError') throw error;
    return error.message
      .split('\n')
      .slice(1)
      .map((line) => line.trim());
  }
}

for (const [rest, problem] of [
  [{ id: 'Listed!' }, '[0].id must be 2 to 31 small letters, digits and hyphens'],
  [{ id: 'hunter' }, '[0].id is the name of a source of our own'],
  [{ id: 'zerobounce' }, '[0].id is the name of a source of our own'],
  [{ url: 'ftp://x.example/{npi}' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: '/people' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: 'http://x.example/{npi}' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: 'http://10.0.0.1/{npi}' }, '[0].url must be an https URL; http is for this machine only'],
  [
    { url: 'http://127.0.0.1.x.example/{npi}' },
    '[0].url must be an https URL; http is for this machine only',
  ],
  [{ url: 'https://{domain}/x' }, '[0].url may have placeholders in its path and query only'],
  [{ url: 'https://x.example:{npi}/x' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: 'https://me:pw@x.example/{npi}' }, '[0].url may have placeholders in its path and query only'],
  [{ url: 'https://x.example/{ssn}' }, '[0].url has no placeholder {ssn}'],
  [{ method: 'POST', body: { who: ['{first} {age}', '{ssn}'] } }, '[0].body has no placeholder {age}, {ssn}'],
  [{ needs: ['npi'] }, '[0].needs must list name, of which the URL or the body has placeholders'],
  [
    { needs: [], method: 'POST', body: { city: '{city}' } },
    '[0].needs must list npi, name, address, of which the URL or the body has placeholders',
  ],
  [{ headers: { 'x-key': `\${VENDOR_ABSENT}` } }, '[0].headers.x-key needs VENDOR_ABSENT, which is not set'],
  [
    { headers: { 'x-key': `\${DATABASE_URL}` } },
    '[0].headers.x-key may name variables that begin with VENDOR_ only',
  ],
  [
    { headers: { 'x-key': `\${VENDOR_LISTED_KEY} \${database_url}` } },
    '[0].headers.x-key may name variables that begin with VENDOR_ only',
  ],
  [{ headers: { 'x-key': 'a\nb' } }, '[0].headers.x-key is not a value of a header'],
  [{ method: 'PUT' }, '[0].method must be one of [GET, POST]'],
  [{ method: 'POST' }, '[0].body is missing'],
  [{ body: {} }, '[0].body is for the method POST only'],
  [{ gives: [] }, '[0].gives must contain at least 1 items'],
  [{ gives: ['both'] }, '[0].gives[0] must be one of [professional, personal]'],
  [{ cost: '1' }, '[0].cost must be a number'],
  [{ may_store: undefined }, '[0].may_store is missing'],
  [{ timeout_ms: 5 }, '[0].timeout_ms must be greater than or equal to 1000'],
  [{ identity: undefined }, '[0].identity is missing'],
  [
    { identity: { first: '/first', state: '/state' } },
    '[0].identity must point at an NPI, a full name, or a first and a last name',
  ],
  [{ misses: {} }, '[0].misses is no setting of a vendor'],
  [{ miss: { statuses: [500] } }, '[0].miss.statuses[0] must be less than or equal to 499'],
  [
    { candidates: { list: 'results', email: '/a' } },
    '[0].candidates.list must be a JSON pointer such as /results/0/email',
  ],
  [
    { candidates: { list: '', email: '/a', status: { pointer: '/s', values: { ok: 'fine' } } } },
    '[0].candidates.status.values.ok must be one of [valid, catch_all, risky, invalid, unknown]',
  ],
] as const) {
  test(`a vendor with ${JSON.stringify(rest)} is refused: ${problem}`, (t) => {
    t.deepEqual(problemsOf(sourceText('https://x.example', rest)), [problem]);
  });
}

test('all problems of a file are told at once, each with its place', (t) => {
  const [good] = JSON.parse(sourceText('https://x.example'));
  const bad = { ...good, id: 'x', cost: -1, candidates: {}, url: 'https://x.example/{ssn}' };
  t.deepEqual(problemsOf(JSON.stringify([good, bad])), [
    '[1].id must be 2 to 31 small letters, digits and hyphens',
    '[1].url has no placeholder {ssn}',
    '[1].cost must be greater than or equal to 0',
    '[1].candidates.list is missing',
    '[1].candidates.email is missing',
  ]);
});

test('two vendors of one id are refused', (t) => {
  const [one] = JSON.parse(sourceText('https://x.example'));
  t.deepEqual(problemsOf(JSON.stringify([one, one])), ['[1] contains a duplicate value']);
});

for (const [text, problem] of [
  ['', 'not JSON'],
  ['[{"key":"s3cr3t",}]', 'not JSON (line 1 column 18)'],
  ['{}', 'value must be an array'],
  ['null', 'value must be an array'],
] as const) {
  test(`a file that is ${JSON.stringify(text)} is refused without quoting it`, (t) => {
    t.deepEqual(problemsOf(text), [problem]);
  });
}

test('no problem tells a secret or a value', (t) => {
  const rest = {
    url: 'https://me:pa55word@x.example/{npi}',
    cost: 'pa55word',
    headers: { 'x-key': 'pa55word\n' },
  };
  const problems = problemsOf(sourceText('https://x.example', rest));
  t.is(problems.length, 3);
  t.notRegex(problems.join(), /pa55word|key-of-a-test/);
});
