import { gzipSync } from 'node:zlib';
import test from 'ava';
import { newId } from '../../db/connection/ids.ts';
import { fresh } from '../support/database.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// Tests that the responses to beginners' mistakes say what to do. errors.test.ts tests mistakes in
// API keys, and validation.test.ts tests the words of pydantic.

const NPI = '1234567893';
const SINGLE = '/api/v1/email';
const BULK = '/api/v1/email/bulk';

const api = fresh(test, startApi);
const client = fresh(test, () => api.organization(1000));

type Body = Parameters<ApiClient['call']>[2];
type Headers = Record<string, string>;

/** Sends a request, and returns everything in the response that says what to do. */
async function responseTo(method: string, path: string, body?: Body, headers?: Headers) {
  const reply = await client.call<{
    readonly detail?: string | readonly { readonly msg: string }[];
  }>(method, path, body, headers);
  const detail = reply.json?.detail ?? [];
  const texts = typeof detail === 'string' ? [detail] : detail.map(({ msg }) => msg);
  return { status: reply.status, headers: reply.headers, text: texts.join('\n') };
}

type Said = readonly [mistake: unknown, advice: RegExp];

/** The fields of a single submit that are wrong, or that are added to a valid one. */
const FIELDS: readonly Said[] = [
  [{ npi: undefined }, /^Field required\. Add npi, a string of 10 digits/],
  [{ npi: undefined, NPI }, /Add npi/],
  [{ npi: undefined, npi_number: NPI }, /Add npi/],
  [
    { npi: undefined, npis: [NPI] },
    /For a list of NPIs, use POST \/api\/v1\/email\/bulk/,
  ],
  [{ npi: 1_234_567_893 }, /^Input should be a valid string\. Send one NPI in quotes/],
  [{ npi: null }, /Send one NPI in quotes/],
  [{ npi: [NPI] }, /For several, use POST \/api\/v1\/email\/bulk/],
  [{ npi: { id: NPI } }, /Send one NPI in quotes/],
  [{ npi: '' }, /Send the NPI as 10 digits/],
  [{ npi: '123-456-7893' }, /without spaces, dashes or other NPIs/],
  [{ npi: ` ${NPI}` }, /without spaces/],
  [{ npi: `${NPI}\n` }, /exactly 10 digits/],
  [{ npi: '123456789' }, /exactly 10 digits/],
  [{ npi: `NPI${NPI}` }, /exactly 10 digits/],
  [{ npi: `${NPI},1245319599` }, /or other NPIs/],
  [{ enrichment_email_type: 'work' }, /^Input should be 'any', 'professional' or/],
  [{ enrichment_email_type: 'Personal' }, /Send one of these in lowercase/],
  [{ enrichment_email_type: ['any'] }, /Send one of these in lowercase, or leave it out/],
  [{ webhook: 'https://a.example' }, /Send webhook as an object with a url/],
  [{ webhook: ['https://a.example'] }, /Send webhook as an object with a url/],
  [{ webhook: {} }, /Add url, the https address of your receiver/],
  [{ webhook: { URL: 'https://a.example' } }, /Add url/],
  [{ webhook: { url: ['https://a.example'] } }, /Send one URL in quotes/],
  [{ webhook: { url: '' } }, /Send a complete URL, such as https:/],
  [{ webhook: { url: 'a.example/hook' } }, /Send a complete URL/],
  [{ webhook: { url: 'https://a.example /hook' } }, /without spaces/],
  [{ webhook: { url: 'http://a.example' } }, /Send a URL that begins with https:\/\//],
  [{ webhook: { url: 'https://localhost/hook' } }, /on the public internet/],
  [{ webhook: { url: 'https://192.168.1.5/hook' } }, /For tests, use a tunnel/],
  [{ webhook: { url: 'https://me:pass@a.example' } }, /check the signatures/],
  [{ webhook: { url: `https://a.example/${'x'.repeat(2048)}` } }, /Shorten it/],
  [{ webhook: { url: 'https://a.example', mode: 'realtime' } }, /'real-time' or 'batch'/],
  [{ webhook: { url: 'https://a.example', mode: 'Batch' } }, /in lowercase/],
  [{ custom_data: '{"order":17}' }, /as a JSON object, not as a text or a list/],
  [{ custom_data: [17] }, /Send custom_data as a JSON object/],
  [{ custom_data: { a: 'x'.repeat(17_000) } }, /Store the data yourself/],
  [{ custom_data: JSON.parse(`{"a":${'['.repeat(40)}${']'.repeat(40)}}`) }, /Flatten it/],
];

for (const [mistake, advice] of FIELDS) {
  test(`a single submit with ${JSON.stringify(mistake).slice(0, 50)} gets advice`, async (t) => {
    const body = JSON.stringify(Object.assign({ npi: NPI }, mistake));
    const { status, text } = await responseTo('POST', SINGLE, body);
    t.is(status, 422);
    t.regex(text, advice);
  });
}

const LISTS: readonly Said[] = [
  [undefined, /^Field required\. Add npis, a list of NPIs/],
  [NPI, /^Input should be a valid list\. Send npis as a JSON array, even for one NPI/],
  [`${NPI},1245319599`, /Send npis as a JSON array/],
  [{ 0: NPI }, /Send npis as a JSON array/],
  [[1_234_567_893], /Send each NPI in quotes/],
  [[{ npi: NPI }], /Send each NPI in quotes/],
  [[[NPI]], /Send each NPI in quotes/],
  [['123 456 7893'], /exactly 10 digits, without spaces/],
  [[''], /Send the NPI as 10 digits/],
  [[], /^List should have at least 1 item after validation, not 0\. Add an NPI/],
  [Array(61).fill(NPI), /not 61\. Split the list into several calls/],
];

for (const [npis, advice] of LISTS) {
  const shown = JSON.stringify(npis)?.slice(0, 40);
  test(`a bulk submit with npis ${shown} gets advice`, async (t) => {
    const { status, text } = await responseTo('POST', BULK, JSON.stringify({ npis }));
    t.is(status, 422);
    t.regex(text, advice);
  });
}

const GOOD = `{"npi":"${NPI}"}`;
const TYPE = 'content-type';
/** Bodies that are not the JSON of a submit. */
const BODIES: readonly (readonly [
  title: string,
  body: Body,
  headers: Headers,
  status: number,
  advice: RegExp,
])[] = [
  ['no body', '', {}, 422, /^Field required\. Send a JSON object as the body/],
  ['a list', `[${GOOD}]`, {}, 422, /Send one JSON object, not a list or a text/],
  ['only the NPI', `"${NPI}"`, {}, 422, /Send one JSON object/],
  ['JSON in a string', JSON.stringify(GOOD), {}, 422, /not a list or a text/],
  ['single quotes', `{'npi':'${NPI}'}`, {}, 422, /Use double quotes/],
  ['names without quotes', `{npi:"${NPI}"}`, {}, 422, /Use double quotes/],
  ['a trailing comma', `{"npi":"${NPI}",}`, {}, 422, /no trailing comma/],
  ['a comment', `${GOOD} // mine`, {}, 422, /no trailing comma, comment/],
  ['NaN', '{"npi":NaN}', {}, 422, /or NaN/],
  ['the first half', GOOD.slice(0, 9), {}, 422, /Correct the body at this offset/],
  ['a form', `npi=${NPI}`, {}, 422, /^JSON decode error\. Correct the body/],
  ['UTF-16', Buffer.from(`\ufeff${GOOD}`, 'utf16le'), {}, 422, /in UTF-8/],
  ['gzip', gzipSync(GOOD), {}, 422, /without compression/],
  [
    'gzip with its header',
    gzipSync(GOOD),
    { 'content-encoding': 'gzip' },
    415,
    /without a Content-Encoding/,
  ],
  ['no content type', Buffer.from(GOOD), { [TYPE]: '' }, 415, /application\/json/],
  ['text', GOOD, { [TYPE]: 'text/plain' }, 415, /Content-Type: application\/json/],
  [
    'a form and its content type',
    `npi=${NPI}`,
    { [TYPE]: 'application/x-www-form-urlencoded' },
    415,
    /Send JSON with the header/,
  ],
  ['100 KiB', `{"npi":"${'1'.repeat(100_000)}"}`, {}, 413, /Send fewer NPIs or less/],
  ['a key with a space', GOOD, { 'idempotency-key': 'a b' }, 422, /Send a UUID/],
  ['an empty key', GOOD, { 'idempotency-key': '' }, 422, /Send a UUID/],
  ['an outcome', GOOD, { 'test-outcome': 'found' }, 422, /begins with npe_test_/],
  ['a wrong outcome', GOOD, { 'test-outcome': 'Found' }, 422, /Remove the header/],
];

for (const [title, body, headers, status, advice] of BODIES) {
  test(`a submit with ${title} gets a ${status} with advice`, async (t) => {
    const reply = await responseTo('POST', SINGLE, body, headers);
    t.is(reply.status, status);
    t.regex(reply.text, advice);
  });
}

/** Requests without a body. */
const PATHS: readonly (readonly [string, number, RegExp])[] = [
  ['GET /v1/email', 404, /Did you mean POST \/api\/v1\/email\?/],
  ['POST /api/v1/emails', 404, /documentation is at \/docs/],
  ['GET /api/email/bulk', 404, /\/api\/v1\/email\/bulk/],
  ['GET /api/v1/credit', 404, /\/api\/v1\/credits/],
  ['GET /api/v1/email', 405, /^Use POST here/],
  ['GET /api/v1/email/bulk', 405, /^Use POST here/],
  ['POST /api/v1/credits', 405, /^Use GET, HEAD here/],
  [`GET /api/v1/email/${NPI}`, 422, /Send the complete request_id/],
  ['GET /api/v1/email/undefined', 422, /as a response contains it/],
  ['GET /api/v1/email/%7Brequest_id%7D', 422, /Send the complete request_id/],
  [`GET /api/v1/email/${newId('req').slice(0, -1)}`, 422, /Send the complete request_id/],
  [`GET /api/v1/email/${newId('bat')}`, 422, /This is a batch_id\. Send a request_id/],
  [`GET /api/v1/batch/${newId('req')}`, 422, /which begins with 'bat_'/],
  [`GET /api/v1/batch/${crypto.randomUUID()}`, 422, /Send the complete batch_id/],
  [`GET /api/v1/batch/${newId('bat')}`, 404, /find it through \/api\/v1\/batches/],
  [`GET /api/v1/email/${newId('req')}`, 404, /Check the id/],
  ['GET /api/v1/batches?limit=all', 422, /Send only digits/],
  ['GET /api/v1/batches?limit=0', 422, /Send a larger number/],
  ['GET /api/v1/batches?limit=1000', 422, /Send a smaller number/],
  ['GET /api/v1/batches?page=2', 422, /Use only 'status', .* 'limit' or 'cursor'/],
  ['GET /api/v1/batches?cursor=2', 422, /Send next_cursor of the previous page/],
  ['GET /api/v1/batches?status=done', 422, /'in-progress' or 'completed'\. Send one/],
  ['GET /api/v1/batches?npi=123', 422, /exactly 10 digits/],
  ['GET /api/v1/batches?since=2026-01-05', 422, /such as 2026-01-05T10:00:00Z/],
  ['GET /api/v1/batches?until=yesterday', 422, /with a time zone\. Send one such as/],
  ['GET /api/v1/credits/ledger?cursor=x', 422, /Send next_cursor/],
];

for (const [asked, status, advice] of PATHS) {
  const [method = '', path = ''] = asked.split(' ');
  test(`${asked.slice(0, 40)} gets a ${status} with advice`, async (t) => {
    const reply = await responseTo(method, path);
    t.is(reply.status, status);
    t.regex(reply.text, advice);
  });
}

// A submit is accepted in spite of these mistakes. Strict handling reports them.
test('strict handling says what to do about fields and preferences that we ignore', async (t) => {
  const body = JSON.stringify({
    npi: NPI,
    email_type: 'personal',
    webhook_url: 'https://a.example',
    webhook: { url: 'https://a.example', events: [] },
  });
  const lenient = await responseTo('POST', SINGLE, body, { prefer: 'wait=abc' });
  t.is(lenient.status, 202);
  t.is(lenient.headers.get('ignored-fields'), 'email_type, webhook_url, webhook.events');
  for (const wrong of ['wait=abc', 'wait', 'until=final', 'return=minimum']) {
    const prefer = `handling=strict, ${wrong}`;
    const { status, text } = await responseTo('POST', SINGLE, body, { prefer });
    t.is(status, 422);
    t.regex(text, /Remove it, or use 'npi', 'enrichment_email_type', 'webhook' or/);
    t.regex(text, /Remove it, or use 'url' or 'mode'/);
    t.regex(text, /^Prefer should have wait=N, .*\. Remove all others$/m);
  }
});
