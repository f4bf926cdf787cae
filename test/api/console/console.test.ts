import test, { type ExecutionContext } from 'ava';
import { revokeKey } from '../../../db/accounts/keys.ts';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { type ApiClient, startStack } from '../../support/stack.ts';

// The console at /console, by HTTP as a browser without scripts uses it.

const stack = fresh(test, () => startStack());
const NPIS = ['2000000010', '2000000044'];

/** A browser without scripts: it keeps cookies, follows redirects, and sends forms. */
class Visitor {
  readonly #cookies = new Map<string, string>();

  async get(path: string): Promise<Seen> {
    return await this.#send(path, {});
  }

  /** Sends a form with the token of the page that was seen last. */
  async post(
    path: string,
    fields: Record<string, string>,
    headers: Record<string, string> = {},
  ): Promise<Seen> {
    const body = new URLSearchParams(fields);
    return await this.#send(path, { method: 'POST', body, headers });
  }

  async signIn(apiKey: string): Promise<Seen> {
    const { token } = await this.get('/console/sign-in');
    return await this.post('/console/sign-in', { form_token: token, api_key: apiKey });
  }

  async #send(path: string, init: RequestInit): Promise<Seen> {
    const cookie = [...this.#cookies].map(([name, value]) => `${name}=${value}`);
    const response = await fetch(new URL(path, stack.baseUrl), {
      ...init,
      headers: { ...init.headers, cookie: cookie.join('; ') },
      redirect: 'manual',
    });
    for (const line of response.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (/max-age=0/i.test(line)) this.#cookies.delete(name);
      else this.#cookies.set(name, value);
    }
    const to = response.headers.get('location');
    if (to !== null) {
      await response.text();
      return await this.get(to);
    }
    const text = await response.text();
    const token = /name="form_token" value="([^"]+)"/.exec(text)?.[1] ?? '';
    const { status, headers } = response;
    return { path, status, headers, text, token };
  }
}

interface Seen {
  readonly path: string;
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly token: string;
}

async function signedIn(t: ExecutionContext, client: ApiClient): Promise<Visitor> {
  const visitor = new Visitor();
  const { path, status } = await visitor.signIn(client.apiKey);
  t.deepEqual([path, status], ['/console', 200]);
  return visitor;
}

/** Submits a batch with a webhook, and waits until it is completed and delivered. */
async function completedBatch(client: ApiClient): Promise<string> {
  const webhook = { url: stack.receiver.url, mode: 'batch' };
  const { json } = await client.bulk({ npis: NPIS, webhook });
  await eventually(async () => {
    const answer = await client.get<{ readonly webhook: { readonly status: string } }>(
      `/api/v1/batch/${json.batch_id}`,
    );
    return answer.json.webhook.status === 'delivered' ? true : null;
  });
  return json.batch_id;
}

test('a visitor signs in with an API key, and sees credits and batches', async (t) => {
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const { text } = await visitor.get('/console');
  t.regex(text, /<dt>Available credits<\/dt><dd>499<\/dd>/);
  t.true(text.includes(`href="/console/batches/${batchId}"`));
  t.regex(text, /<rect [^>]+height="100"><title>20\S+: 1 found<\/title>/);
  t.regex(text, /data-label="Not found">1<\/td>/);
  t.false(text.includes(client.apiKey));
  t.notRegex(text, /Sandbox/);
});

test('without a valid key, there is no session, and the page says why', async (t) => {
  const visitor = new Visitor();
  t.is((await visitor.get('/console')).path, '/console/sign-in');
  const { status, text } = await visitor.signIn('npe_wrong');
  t.is(status, 401);
  t.regex(text, /role="alert">The API key is not valid\./);
  t.is((await visitor.get('/console/batches')).path, '/console/sign-in');
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

test('rejected forms leave no place taken in the queue of submits', async (t) => {
  // 100 requests of an organization can wait. The rate limit rejects all forms but a few.
  const client = await stack.organization(10, 6);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console/submit');
  const fields = { form_token: token, idempotency_key: 'x', type: 'any', npis: '1' };
  const texts: string[] = [];
  for (let n = 0; n < 120; n += 1)
    texts.push((await visitor.post('/console/submit', fields)).text);
  t.true(texts.some((text) => text.includes('This key may send 6 requests')));
  t.false(texts.some((text) => text.includes('Too many of your requests')));
});

test('a form that is too large says so', async (t) => {
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

test('signing out ends the session', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  const { token } = await visitor.get('/console');
  const after = await visitor.post('/console/sign-out', { form_token: token });
  t.is(after.path, '/console/sign-in');
  t.is((await visitor.get('/console')).path, '/console/sign-in');
});

test('a revoked key ends the session within a second', async (t) => {
  const client = await stack.organization(10);
  const visitor = await signedIn(t, client);
  await revokeKey(stack.db, { actor: 'test', reason: 'test' }, client.keyId);
  await eventually(async () =>
    (await visitor.get('/console')).path === '/console/sign-in' ? true : null,
  );
  t.pass();
});

test('the session cookie is encrypted, and scripts and other sites cannot use it', async (t) => {
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
  t.regex(session, /Max-Age=28800/);
  t.false(session.includes(client.apiKey));
});

test('a batch page has all results, and they can be downloaded as CSV', async (t) => {
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const { text } = await visitor.get(`/console/batches/${batchId}`);
  for (const npi of NPIS) t.true(text.includes(npi));
  t.regex(text, /<td data-label="Email">[^<]+@[^<]+<\/td>/);
  t.regex(text, /Your receiver accepted it\. Status 200\./);
  const csv = await visitor.get(`/console/batches/${batchId}/results.csv`);
  t.regex(csv.headers.get('content-disposition') ?? '', /^attachment; filename="bat_/);
  const [header, first, second] = csv.text.split('\r\n');
  t.is(header, 'npi,status,email,email_type,email_last_validated,replayed');
  t.regex(first ?? '', /^2000000010,completed,\S+@\S+,professional,20\S+Z,false$/);
  t.is(second, '2000000044,not_found,,,,false');
});

test('NPIs are submitted from the console, once per form', async (t) => {
  const client = await stack.organization(500);
  const visitor = await signedIn(t, client);
  const { text, token } = await visitor.get('/console/submit');
  const idempotency_key = /name="idempotency_key" value="([^"]+)"/.exec(text)?.[1] ?? '';
  const form = { form_token: token, idempotency_key, type: 'any' };
  const wrong = await visitor.post('/console/submit', { ...form, npis: '2000000010 12' });
  t.is(wrong.status, 422);
  t.regex(wrong.text, /role="alert">12: String should match/);
  t.regex(wrong.text, />2000000010 12<\/textarea>/);
  const npis = '2000000010, 2000000044\n2000000028';
  const first = await visitor.post('/console/submit', { ...form, npis });
  const again = await visitor.post('/console/submit', { ...form, npis });
  t.regex(first.path, /^\/console\/batches\/bat_/);
  t.is(again.path, first.path);
  t.regex((await visitor.get('/console/batches')).text, /of 3</);
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
  await eventually(async () => (sent().length === 2 ? true : null));
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
});

test('the list of batches has filters, and says what is wrong with them', async (t) => {
  const client = await stack.organization(500);
  const batchId = await completedBatch(client);
  const visitor = await signedIn(t, client);
  const has = async (query: string) =>
    (await visitor.get(`/console/batches?${query}`)).text.includes(batchId);
  t.true(await has('status=completed&npi=2000000010&since=&until='));
  t.false(await has('status=in-progress'));
  t.false(await has('npi=2000000028'));
  t.false(await has('until=2020-01-01'));
  const today = new Date().toISOString().slice(0, 10);
  t.true(await has(`since=${today}&until=${today}`));
  const wrong = await visitor.get('/console/batches?npi=12');
  t.is(wrong.status, 422);
  t.regex(wrong.text, /npi: String should match/);
});

test('a sandbox session is marked', async (t) => {
  const live = await stack.organization(10);
  const sandbox = await stack.sandboxOf(live);
  const visitor = new Visitor();
  t.regex((await visitor.signIn(sandbox.apiKey)).text, /class="badge sandbox">Sandbox</);
});
