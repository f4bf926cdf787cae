import test from 'ava';
import { issueKey, revokeKey } from '../../db/accounts/keys.ts';
import { newId } from '../../db/connection/ids.ts';
import { KEY_ROLES, type KeyRole } from '../../db/words.ts';
import { fresh } from '../support/database.ts';
import { BY, createCaller, eventually } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';
import { Visitor } from '../support/visitor.ts';

// Tests what a key may do by its role: each route of the API, of the MCP server, and of the console,
// with a key of each role.

const api = fresh(test, startApi);

/** The least role for each route that needs a key, written by hand. A new route needs a line. */
const LEAST: Readonly<Record<string, KeyRole>> = {
  'POST /api/v1/email': 'member',
  'POST /api/v1/email/bulk': 'member',
  'POST /api/v1/check': 'read',
  'GET /api/v1/email/{request_id}': 'read',
  'GET /api/v1/batch/{batch_id}': 'read',
  'GET /api/v1/batches': 'read',
  'GET /api/v1/batch/{batch_id}/deliveries': 'read',
  'GET /api/v1/batch/{batch_id}/deliveries/{delivery_id}': 'read',
  'POST /api/v1/batch/{batch_id}/deliveries/{delivery_id}/resend': 'member',
  'GET /api/v1/deliveries': 'read',
  'POST /api/v1/deliveries/resend': 'member',
  'GET /api/v1/credits': 'read',
  'GET /api/v1/credits/ledger': 'read',
  'GET /api/v1/usage': 'read',
  'POST /mcp': 'read',
  'GET /console': 'read',
  'GET /console/submit': 'member',
  'POST /console/check': 'member',
  'POST /console/submit': 'member',
  'GET /console/batches': 'read',
  'GET /console/batches/{batch_id}': 'read',
  'GET /console/batches/{batch_id}/results.csv': 'read',
  'POST /console/batches/{batch_id}/again': 'member',
  'POST /console/batches/{batch_id}/deliveries/{delivery_id}/resend': 'member',
  'GET /console/usage': 'read',
  'GET /console/usage/days.csv': 'read',
  'GET /console/usage/types.csv': 'read',
  'GET /console/usage/ledger.csv': 'read',
  'GET /console/deliveries': 'read',
  'POST /console/deliveries': 'member',
  'POST /console/webhooks/secret': 'full',
  'POST /console/webhooks/rotate': 'full',
  'POST /console/webhooks/test': 'full',
  'GET /console/uploads': 'read',
  'POST /console/uploads': 'member',
  'GET /console/uploads/{upload_id}': 'read',
  'GET /console/uploads/{upload_id}/results.csv': 'read',
  'POST /console/uploads/{upload_id}/start': 'member',
  'POST /console/uploads/{upload_id}/continue': 'member',
  'POST /console/uploads/{upload_id}/again': 'member',
  'POST /console/uploads/{upload_id}/stop': 'member',
  'POST /console/uploads/{upload_id}/delete': 'member',
  'GET /console/keys': 'full',
  'POST /console/keys': 'full',
  'GET /console/keys/{key_id}': 'full',
  'POST /console/keys/{key_id}/rename': 'full',
  'POST /console/keys/{key_id}/rotate': 'full',
  'POST /console/keys/{key_id}/revoke': 'full',
  'GET /console/sign-in': 'read',
  'GET /console/{unknown*}': 'read',
};
/** Routes without a key. Signing in and out would end the sessions of the test. */
const OPEN =
  /^(?:GET \/(?:healthz|readyz|openapi\.json|llms\S*|docs.*|console\/\w+\.(?:css|js|svg)|api\/v1\/email\/bulk)|POST \/console\/sign-(?:in|out)|\* .*|GET \/)$/;
const IDS: Readonly<Record<string, string>> = {
  request_id: newId('req'),
  batch_id: newId('bat'),
  delivery_id: newId('msg'),
  upload_id: newId('upl'),
  key_id: newId('key'),
  'unknown*': 'unknown',
};
const REFUSED = /This needs an API key with the role/;

/** Returns a key and a signed-in visitor with this role. */
async function openRole(organizationId: string, role: KeyRole) {
  const { id, apiKey } = await issueKey(api.db, BY, organizationId, `a ${role}`, {
    role,
  });
  const visitor = new Visitor(api.baseUrl);
  await visitor.signIn(apiKey);
  return { id, apiKey, visitor, caller: createCaller(api.baseUrl, apiKey) };
}

/** Returns whether the route refuses the role. */
async function isRefused(
  route: string,
  { caller, visitor }: Awaited<ReturnType<typeof openRole>>,
): Promise<boolean> {
  const [method = '', template = ''] = route.split(' ');
  const path = template.replaceAll(/\{([^}]+)\}/g, (_, name: string) => IDS[name] ?? '');
  if (path.startsWith('/console')) {
    const form = path === '/console/uploads' ? new FormData() : new URLSearchParams();
    form.set('file', '2000000010');
    const body = method === 'POST' ? form : null;
    const { status, text } = await visitor.send(path, { method, body });
    return status === 403 && REFUSED.test(text);
  }
  const { status, text } = await caller.call(
    method,
    path,
    method === 'POST' ? '{}' : undefined,
  );
  return status === 403 && REFUSED.test(text);
}

test('each route refuses exactly the keys whose role is too low', async (t) => {
  const { organizationId } = await api.organization();
  const known = api.routes().map(({ method, path }) => `${method} ${path}`);
  const keyed = known.filter((route) => !OPEN.test(route));
  t.deepEqual(keyed.toSorted(), Object.keys(LEAST).toSorted(), 'LEAST names each route');
  for (const role of KEY_ROLES) {
    const client = await openRole(organizationId, role);
    for (const [route, least] of Object.entries(LEAST)) {
      const isTooLow = KEY_ROLES.indexOf(role) < KEY_ROLES.indexOf(least);
      t.is(await isRefused(route, client), isTooLow, `${role}: ${route}`);
    }
  }
});

test('the 403 for a low role has its code, says who can help, and counts', async (t) => {
  const { organizationId } = await api.organization();
  const { caller } = await openRole(organizationId, 'read');
  const reply = await caller.call('POST', '/api/v1/email', '{"npi":"2000000010"}');
  t.is(reply.status, 403);
  t.like(reply.json, { code: 'role_insufficient' });
  t.regex(reply.text, /role member, and yours has the role read\. Ask a colleague/);
  t.is(reply.headers.get('link'), '</docs/errors#role_insufficient>; rel="help"');
  t.regex(reply.headers.get('ratelimit') ?? '', /r=\d+/);
});

test('refusals for a low role do not lock out the address or the key', async (t) => {
  const { organizationId } = await api.organization();
  const { caller } = await openRole(organizationId, 'read');
  for (let n = 0; n < 150; n += 1) {
    const { status } = await caller.call('POST', '/api/v1/email', '{}');
    if (status !== 403) t.fail(`status ${status}`);
  }
  t.is((await caller.call('GET', '/api/v1/credits')).status, 200);
  const unknown = createCaller(api.baseUrl, 'npe_00000000000000000000000000000044v2zE');
  t.is((await unknown.call('GET', '/api/v1/credits')).status, 401);
});

test('a read key signs in to the console, sees no forms, and stays signed in', async (t) => {
  const { organizationId } = await api.organization();
  const { visitor } = await openRole(organizationId, 'read');
  const { text, path } = await visitor.get('/console');
  t.is(path, '/console');
  t.regex(text, /Signed in as <strong>a read<\/strong> \(read\)/);
  t.notRegex(text, />Find emails<\/a>/);
  const uploads = await visitor.get('/console/uploads');
  t.notRegex(uploads.text, /type="file"/);
  t.regex(uploads.text, /Ask a colleague with a full key/);
  t.regex(uploads.text, /There are no uploads yet\.<\/p>/);
  t.regex(text, /There are no batches yet\.<\/p>/);
  const refused = await visitor.get('/console/submit');
  t.is(refused.status, 403);
  t.regex(refused.text, /<h1>Your key may not do this<\/h1>/);
  t.regex(refused.text, /Ask a colleague with a full key/);
  t.is((await visitor.get('/console')).path, '/console');
});

test('a page that a role may not see counts toward the rate limit, and ends with the key', async (t) => {
  const { organizationId } = await api.organization();
  const { visitor, id, caller } = await openRole(organizationId, 'read');
  const left = async () => {
    const { headers } = await caller.call('GET', '/api/v1/credits');
    return Number(/r=(\d+)/.exec(headers.get('ratelimit') ?? '')?.[1]);
  };
  const before = await left();
  t.is((await visitor.get('/console/submit')).status, 403);
  t.is(before - (await left()), 2);
  await revokeKey(api.db, BY, id);
  const ended = async () => (await visitor.get('/console/submit')).path;
  const path = await eventually(async () =>
    (await ended()) === '/console/submit' ? null : await ended(),
  );
  t.regex(path, /^\/console\/sign-in/);
});

test('a read key spends nothing through an assistant', async (t) => {
  const { organizationId } = await api.organization();
  const { caller } = await openRole(organizationId, 'read');
  const call = (name: string, given: object) =>
    caller.call(
      'POST',
      '/mcp',
      JSON.stringify({
        jsonrpc: '2.0',
        id: 1,
        method: 'tools/call',
        params: { name, arguments: given },
      }),
      { accept: 'application/json, text/event-stream' },
    );
  const npis = ['2000000010'];
  const refused = await call('submit_npis', { npis, max_credits: 1 });
  t.regex(refused.text, REFUSED);
  t.regex((await call('check_npis', { npis })).text, /max_credits/);
});
