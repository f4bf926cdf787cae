import test, { type ExecutionContext } from 'ava';
import { fresh } from '../support/database.ts';
import type { ApiResponse } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

// Tests the 422 responses (api/docs/errors.md, 422) of submits and polls: the problems, their
// places, and the words of pydantic 2. mistakes.test.ts tests the advice after these words.

const NPI = '1234567893';
const SINGLE = '/api/v1/email';
const BULK = '/api/v1/email/bulk';

interface Problem {
  readonly loc: readonly (string | number)[];
  readonly msg: string;
  readonly type: string;
}

const api = fresh(test, startApi);
const client = fresh(test, () => api.organization(10_000));

const problem =
  (type: string, msg: string) =>
  (...loc: Problem['loc']): Problem => ({ loc, msg, type });

const missing = problem('missing', 'Field required');
const noString = problem('string_type', 'Input should be a valid string');
const noNpi = problem(
  'string_pattern_mismatch',
  "String should match pattern '^[0-9]{10}$'",
);
const noType = problem(
  'literal_error',
  "Input should be 'any', 'professional' or 'personal'",
);
const noMode = problem('literal_error', "Input should be 'real-time' or 'batch'");
const noHttps = problem('url_scheme', "URL scheme should be 'https'");
const noUrl = problem('url_parsing', 'Input should be a valid URL');
const blocked = problem(
  'url_forbidden',
  'URL points to an address that deliveries may not reach',
);
const noObject = problem(
  'model_attributes_type',
  'Input should be a valid dictionary or object to extract fields from',
);
const noDictionary = problem('dict_type', 'Input should be a valid dictionary');
const noList = problem('list_type', 'Input should be a valid list');
const noKey = problem(
  'idempotency_key_invalid',
  'Idempotency-Key should have 1 to 255 visible ASCII characters',
);

const post = (path: string, body: unknown, headers?: Record<string, string>) =>
  client.call('POST', path, JSON.stringify(body), headers);

const ADVICE = /\. [A-Z].*[^.]$/;

/** Checks that a response is a 422 with exactly this JSON, except for the advice in its messages. */
function refused(
  t: ExecutionContext,
  reply: ApiResponse,
  detail: readonly Problem[],
  about?: unknown,
): void {
  const name = about === undefined ? '' : JSON.stringify(about);
  t.is(reply.status, 422, `${name} ${reply.text}`);
  const given: { readonly detail: readonly Problem[] } = JSON.parse(reply.text);
  const shown = given.detail.map(({ loc, msg, type }) => {
    t.regex(msg, ADVICE, name);
    return { loc, msg: msg.replace(ADVICE, ''), type };
  });
  t.is(JSON.stringify({ detail: shown }), JSON.stringify({ detail }), name);
  t.is(reply.text, JSON.stringify(given), name);
  t.is(reply.headers.get('content-type'), 'application/json; charset=utf-8');
}

/** Sends each value as one field of an otherwise good single submit. */
async function refusedField(
  t: ExecutionContext,
  values: readonly unknown[],
  bodyOf: (value: unknown) => object,
  expected: Problem,
): Promise<void> {
  for (const value of values)
    refused(t, await post(SINGLE, bodyOf(value)), [expected], value);
}

test('a submit with a missing field gets a 422', async (t) => {
  refused(t, await post(SINGLE, {}), [missing('body', 'npi')]);
  refused(t, await post(SINGLE, { npis: [NPI] }), [missing('body', 'npi')]);
  refused(t, await post(BULK, { npi: NPI }), [missing('body', 'npis')]);
  refused(t, await post(SINGLE, { npi: NPI, webhook: {} }), [
    missing('body', 'webhook', 'url'),
  ]);
});

test('an NPI that is not a string gets a 422', async (t) => {
  const values = [null, 1234567893, 1e9, true, [NPI], [[NPI]], { npi: NPI }];
  await refusedField(t, values, (npi) => ({ npi }), noString('body', 'npi'));
  for (const value of values) {
    refused(
      t,
      await post(BULK, { npis: [NPI, value] }),
      [noString('body', 'npis', 1)],
      value,
    );
  }
});

test('an NPI that is not 10 ASCII digits gets a 422', async (t) => {
  const values = [
    '',
    '123456789',
    '12345678933',
    '123456789O',
    '1e9',
    '-123456789',
    '+123456789',
    '1234567.93',
    '0x12345678',
    ' 1234567893',
    '1234567893 ',
    '1234567893\n',
    '\n1234567893',
    '12345\u000067893',
    '١٢٣٤٥٦٧٨٩٣',
    '１２３４５６７８９３',
    '१२३४५६७८९३',
    '𝟏𝟐𝟑𝟒𝟓𝟔𝟕𝟖𝟗𝟑',
    '\ud800\ud800\ud800\ud800\ud800',
    'x'.repeat(60_000),
  ];
  await refusedField(t, values, (npi) => ({ npi }), noNpi('body', 'npi'));
  refused(
    t,
    await post(BULK, { npis: values.slice(0, 19) }),
    values.slice(0, 19).map((_, i) => noNpi('body', 'npis', i)),
  );
});

test('an unknown email type or webhook mode gets one error, even if it is not a string', async (t) => {
  const values = ['Any', 'any ', 'both', '', 5, true, [], ['any'], {}];
  const type = noType('body', 'enrichment_email_type');
  await refusedField(
    t,
    values,
    (enrichment_email_type) => ({ npi: NPI, enrichment_email_type }),
    type,
  );
  const withMode = (mode: unknown) => ({
    npi: NPI,
    webhook: { url: 'https://example.com', mode },
  });
  await refusedField(
    t,
    [...values, 'realtime', 'real_time'],
    withMode,
    noMode('body', 'webhook', 'mode'),
  );
});

test('a webhook that is not an object, or a URL that is not a string, gets a 422', async (t) => {
  const others = ['https://example.com', 5, true, [], [{ url: 'https://example.com' }]];
  await refusedField(
    t,
    others,
    (webhook) => ({ npi: NPI, webhook }),
    noObject('body', 'webhook'),
  );
  const withUrl = (url: unknown) => ({ npi: NPI, webhook: { url } });
  await refusedField(
    t,
    [null, 5, true, [], {}],
    withUrl,
    noString('body', 'webhook', 'url'),
  );
});

test('custom_data that is not an object gets a 422', async (t) => {
  const values = ['x', '', 0, true, [], [{}]];
  await refusedField(
    t,
    values,
    (custom_data) => ({ npi: NPI, custom_data }),
    noDictionary('body', 'custom_data'),
  );
});

test('npis must be a list of 1 to 60 items', async (t) => {
  for (const npis of [null, NPI, 5, true, {}, { 0: NPI, length: 1 }]) {
    refused(t, await post(BULK, { npis }), [noList('body', 'npis')], npis);
  }
  const short = problem(
    'too_short',
    'List should have at least 1 item after validation, not 0',
  );
  refused(t, await post(BULK, { npis: [] }), [short('body', 'npis')]);
  for (const length of [61, 4000, 10_000]) {
    const long = problem(
      'too_long',
      `List should have at most 60 items after validation, not ${length}`,
    );
    // The items are invalid too, but only the length is reported.
    refused(t, await post(BULK, { npis: Array(length).fill('') }), [
      long('body', 'npis'),
    ]);
  }
  t.is((await post(BULK, { npis: Array(10_000).fill(NPI) })).status, 413);
  t.is((await post(BULK, { npis: Array(60).fill(NPI) })).status, 202);
  t.is((await post(BULK, { npis: [NPI] })).status, 202);
});

test('a body that is not an object gets a 422', async (t) => {
  for (const body of [[], [{ npi: NPI }], 'x', 5, true, null]) {
    refused(t, await post(SINGLE, body), [noObject('body')], body);
    refused(t, await post(BULK, body), [noObject('body')], body);
  }
});

test('all problems of a submit are reported together, in the order of the fields', async (t) => {
  const body = {
    custom_data: [],
    webhook: { mode: 'never', url: 'http://example.com' },
    enrichment_email_type: 7,
    npis: [5, NPI, 'x', null],
  };
  const expected = [
    noString('body', 'npis', 0),
    noNpi('body', 'npis', 2),
    noString('body', 'npis', 3),
    noType('body', 'enrichment_email_type'),
    noHttps('body', 'webhook', 'url'),
    noMode('body', 'webhook', 'mode'),
    noDictionary('body', 'custom_data'),
  ];
  refused(t, await post(BULK, body), expected);
  const key = { 'idempotency-key': 'a b' };
  refused(t, await post(BULK, body, key), [
    ...expected,
    noKey('header', 'Idempotency-Key'),
  ]);
  const { npis: _, ...rest } = body;
  refused(t, await post(SINGLE, rest, key), [
    missing('body', 'npi'),
    ...expected.slice(3),
    noKey('header', 'Idempotency-Key'),
  ]);
});

test('a malformed Idempotency-Key is reported together with problems of the body', async (t) => {
  const bad = noKey('header', 'Idempotency-Key');
  for (const key of [
    '',
    '""',
    'a b',
    'a\tb',
    'ä',
    'x'.repeat(256),
    `"${'x'.repeat(256)}"`,
  ]) {
    refused(t, await post(SINGLE, { npi: NPI }, { 'idempotency-key': key }), [bad], key);
  }
  const headers = { 'idempotency-key': 'a b' };
  refused(t, await client.call('POST', SINGLE, '{', headers), [
    problem('json_invalid', 'JSON decode error')('body', 1),
    bad,
  ]);
  refused(t, await client.call('POST', SINGLE, '', headers), [missing('body'), bad]);
  for (const key of ['x'.repeat(255), `"${'x'.repeat(255)}"`, '!', '~', '"']) {
    t.is((await post(SINGLE, { npi: NPI }, { 'idempotency-key': key })).status, 202, key);
  }
});

test('a malformed id in a path gets a 422, or a 401 without a valid key', async (t) => {
  const good = '01hzy3v7x9k2m4n6p8q0r2s4t6';
  const bad = [
    'x',
    'bulky',
    `req_${good}0`,
    `req_${good.slice(1)}`,
    `req_8${good.slice(1)}`,
    `REQ_${good}`,
    `req_${good.toUpperCase()}`,
    `req_${good.slice(1)}l`,
    `req_${good}%0A`,
    `req_${good}%00`,
    `req_${good}%2F`,
    `req-${good}`,
    '%FF%FE',
    '%zz',
    '%',
    "'%20or%201=1--",
    '..%2f..%2fetc',
    '１',
    'x'.repeat(4000),
  ];
  for (const id of bad) {
    for (const [path, name, prefix] of [
      [`/api/v1/email/${id}`, 'request_id', 'req'],
      [`/api/v1/batch/${id.replace('req', 'bat')}`, 'batch_id', 'bat'],
    ] as const) {
      const msg = `String should match pattern '^${prefix}_[0-7][0-9a-hjkmnp-tv-z]{25}$'`;
      refused(
        t,
        await client.get(path),
        [problem('string_pattern_mismatch', msg)('path', name)],
        path,
      );
      t.is((await fetch(`${api.baseUrl}${path}`)).status, 401, path);
    }
  }
  t.is((await client.get(`/api/v1/email/req_${good}`)).status, 404);
});

test('a malformed webhook URL gets a 422', async (t) => {
  const values = [
    '',
    'x',
    'example.com/hook',
    '//example.com',
    'https://',
    'https://?',
    'https:///x',
    'https:////x',
    'https:x',
    'https:/x',
    'https:\\\\x',
    'https://\\x',
    'https://exa mple.com',
    ' https://example.com',
    'https://example.com ',
    'https://example.com/\n',
    'ht\ntps://example.com',
    'https://example.com/\t',
    'https://example.com/\u0000',
    'https://example.com/\u007f',
    'https://example.com/\u00a0',
    'https://example.com/\u2028',
    'https://example.com/\ud800',
    'https://example.com:99999/',
    'https://[::1',
    'https://1.2.3.4.5',
    'https://256.256.256.256',
    'https://[fe80::1%25eth0]/',
    'https://%00/',
  ];
  const withUrl = (url: unknown) => ({ npi: NPI, webhook: { url } });
  await refusedField(t, values, withUrl, noUrl('body', 'webhook', 'url'));
  const long = `https://example.com/${'x'.repeat(2028)}`;
  t.is((await post(SINGLE, withUrl(long))).status, 202);
  const tooLong = problem('url_too_long', 'URL should have at most 2048 characters');
  await refusedField(
    t,
    [`${long}x`, 'x'.repeat(60_000)],
    withUrl,
    tooLong('body', 'webhook', 'url'),
  );
});

test('a webhook URL that is not https, or contains a user or password, gets a 422', async (t) => {
  const withUrl = (url: unknown) => ({ npi: NPI, webhook: { url } });
  const schemes = [
    'http://example.com',
    'HTTP://127.0.0.1',
    'ftp://example.com',
    'file:///etc/passwd',
    'data:,x',
  ];
  await refusedField(t, schemes, withUrl, noHttps('body', 'webhook', 'url'));
  const userinfo = problem(
    'url_userinfo',
    'URL should not contain a user name or password',
  );
  const names = [
    'https://a@example.com',
    'https://a:b@example.com',
    'https://:b@example.com',
    'https://a@127.0.0.1',
  ];
  await refusedField(t, names, withUrl, userinfo('body', 'webhook', 'url'));
  for (const url of [
    'HTTPS://EXAMPLE.COM',
    'https://example.com:8443/a?b=c#d',
    'https://bücher.example/',
  ]) {
    t.is((await post(SINGLE, withUrl(url))).status, 202, url);
  }
});

test('a webhook URL with a private IP address or name gets a 422, in any notation', async (t) => {
  const hosts = [
    '127.0.0.1',
    '127.1',
    '2130706433',
    '0x7f000001',
    '0x7F.1',
    '0177.0.0.1',
    '017700000001',
    '127.0.0.1.',
    '１２７.０.０.１',
    '127。0。0。1',
    '%31%32%37.0.0.1',
    '0.0.0.0',
    '0',
    '10.0.0.1',
    '172.16.0.1',
    '192.168.0.1',
    '100.64.0.1',
    '169.254.169.254',
    '168.63.129.16',
    '192.0.2.1',
    '198.18.0.1',
    '224.0.0.1',
    '255.255.255.255',
    '[::]',
    '[::1]',
    '[0:0:0:0:0:0:0:1]',
    '[::127.0.0.1]',
    '[::ffff:127.0.0.1]',
    '[::ffff:7f00:1]',
    '[64:ff9b::7f00:1]',
    '[2002:7f00:1::]',
    '[fc00::1]',
    '[fe80::1]',
    '[ff02::1]',
    '[2001:db8::1]',
    'localhost',
    'LOCALHOST',
    'localhost.',
    'ｌｏｃａｌｈｏｓｔ',
    'loc%61lhost',
    'any.localhost',
    'printer.local',
    'metadata.google.internal',
    'internal',
  ];
  const withHost = (host: unknown) => ({
    npi: NPI,
    webhook: { url: `https://${host}:8443/hook` },
  });
  await refusedField(t, hosts, withHost, blocked('body', 'webhook', 'url'));
  for (const host of [
    '8.8.8.8',
    '134744072',
    '[2606:4700:4700::1111]',
    'localhost.example.com',
    'mylocal',
  ]) {
    t.is((await post(SINGLE, withHost(host))).status, 202, host);
  }
});

test('null means that an optional field is absent, and unknown fields are ignored', async (t) => {
  const absent = { enrichment_email_type: null, webhook: null, custom_data: null };
  const reply = await client.single({ npi: NPI, ...absent });
  t.is(reply.status, 202);
  const envelope = (await client.get(`/api/v1/batch/${reply.json.batch_id}`)).json;
  t.is(envelope.webhook, null);
  t.is(envelope.custom_data, null);
  const withMode = await client.single({
    npi: NPI,
    webhook: { url: 'https://example.com', mode: null },
  });
  const [request] = withMode.json.requests;
  t.is(
    (await client.get(`/api/v1/email/${request?.request_id}`)).json.webhook?.mode,
    'real-time',
  );
  const unknown = {
    constructor: 1,
    toString: 'x',
    hasOwnProperty: null,
    length: 5,
    npis: 'x',
    '': {},
  };
  t.is(
    (
      await post(SINGLE, {
        npi: NPI,
        ...unknown,
        webhook: { url: 'https://example.com', ...unknown },
      })
    ).status,
    202,
  );
});

test('the Link header of a 422 links to the help for its first error', async (t) => {
  const linkOf = async (body: unknown) => (await post(SINGLE, body)).headers.get('link');
  t.is(await linkOf({ webhook: 5 }), '</docs/errors#missing>; rel="help"');
  t.is(await linkOf([NPI]), '</docs/errors#model_attributes_type>; rel="help"');
  const polled = await client.get('/api/v1/email/x');
  t.is(polled.headers.get('link'), '</docs/errors#string_pattern_mismatch>; rel="help"');
});

// Fails without `ignoredFields` of api/http/validation.ts.
test('every response to a submit lists the fields that we ignored in a header', async (t) => {
  const ignored = async (extra: object, webhook: object = {}) => {
    const hook = { url: 'https://example.com', ...webhook };
    const reply = await post(SINGLE, {
      npi: NPI,
      webhook: hook,
      custom_data: { any: { thing: 1 } },
      ...extra,
    });
    t.is(reply.status, 202, reply.text);
    return reply.headers.get('ignored-fields');
  };
  t.is(await ignored({}), null);
  t.is(await ignored({ enrichment_type: 'personal' }), 'enrichment_type');
  t.is(
    await ignored({ a: null, npis: [] }, { mod: 'batch', secret: { b: 1 } }),
    'webhook.mod, webhook.secret, a, npis',
  );
  t.is(
    await ignored({
      '': 1,
      'a, b': 1,
      'ä\r\nSet-Cookie: x=1': 1,
      '\ud800': 1,
      '"%~': 1,
      toString: 1,
    }),
    '"", a%2C%20b, %C3%A4%0D%0ASet-Cookie%3A%20x%3D1, %EF%BF%BD, %22%25~, toString',
  );
  t.is(await ignored({ [`${'x'.repeat(39)}😀`]: 1 }), `${'x'.repeat(39)}%EF%BF%BD`);
  const many = await ignored(
    Object.fromEntries(
      Array.from({ length: 900 }, (_, i) => [`${'€'.repeat(14)}${i}`, i]),
    ),
  );
  t.regex(many ?? '', /^[!-~ ]{1000,1500}, \.\.\.$/);
  const key = { 'idempotency-key': 'ignored' };
  for (const field of ['one', 'two']) {
    const reply = await client.single({ npi: NPI, [field]: 1 }, key);
    t.is(reply.headers.get('ignored-fields'), field, 'also of a 202 that is given again');
  }
  const poor = await api.organization(0);
  t.is((await poor.single({ npi: NPI, x: 1 })).headers.get('ignored-fields'), 'x');
  t.is((await post(SINGLE, { npi: 5, x: 1 })).headers.get('ignored-fields'), 'x');
  const proto = await client.call(
    'POST',
    SINGLE,
    `{"npi":"${NPI}","__proto__":{"webhook":5}}`,
  );
  t.is(proto.headers.get('ignored-fields'), '__proto__');
});

test('the field npis is ignored in a single submit, and npi in a bulk submit', async (t) => {
  const single = await client.single({ npi: NPI, npis: Array(100).fill('x') });
  t.deepEqual(
    single.json.requests.map(({ npi }) => npi),
    [NPI],
  );
  const bulk = await client.bulk({ npis: [NPI, NPI], npi: 'x' });
  t.deepEqual(
    bulk.json.requests.map(({ npi }) => npi),
    [NPI, NPI],
  );
});

test('a field named __proto__ is ignored like any other unknown field', async (t) => {
  const send = (text: string) => client.call<{ batch_id: string }>('POST', SINGLE, text);
  refused(t, await send(`{"__proto__":{"npi":"${NPI}"}}`), [missing('body', 'npi')]);
  refused(
    t,
    await send(`{"npi":"${NPI}","webhook":{"__proto__":{"url":"https://example.com"}}}`),
    [missing('body', 'webhook', 'url')],
  );
  const inherited =
    '"__proto__":{"webhook":5,"enrichment_email_type":5,"custom_data":{"a":1}}';
  const reply = await send(`{"npi":"${NPI}",${inherited}}`);
  t.is(reply.status, 202);
  t.is((await client.get(`/api/v1/batch/${reply.json.batch_id}`)).json.custom_data, null);
});

test('if a body has two fields with the same name, the last one is used', async (t) => {
  const send = (text: string) => client.call<{ batch_id: string }>('POST', SINGLE, text);
  t.is((await send(`{"npi":5,"npi":"${NPI}"}`)).status, 202);
  refused(t, await send(`{"npi":"${NPI}","npi":5}`), [noString('body', 'npi')]);
  const twice = await send(
    `{"npi":"${NPI}","custom_data":[],"custom_d\\u0061ta":{"a":1,"a":2}}`,
  );
  t.is(twice.status, 202);
  t.regex(
    (await client.get(`/api/v1/batch/${twice.json.batch_id}`)).text,
    /"custom_data":\{"a":1,"a":2\},/,
  );
});
