import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { eq } from 'drizzle-orm';
import {
  EnrichmentError,
  enrich,
  type Options,
  PRICES,
  type Progress,
} from '../../../../api/clients/typescript/index.ts';
import { PRICES as CHARGED } from '../../../../db/accounts/credits.ts';
import { requests } from '../../../../db/schema.ts';
import {
  emailOf,
  npisFrom,
  type Passed,
  startGateway,
  work,
} from '../../../support/customer.ts';
import { fresh, freshDatabase, temporaryFolder } from '../../../support/database.ts';
import { grant } from '../../../support/organization.ts';
import { type ApiClient, startApi } from '../../../support/stack.ts';

// Tests the client with the API. `work` settles requests instead of workers, and a gateway between
// client and API can fail.

const { sql, url: databaseUrl } = freshDatabase(test);
const api = fresh(test, () => startApi({ databaseUrl, rateWindowMs: 2000 }));
/** An API that forgets Idempotency-Keys at once. */
const forgetful = fresh(test, () => startApi({ databaseUrl, idempotencyMs: 1 }));

/** This is less than AVA's time-out. */
const QUICK = { patienceMs: 120_000 };

function optionsOf(client: ApiClient, baseUrl = api.baseUrl): Options {
  return { ...QUICK, apiKey: client.apiKey, baseUrl };
}

function stateFileOf(t: ExecutionContext): string {
  return join(temporaryFolder(t.teardown), 'state.json');
}

async function batchesOf(client: ApiClient): Promise<number> {
  const [row] =
    await sql`select count(*)::int as n from batches where organization_id = ${client.organizationId}`;
  return row?.n;
}

/** Removes `Prefer`, so that polls do not wait. */
function unheld({ headers }: Passed): null {
  delete headers.prefer;
  return null;
}

/** Returns true if the times are at least one second apart, which is every `Retry-After` here. */
function areApart(times: readonly number[]): boolean {
  return times.every(
    (time, index) => index === 0 || time - (times[index - 1] ?? 0) >= 1000,
  );
}

function submits(passed: readonly Passed[]): Passed[] {
  return passed.filter(({ method }) => method === 'POST');
}

test('the client submits repeated NPIs once, in batches, and returns results in order', async (t) => {
  const client = await api.organization(1000);
  work(t, api, client.organizationId);
  const different = npisFrom(300, 130);
  const npis = [...different.toReversed(), ...different.slice(0, 3)];
  const seen: Progress[] = [];
  const { results, ...totals } = await enrich(npis, {
    ...optionsOf(client, `${api.baseUrl}/`),
    onProgress: (progress) => seen.push(progress),
  });
  t.deepEqual(
    results.map(({ npi, email }) => [npi, email]),
    npis.map((npi) => [npi, emailOf(npi)]),
  );
  t.deepEqual(totals, { completed: 65, not_found: 65, failed: 0, creditsUsed: 65 });
  const told = seen.flatMap((progress) => progress.results.map(({ npi }) => npi));
  t.deepEqual(told.toSorted(), different);
  t.like(seen.at(-1), { total: 130, earlier: 0, ...totals });
  t.is(await batchesOf(client), 3);
  t.is((await client.credits()).used, 65);
});

test('every batch of a run has the webhook and the custom data of the options', async (t) => {
  const client = await api.organization(1000);
  work(t, api, client.organizationId);
  const { url, passed } = await startGateway(t, api.baseUrl);
  const webhook = { url: 'https://receiver.example/hook', mode: 'batch' } as const;
  const customData = { order: 17 };
  await enrich(npisFrom(10_000, 61), { ...optionsOf(client, url), webhook, customData });
  const bodies = submits(passed).map(({ body }) => JSON.parse(body));
  t.is(bodies.length, 2);
  for (const body of bodies) t.like(body, { webhook, custom_data: customData });
});

test('the client knows the same prices as the service', (t) => {
  const charged: object = CHARGED;
  t.deepEqual(PRICES, charged);
});

test('the client repeats a submit that got no response, and the submit is charged once', async (t) => {
  const client = await api.organization(100);
  work(t, api, client.organizationId);
  const { url, passed } = await startGateway(t, api.baseUrl, ({ method }, moment) =>
    moment === 'after' && method === 'POST' && submits(passed).length < 3
      ? 'broken'
      : null,
  );
  const npis = npisFrom(0, 60);
  const { completed, creditsUsed } = await enrich(npis, optionsOf(client, url));
  t.deepEqual([completed, creditsUsed], [30, 30]);
  t.is(submits(passed).length, 3);
  t.is(new Set(submits(passed).map(({ headers }) => headers['idempotency-key'])).size, 1);
  t.is(await batchesOf(client), 1);
});

test('after a 409, 429, 500, 502, or 503, the client waits for Retry-After and retries', async (t) => {
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
  const { results } = await enrich(npisFrom(100, 2), optionsOf(client, url));
  t.deepEqual(
    results.map(({ email }) => email),
    npisFrom(100, 2).map(emailOf),
  );
  t.is(submits(passed).length, 6);
  t.true(areApart(times));
});

test('the client throws a permanent error at once, with its code and request id', async (t) => {
  const client = await api.organization(100);
  const elsewhere = await startGateway(t, api.baseUrl);
  const moved = { status: 307, headers: { location: `${elsewhere.url}/api/v1/credits` } };
  const { url, passed } = await startGateway(
    t,
    api.baseUrl,
    ({ headers: { authorization = '' } }) => {
      if (authorization.endsWith('moved')) return moved;
      return authorization.endsWith('html')
        ? { status: 200, body: '<h1>welcome</h1>' }
        : null;
    },
  );
  const cases: readonly [Partial<Options>, string, number | null][] = [
    [{ apiKey: 'npe_wrong' }, 'api_key_invalid', 401],
    [{ type: 'some' as 'any' }, 'option_invalid', null],
    [{ apiKey: 'html' }, 'not_the_api', 200],
    [{ apiKey: 'moved' }, 'http_307', 307],
    [{ apiKey: 'two\nlines' }, 'api_key_unusable', null],
    [{ baseUrl: 'http://127.0.0.1:1', patienceMs: 0 }, 'unreachable', null],
    [{ baseUrl: 'http://localhost:1', patienceMs: 0 }, 'unreachable', null],
    [{ baseUrl: 'http://[::1]:1', patienceMs: 0 }, 'unreachable', null],
  ];
  for (const [options, code, status] of cases) {
    const asked = enrich(npisFrom(200, 1), { ...optionsOf(client, url), ...options });
    const error = await t.throwsAsync(asked, { instanceOf: EnrichmentError });
    t.deepEqual([error?.code, error?.response?.status ?? null], [code, status]);
    if (status && status > 400) t.true(error?.response?.headers.has('x-request-id'));
    t.notRegex(error?.message ?? '', /lines/);
  }
  t.is(passed.length, 3);
  t.deepEqual(elsewhere.passed, []);
  const error = await t.throwsAsync(
    enrich(['1234567893', '123'], optionsOf(client, url)),
  );
  t.is(error?.message, 'NPI 2 is not a string of 10 digits.');
});

test('a run that was aborted can continue without submitting a batch twice', async (t) => {
  const client = await api.organization(1000);
  const npis = npisFrom(1000, 200);
  const stateFile = stateFileOf(t);
  const options = { ...optionsOf(client), stateFile };
  work(t, api, client.organizationId);
  // The first run is aborted before it gets the responses to its submits, the second at its first
  // progress.
  const ending = new AbortController();
  const { url, passed } = await startGateway(t, api.baseUrl, (_request, moment) => {
    if (moment === 'after' && submits(passed).length > 0) ending.abort();
    return null;
  });
  await t.throwsAsync(enrich(npis, { ...options, baseUrl: url, signal: ending.signal }), {
    name: 'AbortError',
  });
  const again = new AbortController();
  const onProgress = () => again.abort();
  await t.throwsAsync(
    enrich(npis, { ...options, baseUrl: url, signal: again.signal, onProgress }),
  );

  const seen: Progress[] = [];
  const last = {
    ...options,
    baseUrl: url,
    onProgress: (progress: Progress) => seen.push(progress),
  };
  const { results, completed, creditsUsed } = await enrich(npis, last);
  t.deepEqual(
    results.map(({ email }) => email),
    npis.map(emailOf),
  );
  t.deepEqual([completed, creditsUsed, (await client.credits()).used], [100, 100, 100]);
  t.is(await batchesOf(client), 4);
  t.true((seen.at(-1)?.earlier ?? 0) > 0);
  // A finished run can be repeated for free.
  t.deepEqual(await enrich(npis, { ...options, baseUrl: url }), {
    results,
    completed,
    not_found: 100,
    failed: 0,
    creditsUsed,
  });
  t.is(await batchesOf(client), 4);
});

test('a client that repeats a submit whose Idempotency-Key expired is charged once', async (t) => {
  const client = await api.organization(1000);
  const npis = npisFrom(2000, 60);
  work(t, api, client.organizationId);
  const { url, passed } = await startGateway(
    t,
    forgetful.baseUrl,
    ({ method }, moment) =>
      moment === 'after' && method === 'POST' && submits(passed).length === 1
        ? 'broken'
        : null,
  );
  const { completed } = await enrich(npis, optionsOf(client, url));
  t.is(completed, 30);
  t.is(await batchesOf(client), 2);
  t.is((await client.credits()).used, 30);
});

test('the state file of a run contains neither the API key nor results', async (t) => {
  const client = await api.organization(1000);
  work(t, api, client.organizationId);
  const stateFile = stateFileOf(t);
  const npis = npisFrom(3000, 61);
  await enrich(npis, { ...optionsOf(client), stateFile, type: 'professional' });
  const text = await readFile(stateFile, 'utf8');
  const {
    run,
    webhook,
    customData,
    npis: hash,
    began,
    parts,
    ...rest
  } = JSON.parse(text);
  t.deepEqual(rest, { format: 2, url: api.baseUrl, type: 'professional' });
  t.is(webhook, customData);
  t.is(parts.length, 2);
  t.regex(hash, /^[0-9a-f]{64}$/);
  t.notRegex(text, new RegExp(`${client.apiKey}|@|${npis[0]}`));
  t.truthy(run && began);
});

test('a state file can be used only with the NPIs, options, and key of its run', async (t) => {
  const client = await api.organization(1000);
  const stateFile = stateFileOf(t);
  const npis = npisFrom(4000, 2);
  const { url: baseUrl } = await startGateway(t, api.baseUrl, unheld);
  const options = { ...optionsOf(client, baseUrl), stateFile };
  const ending = new AbortController();
  const first = t.throwsAsync(
    enrich(npis, { ...options, signal: ending.signal, onProgress: () => begun() }),
  );
  let begun = () => {};
  await new Promise<void>((resolve) => {
    begun = resolve;
  });
  const codeOf = async (asked: Promise<unknown>) =>
    (await t.throwsAsync(asked, { instanceOf: EnrichmentError }))?.code;
  t.is(await codeOf(enrich(npis, options)), 'state_locked');
  ending.abort();
  await first;
  t.is(await codeOf(enrich(npis.toReversed(), options)), 'state_mismatch');
  t.is(await codeOf(enrich(npis, { ...options, type: 'personal' })), 'state_mismatch');
  t.is(await codeOf(enrich(npis, { ...options, customData: {} })), 'state_mismatch');
  t.is(
    await codeOf(enrich(npis, { ...options, baseUrl: `${baseUrl}/other` })),
    'state_mismatch',
  );
  // With the key of another organization nothing is submitted.
  const stranger = await api.organization(1000);
  t.is(
    await codeOf(enrich(npis, { ...options, apiKey: stranger.apiKey })),
    'batch_not_found',
  );

  const state = JSON.parse(await readFile(stateFile, 'utf8'));
  const old = new Date(Date.now() - 31 * 86_400_000).toISOString();
  await writeFile(
    stateFile,
    JSON.stringify({ ...state, began: old, parts: [{ ...state.parts[0], batchId: '' }] }),
  );
  t.is(await codeOf(enrich(npis, options)), 'state_expired');
  await writeFile(stateFile, '{"format":1');
  t.is(await codeOf(enrich(npis, options)), 'state_unreadable');
});

test('a run spends the last credits, finishes its batches, and can continue', async (t) => {
  const client = await api.organization(70);
  work(t, api, client.organizationId);
  const options = { ...optionsOf(client), stateFile: stateFileOf(t) };
  const npis = npisFrom(5000, 180);
  const seen: Progress[] = [];
  const error = await t.throwsAsync(
    enrich(npis, { ...options, onProgress: (progress) => seen.push(progress) }),
    { instanceOf: EnrichmentError },
  );
  t.is(error?.code, 'insufficient_credits');
  t.like(error?.problem, { available: 0 });
  t.like(seen.at(-1), { total: 180, completed: 70, creditsUsed: 70 });
  t.deepEqual(await client.credits(), { balance: 0, total: 70, used: 70 });
  await grant(api.db, client.organizationId, 80);
  // A batch that was never submitted may be submitted even after the state has expired.
  const state = JSON.parse(await readFile(options.stateFile, 'utf8'));
  t.is(state.parts.at(-1).batchId, null);
  const began = new Date(Date.now() - 31 * 86_400_000).toISOString();
  await writeFile(options.stateFile, JSON.stringify({ ...state, began }));
  const { results, ...totals } = await enrich(npis, options);
  t.deepEqual(
    results.map(({ email }) => email),
    npis.map(emailOf),
  );
  t.like(totals, { completed: 90, creditsUsed: 90 });
});

test('a run that is killed at a part of a batch submits no NPI twice', async (t) => {
  const client = await api.organization(50);
  work(t, api, client.organizationId);
  const npis = npisFrom(5500, 60);
  const ending = new AbortController();
  const { url, passed } = await startGateway(t, api.baseUrl, ({ status }, moment) => {
    if (moment === 'after' && status === 202) ending.abort();
    return null;
  });
  const options = { ...optionsOf(client, url), stateFile: stateFileOf(t) };
  await t.throwsAsync(enrich(npis, { ...options, signal: ending.signal }), {
    name: 'AbortError',
  });
  t.like(await enrich(npis, options), { completed: 30, creditsUsed: 30 });
  const sizes = submits(passed).map(({ body }) => JSON.parse(body).npis.length);
  t.deepEqual(sizes.slice(0, 2), [60, 50]);
  // The rest may be split again, because credits are released one by one.
  const isTheirs = eq(requests.organizationId, client.organizationId);
  t.is(await api.db.drizzle.$count(requests, isTheirs), 60);
  t.is((await client.credits()).used, 30);
});

test('the client submits no NPI that could exceed the maxCredits of the run', async (t) => {
  const client = await api.organization(1000);
  work(t, api, client.organizationId);
  const { url, passed } = await startGateway(t, api.baseUrl);
  const options = { ...optionsOf(client, url), stateFile: stateFileOf(t) };
  const npis = npisFrom(6000, 180);
  const stop = async (maxCredits: number, more: Partial<Options> = {}) => {
    const asked = enrich(npis, { ...options, maxCredits, ...more });
    const error = await t.throwsAsync(asked, { instanceOf: EnrichmentError });
    t.is(error?.code, 'max_credits');
    return submits(passed).length;
  };
  const submitted = await stop(50);
  t.is((await client.credits()).used, 50);
  t.is(await stop(50), submitted);
  // The last NPI could cost one more credit than the 90 that the run costs.
  t.like(await enrich(npis, { ...options, maxCredits: 91 }), {
    completed: 90,
    creditsUsed: 90,
  });
  const before = submits(passed).length;
  const personal = { ...optionsOf(client, url), type: 'personal' } as const;
  t.is(await stop(2, { ...personal, stateFile: stateFileOf(t) }), before);
  await t.throwsAsync(enrich(npis, { ...options, maxCredits: Number.NaN }), {
    message: 'maxCredits must be a number.',
  });
});

// Serial, because the client allows each request one second until the API counts it.
test.serial(
  'the client stays within the rate limit, even if others use its API key too',
  async (t) => {
    const client = await api.organization(1000, 6);
    work(t, api, client.organizationId);
    const { url, passed } = await startGateway(t, api.baseUrl);
    await client.credits();
    await client.credits();
    const { results } = await enrich(npisFrom(7000, 300), optionsOf(client, url));
    t.is(results.length, 300);
    t.true(passed.length > 10);
    t.deepEqual(
      passed.filter(({ status }) => status === 429),
      [],
    );
  },
);

test('if a poll returns without waiting, the client polls again after Retry-After', async (t) => {
  const client = await api.organization(1000);
  const npis = npisFrom(8000, 2);
  const times: number[] = [];
  work(t, api, client.organizationId, (npi) => npi === npis[1] && times.length < 3);
  const { url } = await startGateway(t, api.baseUrl, (request, moment) => {
    if (moment === 'before' && request.path.includes('/batch/'))
      times.push(performance.now());
    return unheld(request);
  });
  t.is((await enrich(npis, optionsOf(client, url))).results.length, 2);
  t.true(times.length >= 3);
  t.true(areApart(times));
});

test('a client run without progress ends after patienceMs and can continue later', async (t) => {
  const client = await api.organization(1000);
  const options = { ...optionsOf(client), stateFile: stateFileOf(t), patienceMs: 0 };
  const npis = npisFrom(9000, 2);
  const { url } = await startGateway(t, api.baseUrl, unheld);
  const error = await t.throwsAsync(enrich(npis, { ...options, baseUrl: url }), {
    instanceOf: EnrichmentError,
  });
  t.is(error?.code, 'timed_out');
  work(t, api, client.organizationId);
  t.is((await enrich(npis, { ...options, baseUrl: url, ...QUICK })).completed, 1);
  t.is(await batchesOf(client), 1);
});
