import type { ServerResponse } from 'node:http';
import anyTest, { type TestFn } from 'ava';
import { sql } from 'drizzle-orm';
import { Webhook } from 'standardwebhooks';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { newId } from '../../db/connection/ids.ts';
import { settle } from '../../db/requests/settle.ts';
import { listBatchDeliveries } from '../../db/webhooks/log.ts';
import type { ReceivedDelivery } from '../../deploy/local/receiver.ts';
import { fresh } from '../support/database.ts';
import {
  type ApiResponse,
  BY,
  createCaller,
  eventually,
  RULES,
  type SubmitResponse,
} from '../support/organization.ts';
import { status } from '../support/receiver.ts';
import { startApi, startStack } from '../support/stack.ts';

// Tests the customer's log of webhook deliveries, and resends (api/docs/webhooks.md, Deliveries and
// resends).

interface DeliveryView {
  readonly id: string;
  readonly request_id: string | null;
  readonly status: string;
  readonly created_at: string;
  readonly decided_at: string | null;
  readonly next_attempt_at: string | null;
  readonly attempts: readonly {
    readonly n: number;
    readonly started_at: string;
    readonly duration_ms: number;
    readonly status_code: number | null;
    readonly reason: string | null;
    readonly response_excerpt: string | null;
  }[];
}

interface PageView {
  readonly deliveries: readonly DeliveryView[];
  readonly next_cursor: string | null;
}

type Caller = ReturnType<typeof createCaller>;

const test = anyTest as TestFn<{ path: string; url: string }>;
/** NPIs with a wrong check digit, so that no vendor has to be called. */
const NOBODY = Array.from({ length: 7 }, (_, n) => `100000001${n}`);
const ELSEWHERE = { url: 'https://receiver.example/hook' };

const stack = fresh(test, () => startStack({ webhookScheduleMs: [0, 100] }));
/** An API without workers: deliveries stay as the submit left them. */
const idle = fresh(test, startApi);
let paths = 0;

test.beforeEach((t) => {
  paths += 1;
  t.context.path = `/deliveries/${paths}`;
  t.context.url = `${stack.receiver.url}${t.context.path}`;
});

function arrived(path: string): ReceivedDelivery[] {
  return stack.receiver.deliveries().filter((delivery) => delivery.path === path);
}

/** Makes the receiver hold deliveries to a path from now on, until the test responds to them. */
function holdResponses(path: string): ServerResponse[] {
  const held: ServerResponse[] = [];
  stack.receiver.setBehavior(path, (response) => held.push(response));
  return held;
}

function logOf(
  client: Caller,
  batchId: string,
  query = '',
): Promise<ApiResponse<PageView>> {
  return client.get<PageView>(`/api/v1/batch/${batchId}/deliveries${query}`);
}

function resend(
  client: Caller,
  batchId: string,
  deliveryId: string,
): Promise<ApiResponse<DeliveryView>> {
  return client.call('POST', `/api/v1/batch/${batchId}/deliveries/${deliveryId}/resend`);
}

/** Settles the requests of a batch, and marks its deliveries as failed. */
async function fail({ batch_id: batchId, requests }: SubmitResponse): Promise<void> {
  for (const { request_id } of requests)
    await settle(idle.db, request_id, 'failed', 'test', RULES);
  await idle.db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', decided_at = clock_timestamp(), due_at = null
     where batch_id = ${batchId}`);
}

/** Returns the log once every delivery is final. */
async function decided(
  client: Caller,
  batchId: string,
): Promise<readonly DeliveryView[]> {
  return await eventually(async () => {
    const { deliveries } = (await logOf(client, batchId)).json;
    const isOver =
      deliveries.length > 0 && deliveries.every((one) => one.status !== 'pending');
    return isOver ? deliveries : null;
  });
}

function codeOf({ json }: ApiResponse): string {
  return (json as { readonly code: string }).code;
}

test('the webhook log lists deliveries in submit order, with attempts and responses', async (t) => {
  const { url, path } = t.context;
  const client = await stack.organization();
  stack.receiver.setBehavior(path, (response) => {
    response
      .writeHead(503)
      .end(Buffer.concat([Buffer.from([0xff, 0x00]), Buffer.alloc(2000, 'é')]));
  });
  const { json } = await client.bulk({ npis: NOBODY.slice(0, 2), webhook: { url } });
  const deliveries = await decided(client, json.batch_id);
  t.deepEqual(
    deliveries.map(({ request_id }) => request_id),
    json.requests.map(({ request_id }) => request_id),
  );
  for (const { id, attempts, ...delivery } of deliveries) {
    t.like(delivery, { status: 'failed', next_attempt_at: null });
    const came = arrived(path).filter((one) => one.id === id);
    t.is(came.length, attempts.length);
    t.deepEqual(
      attempts.map(({ n, status_code, reason }) => [n, status_code, reason]),
      [
        [1, 503, 'http_status'],
        [2, 503, 'http_status'],
      ],
    );
    for (const { started_at, duration_ms, response_excerpt } of attempts) {
      t.true(
        started_at >= delivery.created_at && started_at <= String(delivery.decided_at),
      );
      t.true(duration_ms >= 0);
      // Each of the two invalid bytes becomes U+FFFD. A list shows 200 characters in all.
      t.is(response_excerpt, `\ufffd\ufffd${'é'.repeat(198)}`);
    }
  }
  const listed = await logOf(client, json.batch_id);
  t.is(listed.json.next_cursor, null);
  t.is(listed.headers.get('cache-control'), 'no-store');
  t.is(listed.headers.get('x-ratelimit-limit'), '100000');
});

test('the webhook log keeps tabs and line breaks of responses, as line feeds', async (t) => {
  const client = await idle.organization();
  const { json } = await client.single({ npi: NOBODY[0], webhook: ELSEWHERE });
  const response = '<p>\r\n\tsorry\n\nback\rsoon\u0000\u001b[2J\u0085</p>\r\n';
  await idle.db.drizzle.execute(sql`
    with attempt as (
      insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code, response_excerpt)
      select id, 1, clock_timestamp(), 5, 503, ${Buffer.from(response)}
        from webhook_deliveries where batch_id = ${json.batch_id})
    update webhook_deliveries set attempts = 1 where batch_id = ${json.batch_id}`);
  const [listed] = (await logOf(client, json.batch_id)).json.deliveries;
  t.is(
    listed?.attempts[0]?.response_excerpt,
    '<p>\n\tsorry\n\nback\nsoon\ufffd\ufffd[2J\ufffd</p>\n',
  );
});

test('a page of the webhook log stays below 256 KiB, even if it has large responses', async (t) => {
  const client = await idle.organization();
  const { json } = await client.bulk({
    npis: Array(60).fill(NOBODY[0]),
    webhook: ELSEWHERE,
  });
  // Half of the responses consist of control characters, and half of characters with the most
  // bytes.
  await idle.db.drizzle.execute(sql`
    insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code, reason, response_excerpt)
    select id, n, clock_timestamp(), 15000, 503, 'blocked_by_operator',
           decode(case n % 2 when 0 then repeat('01', 1024) else repeat('e282ac', 341) end, 'hex')
      from webhook_deliveries cross join generate_series(1, 50) n where batch_id = ${json.batch_id}`);
  await idle.db.drizzle.execute(sql`
    update webhook_deliveries set attempts = 50 where batch_id = ${json.batch_id}`);
  const page = await logOf(client, json.batch_id, '?limit=100');
  t.is(page.json.deliveries.length, 60);
  t.true(
    Buffer.byteLength(page.text) < 256 * 1024,
    `${Buffer.byteLength(page.text)} bytes`,
  );
  for (const { attempts } of page.json.deliveries) {
    t.deepEqual(
      attempts.map(({ n, response_excerpt }) => [n, response_excerpt]),
      [46, 47, 48, 49, 50].map((n) => [n, (n % 2 === 0 ? '\ufffd' : '€').repeat(200)]),
    );
  }
  const read = await listBatchDeliveries(idle.db, client.organizationId, json.batch_id, {
    after: null,
    limit: 100,
  });
  const kept =
    read?.deliveries.flatMap(({ log }) =>
      log.map((one) => one.responseExcerpt?.length ?? 0),
    ) ?? [];
  t.deepEqual([kept.length, Math.max(...kept)], [300, 600]);
});

test('a single webhook delivery shows all its attempts, up to 50 per page', async (t) => {
  const client = await idle.organization();
  const { json } = await client.single({ npi: NOBODY[0], webhook: ELSEWHERE });
  const [listed] = (await logOf(client, json.batch_id)).json.deliveries;
  const path = `/api/v1/batch/${json.batch_id}/deliveries/${listed?.id}`;
  t.deepEqual((await client.get(path)).json, listed);
  await idle.db.drizzle.execute(sql`
    insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code, response_excerpt)
    select ${listed?.id}, n, clock_timestamp(), 5, 503, decode(repeat('01', 1024), 'hex') from generate_series(1, 120) n`);
  await idle.db.drizzle.execute(sql`
    update webhook_deliveries set attempts = 120 where id = ${listed?.id}`);
  const numbers: (readonly number[])[] = [];
  let query = '';
  for (;;) {
    const { json: found, text } = await client.get<DeliveryView>(`${path}${query}`);
    t.true(Buffer.byteLength(text) < 256 * 1024);
    if (found.attempts.length === 0) break;
    for (const { response_excerpt } of found.attempts)
      t.is(response_excerpt, '\ufffd'.repeat(1024));
    numbers.push(found.attempts.map(({ n }) => n));
    query = `?before=${found.attempts[0]?.n}`;
  }
  const from = (first: number, last: number) =>
    Array.from({ length: last - first + 1 }, (_, index) => first + index);
  t.deepEqual(numbers, [from(71, 120), from(21, 70), from(1, 20)]);
});

test('the webhook log lists each delivery once, even if some are resent between pages', async (t) => {
  const client = await idle.organization();
  const { json } = await client.bulk({ npis: NOBODY, webhook: ELSEWHERE });
  await fail(json);
  const all = (await logOf(client, json.batch_id)).json.deliveries;
  const seen: string[] = [];
  const sizes: number[] = [];
  let query = '?limit=3';
  for (;;) {
    const { deliveries, next_cursor } = (await logOf(client, json.batch_id, query)).json;
    seen.push(...deliveries.map(({ id }) => id));
    sizes.push(deliveries.length);
    // Between the pages, one delivery that was listed and one that was not are resent.
    for (const one of [all[0], all.at(-1)]) {
      const { status: code } = await resend(client, json.batch_id, one?.id ?? '');
      t.is(code, sizes.length === 1 ? 202 : 409);
    }
    if (next_cursor === null) break;
    query = `?limit=3&cursor=${next_cursor}`;
  }
  t.deepEqual(sizes, [3, 3, 1]);
  t.deepEqual(
    seen,
    all.map(({ id }) => id),
  );
  const exactly = (await logOf(client, json.batch_id, '?limit=7')).json;
  t.deepEqual([exactly.deliveries.length, exactly.next_cursor], [7, null]);
});

test("a batch's webhook log has one delivery in batch mode, and none without a webhook", async (t) => {
  const client = await idle.organization();
  const batch = (
    await client.bulk({ npis: NOBODY, webhook: { ...ELSEWHERE, mode: 'batch' } })
  ).json;
  const { deliveries } = (await logOf(client, batch.batch_id)).json;
  t.like(deliveries, [
    { request_id: null, status: 'pending', attempts: [], decided_at: null },
  ]);
  t.is(deliveries.length, 1);
  const silent = (await client.single({ npi: NOBODY[0] })).json;
  t.deepEqual((await logOf(client, silent.batch_id)).json, {
    deliveries: [],
    next_cursor: null,
  });
});

test('all wrong parameters of the webhook log are reported together, in order', async (t) => {
  const client = await idle.organization();
  const batchId = newId('bat');
  const problemsOf = async (path: string, method = 'GET') => {
    const reply = await client.call<{ detail: { loc: string[]; type: string }[] }>(
      method,
      path,
    );
    t.is(reply.status, 422, path);
    return reply.json.detail.map(({ loc, type }) => [...loc, type]);
  };
  const list = `/api/v1/batch/${batchId}/deliveries`;
  t.deepEqual(await problemsOf('/api/v1/batch/x/deliveries?limit=0&cursor=x'), [
    ['path', 'batch_id', 'string_pattern_mismatch'],
    ['query', 'limit', 'greater_than_equal'],
    ['query', 'cursor', 'string_pattern_mismatch'],
  ]);
  t.deepEqual(await problemsOf(`${list}?limit=101`), [
    ['query', 'limit', 'less_than_equal'],
  ]);
  for (const limit of ['', 'ten', '1.5', '1e1', '0x10', '1&limit=2', '%00', ' 1', '٣']) {
    t.deepEqual(
      await problemsOf(`${list}?limit=${limit}`),
      [['query', 'limit', 'int_parsing']],
      limit,
    );
  }
  const cursor = newId('msg').slice('msg_'.length);
  for (const wrong of [
    '',
    `msg_${cursor}`,
    `${cursor}0`,
    `${cursor}%0A`,
    `${cursor}&cursor=${cursor}`,
  ]) {
    const found = await problemsOf(`${list}?cursor=${wrong}`);
    t.deepEqual(found, [['query', 'cursor', 'string_pattern_mismatch']], wrong);
  }
  t.deepEqual(await problemsOf('/api/v1/batch/x/deliveries/y/resend', 'POST'), [
    ['path', 'batch_id', 'string_pattern_mismatch'],
    ['path', 'delivery_id', 'string_pattern_mismatch'],
  ]);
  t.deepEqual(await problemsOf('/api/v1/batch/x/deliveries/y?before=0'), [
    ['path', 'batch_id', 'string_pattern_mismatch'],
    ['path', 'delivery_id', 'string_pattern_mismatch'],
    ['query', 'before', 'greater_than_equal'],
  ]);
  t.is((await logOf(client, batchId, `?limit=100&cursor=${cursor}`)).status, 404);
  t.deepEqual(await problemsOf(`${list}?other=1`), [
    ['query', 'other', 'extra_forbidden'],
  ]);
});

for (const mode of ['real-time', 'batch'] as const) {
  test(`in ${mode} mode, resending a webhook changes its status to pending, then to delivered`, async (t) => {
    const { url, path } = t.context;
    const client = await stack.organization();
    stack.receiver.setBehavior(path, status(410));
    const { json } = await client.bulk({
      npis: NOBODY.slice(0, 2),
      webhook: { url, mode },
    });
    const [first, ...others] = await decided(client, json.batch_id);
    const id = first?.id ?? '';
    t.is(others.length, mode === 'batch' ? 0 : 1);

    // The webhook status of the first and the second request in both polls.
    const polled = async () => {
      const urls = [
        `/api/v1/batch/${json.batch_id}`,
        ...json.requests.map(({ poll_url }) => poll_url),
      ];
      const replies = await Promise.all(urls.map((poll) => client.get(poll)));
      return {
        statuses: replies.map((reply) => reply.json.webhook?.status),
        etags: replies.slice(0, 2).map(({ headers }) => headers.get('etag')),
      };
    };
    // In real-time mode the second request has its own delivery, which stays failed.
    const second = (status: string) => (mode === 'batch' ? status : 'failed');
    const before = await polled();
    t.deepEqual(before.statuses, ['failed', 'failed', 'failed']);

    const held = holdResponses(path);
    const { status: code, json: resent } = await resend(client, json.batch_id, id);
    t.is(code, 202);
    t.like(resent, { id, status: 'pending', decided_at: null, next_attempt_at: null });
    t.deepEqual(resent.attempts, first?.attempts);
    const during = await polled();
    t.deepEqual(during.statuses, ['pending', 'pending', second('pending')]);
    const response = await eventually(async () => held[0] ?? null);
    t.deepEqual((await polled()).statuses, during.statuses);
    status(200)(response);
    await decided(client, json.batch_id);
    const after = await polled();
    t.deepEqual(after.statuses, [second('delivered'), 'delivered', second('delivered')]);
    for (const n of [0, 1]) {
      t.is(new Set([before, during, after].map(({ etags }) => etags[n])).size, 3);
    }

    const [earlier, , later, ...more] = arrived(path).filter((one) => one.id === id);
    t.is(more.length, 0);
    if (!earlier || !later) return t.fail('it did not arrive three times');
    const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
    const body = new Webhook(webhookSecret).verify(
      later.body,
      later.headers as Record<string, string>,
    );
    t.like(body, {
      webhook: { url, mode, status: 'pending' },
      batch: { completed_count: 2 },
    });
    t.deepEqual(JSON.parse(later.body).data, JSON.parse(earlier.body).data);
    const log = (await logOf(client, json.batch_id)).json.deliveries.find(
      (one) => one.id === id,
    );
    t.deepEqual(
      log?.attempts.map(({ n, status_code, reason }) => [n, status_code, reason]),
      [
        [1, 410, 'http_status'],
        [2, 410, 'http_status'],
        [3, 200, null],
      ],
    );
  });
}

test('a webhook cannot be resent if its request is not final or webhooks are suspended', async (t) => {
  const client = await idle.organization();
  const open = (await client.single({ npi: NOBODY[0], webhook: ELSEWHERE })).json
    .batch_id;
  const [waiting] = (await logOf(client, open)).json.deliveries;
  const early = await resend(client, open, waiting?.id ?? '');
  t.deepEqual([early.status, codeOf(early)], [409, 'delivery_pending']);
  await suspendWebhooks(idle.db, BY, client.organizationId, true);
  const never = (await client.single({ npi: NOBODY[0], webhook: ELSEWHERE })).json
    .batch_id;
  const [none] = (await logOf(client, never)).json.deliveries;
  t.is(none?.status, 'none');
  for (const suspended of [true, false]) {
    await suspendWebhooks(idle.db, BY, client.organizationId, suspended);
    const reply = await resend(client, never, none?.id ?? '');
    t.deepEqual([reply.status, codeOf(reply)], [409, 'webhooks_suspended']);
  }
});

test('resends and requests for the webhook log count against the rate limit', async (t) => {
  const client = await idle.organization(10, 100_000);
  const { json } = await client.single({ npi: NOBODY[0], webhook: ELSEWHERE });
  await fail(json);
  const [delivery] = (await logOf(client, json.batch_id)).json.deliveries;
  const path = `/api/v1/batch/${json.batch_id}/deliveries/${delivery?.id}/resend`;
  const reply = await client.call('POST', path, '{"broken', {
    'content-type': 'text/plain',
  });
  t.is(reply.status, 202);
  t.is(reply.headers.get('x-ratelimit-limit'), '100000');
  t.is(reply.headers.get('cache-control'), 'no-store');
  t.is((await client.get(path)).status, 405);
  t.is((await createCaller(idle.baseUrl, 'npe_wrong').call('POST', path)).status, 401);
});
