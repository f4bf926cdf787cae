import {
  Client,
  type ClientOptions,
  type Progress,
  StreamableHTTPClientTransport,
} from '@modelcontextprotocol/client';
import test, { type ExecutionContext } from 'ava';
import { CallFailed } from '../../api/http/call-api.ts';
import { toolText } from '../../api/mcp/tool-call.ts';
import { PROBLEMS } from '../../api/problems.ts';
import { PRICES } from '../../db/accounts/credits.ts';
import { revokeKey } from '../../db/accounts/keys.ts';
import { validNpisFrom } from '../support/command.ts';
import { fresh } from '../support/database.ts';
import { page } from '../support/documented/examples.ts';
import { BY, eventually, grant, HANG_MS } from '../support/organization.ts';
import { SITE } from '../support/site.ts';
import { startApi, startStack } from '../support/stack.ts';

// Tests the MCP server with the SDK's own client, in the version of the protocol that has no
// sessions and in an earlier one.

const FOUND = '2000000010';
const NOT_FOUND = '2000000044';

const [, CONFIGURATION = ''] = /^```json\n(.*?)^```$/ms.exec(page('assistants.md')) ?? [];

/** The operations that tools call. */
const REACHED: readonly string[] = [
  'all',
  'keyed',
  'unexpected',
  'submitBulk',
  'getBatch',
];
const ONE_PROBLEM = /^"\w+" must contain less than or equal to \d+ items\. Correct/;
const MANY = Array.from({ length: 5000 }, (_, n) => [String(n), 1]);

const stack = fresh(test, () => startStack());
const idle = fresh(test, () => startApi());

const ERAS = {
  'MCP of 2026': { versionNegotiation: { mode: { pin: '2026-07-28' } } },
  'MCP of 2025': { versionNegotiation: { mode: 'legacy' } },
} as const satisfies Record<string, ClientOptions>;

async function connect(
  t: ExecutionContext,
  apiKey: string,
  options: ClientOptions = ERAS['MCP of 2025'],
  baseUrl = stack.baseUrl,
) {
  const client = new Client({ name: 'test', version: '1' }, options);
  client.onerror = (error) => t.log(error.message);
  // As an assistant with our documented configuration does.
  const { url, headers } = JSON.parse(CONFIGURATION).mcpServers['npi-email'];
  headers.Authorization = headers.Authorization.replace('npe_test_...', apiKey);
  await client.connect(
    new StreamableHTTPClientTransport(new URL(url.replace(SITE.publicUrl, baseUrl)), {
      requestInit: { headers },
    }),
  );
  t.teardown(() => client.close());
  return {
    client,
    /** Calls a tool. The client checks the result against the schema of the tool. */
    use: async (
      name: string,
      args: Record<string, unknown> = {},
      onprogress?: (progress: Progress) => void,
    ) => {
      const { isError, structuredContent, content } = await client.callTool(
        { name, arguments: args },
        { timeout: HANG_MS, ...(onprogress && { onprogress }) },
      );
      t.falsy(isError, JSON.stringify(content));
      return structuredContent as Record<string, unknown>;
    },
    /** Repeats a submit until it is final, because a wait can be too short on a busy machine. */
    async submitted(args: Record<string, unknown>) {
      return await eventually(async () => {
        const result = await this.use('submit_npis', args);
        return result.status === 'completed' ? result : null;
      });
    },
    /** Calls a tool that can't do it, and returns the text for the assistant. */
    fail: async (name: string, args: Record<string, unknown> = {}) => {
      const { isError, content } = await client.callTool({ name, arguments: args });
      t.true(isError);
      return (content[0] as { text: string }).text;
    },
  };
}

for (const [era, options] of Object.entries(ERAS)) {
  test(`an assistant finds emails and reads credits with ${era}`, async (t) => {
    const { apiKey } = await stack.sandboxOf(await stack.organization());
    const assistant = await connect(t, apiKey, options);
    const { client, use } = assistant;
    t.regex(client.getInstructions() ?? '', /max_credits[\s\S]*play money/);
    const { tools } = await client.listTools();
    for (const [type, price] of Object.entries(PRICES))
      t.regex(
        tools[1]?.description ?? '',
        new RegExp(`\\b${price} with (type )?${type}`),
      );
    t.true(tools.every(({ description = '' }) => !/^$|[{}]/.test(description)));
    const before = await use('get_credits');
    const npis = [FOUND, NOT_FOUND];
    const result = await assistant.submitted({
      npis,
      type: 'professional',
      max_credits: 2,
    });
    t.like(result, {
      credits_used: 1,
      found: 1,
      not_found: 1,
      submitted: 2,
      not_submitted: 0,
    });
    const [first, second] = result.results as Record<string, unknown>[];
    t.like(first, { npi: FOUND, status: 'completed', email_type: 'professional' });
    t.regex(String(first?.email), /@/);
    t.like(second, { npi: NOT_FOUND, status: 'not_found', email: null });
    const after = await use('get_credits');
    t.is(Number(before.balance) - Number(after.balance), 1);
    const { batches } = await use('list_batches', { npi: FOUND });
    const [batchId] = result.batch_ids as string[];
    t.like((batches as object[])[0], { id: batchId, status: 'completed' });
    const again = await use('get_results', { batch_ids: [batchId] });
    t.like(again, { status: 'completed', results: result.results, credits_used: 1 });
  });
}

test('an assistant sees for free what a list can cost', async (t) => {
  const organization = await idle.organization(1000);
  const { use } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const wrong = '3000000001';
  const report = await use('check_npis', { npis: [...validNpisFrom(0, 400), wrong] });
  t.like(report.max_credits, { any: 400, personal: 1200 });
  t.like(report.totals, { lookup: 400, not_an_npi: 1 });
  const data = report.data as Record<string, unknown>[];
  t.is(data.length, 300);
  t.like(data[0], { npi: wrong, result: 'not_an_npi', name: null });
  t.like(await organization.credits(), { balance: 1000, used: 0 });
});

test('a list that could cost more than max_credits is refused before it holds anything', async (t) => {
  const organization = await stack.organization(1000);
  const { fail, use } = await connect(t, organization.apiKey);
  const npis = validNpisFrom(0, 70);
  const text = await fail('submit_npis', { npis, type: 'personal', max_credits: 209 });
  t.regex(text, /max_credits is 209, but the list can cost 210 \(NPIs: 70, /);
  t.regex(text, /set max_credits to 210/);
  t.regex(text, /This call submitted nothing\..* what earlier calls submitted/);
  t.notRegex(text, /nothing is held/);
  t.like(await organization.credits(), { balance: 1000, used: 0 });
  t.deepEqual(await use('list_batches'), { batches: [] });
});

test('an NPI with a wrong check digit is skipped, and holds no credits', async (t) => {
  const wrong = '3000000001';
  const live = await idle.organization(1);
  const first = await connect(t, live.apiKey, {}, idle.baseUrl);
  const call = { npis: [wrong, wrong], max_credits: 0 };
  t.like(await first.use('submit_npis', call), {
    status: 'completed',
    skipped: [wrong],
    submitted: 0,
    batch_ids: [],
  });
  t.like(await live.credits(), { balance: 1, used: 0 });
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const assistant = await connect(t, apiKey);
  const result = await assistant.submitted({ npis: [wrong, FOUND], max_credits: 1 });
  t.like(result, { skipped: [wrong], submitted: 1, not_submitted: 0, total: 1 });
});

test('a list of more than 5 batches has no sums of the first ones', async (t) => {
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const { use } = await connect(t, apiKey);
  const npis = validNpisFrom(0, 301);
  const seen: Progress[] = [];
  const result = await use('submit_npis', { npis, max_credits: 301 }, (progress) =>
    seen.push(progress),
  );
  t.like(result, { submitted: 301, status: 'in-progress' });
  t.is((result.batch_ids as string[]).length, 6);
  t.is((result.results as object[]).length, 300);
  for (const sum of ['total', 'completed_count', 'found', 'not_found', 'credits_used'])
    t.false(sum in result, sum);
  t.regex(String(result.next), /only the first 5 batches/);
  // The submits have progress too.
  t.is(seen[0]?.message, '60 of 301 NPIs are submitted.');
  t.true(seen.every(({ progress }, i) => progress > (seen[i - 1]?.progress ?? 0)));
  t.true(seen.every(({ progress, total = 0 }) => progress < total + 1));
});

test('the rest of a list has the same batches as the whole list', async (t) => {
  const organization = await idle.organization(130);
  const { use } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const npis = validNpisFrom(0, 190);
  // The credits end after two batches, so no call waits.
  const whole = await use('submit_npis', { npis, max_credits: 190 });
  const [, second] = whole.batch_ids as string[];
  const rest = await use('submit_npis', { npis: npis.slice(60), max_credits: 190 });
  t.deepEqual(rest.batch_ids, [second]);
  t.like(await organization.credits(), { balance: 10 });
});

test('a call that is repeated returns the same batches, until it has another attempt', async (t) => {
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const assistant = await connect(t, apiKey);
  const { use } = assistant;
  const args = { npis: [FOUND, NOT_FOUND, FOUND], max_credits: 2 };
  const first = await assistant.submitted(args);
  t.is(first.submitted, 2);
  // The first call has paid for the email.
  t.deepEqual(await use('submit_npis', args), { ...first, may_cost: 1 });
  const other = await use('submit_npis', { ...args, attempt: 2 });
  t.notDeepEqual(other.batch_ids, first.batch_ids);
});

test('a long list is submitted once, even if the client disconnects and repeats it', async (t) => {
  // No worker runs, so each call would wait for 55 seconds.
  const organization = await idle.organization(1000);
  const { client, use } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const submitted = () => use('list_batches').then(({ batches }) => batches as object[]);
  for (let n = 0; n < 2; n += 1) {
    const leaving = new AbortController();
    const call = client.callTool(
      {
        name: 'submit_npis',
        arguments: { npis: validNpisFrom(0, 130), max_credits: 130 },
      },
      { signal: leaving.signal },
    );
    const gone = t.throwsAsync(call);
    await eventually(async () => ((await submitted()).length === 3 ? true : null));
    leaving.abort();
    await gone;
  }
  t.is((await submitted()).length, 3);
  t.like(await organization.credits(), { balance: 870 });
});

test('if credits run out, the same call submits the rest later', async (t) => {
  const organization = await idle.organization(70);
  const { client, use } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const args = { npis: validNpisFrom(0, 100), max_credits: 100 };
  const first = await use('submit_npis', args);
  t.like(first, { status: 'in-progress', submitted: 60, not_submitted: 40 });
  t.regex(String(first.next), /40 NPIs were not submitted\. .*credits.* same arguments/);
  t.true(String(first.next).includes(`with the NPIs from ${args.npis[60]} to the end`));
  t.notRegex(String(first.next), /queued|This submit|fewer/);
  await grant(idle.db, organization.organizationId, 100);
  const leaving = new AbortController();
  const second = client.callTool(
    { name: 'submit_npis', arguments: args },
    { signal: leaving.signal },
  );
  const gone = t.throwsAsync(second);
  await eventually(async () =>
    (await organization.credits()).balance === 70 ? true : null,
  );
  leaving.abort();
  await gone;
  const { batches } = await use('list_batches');
  t.deepEqual(
    (batches as { total: number }[]).map(({ total }) => total),
    [40, 60],
  );
});

test('errors of the API are in the words of tools', (t) => {
  const kinds = Object.values(PROBLEMS).filter(({ at }) =>
    [at].flat().some((one) => REACHED.includes(one)),
  );
  t.true(kinds.length > 7);
  for (const { status, codes } of kinds) {
    for (const [code, detail] of Object.entries(codes)) {
      const text = toolText(new CallFailed(status, { code, detail }));
      t.notRegex(text, /Idempotency-Key|X-Request-Id|\/api\/|queued|nothing was done/);
    }
  }
});

test('null and empty texts count as missing arguments', async (t) => {
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const { use, fail } = await connect(t, apiKey);
  t.deepEqual(await use('list_batches', { status: null, npi: '' }), { batches: [] });
  const args = { npis: [FOUND], max_credits: 1, type: '', attempt: null };
  t.like(await use('submit_npis', args), { submitted: 1 });
  t.regex(
    await fail('submit_npis', { npis: null, max_credits: '' }),
    /"npis" is required/,
  );
});

test('an assistant learns which argument to change', async (t) => {
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const { fail, client } = await connect(t, apiKey);
  const cases = [
    ['submit_npis', { npis: ['12'], max_credits: 1 }, /"npis\[0\]" must have exactly 10/],
    ['submit_npis', { npis: [FOUND] }, /"max_credits" is required/],
    [
      'submit_npis',
      { npis: validNpisFrom(0, 1001), max_credits: 1 },
      /"npis" .* 1000 items/,
    ],
    // Reporting each item would block the process.
    ['submit_npis', { npis: Array(30_000).fill(1), max_credits: 1 }, ONE_PROBLEM],
    ['get_results', { batch_ids: Array(30_000).fill(1) }, ONE_PROBLEM],
    ['get_credits', Object.fromEntries(MANY), /"0" is not .* And 10 more problems/],
    ['submit_npis', { npis: Array(500).fill('x'), max_credits: 1 }, /490 more problems/],
    ['submit_npis', { npis: [FOUND], maxCredits: 1 }, /"maxCredits" is not allowed/],
    ['get_results', { batch_ids: ['bat_1'] }, /"batch_ids\[0\]" must be a complete id/],
  ] as const;
  for (const [name, args, message] of cases) {
    const text = await fail(name, { ...args });
    t.regex(text, message);
    t.notRegex(text, /HTTP|body|POST|\/api\//);
  }
  const error = await t.throwsAsync(client.callTool({ name: 'toString' }));
  t.regex(error.message, /no tool with this name.*submit_npis, get_results/);
});

test('a batch of another organization looks like one that does not exist', async (t) => {
  const theirs = await stack.sandboxOf(await stack.organization());
  const { json } = await theirs.bulk({ npis: [FOUND] });
  await theirs.completed(json.batch_id);
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const { fail, use } = await connect(t, apiKey);
  const text = await fail('get_results', { batch_ids: [json.batch_id] });
  t.true(
    text.startsWith(
      `No batch with the id ${json.batch_id} is visible to this key. Check the id, or find it through list_batches.`,
    ),
  );
  const unknown = json.batch_id.replace(/.$/, json.batch_id.endsWith('0') ? '1' : '0');
  t.is(
    await fail('get_results', { batch_ids: [unknown] }),
    text.replace(json.batch_id, unknown),
  );
  t.deepEqual(await use('list_batches', { npi: FOUND }), { batches: [] });
});

test('a call of a tool counts toward the rate limit as the API would', async (t) => {
  const sandbox = await stack.sandboxOf(await stack.organization());
  const assistant = await connect(t, sandbox.apiKey);
  const { client, use } = assistant;
  const remaining = async () => {
    const { headers } = await sandbox.get('/api/v1/credits');
    return Number(/r=(\d+)/.exec(headers.get('ratelimit') ?? '')?.[1]);
  };
  const cost = async (work: () => Promise<unknown>) => {
    const before = await remaining();
    await work();
    // Reading the remaining requests counts too.
    return before - (await remaining()) - 1;
  };
  t.is(await cost(() => client.listTools()), 1);
  t.is(await cost(() => use('get_credits')), 1);
  t.is(await cost(() => use('list_batches')), 1);
  const { batch_ids } = await assistant.submitted({ npis: [FOUND], max_credits: 1 });
  t.is(await cost(() => use('get_results', { batch_ids })), 1);
});

test('over the rate limit, a long list is submitted in part', async (t) => {
  const { apiKey } = await idle.organization(1000, 5);
  // Two messages count when the client connects, one for the check, and one for each batch.
  const { use, client } = await connect(t, apiKey, {}, idle.baseUrl);
  const result = await use('submit_npis', {
    npis: validNpisFrom(0, 1000),
    max_credits: 1000,
  });
  t.like(result, { submitted: 120, not_submitted: 880 });
  t.regex(String(result.next), /This key may send 5 requests in 60 s\. Try again in/);
  const error = await t.throwsAsync(client.callTool({ name: 'get_credits' }));
  t.regex(error.message, /"code":"rate_limited"/);
});

test('if a wait for results is refused, the assistant gets those so far', async (t) => {
  // Two messages count when the client connects, one for the submit, and one for the first look.
  const organization = await idle.organization(10, 4);
  const { json } = await organization.bulk({ npis: validNpisFrom(0, 2) });
  const { use } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const result = await use('get_results', { batch_ids: [json.batch_id] });
  t.like(result, { status: 'in-progress', total: 2, completed_count: 0 });
});

test('a wrong id is named before the wait for the other batches', async (t) => {
  const organization = await idle.organization(10);
  const { json } = await organization.bulk({ npis: validNpisFrom(0, 1) });
  const { fail } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const last = json.batch_id.endsWith('0') ? '1' : '0';
  const unknown = json.batch_id.replace(/.$/, last);
  // A wait would end when the client gives up.
  const batch_ids = [json.batch_id, unknown];
  t.true((await fail('get_results', { batch_ids })).includes(unknown));
});

test('a client that asks for progress gets notifications', async (t) => {
  for (const options of Object.values(ERAS)) {
    const { apiKey, ...sandbox } = await stack.sandboxOf(await stack.organization());
    const { use } = await connect(t, apiKey, options);
    const batches = await Promise.all(
      [FOUND, NOT_FOUND].map((npi) => sandbox.bulk({ npis: [npi] })),
    );
    const batch_ids = batches.map(({ json }) => json.batch_id);
    const seen: Progress[] = [];
    await use('get_results', { batch_ids }, (progress) => seen.push(progress));
    t.true(seen.length >= 2);
    t.true(seen.every(({ progress }, i) => progress > (seen[i - 1]?.progress ?? 0)));
    t.regex(seen.at(-1)?.message ?? '', /^\d of 2 NPIs are final\.$/);
  }
});

test('calls that wait leave room for the submits of their organization', async (t) => {
  const organization = await idle.organization(1000);
  const { json } = await organization.bulk({ npis: validNpisFrom(0, 1) });
  const leaving = new AbortController();
  const message = {
    jsonrpc: '2.0',
    id: 1,
    method: 'tools/call',
    params: { name: 'get_results', arguments: { batch_ids: [json.batch_id] } },
  };
  const wait = () =>
    fetch(`${idle.baseUrl}/mcp`, {
      method: 'POST',
      body: JSON.stringify(message),
      signal: leaving.signal,
      headers: {
        authorization: `Bearer ${organization.apiKey}`,
        accept: 'application/json, text/event-stream',
        'content-type': 'application/json',
      },
    });
  // At most 100 submits of an organization can wait. The stream of a response begins with the call.
  for (let round = 0; round < 2; round += 1) {
    const responses = await Promise.all(Array.from({ length: 60 }, wait));
    t.true(responses.every((response) => response.status === 200));
  }
  const { status } = await organization.single({ npi: NOT_FOUND });
  t.is(status, 202);
  leaving.abort();
});

test('if a wait ends with an error, the result of a submit has the batches', async (t) => {
  const organization = await idle.organization(10);
  // No worker runs, so the batch does not end.
  const { use } = await connect(t, organization.apiKey, {}, idle.baseUrl);
  const call = use('submit_npis', { npis: validNpisFrom(0, 2), max_credits: 2 });
  await eventually(async () => {
    const { balance } = await organization.credits();
    return balance === 8 ? true : null;
  });
  await revokeKey(idle.db, BY, organization.keyId);
  const { status, batch_ids, next, may_cost } = await call;
  t.is(status, 'in-progress');
  t.is(may_cost, 2);
  t.is((batch_ids as string[]).length, 1);
  t.regex(String(next), /get_results/);
});

test('the server refuses requests that are not for it', async (t) => {
  const { apiKey } = await idle.organization();
  const listing = { jsonrpc: '2.0', id: 1, method: 'tools/list' };
  const send = async (
    headers: Record<string, string>,
    body: string | null = JSON.stringify(listing),
    method = 'POST',
  ) => {
    const accept = 'application/json, text/event-stream';
    const usual = { accept, 'x-api-key': apiKey, 'content-type': 'application/json' };
    return await fetch(`${idle.baseUrl}/mcp`, {
      method,
      body,
      headers: { ...usual, ...headers },
    });
  };
  const large = JSON.stringify({ ...listing, params: { x: 'x'.repeat(70_000) } });
  const cases: readonly [number, ...Parameters<typeof send>][] = [
    [200, {}],
    [200, { origin: SITE.publicUrl }],
    [401, { 'x-api-key': '' }],
    [401, { 'x-api-key': 'npe_wrong' }],
    [403, { origin: 'https://evil.example' }],
    [403, { origin: 'null' }],
    [415, { 'content-type': 'text/plain' }],
    [413, {}, large],
    [400, {}, JSON.stringify([listing, listing])],
    [400, {}, '{'],
    [405, {}, null, 'GET'],
    [405, {}, null, 'DELETE'],
  ];
  for (const [status, ...sent] of cases) {
    const response = await send(...sent);
    const text = await response.text();
    t.is(response.status, status, text);
    t.is(response.headers.get('cache-control'), 'no-store');
    t.truthy(response.headers.get('x-request-id'));
    t.is(response.headers.get('access-control-allow-origin'), null);
    // Compression would hold events back.
    t.is(response.headers.get('content-encoding'), null);
    if (status === 405) t.is(response.headers.get('allow'), 'POST');
  }
});
