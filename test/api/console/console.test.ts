import test, { type ExecutionContext } from 'ava';
import { sql } from 'drizzle-orm';
import { PRICES } from '../../../db/accounts/credits.ts';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { providersIn } from '../../support/providers.ts';
import { status } from '../../support/receiver.ts';
import { type ApiClient, startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';
import { type Seen, Visitor } from '../../support/visitor.ts';

// Tests the console by HTTP, as a browser without scripts uses it.

const stack = fresh(test, () =>
  startStack({ webhookScheduleMs: [0], sweepIntervalMs: 1000 }),
);
const NPIS = ['2000000010', '2000000044'];
const SIGN_IN = /^\/console\/sign-in(\?|$)/;

async function signedIn(t: ExecutionContext, client: ApiClient): Promise<Visitor> {
  const visitor = new Visitor(stack.baseUrl);
  const { path, status } = await visitor.signIn(client.apiKey);
  t.deepEqual([path, status], ['/console', 200]);
  return visitor;
}

/** Submits a batch with a webhook, and waits until it is completed and delivered. */
async function completedBatch(client: ApiClient): Promise<string> {
  const webhook = { url: stack.receiver.url, mode: 'batch' };
  const { json } = await client.bulk({ npis: NPIS, webhook });
  await eventually(async () => {
    const reply = await client.get<{ readonly webhook: { readonly status: string } }>(
      `/api/v1/batch/${json.batch_id}`,
    );
    return reply.json.webhook.status === 'delivered' ? true : null;
  });
  return json.batch_id;
}

test('a visitor signs in with an API key, and sees credits and batches', async (t) => {
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const { text } = await visitor.get('/console');
  t.regex(text, /<dt>Requests a minute<\/dt><dd>100,000<\/dd>/);
  t.regex(text, /<dt>Available credits<\/dt><dd>499<\/dd>/);
  t.true(text.includes(`href="/console/batches/${batchId}"`));
  t.regex(text, /<rect [^>]+height="50"><title>20\S+: 1 found<\/title>/);
  t.regex(text, /<p>Emails found: 1\. Credits used: 1\.<\/p>/);
  t.regex(text, /<span>2<\/span><span>1<\/span><span>0<\/span>/);
  t.regex(text, /<span>20\d\d-\d\d-01<\/span><span>20\d\d-\d\d-(?:28|29|30|31)<\/span>/);
  t.regex(text, /<a href="\/console\/usage">Usage and credits of each month<\/a>/);
  t.false(text.includes(client.apiKey));
  t.notRegex(text, /Sandbox/);
});

test('without a valid key, there is no session, and the page says why', async (t) => {
  const { apiKey } = await stack.organization(10);
  const visitor = new Visitor(stack.baseUrl);
  t.regex((await visitor.get('/console')).path, SIGN_IN);
  const wrong: readonly (readonly [string, RegExp])[] = [
    ['ana@clinic.example', /It does not begin with/],
    [apiKey.slice(0, -1), /Check it for missing characters/],
    [apiKey.replace('_', '_ '), /It contains spaces/],
    ['npe_00000000000000000000000000000044v2zE', /complete, but we do not know it/],
  ];
  for (const [key, hint] of wrong) {
    const { status, text } = await visitor.signIn(key);
    t.is(status, 401);
    t.regex(text, /role="alert">The API key is not valid\./);
    t.regex(text, hint);
    t.false(text.includes(key));
  }
  t.regex((await visitor.get('/console/batches')).path, SIGN_IN);
});

test('after the sign-in, the visitor sees the requested page', async (t) => {
  const { apiKey } = await stack.organization(10);
  const visitor = new Visitor(stack.baseUrl);
  const asked = '/console/batches?status=completed';
  const { token, text } = await visitor.get(asked);
  const [, next = ''] = /name="next" value="([^"]+)"/.exec(text) ?? [];
  const form = { form_token: token, api_key: apiKey, next: next.replace('&#x3D;', '=') };
  const { path } = await visitor.post('/console/sign-in', form);
  t.is(path, asked);
});

test('the sign-in leads only to pages of the console', async (t) => {
  const { apiKey } = await stack.organization(10);
  const foreign = [
    'https://a.example',
    '//a.example',
    '/consoles',
    '/docs',
    '/console\n',
  ];
  for (const next of foreign) {
    const visitor = new Visitor(stack.baseUrl);
    const query = new URLSearchParams({ next });
    const { token, text } = await visitor.get(`/console/sign-in?${query}`);
    t.regex(text, /name="next" value="\/console"/, next);
    const fields = { form_token: token, next, api_key: apiKey };
    t.is((await visitor.post('/console/sign-in', fields)).path, '/console', next);
  }
});

test('a form that is sent after the session ended leads to the overview', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console/submit');
  await visitor.post('/console/sign-out', { form_token: token });
  const after = await visitor.post('/console/submit', { form_token: token });
  t.is(after.path, '/console/sign-in');
});

test('a form without its token is rejected', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  for (const form_token of ['', 'x'.repeat(43)])
    t.is((await visitor.post('/console/sign-out', { form_token })).status, 403);
  t.is((await visitor.get('/console')).path, '/console');
});

test('a form from another site is rejected, even with its token', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console');
  for (const site of ['cross-site', 'same-site']) {
    const fields = { form_token: token };
    const { status } = await visitor.post('/console/sign-out', fields, {
      'sec-fetch-site': site,
    });
    t.is(status, 403, site);
  }
  t.is((await visitor.get('/console')).path, '/console');
});

test('a rejected form gives its place in the submit queue back', async (t) => {
  // The queue has 100 places for an organization. The rate limit rejects most of these forms.
  const client = await stack.organization(10, 6);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console/submit');
  const fields = {
    form_token: token,
    idempotency_key: 'x',
    type: 'any',
    npis: NPIS[0] ?? '',
  };
  const texts: string[] = [];
  for (let n = 0; n < 120; n += 1)
    texts.push((await visitor.post('/console/submit', fields)).text);
  t.true(texts.some((text) => text.includes('This key may send 6 requests')));
  t.false(texts.some((text) => text.includes('Too many of your requests')));
});

test('a form that is too large gets an error that says what fits', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console/submit');
  const npis = '2000000010\n'.repeat(3000);
  const fields = { form_token: token, npis };
  const { status, text, headers } = await visitor.post('/console/submit', fields);
  t.is(status, 413);
  t.regex(text, /at most 60 NPIs at once/);
  t.is(headers.get('cache-control'), 'no-store');
});

test('an unknown address gets a page that leads to the overview', async (t) => {
  const visitor = await signedIn(t, await stack.organization(1));
  for (const path of ['/console/upload', '/console/sign-out']) {
    const { status, text } = await visitor.get(path);
    t.is(status, 404, path);
    t.regex(text, /role="alert">There is no such page\. Start at the overview/);
    t.regex(text, /<a href="\/console">Back to the overview/);
  }
});

test('signing out ends the session, also for a copy of its cookie', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  const other = await signedIn(t, client);
  const copy = visitor.copy();
  const { token } = await visitor.get('/console');
  const after = await visitor.post('/console/sign-out', { form_token: token });
  t.is(after.path, '/console/sign-in');
  t.regex((await visitor.get('/console')).path, SIGN_IN);
  t.regex((await copy.get('/console')).path, SIGN_IN);
  t.is((await other.get('/console')).path, '/console', 'another session of the key');
});

test('a session ends after eight hours without use, and seven days after the sign-in', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  const passed = (column: string, minutes: number) =>
    stack.db.drizzle.execute(sql`
      update console_sessions
         set ${sql.identifier(column)} = clock_timestamp() - make_interval(mins => ${minutes})
       where api_key_id = ${client.keyId}`);
  const idle = 8 * 60;
  const longest = 7 * 24 * 60;
  await passed('used_at', idle - 1);
  await passed('created_at', longest - 1);
  t.is((await visitor.get('/console')).path, '/console');
  await passed('used_at', idle + 1);
  t.regex((await visitor.copy().get('/console')).path, SIGN_IN);
  await passed('used_at', 1);
  t.is((await visitor.get('/console')).path, '/console');
  await passed('created_at', longest + 1);
  t.regex((await visitor.get('/console')).path, SIGN_IN);
});

test('scripts and other sites cannot use the session cookie, which is not the key', async (t) => {
  const client = await stack.organization(10);
  const page = await fetch(`${stack.baseUrl}/console/sign-in`);
  const [form = ''] = page.headers.getSetCookie();
  const token = /name="form_token" value="([^"]+)"/.exec(await page.text())?.[1] ?? '';
  const response = await fetch(`${stack.baseUrl}/console/sign-in`, {
    method: 'POST',
    body: new URLSearchParams({ form_token: token, api_key: client.apiKey }),
    headers: { cookie: form.split(';')[0] ?? '' },
    redirect: 'manual',
  });
  t.is(response.status, 303);
  const cookies = response.headers.getSetCookie();
  const session = cookies.find((line) => line.startsWith('npe_console=')) ?? '';
  for (const attribute of [
    /; Secure/,
    /; HttpOnly/,
    /; SameSite=Strict/,
    /; Path=\/console/,
  ])
    t.regex(session, attribute);
  t.regex(session, /Max-Age=604800/);
  t.false(session.includes(client.apiKey));
});

test('a batch page has all results, and they can be downloaded as CSV', async (t) => {
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const { text } = await visitor.get(`/console/batches/${batchId}`);
  for (const npi of NPIS) t.true(text.includes(npi));
  t.regex(text, /<td data-label="Email">[^<]+@[^<]+<details>/);
  t.regex(text, /Your receiver accepted it\. Status 200\./);
  const csv = await visitor.file(`/console/batches/${batchId}/results.csv`);
  t.regex(csv.headers.get('content-disposition') ?? '', /^attachment; filename="bat_/);
  const [header, first, second] = csv.text.split('\r\n');
  t.is(
    header,
    'npi,status,email,email_type,email_last_validated,replayed,reason,' +
      'npi_name,npi_credential,npi_city,npi_state,npi_specialty',
  );
  t.regex(first ?? '', /^2000000010,completed,\S+@\S+,professional,20\S+Z,false,,,,,,$/);
  t.is(second, '2000000044,not_found,,,,false,no email found,,,,,');
});

test('a pasted list is checked before it is submitted, once per form', async (t) => {
  const client = await stack.organization(500);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console/submit');
  const check = (npis: string, more = {}) =>
    visitor.post('/console/check', { form_token: token, npis, ...more });
  const wrong = await check('2000000010 12 x');
  t.is(wrong.status, 422);
  t.regex(wrong.text, /role="alert">12 has 2 instead of 10 digits\. x is not a number/);
  t.regex(wrong.text, /<textarea [^>]+ autofocus /);
  t.regex(wrong.text, />2000000010 12 x<\/textarea>/);
  const long = await check('2000000010 '.repeat(61));
  t.regex(long.text, /role="alert">These are 61 NPIs\. Upload a file/);

  const npis = 'NPI\n2000000010.0, 2000000044\n2000000028 2000000044';
  const checked = await check(npis);
  t.is(checked.status, 200);
  t.regex(checked.text, /To look up<\/th><td class="n">3</);
  t.regex(checked.text, /Repeated NPI, looked up once<\/th><td class="n">1</);
  t.regex(checked.text, /All NPIs<\/th><td class="n">4</);
  t.regex(checked.text, /<th [^>]+>2000000028<.+?"What happens">To look up</);
  for (const [type, price] of Object.entries(PRICES))
    t.regex(
      checked.text,
      new RegExp(`value="${type}"[^:]*: at most ${3 * price} `),
      type,
    );
  t.is((await client.credits()).used, 0);
  const changed = await check(npis, { step: 'change' });
  t.regex(changed.text, /<textarea [^>]+>NPI\n2000000010\.0, 2000000044/);

  const [, key = ''] = /name="idempotency_key" value="([^"]+)"/.exec(checked.text) ?? [];
  const given = { form_token: token, idempotency_key: key, npis, type: 'any' };
  const submit = (name: string) => visitor.post('/console/submit', { ...given, name });
  const first = await submit(' Spring\u202e list ');
  t.regex(first.path, /^\/console\/batches\/bat_/);
  t.regex(first.text, /<h1>Spring list<\/h1>/);
  t.is((await submit(' Spring\u202e list ')).path, first.path);
  t.regex((await visitor.get('/console/batches')).text, /of 4</);
});

test('a pasted list shows whose NPIs it has, and which are free', async (t) => {
  const client = await stack.organization(1);
  const [person = '', retired = ''] = ordinaryNpis('found', 2, 7200);
  const { insert } = providersIn(stack.db);
  await insert({ npi: person, firstName: 'ANA', lastName: '<B>' }, null);
  await insert({ npi: retired, deactivatedOn: '2020-01-01' }, null);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console/submit');
  const form = { form_token: token, npis: `${person} ${retired}` };
  const { text } = await visitor.post('/console/check', form);
  t.regex(text, /"Whose NPI"><div>ANA &lt;B&gt;.*<\/td><td [^>]+>To look up</);
  t.regex(text, /"What happens">Deactivated NPI, not looked up</);
  t.regex(text, />Personal: at most 3 credits, 2 more than you have</);
  const [, key = ''] = /name="idempotency_key" value="([^"]+)"/.exec(text) ?? [];
  const given = { ...form, idempotency_key: key, type: 'personal' };
  const refused = await visitor.post('/console/submit', given);
  t.is(refused.status, 402);
  t.regex(refused.text, /role="alert">This submit needs /);
  t.regex(refused.text, /<option value="personal" selected>/);
  t.is((await client.credits()).used, 0);
});

test('lists of batches show their names, emails, and credits', async (t) => {
  const client = await stack.organization(500);
  const names = ['Spring <b>list', 'x'.repeat(201), { first: 'A' }, ' \u202e'];
  for (const name of names) {
    const custom_data = { name };
    const { json } = await client.bulk({ npis: NPIS, custom_data });
    await client.completed(json.batch_id);
  }
  const visitor = await signedIn(t, client);
  for (const path of ['/console', '/console/batches']) {
    const { text } = await visitor.get(path);
    const shown = [...text.matchAll(/"Batch"><a href="[^"]+">([^<]+)</g)];
    const [third, second, first, named] = shown.map(([, name = '']) => name);
    t.is(named, 'Spring &lt;b&gt;list', path);
    for (const name of [first, second, third]) t.regex(name ?? '', /^bat_/);
    t.is(text.match(/"Done">2 of 2<.+?"Emails">1<.+?"Credits">[01]</g)?.length, 4);
  }
  const { text } = await visitor.get('/console/batches');
  const [, path = ''] = /href="([^"]+)">Spring/.exec(text) ?? [];
  const page = await visitor.get(path);
  t.regex(page.text, /<h1>Spring &lt;b&gt;list<\/h1>\n<p class="hint">Batch <code>bat_/);
  t.notRegex(page.text, /Custom data/);
});

test('a delivery is sent again from the page of its batch', async (t) => {
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const { text, token } = await visitor.get(`/console/batches/${batchId}`);
  const action = /action="([^"]+\/resend)"/.exec(text)?.[1] ?? '';
  const after = await visitor.post(action, { form_token: token });
  t.regex(after.path, new RegExp(`^/console/batches/${batchId}`));
  const sent = () =>
    stack.receiver.deliveries().filter(({ body }) => body.includes(batchId));
  await eventually(async () => (sent().length >= 2 ? true : null));
  t.pass();
});

test('no page of the console shows anything of another organization', async (t) => {
  const owner = await stack.organization(500);
  const batchId = await completedBatch(owner);
  const page = await (await signedIn(t, owner)).get(`/console/batches/${batchId}`);
  const resend = /action="([^"]+\/resend)"/.exec(page.text)?.[1] ?? '';
  const stranger = await signedIn(t, await stack.organization(10));
  const { token } = await stranger.get('/console');
  for (const path of [
    `/console/batches/${batchId}`,
    `/console/batches/${batchId}/results.csv`,
  ]) {
    const { status, text } = await stranger.get(path);
    t.is(status, 404, path);
    t.false(text.includes('@cedar') || text.includes(NPIS[0] ?? ''), path);
  }
  t.is((await stranger.post(resend, { form_token: token })).status, 404);
  t.false((await stranger.get('/console/batches')).text.includes(batchId));
  t.false((await stranger.get('/console/deliveries')).text.includes(batchId));
  const failed = await failedBatch(owner, '/console/foreign');
  const form = { form_token: token, failed_since: '2020-01-01' };
  const resent = await stranger.post('/console/deliveries', form);
  t.regex(resent.text, /No delivery has failed for good since then\./);
  t.is((await owner.batch(failed)).webhook?.status, 'failed');
});

/** Returns the current day in UTC. It may end during a test. */
function today(): string {
  return new Date().toISOString().slice(0, 10);
}

test('the list of batches has filters, and says what is wrong with them', async (t) => {
  const since = today();
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const has = async (query: string) =>
    (await visitor.get(`/console/batches?${query}`)).text.includes(batchId);
  t.true(await has('status=completed&npi=2000000010&since=&until='));
  t.false(await has('status=in-progress'));
  t.false(await has('npi=2000000028'));
  t.false(await has('until=2020-01-01'));
  t.true(await has(`since=${since}&until=${today()}`));
  const wrong = await visitor.get('/console/batches?npi=12');
  t.is(wrong.status, 422);
  t.regex(
    wrong.text,
    /id="npi-problem" class="problem" role="alert">String should match/,
  );
});

/** Returns the value of an attribute without its entities. */
function plain(value = ''): string {
  return value.replaceAll('&#x3D;', '=').replaceAll('&amp;', '&');
}

/** Submits a batch whose deliveries have failed. */
async function failedBatch(client: ApiClient, path: string): Promise<string> {
  stack.receiver.setBehavior(path, status(410));
  const webhook = { url: `${stack.receiver.url}${path}`, mode: 'batch' };
  const { json } = await client.bulk({ npis: NPIS, webhook });
  await eventually(async () => {
    const { webhook } = await client.batch(json.batch_id);
    return webhook?.status === 'pending' ? null : true;
  });
  stack.receiver.setBehavior(path, null);
  return json.batch_id;
}

test('the page of webhooks shows deliveries of all batches, with filters', async (t) => {
  const since = today();
  const client = await stack.organization(500);
  const visitor = await signedIn(t, client);
  const empty = await visitor.get('/console/deliveries');
  t.regex(empty.text, /class="empty">There are no deliveries yet\./);
  t.regex(empty.text, /href="\/console\/deliveries" aria-current="page">Webhooks</);
  const delivered = await completedBatch(client);
  const failed = await failedBatch(client, '/console/filters');
  const { text } = await visitor.get('/console/deliveries');
  for (const id of [delivered, failed])
    t.true(text.includes(`href="/console/batches/${id}"`));
  t.regex(text, /data-label="What happened">Your receiver accepted it\. Status 200\./);
  t.regex(text, /responded with a status that is not 2xx\. Status 410\./);
  t.regex(text, /data-label="Attempts">1</);
  const query = `status=failed&since=${since}&until=${today()}`;
  const filtered = (await visitor.get(`/console/deliveries?${query}`)).text;
  t.true(filtered.includes(failed));
  t.false(filtered.includes(delivered));
  t.regex(filtered, /<option selected>failed</);
  const none = await visitor.get('/console/deliveries?until=2020-01-01');
  t.regex(none.text, /No delivery matches these filters\./);
  const wrong = await visitor.get('/console/deliveries?since=2026-02-30');
  t.is(wrong.status, 422);
  t.regex(wrong.text, /id="since-problem" class="problem" role="alert">Enter a day/);
  for (const path of ['/console/deliveries', '/console/batches']) {
    const backward = await visitor.get(`${path}?since=2026-02-02&until=2026-02-01`);
    t.is(backward.status, 422);
    t.regex(backward.text, /role="alert">The last day is before the first\. Swap them\./);
  }
  t.is((await visitor.get('/console/deliveries?cursor=x')).status, 422);
});

test('deliveries are sent again from the page of webhooks, one or all failed', async (t) => {
  const failed_since = today();
  const client = await stack.organization(500);
  const visitor = await signedIn(t, client);
  const path = '/console/again';
  await failedBatch(client, path);
  const received = async (count: number) =>
    await eventually(async () => {
      const all = stack.receiver.deliveries().filter((one) => one.path === path);
      const { text } = await visitor.get('/console/deliveries?status=pending');
      return all.length >= count && text.includes('No delivery matches') ? true : null;
    });
  const { text, token } = await visitor.get('/console/deliveries?status=failed');
  const action = /action="([^"]+\/resend)"/.exec(text)?.[1] ?? '';
  const list = plain(/name="list" value="([^"]+)"/.exec(text)?.[1]);
  stack.receiver.setBehavior(path, status(410));
  const after = await visitor.post(action, { form_token: token, list });
  t.regex(after.path, /^\/console\/deliveries\?status=failed/);
  await received(2);
  stack.receiver.setBehavior(path, null);
  const form = { form_token: token };
  const wrong = await visitor.post('/console/deliveries', { ...form, failed_since: 'x' });
  t.is(wrong.status, 422);
  t.regex(
    wrong.text,
    /id="failed_since-problem" class="problem" role="alert">Enter a day/,
  );
  const all = await visitor.post('/console/deliveries', { ...form, failed_since });
  t.regex(all.text, /role="status">Failed deliveries that are sent again: 1\./);
  await received(3);
  const none = await visitor.post('/console/deliveries', { ...form, failed_since });
  t.regex(none.text, /role="status">No delivery has failed for good since then\./);
});

test('a page of webhooks links to older deliveries with the same filters', async (t) => {
  const client = await stack.organization(500);
  const visitor = await signedIn(t, client);
  const webhook = { url: stack.receiver.url };
  const npis = Array.from({ length: 60 }, () => '1000000011');
  await client.bulk({ npis, webhook });
  const first = await visitor.get('/console/deliveries?until=2100-01-01');
  const older = plain(/href="([^"]+)" rel="next"/.exec(first.text)?.[1]);
  t.regex(older, /until=2100-01-01/);
  const rows = ({ text }: Seen) => text.split('data-label="Delivery"').length - 1;
  t.deepEqual([rows(first), rows(await visitor.get(older))], [50, 10]);
});

test('a sandbox session is marked', async (t) => {
  const live = await stack.organization(10);
  const sandbox = await stack.sandboxOf(live);
  const visitor = new Visitor(stack.baseUrl);
  const { text } = await visitor.signIn(sandbox.apiKey);
  t.regex(text, /class="badge sandbox">Sandbox</);
  t.regex(text, /emails are invented and cost nothing/);
});
