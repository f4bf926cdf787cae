import type { RequestListener } from 'node:http';
import test from 'ava';
import { ADAPTERS } from '../../support/adapters.ts';
import { closedUrl, playVendor, SUBJECT, serveVendor } from '../../support/vendors.ts';

// Tests the behavior that all adapters share.

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;
const HTML = { 'content-type': 'text/html; charset=utf-8' };

for (const [id, create] of Object.entries(ADAPTERS)) {
  for (const [about, meaning, reply, step] of [
    [
      'a web page',
      'unreadable',
      { status: 200, headers: HTML, body: '<html>' },
      unreadable('body'),
    ],
    ['an empty response', 'unreadable', { status: 200, body: '' }, unreadable('body')],
    [
      'an incomplete response',
      'unreadable',
      { status: 200, body: '{"id":7,"data":' },
      unreadable('body'),
    ],
    [
      'a JSON list',
      'unreadable',
      { status: 200, body: '["x"]' },
      { kind: 'fatal', why: 'protocol' },
    ],
    [
      'a response of a megabyte',
      'unreadable',
      { status: 200, body: `"${' '.repeat(1024 * 1024)}"` },
      unreadable('body'),
    ],
    [
      'a 204 without a body',
      'unreadable',
      { status: 204, body: '' },
      unreadable('status'),
    ],
    [
      'a wrong API key',
      'a fatal error',
      { status: 401, body: {} },
      { kind: 'fatal', why: 'auth' },
    ],
    [
      'an account without credits',
      'a fatal error',
      { status: 402, body: {} },
      { kind: 'fatal', why: 'credits' },
    ],
    [
      'a 500 with a web page',
      'a temporary failure',
      { status: 500, headers: HTML, body: '<html>' },
      upstream(null),
    ],
    [
      'a 502 from a gateway',
      'possibly charged',
      { status: 502, headers: HTML, body: '<html>' },
      unanswered(null),
    ],
    [
      'a 504 from a gateway',
      'possibly charged',
      { status: 504, headers: { 'retry-after': '7' }, body: '' },
      unanswered(7000),
    ],
    [
      'a 524 from a gateway',
      'possibly charged',
      { status: 524, body: '' },
      unanswered(null),
    ],
    [
      'a 503',
      'a temporary failure with Retry-After',
      { status: 503, headers: { 'retry-after': '7' }, body: '' },
      upstream(7000),
    ],
    ['a 408', 'a temporary failure', { status: 408, body: '' }, upstream(null)],
    [
      'a 404 with a web page',
      'a fatal error',
      { status: 404, headers: HTML, body: '<html>' },
      { kind: 'fatal' },
    ],
    [
      'a 451, which means that the person opted out,',
      'blocked',
      { status: 451, body: {} },
      { kind: 'blocked' },
    ],
  ] as const) {
    test(`the ${id} adapter reads ${about} as ${meaning}`, async (t) => {
      const { url } = await playVendor(t, reply);
      const vendor = create({ baseUrl: url, apiKey: KEY });
      t.like(await vendor.submit(SUBJECT, NEVER), step);
    });
  }

  for (const [about, handle] of [
    ['is cut off before its headers', (_request, response) => response.destroy()],
    ['is reset before its headers', ({ socket }) => socket.resetAndDestroy()],
    [
      'is cut off in its body',
      (_request, response) =>
        response.writeHead(200).write('{"id":7', () => response.destroy()),
    ],
    [
      'is reset in its body',
      ({ socket }, response) =>
        response.writeHead(200).write('{"id":7', () => socket.resetAndDestroy()),
    ],
    ['is not HTTP', ({ socket }) => socket.end('220 ready\r\n')],
  ] as const satisfies readonly (readonly [string, RequestListener])[]) {
    test(`the ${id} adapter says that a call may have been charged if its response ${about}`, async (t) => {
      const vendor = create({ baseUrl: await serveVendor(t, handle), apiKey: KEY });
      t.deepEqual(await vendor.submit(SUBJECT, NEVER), unanswered(null));
      t.like(await vendor.poll('7', SUBJECT, NEVER), {
        kind: 'retry',
        why: 'unanswered',
      });
    });
  }

  test(`the ${id} adapter says that a call to an unreachable vendor was not sent`, async (t) => {
    const vendor = create({ baseUrl: await closedUrl(), apiKey: KEY });
    const unsent = {
      kind: 'retry',
      why: 'unsent',
      cause: 'ECONNREFUSED',
      afterMs: null,
    } as const;
    t.deepEqual(await vendor.submit(SUBJECT, NEVER), unsent);
  });

  test(`the ${id} adapter says that a call that timed out may have been charged`, async (t) => {
    const silent = await serveVendor(t, () => undefined);
    const vendor = create({ baseUrl: silent, apiKey: KEY, callMs: 50 });
    t.is(vendor.callMs, 50);
    t.deepEqual(await vendor.submit(SUBJECT, NEVER), unanswered(null));
    t.like(await vendor.poll('7', SUBJECT, NEVER), { kind: 'retry', why: 'unanswered' });
  });

  test(`the ${id} adapter does not follow a redirect with the API key`, async (t) => {
    const elsewhere = await playVendor(t, { status: 200, body: {} });
    const moved = { status: 307, headers: { location: elsewhere.url }, body: '' };
    const { url, asked } = await playVendor(t, moved);
    const vendor = create({ baseUrl: url, apiKey: KEY });
    t.deepEqual(await vendor.submit(SUBJECT, NEVER), unreadable('status'));
    t.is(asked.length, 1);
    t.is(elsewhere.asked.length, 0);
  });

  test(`the ${id} adapter sends the API key only in a header`, async (t) => {
    const { url, asked } = await playVendor(t, { status: 500, body: '' });
    await create({ baseUrl: url, apiKey: KEY }).submit(SUBJECT, NEVER);
    t.regex(JSON.stringify(asked[0]?.headers), new RegExp(KEY));
    t.notRegex(JSON.stringify([asked[0]?.url, asked[0]?.body]), new RegExp(KEY));
  });

  test(`the ${id} adapter throws the reason if it is aborted, and then sends no requests`, async (t) => {
    const controller = new AbortController();
    let asked = 0;
    const url = await serveVendor(t, (_request, response) => {
      asked += 1;
      response
        .writeHead(200)
        .write('{"id":', () => controller.abort(new Error('deadline')));
    });
    const vendor = create({ baseUrl: url, apiKey: KEY });
    await t.throwsAsync(vendor.submit(SUBJECT, controller.signal), {
      message: 'deadline',
    });
    await t.throwsAsync(vendor.submit(SUBJECT, controller.signal), {
      message: 'deadline',
    });
    t.is(asked, 1);
  });

  test(`the ${id} adapter skips a person without the fields that it needs`, async (t) => {
    const { url, asked } = await playVendor(t, { status: 200, body: {} });
    const vendor = create({ baseUrl: url, apiKey: KEY });
    if (vendor.needs.includes('name')) {
      const nobody = { ...SUBJECT, person: null, organization: null };
      t.deepEqual(await vendor.submit(nobody, NEVER), {
        kind: 'skip',
        missing: ['name', 'organization'],
      });
      const adrift = { ...SUBJECT, organization: null };
      t.deepEqual(await vendor.submit(adrift, NEVER), {
        kind: 'skip',
        missing: ['organization'],
      });
      t.is(asked.length, 0);
    } else {
      await vendor.submit({ ...SUBJECT, person: null, organization: null }, NEVER);
      t.is(asked.length, 1);
    }
  });
}

function unreadable(field: string) {
  return { kind: 'fatal', why: 'protocol', field } as const;
}

function upstream(afterMs: number | null) {
  return { kind: 'retry', why: 'upstream', afterMs } as const;
}

function unanswered(afterMs: number | null) {
  return { kind: 'retry', why: 'unanswered', afterMs } as const;
}

for (const [value, afterMs] of [
  ['0', 0],
  ['120', 120_000],
  ['99999999999999999999', 86_400_000],
  ['Thu, 01 Jan 1970 00:00:00 GMT', 0],
  ['Fri, 31 Dec 2399 23:59:59 GMT', 86_400_000],
  ['soon', null],
  ['-5', null],
  ['1.5', null],
] as const) {
  test(`a vendor's Retry-After: ${value} is read as ${afterMs} ms`, async (t) => {
    const { url } = await playVendor(t, {
      status: 503,
      headers: { 'retry-after': value },
      body: '',
    });
    const vendor = ADAPTERS.rocketreach?.({ baseUrl: url, apiKey: KEY });
    t.deepEqual(await vendor?.submit(SUBJECT, NEVER), upstream(afterMs));
  });
}

test("a vendor's Retry-After may be a date in the future", async (t) => {
  const date = new Date(Date.now() + 3_600_000).toUTCString();
  const longestMs = () => Date.parse(date) - Date.now();
  const { url } = await playVendor(t, {
    status: 503,
    headers: { 'retry-after': date },
    body: '',
  });
  const step = await ADAPTERS.prospeo?.({ baseUrl: url, apiKey: KEY }).submit(
    SUBJECT,
    NEVER,
  );
  const afterMs = step?.kind === 'retry' ? step.afterMs : null;
  t.true(afterMs !== null && afterMs >= longestMs() && afterMs <= 3_600_000);
});
