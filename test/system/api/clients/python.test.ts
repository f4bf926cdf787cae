import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { json, text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test, { type ExecutionContext } from 'ava';
import { sign } from '../../../../activities/webhooks/signature.ts';
import { PRICES } from '../../../../db/accounts/credits.ts';
import {
  emailOf,
  npisFrom,
  type Passed,
  startGateway,
  work,
} from '../../../support/customer.ts';
import { fresh, freshDatabase, temporaryFolder } from '../../../support/database.ts';
import { documentedPython } from '../../../support/python.ts';
import { startReceiver, status } from '../../../support/receiver.ts';
import { type ApiClient, startApi } from '../../../support/stack.ts';
import { serveVendor } from '../../../support/vendors.ts';

// Tests the Python package with the API. `work` settles requests instead of workers, and a gateway
// between package and API can fail.

// Found first, because AVA starts right after the first hook is declared.
const python = await documentedPython();
const inPython = python ? test : test.skip;
const inPythonAlone = python ? test.serial : test.serial.skip;

const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl, rateWindowMs: 2000 }));
const PROGRAM = fileURLToPath(new URL('./call.py', import.meta.url));
const PACKAGE = fileURLToPath(new URL('../../../../api/clients/python', import.meta.url));

interface Results {
  readonly results: readonly { readonly npi: string; readonly email: string | null }[];
}

/** The JSON that call.py prints. */
interface Outcome extends Results {
  readonly completed: number;
  readonly not_found: number;
  readonly failed: number;
  readonly credits_used: number;
  readonly progress: readonly (Results & { readonly total: number })[];
  readonly envelope: unknown;
  readonly cases: readonly Pick<Outcome, 'error' | 'value'>[];
  readonly value?: string;
  readonly error?: {
    readonly code: string;
    readonly status: number | null;
    readonly message: string;
    readonly problem: object | null;
    readonly request_id: string | null;
  };
}

/** Runs the package once, without variables in its environment. */
async function call(given: object): Promise<Outcome> {
  const env = { PYTHONPATH: PACKAGE, PYTHONDONTWRITEBYTECODE: '1' };
  const child = spawn(python ?? '', [PROGRAM], { env });
  child.stdin.end(JSON.stringify(given));
  const [outcome, errors] = await Promise.all([
    json(child.stdout).catch(() => null),
    text(child.stderr),
  ]);
  if (outcome === null) throw new Error(errors);
  return outcome as Outcome;
}

function optionsOf(client: ApiClient, baseUrl = api.baseUrl) {
  // This is less than AVA's time-out.
  return { patience: 120, api_key: client.apiKey, base_url: baseUrl };
}

async function batchesOf(client: ApiClient): Promise<number> {
  const [row] =
    await sql`select count(*)::int as n from batches where organization_id = ${client.organizationId}`;
  return row?.n;
}

function submits(passed: readonly Passed[]): Passed[] {
  return passed.filter(({ method }) => method === 'POST');
}

/** Returns true if the times are at least one second apart, which is every `Retry-After` here. */
function areApart(times: readonly number[]): boolean {
  return times.every(
    (time, index) => index === 0 || time - (times[index - 1] ?? 0) >= 1000,
  );
}

for (const via of ['enrich', 'AsyncClient'])
  inPython(`${via} submits repeated NPIs once, in batches, in order`, async (t) => {
    const client = await api.organization(1000);
    work(t, api, client.organizationId);
    const different = npisFrom(300, 130);
    const npis = [...different.toReversed(), ...different.slice(0, 3)];
    const { results, progress, ...totals } = await call({
      ...optionsOf(client, `${api.baseUrl}/`),
      npis,
      via,
    });
    t.deepEqual(
      results.map(({ npi, email }) => [npi, email]),
      npis.map((npi) => [npi, emailOf(npi)]),
    );
    const expected = { completed: 65, not_found: 65, failed: 0, credits_used: 65 };
    t.deepEqual(totals as object, expected);
    const reported = progress.flatMap((one) => one.results.map(({ npi }) => npi));
    t.deepEqual(reported.toSorted(), different);
    t.like(progress.at(-1), { total: 130, ...expected });
    t.is(await batchesOf(client), 3);
    t.is((await client.credits()).used, 65);
  });

inPython('the package repeats a submit without a response, for one charge', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const { url, passed } = await startGateway(t, api.baseUrl, ({ method }, moment) =>
    moment === 'after' && method === 'POST' && submits(passed).length < 3
      ? 'broken'
      : null,
  );
  const npis = npisFrom(0, 60);
  const { completed, credits_used } = await call({ ...optionsOf(client, url), npis });
  t.deepEqual([completed, credits_used], [30, 30]);
  const keys = submits(passed).map(({ headers }) => headers['idempotency-key']);
  t.is(keys.length, 3);
  t.is(new Set(keys).size, 1);
  t.is(await batchesOf(client), 1);
});

for (const via of ['enrich', 'AsyncClient'])
  inPython(
    `${via} waits for Retry-After and retries after temporary errors`,
    async (t) => {
      const client = await api.organization(100);
      work(t, api, client.organizationId);
      const times: number[] = [];
      const refusals = [429, 503, 409, 502, 500].map((status) => ({
        status,
        headers: { 'content-type': 'text/html', 'retry-after': '1' },
        body: '<h1>later</h1>',
      }));
      const { url, passed } = await startGateway(t, api.baseUrl, ({ method }, moment) => {
        if (method !== 'POST' || moment === 'after') return null;
        times.push(performance.now());
        return refusals.shift() ?? null;
      });
      const npis = npisFrom(100, 2);
      const { results } = await call({ ...optionsOf(client, url), npis, via });
      t.deepEqual(
        results.map(({ email }) => email),
        npis.map(emailOf),
      );
      t.is(submits(passed).length, 6);
      t.true(areApart(times));
    },
  );

inPython('the package raises a permanent error at once, with its details', async (t) => {
  const client = await api.organization(100);
  const elsewhere = await startGateway(t, api.baseUrl);
  const moved = { status: 307, headers: { location: `${elsewhere.url}/api/v1/credits` } };
  const { url } = await startGateway(
    t,
    api.baseUrl,
    ({ headers: { authorization = '' } }) => {
      if (authorization.endsWith('moved')) return moved;
      return authorization.endsWith('html')
        ? { status: 200, body: '<h1>welcome</h1>' }
        : null;
    },
  );
  const cases: readonly [object, string, number | null, RegExp][] = [
    [{ api_key: 'npe_wrong' }, 'api_key_invalid', 401, /^The API key is not valid\. \w/],
    [{ type: 'some' }, 'literal_error', 422, /^body\.enrichment_email_type: /],
    [{ api_key: 'html' }, 'not_the_api', 200, /Check the address/],
    [{ api_key: 'moved' }, 'http_307', 307, /Check the address/],
    [{ api_key: 'two\nlines' }, 'api_key_unusable', null, /Copy it again/],
    [{ base_url: 'http://127.0.0.1:1', patience: 0 }, 'unreachable', null, /127/],
    [{ base_url: 'http://[::1]:1', patience: 0 }, 'unreachable', null, /::1/],
    [{ base_url: '' }, 'base_url_unusable', null, /Set NPI_EMAIL_URL/],
    [{ api_key: '' }, 'api_key_unusable', null, /Set NPI_EMAIL_API_KEY/],
    [{ base_url: `${url}/docs/python` }, 'base_url_unusable', null, /contains \/docs\./],
    [{ base_url: `${url}?a` }, 'base_url_unusable', null, /Leave out that part/],
    [{ npis: ['1234567893', 123] }, 'npi_invalid', null, /^NPI 2 is not a string/],
  ];
  for (const [options, code, status, message] of cases) {
    const given = { ...optionsOf(client, url), npis: npisFrom(200, 1), ...options };
    const { error } = await call(given);
    t.like(error, { code, status });
    t.regex(error?.message ?? '', message);
    t.notRegex(error?.message ?? '', /lines/);
    t.is(error?.request_id != null, Number(status) > 400);
  }
  t.deepEqual(elsewhere.passed, []);
});

inPython('the package never sends the API key unencrypted over a network', async (t) => {
  const client = await api.organization();
  for (const baseUrl of [
    'http://api.example.com',
    'HTTP://10.0.0.1:8080',
    'http://127.0.0.1.example.com',
    'http://127.0.0.1@api.example.com',
    'http://localhost.example.com',
    'ftp://127.0.0.1',
    'api.example.com',
    'https://',
    'https://api.example.com:port',
    'https://xn--a.example',
  ]) {
    const given = { ...optionsOf(client, baseUrl), npis: npisFrom(200, 1) };
    const { error } = await call(given);
    t.is(error?.code, 'base_url_unusable', baseUrl);
    t.regex(error?.message ?? '', /Use one that begins with https:\/\/\.$/);
  }
});

for (const via of ['enrich', 'AsyncClient'])
  inPython(`without enough credits, ${via} ends its submitted batches`, async (t) => {
    const client = await api.organization(70);
    work(t, api, client.organizationId);
    const npis = npisFrom(5000, 180);
    const { error, progress } = await call({ ...optionsOf(client), npis, via });
    t.like(error, { code: 'insufficient_credits', status: 402 });
    t.like(error?.problem, { required: 60, available: 40, shortfall: 20 });
    t.regex(error?.message ?? '', /60 credits/);
    const last = { total: 180, completed: 30, not_found: 30, credits_used: 30 };
    t.like(progress.at(-1), last);
  });

/** Python that calls the package wrongly, and what its error says. */
const MISUSES: readonly (readonly [string, string, RegExp])[] = [
  ['enrich("2000000010")', 'argument_invalid', /^npis is not a list of strings/],
  ['enrich(None)', 'argument_invalid', /^npis is not a list of strings/],
  ['enrich([b"2000000010"])', 'npi_invalid', /^NPI 1 is not a string/],
  ['enrich(["2000000010"], type=["any"])', 'argument_invalid', /^type is not a string/],
  ['enrich([], webhook="https://a.example")', 'argument_invalid', /\{"url": /],
  ['enrich([], custom_data=[1])', 'argument_invalid', /^custom_data is not a dict/],
  ['enrich([], custom_data={"a": datetime.now()})', 'argument_invalid', /JSON/],
  ['enrich([], custom_data={"a": float("nan")})', 'argument_invalid', /JSON/],
  ['enrich([], custom_data={"a": "\\ud800"})', 'argument_invalid', /JSON/],
  ['enrich([], max_credits="10")', 'argument_invalid', /^max_credits is not a number/],
  ['enrich([], max_credits=float("nan"))', 'argument_invalid', /^max_credits is not/],
  ['enrich([], patience=10**400)', 'argument_invalid', /^patience is not a number of/],
  ['enrich([], patience=None)', 'argument_invalid', /^patience is not a number/],
  ['enrich([], on_progress="print")', 'argument_invalid', /is not a function/],
  ['enrich([], on_progress=enrich_async)', 'argument_invalid', /use AsyncClient/],
  ['enrich([], base_url=1)', 'base_url_unusable', /https:/],
  ['enrich([], api_key=b"key")', 'api_key_unusable', /Copy it again/],
  ['Client().submit_single(2000000010)', 'argument_invalid', /^npi is not a string/],
  ['Client().submit_bulk("2000000010")', 'argument_invalid', /^npis is not a list/],
  ['Client().submit_single("1", idempotency_key="ö")', 'argument_invalid', /ASCII/],
  ['Client().submit_single("1", idempotency_key="a\\nb")', 'argument_invalid', /ASCII/],
  ['Client().submit_single("1", test_outcome=1)', 'argument_invalid', /ASCII/],
  ['Client().check("2000000010")', 'argument_invalid', /^npis is not a list/],
  ['Client().check([2000000010])', 'argument_invalid', /^NPI 1 is not a string/],
  ['Client().get_batch(None)', 'argument_invalid', /^batch_id is not a string/],
  ['Client().get_batch("\\udfff")', 'argument_invalid', /^batch_id is not a string/],
  ['Client().get_batch("b" * 100_000)', 'argument_invalid', /too long/],
  ['Client().get_request("r", wait="5")', 'argument_invalid', /^wait is not a whole/],
  ['Client().get_delivery("b", "d", before=1.5)', 'argument_invalid', /^before is not/],
  ['Client().batches(since="2026-01-01")', 'argument_invalid', /^since .* time zone/],
  [
    'Client().usage(until=datetime(2026, 1, 1))',
    'argument_invalid',
    /^until .* time zone/,
  ],
  ['Client().batches(status=1)', 'argument_invalid', /^status is not a string/],
  ['[c := Client(), c.close(), c.credits()]', 'client_unusable', /until it is closed/],
  [
    '[c := AsyncClient(), asyncio.run(c.credits()), asyncio.run(c.credits())]',
    'client_unusable',
    /only in the event loop/,
  ],
];

/** Python that must raise an error: its variables, and the code and the message of the error. */
type Case = readonly [expression: string, variables: object, code: string, RegExp];

/** Evaluates Python that uses the package, and checks the error of each. */
async function checkErrors(t: ExecutionContext, cases: readonly Case[]): Promise<void> {
  const outcome = await call({
    cases: cases.map(([expression, variables]) => ({ expression, variables })),
  });
  for (const [index, [expression, variables, code, message]] of cases.entries()) {
    const { error } = outcome.cases[index] ?? {};
    t.is(error?.code, code, `${expression} ${JSON.stringify(variables)}`);
    t.regex(error?.message ?? '', message);
    t.notRegex(error?.message ?? '', /hunter2/);
  }
}

inPython('a misuse of the package raises an error that names the argument', async (t) => {
  const client = await api.organization();
  const env = { NPI_EMAIL_URL: api.baseUrl, NPI_EMAIL_API_KEY: client.apiKey };
  const cases = MISUSES.map(([expression, code, message]): Case => {
    return [expression, env, code, message];
  });
  await checkErrors(t, cases);
});

inPython('the package names the variable that it cannot use', async (t) => {
  const given = { NPI_EMAIL_URL: 'https://api.example.com', NPI_EMAIL_API_KEY: 'npe_a' };
  const problems: readonly (readonly [object, RegExp])[] = [
    [{ NO_PROXY: '[::1]' }, /^The variable NO_PROXY cannot .* without brackets\.$/],
    [{ HTTPS_PROXY: 'ftp://hunter2@proxy' }, /^The proxy in HTTPS_PROXY cannot be used/],
    [{ https_proxy: 'http://proxy:hunter2' }, /^The proxy in https_proxy cannot be used/],
    [{ ALL_PROXY: 'socks5://proxy' }, /^The proxy in ALL_PROXY needs .*httpx\[socks\]/],
    [{ SSL_CERT_FILE: '/missing.pem' }, /^The file in SSL_CERT_FILE cannot be used/],
  ];
  const cases = ['Client()', 'AsyncClient()'].flatMap((expression) =>
    problems.map(([variables, message]): Case => {
      return [expression, { ...given, ...variables }, 'environment_unusable', message];
    }),
  );
  await checkErrors(t, cases);
});

inPython('without a usable response, the package says what to check', async (t) => {
  const client = await api.organization();
  const bodies: Readonly<Record<string, string>> = {
    empty: '{}',
    deep: '['.repeat(100_000),
    number: '1'.repeat(10_000),
    detail: '{"detail":[1]}',
    text: '{"code":[],"detail":"no"}',
  };
  const { url } = await startGateway(t, api.baseUrl, ({ headers }) => {
    const [, name = ''] = / (.*)/.exec(headers.authorization ?? '') ?? [];
    if (name === 'gzip') {
      return { status: 200, headers: { 'content-encoding': 'gzip' }, body: 'plain' };
    }
    const body = bodies[name];
    const status = name === 'detail' || name === 'text' ? 400 : 200;
    return body === undefined ? null : { status, body };
  });
  const given = { NPI_EMAIL_URL: url, NPI_EMAIL_API_KEY: client.apiKey };
  const withKey = (name: string) => ({ ...given, NPI_EMAIL_API_KEY: name });
  const withUrl = (address: string) => ({ ...given, NPI_EMAIL_URL: address });
  const closed = 'http://127.0.0.1:1';
  const throughProxy = { ...withUrl(closed), HTTP_PROXY: closed };
  const longName = `https://${'a'.repeat(64)}.example`;
  const receiver = await startReceiver(temporaryFolder(t.teardown));
  t.teardown(receiver.close);
  receiver.setBehavior('/api/v1/credits', status(404));
  const trusted = { ...withUrl(receiver.url), SSL_CERT_FILE: receiver.caFile };
  const credits = 'Client(patience=0).credits()';
  const asyncCredits = 'asyncio.run(AsyncClient(patience=0).credits())';
  await checkErrors(t, [
    [credits, withKey('deep'), 'not_the_api', /Check the address/],
    [credits, withKey('number'), 'not_the_api', /Check the address/],
    [credits, withKey('detail'), 'http_400', /Check the address/],
    [credits, withKey('text'), 'http_400', /Check the address/],
    [credits, withKey('gzip'), 'unreachable', /a proxy changed it/],
    ['next(Client().ledger())', withKey('empty'), 'not_the_api', /Check the address/],
    ['Client().check(["2000000010"])', withKey('empty'), 'not_the_api', /Check/],
    ['enrich(["2000000010"])', withKey('empty'), 'not_the_api', /Check the address/],
    [credits, withUrl(closed), 'unreachable', /Check the address\.$/],
    [credits, throughProxy, 'unreachable', /The proxy in HTTP_PROXY may be the reason/],
    [credits, withUrl(receiver.url), 'unreachable', /set SSL_CERT_FILE to/],
    [asyncCredits, withUrl(receiver.url), 'unreachable', /set SSL_CERT_FILE to/],
    [credits, trusted, 'http_404', /Check the address/],
    [credits, withUrl('https://a.invalid'), 'unreachable', /is not known/],
    [asyncCredits, withUrl('https://a.invalid'), 'unreachable', /is not known/],
    [credits, withUrl(longName), 'unreachable', /is not known/],
  ]);
});

inPython('the package knows the prices of the service', async (t) => {
  const program = 'import json, npi_email_enrichment as p; print(json.dumps(p.PRICES))';
  const env = { PYTHONPATH: PACKAGE, PYTHONDONTWRITEBYTECODE: '1' };
  const child = spawn(python ?? '', ['-c', program], { env });
  t.deepEqual(await json(child.stdout), PRICES);
});

inPython(
  'check asks for 1,000 NPIs at once, and repeats each in its place',
  async (t) => {
    const client = await api.organization();
    const { url, passed } = await startGateway(t, api.baseUrl);
    const env = { NPI_EMAIL_URL: url, NPI_EMAIL_API_KEY: client.apiKey };
    const npis = JSON.stringify(['x', ...npisFrom(20_000, 1500), 'x']);
    const counts =
      '(lambda r: (len(r["data"]), r["data"][-1]["npi"], r["totals"], r["max_credits"]))';
    const expressions = [
      `${counts}(Client().check(${npis}))`,
      `${counts}(asyncio.run(AsyncClient().check(iter(${npis}))))`,
    ];
    const { cases } = await call({
      cases: expressions.map((expression) => ({ expression, variables: env })),
    });
    const totals =
      "{'lookup': 150, 'free_repeat': 0, 'not_an_npi': 1352, 'organization': 0, 'deactivated': 0}";
    const credits = "{'any': 150, 'professional': 150, 'personal': 450}";
    for (const { value } of cases) {
      t.is(value, `(1502, 'x', ${totals}, ${credits})`);
    }
    t.is(cases.length, 2);
    t.is(submits(passed).length, 4);
  },
);

inPython('the package submits no batch that could exceed max_credits', async (t) => {
  const client = await api.organization(1000);
  work(t, api, client.organizationId);
  const { url, passed } = await startGateway(t, api.baseUrl);
  const given = { ...optionsOf(client, url), npis: npisFrom(6000, 180) };
  // Each batch can cost 60 credits, and in fact costs 30. After two batches, 60 credits are used. A
  // third batch could bring the total to 120.
  t.is((await call({ ...given, max_credits: 100 })).error?.code, 'max_credits');
  t.is(submits(passed).length, 2);
  const personal = await call({ ...given, max_credits: 179, type: 'personal' });
  t.is(personal.error?.code, 'max_credits');
  t.is(submits(passed).length, 2);
  const { completed } = await call({ ...given, max_credits: 120 });
  t.is(completed, 90);
});

// Serial, because the package allows each request one second until the API counts it.
inPythonAlone(
  'the package stays within the rate limit that others use too',
  async (t) => {
    const client = await api.organization(1000, 6);
    work(t, api, client.organizationId);
    const { url, passed } = await startGateway(t, api.baseUrl);
    await client.credits();
    await client.credits();
    const npis = npisFrom(7000, 300);
    const { results } = await call({ ...optionsOf(client, url), npis });
    t.is(results.length, 300);
    t.true(passed.length > 10);
    t.deepEqual(
      passed.filter(({ status }) => status === 429),
      [],
    );
  },
);

inPython(
  'if a poll is not held, the package polls again after Retry-After',
  async (t) => {
    const client = await api.organization(1000);
    const npis = npisFrom(8000, 2);
    const times: number[] = [];
    work(t, api, client.organizationId, (npi) => npi === npis[1] && times.length < 3);
    const { url } = await startGateway(t, api.baseUrl, (request, moment) => {
      if (moment === 'before' && request.path.includes('/batch/'))
        times.push(performance.now());
      delete request.headers.prefer;
      return null;
    });
    const { results } = await call({ ...optionsOf(client, url), npis });
    t.is(results.length, 2);
    t.true(times.length >= 3);
    t.true(areApart(times));
  },
);

inPython('the package waits at most 30 seconds between polls', async (t) => {
  const client = await api.organization(100, 1000);
  const npis = npisFrom(8100, 2);
  let polls = 0;
  work(t, api, client.organizationId, (npi) => npi === npis[1] && polls < 2);
  const { url } = await startGateway(t, api.baseUrl, async ({ path }) => {
    if (!path.includes('/batch/')) return null;
    polls += 1;
    const { text: body } = await client.get(path);
    return { status: 200, headers: { 'retry-after': '999999' }, body };
  });
  const env = { NPI_EMAIL_URL: url, NPI_EMAIL_API_KEY: client.apiKey };
  const run = `lambda: enrich(${JSON.stringify(npis)})`;
  const pauses = `[p := [], patch("time.sleep", p.append)(${run})(), max(p)][-1]`;
  const { cases } = await call({ cases: [{ expression: pauses, variables: env }] });
  t.is(cases[0]?.value, '30.0');
});

inPython(
  'a run without progress ends, and repeating it is not charged twice',
  async (t) => {
    const client = await api.organization(1000);
    const { url } = await startGateway(t, api.baseUrl, (request) => {
      delete request.headers.prefer;
      return null;
    });
    const given = { ...optionsOf(client, url), npis: npisFrom(9000, 2) };
    t.is((await call({ ...given, patience: 0 })).error?.code, 'timed_out');
    t.is((await call({ ...given, patience: 0 })).error?.code, 'timed_out');
    // Each of the two running batches holds 2 credits.
    t.is((await client.credits()).balance, 996);
    work(t, api, client.organizationId);
    const { completed, not_found } = await call(given);
    t.deepEqual([completed, not_found], [1, 1]);
    t.is((await client.credits()).used, 1);
  },
);

inPython('enrich rejects an on_progress that returns something to await', async (t) => {
  const client = await api.organization();
  work(t, api, client.organizationId);
  const env = { NPI_EMAIL_URL: api.baseUrl, NPI_EMAIL_API_KEY: client.apiKey };
  const npis = JSON.stringify(npisFrom(9100, 1));
  const expression = `enrich(${npis}, on_progress=lambda _: asyncio.sleep(0))`;
  await checkErrors(t, [[expression, env, 'argument_invalid', /use AsyncClient/]]);
});

inPython('the package can retry more than 1,000 times', async (t) => {
  const client = await api.organization();
  const limit = '"a";q=100000;w=60';
  const headers = {
    'retry-after': '0',
    'ratelimit-policy': limit,
    ratelimit: '"a";r=100000',
  };
  const { url, passed } = await startGateway(t, api.baseUrl, () =>
    passed.length <= 1100 ? { status: 503, headers } : null,
  );
  const variables = { NPI_EMAIL_URL: url, NPI_EMAIL_API_KEY: client.apiKey };
  const { cases } = await call({
    cases: [{ expression: 'Client().credits()', variables }],
  });
  t.regex(cases[0]?.value ?? '', /'balance': /);
  t.is(passed.length, 1101);
});

inPython('the package waits for a body only as long as for a response', async (t) => {
  const url = await serveVendor(t, (_request, response) => {
    response.writeHead(200);
    let sent = 0;
    const trickle = setInterval(() => {
      sent += 1;
      if (sent < 60) return void response.write(' ');
      response.end('{}');
    }, 100);
    response.once('close', () => clearInterval(trickle));
  });
  const env = { NPI_EMAIL_URL: url, NPI_EMAIL_API_KEY: 'npe_a' };
  const limited = 'patch("npi_email_enrichment._exchange.ATTEMPT", 1)';
  const cases = [
    'Client(patience=0).credits()',
    'asyncio.run(AsyncClient(patience=0).credits())',
  ].map((credits): Case => {
    const expression = `${limited}(lambda: ${credits})()`;
    return [expression, env, 'unreachable', /did not respond within 1 seconds/];
  });
  await checkErrors(t, cases);
});

inPython('more than 100 threads can use a client at once', async (t) => {
  const client = await api.organization(100, 1000);
  const { promise: allArrived, resolve } = Promise.withResolvers<void>();
  const { url, passed } = await startGateway(t, api.baseUrl, async () => {
    if (passed.length === 1) return null;
    if (passed.length === 121) resolve();
    await allArrived;
    return { status: 200, body: '{}' };
  });
  const variables = { NPI_EMAIL_URL: url, NPI_EMAIL_API_KEY: client.apiKey };
  const calls = 'list(ThreadPoolExecutor(120).map(Client.credits, [c] * 120))';
  const expression = `[c := Client(patience=0), c.credits(), len(${calls})][-1]`;
  const { cases } = await call({ cases: [{ expression, variables }] });
  t.like(cases[0], { value: '120' });
});

const SECRET = `whsec_${randomBytes(32).toString('base64')}`;
const BODY = JSON.stringify({ data: [{ request_id: 'req_1', email: 'zoë@a.example' }] });

function signed(body: string, { secrets = [SECRET], ageS = 0 } = {}) {
  const timestamp = Math.floor(Date.now() / 1000) - ageS;
  const id = 'msg_1';
  const signature = sign({ id, timestamp, body, secrets });
  return {
    'Webhook-Id': id,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': signature,
  };
}

inPython('verify_webhook returns the content of a signed webhook', async (t) => {
  const other = `whsec_${randomBytes(32).toString('base64')}`;
  for (const headers of [signed(BODY), signed(BODY, { secrets: [other, SECRET] })]) {
    const { envelope } = await call({ webhook: { body: BODY, headers, secret: SECRET } });
    t.deepEqual(envelope, JSON.parse(BODY));
  }
});

inPython(
  'verify_webhook rejects a webhook that is not signed with the secret',
  async (t) => {
    const other = `whsec_${randomBytes(32).toString('base64')}`;
    const good = { body: BODY, headers: signed(BODY), secret: SECRET };
    const cases: Record<string, Partial<typeof good> | { headers: object }> = {
      'another secret': { secret: other },
      'another body': { body: BODY.replace('zoë', 'zoe') },
      'an old one': { headers: signed(BODY, { ageS: 600 }) },
      'one from the future': { headers: signed(BODY, { ageS: -600 }) },
      'no headers': { headers: {} },
      'a malformed signature': { headers: { ...good.headers, 'webhook-signature': 'ë' } },
      'no secret': { secret: '' },
      'a damaged secret': { secret: 'whsec_!' },
      'a timestamp of 400 digits': {
        headers: { ...good.headers, 'webhook-timestamp': '1'.repeat(400) },
      },
      'a timestamp that is no number': {
        headers: { ...good.headers, 'webhook-timestamp': '1e9' },
      },
      'a header that is no text': { headers: { ...good.headers, 'webhook-id': 1 } },
    };
    const expressions = Object.values(cases).map((change): Case => {
      const given = JSON.stringify({ ...good, ...change });
      return [`verify_webhook(**${given})`, {}, 'webhook_unverified', /\.$/];
    });
    await checkErrors(t, expressions);
  },
);

inPython('verify_webhook says what to pass instead of a wrong argument', async (t) => {
  const cases: readonly (readonly [string, RegExp])[] = [
    ['{"data": []}, HEADERS, SECRET', /Pass the body before your framework parses it/],
    ['None, HEADERS, SECRET', /Pass the body before your framework parses it/],
    ['5, HEADERS, SECRET', /Pass the body before your framework parses it/],
    ['"\\ud800", HEADERS, SECRET', /Pass the body before your framework parses it/],
    ['b"{}", None, SECRET', /Pass all headers/],
    ['b"{}", [(b"webhook-id", b"a")], SECRET', /Pass all headers/],
    ['b"{}", {}, SECRET', /has no webhook-id, or you did not pass all its headers/],
    ['b"{}", HEADERS, None', /^The secret is not complete/],
    ['b"not JSON", HEADERS, SECRET', /body is not JSON/],
  ];
  const headers = JSON.stringify(signed('not JSON'));
  const expressions = cases.map(([args, message]): Case => {
    const named = args.replace('HEADERS', headers).replace('SECRET', `"${SECRET}"`);
    return [`verify_webhook(${named})`, {}, 'webhook_unverified', message];
  });
  await checkErrors(t, expressions);
});
