import { randomUUID } from 'node:crypto';
import test from 'ava';
import { sql as statement } from 'drizzle-orm';
import { balanceOf } from '../../db/accounts/credits.ts';
import { authenticate, parseApiKey } from '../../db/accounts/keys.ts';
import { diagnose, runChecks } from '../../db/doctor/doctor.ts';
import { submit } from '../../db/requests/submit.ts';
import { createUpload, listUploads } from '../../db/uploads/uploads.ts';
import { claimDelivery, recordAttempt } from '../../db/webhooks/attempts.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  type Organization,
  openOrganization,
  openTestKey,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests `org rename`, `org close`, and `org erase`.

const { db, sql, url } = freshDatabase(test);
const { operator, json } = operatorOn(url);

const SECRET_URL = 'https://hooks.example.com/in?token=sesame';
const KNOWN = '2000000301';
const SOUGHT = '2000000319';
const EMAIL = 'ann.lee@clinic.example';

test.before(() =>
  storeEmail(db, {
    npi: KNOWN,
    email: EMAIL,
  }),
);

/** Submits a known NPI, which is charged at once, and one that is looked up. */
function sendTo(organization: Organization, over: object = {}) {
  const npis = [KNOWN, SOUGHT];
  const webhook = { url: SECRET_URL, mode: 'real-time' } as const;
  const customData = '{"ticket":"open sesame"}';
  const idempotency = {
    key: `sesame-${randomUUID()}`,
    method: 'POST',
    path: '/v1/enrich',
    fingerprint: Buffer.alloc(32),
  };
  const command = { npis, webhook, customData, idempotency, ...over };
  return submit(db, submitCommand(organization, command), RULES);
}

async function opened() {
  const organization = await openOrganization(db, 10);
  const sandbox = await openTestKey(db, organization);
  await sendTo(organization);
  await sendTo(sandbox, { outcomes: ['stored', 'slow'] });
  return { organization, sandbox, id: organization.organizationId };
}

async function stateOf({ apiKey }: Organization) {
  return (await authenticate(db, parseApiKey(apiKey) as Buffer)).kind;
}

async function findings() {
  const rules = { ...RULES, webhookScheduleMs: [0, 1000] };
  const checks = await diagnose(db, rules);
  const found = checks.filter((check) => check.findings > 0);
  return found.map(({ code }) => code);
}

test.serial(
  'a renamed organization and its sandbox have the new name, which is not audited',
  async (t) => {
    const { id } = await opened();
    const renamed = await json('org', 'rename', id, 'Acme, Inc.', ...WHY);
    t.like(renamed, { id, name: 'Acme, Inc.', previous_name: 'Test' });
    const names = await sql`
    select name from organizations where id = ${id} or sandbox_of = ${id}`;
    t.like(names, [{ name: 'Acme, Inc.' }, { name: 'Acme, Inc.' }]);
    const audit = await sql`
    select action, details::text from audit_log where organization_id = ${id}`;
    t.true(audit.some(({ action }) => action === 'org.rename'));
    t.false(audit.some(({ details }) => /Acme|Test/.test(details)));
  },
);

test.serial(
  'closing an organization refunds its open requests and rejects new ones',
  async (t) => {
    const { organization, sandbox, id } = await opened();
    const counted = {
      name: 'Test',
      closed: false,
      active_keys: 2,
      open_requests: 2,
      pending_deliveries: 4,
    };
    t.like(await json('org', 'close', id, '--dry-run', ...WHY), counted);
    t.is((await operator('org', 'close', id, ...WHY)).code, 1);
    t.is(await stateOf(organization), 'active');

    t.like(await json('org', 'close', id, '--yes', ...WHY), { ...counted, closed: true });
    t.like(await balanceOf(db, id), { available: 9, held: 0, used: 1 });
    t.is((await balanceOf(db, sandbox.organizationId)).held, 0);
    t.is(await stateOf(organization), 'revoked');
    t.is(await stateOf(sandbox), 'revoked');
    // This submit was authenticated before the organization was closed.
    t.like(await sendTo(organization), { kind: 'closed' });
    const states = await sql`
    select distinct state from webhook_deliveries
     where organization_id in (${id}, ${sandbox.organizationId})`;
    t.like(states, [{ state: 'failed' }]);
    const nothing = {
      active_keys: 0,
      open_requests: 0,
      held_credits: 0,
      pending_deliveries: 0,
    };
    t.like(await json('org', 'close', id, '--yes', ...WHY), nothing);
    t.deepEqual(await findings(), []);
  },
);

test.serial(
  'a closed organization can be opened again, and its keys stay revoked',
  async (t) => {
    const { organization, id } = await opened();
    await json('org', 'close', id, '--yes', ...WHY);
    for (const change of [
      ['keys', 'issue', id, '--name', 'new'],
      ['keys', 'reactivate', organization.keyId],
      ['webhooks', 'resume', id],
    ]) {
      const { code, stderr } = await operator(...change, ...WHY);
      t.is(code, 1);
      t.regex(stderr, /the organization is closed; .*"org resume ORG" first/);
    }
    t.like(await json('org', 'resume', id, ...WHY), {
      suspended: false,
      closed_at: null,
    });
    t.is(await stateOf(organization), 'revoked');
    await json('keys', 'reactivate', organization.keyId, ...WHY);
    t.is(await stateOf(organization), 'active');
    t.like(await sendTo(organization), { kind: 'accepted' });
  },
);

test.serial('doctor reports open work of a closed organization', async (t) => {
  const { id } = await opened();
  await t.throwsAsync(
    db.drizzle.transaction(async (tx) => {
      await tx.execute(statement`
        update organizations
           set closed_at = now(), suspended = true, webhooks_suspended = true
         where id = ${id}`);
      const rules = { ...RULES, webhookScheduleMs: [0, 1000] };
      const checks = await runChecks(tx, rules);
      t.is(checks.find(({ code }) => code === 'closed_but_open')?.findings, 1);
      throw new Error('rolled back');
    }),
    { message: 'rolled back' },
  );
});

test.serial('erasing needs a closed organization, and its name with --yes', async (t) => {
  const { id } = await opened();
  const erase = (...args: string[]) => operator('org', 'erase', id, ...args, ...WHY);
  const open = await erase('--yes', '--name', 'Test');
  t.is(open.code, 1);
  t.regex(open.stderr, /not closed; run "org close ORG" first/);
  await json('org', 'close', id, '--yes', ...WHY);
  const nameless = await erase('--yes');
  t.is(nameless.code, 2);
  t.regex(nameless.stderr, /--yes needs --name/);
  const other = await erase('--yes', '--name', 'Other');
  t.is(other.code, 1);
  t.regex(other.stderr, /--name is not the name of this organization/);
  const counted = { erased: false, keys: 2, emails: 2, webhook_urls: 2, custom_data: 2 };
  t.like(JSON.parse((await erase('--dry-run', '--json')).stdout), counted);
  t.is((await erase()).code, 1);
  const [{ name } = {}] = await sql`select name from organizations where id = ${id}`;
  t.is(name, 'Test');
});

test.serial(
  'an erased organization keeps its ledger, and nothing else that names it',
  async (t) => {
    const { organization, sandbox, id } = await opened();
    await sql`
    insert into uploads (id, organization_id, api_key_id, file_name, content, expires_at)
    values ('upl_1', ${id}, ${organization.keyId}, 'sesame.csv', 'npi', now())`;
    await json('org', 'close', id, '--yes', ...WHY);
    await sql`
    insert into webhook_attempts (
      delivery_id, n, started_at, duration_ms, response_excerpt)
    select id, 1, now(), 1, convert_to(${EMAIL}, 'UTF8') from webhook_deliveries
     where organization_id = ${id}`;
    await sql`
    update webhook_deliveries set attempts = 1 where organization_id = ${id}`;
    const ledger = () => sql`
    select * from ledger_entries where organization_id = ${id} order by id`;
    const before = await ledger();
    const balance = await balanceOf(db, id);

    const erase = ['org', 'erase', id, '--yes', '--name'];
    t.like(await json(...erase, 'Test', ...WHY), { erased: true, emails: 2, uploads: 1 });
    t.deepEqual(await ledger(), before);
    t.deepEqual(await balanceOf(db, id), balance);
    const left = await sql`
    select t::text as row from (
      select to_jsonb(o) as t from organizations o
      union all select to_jsonb(k) from api_keys k
      union all select to_jsonb(b) from batches b
      union all select to_jsonb(r) from requests r
      union all select to_jsonb(d) from webhook_deliveries d
      union all select to_jsonb(u) from uploads u
      union all select to_jsonb(i) from idempotency_keys i
      union all select to_jsonb(h) from webhook_hosts h) x
     where coalesce(t ->> 'organization_id', t ->> 'sandbox_of', t ->> 'id')
           in (${id}, ${sandbox.organizationId})`;
    t.true(left.length > 8);
    const hint = organization.apiKey.slice(-4);
    const named = left.filter(({ row }) =>
      [EMAIL, 'sesame', 'Test', '"test"', `"${hint}"`].some((text) => row.includes(text)),
    );
    t.deepEqual(named, []);
    const [excerpts] = await sql`
    select count(response_excerpt)::int as n from webhook_attempts
      join webhook_deliveries d on d.id = delivery_id
     where d.organization_id = ${id}`;
    t.is(excerpts?.n, 0);
    t.is(await stateOf(organization), 'unknown');
    const register = await json<{ kind: string; subject: string }[]>('privacy', 'list');
    t.true(register.some((one) => one.kind === 'organization' && one.subject === id));
    t.deepEqual(await findings(), []);

    // An interrupted erasure continues when the command is repeated.
    await sql`update batches set custom_data = '1' where organization_id = ${id}`;
    t.deepEqual(await findings(), ['organization_half_erased']);
    t.like(await json(...erase, 'Test', ...WHY), { custom_data: 1 });
    t.deepEqual(await findings(), []);
    const resumed = await operator('org', 'resume', id, ...WHY);
    t.regex(resumed.stderr, /was erased, which cannot be undone/);
  },
);

test.serial('a file that arrives after the close is not stored', async (t) => {
  const { organization, id } = await opened();
  await json('org', 'close', id, '--yes', ...WHY);
  const by = { organizationId: id, apiKeyId: organization.keyId };
  const file = { fileName: 'sesame.csv', content: Buffer.from('npi') };
  t.deepEqual(await createUpload(db, by, file), { kind: 'closed' });
  t.deepEqual(await listUploads(db, id), []);
});

test.serial('an attempt that ends after the erasure leaves no trace', async (t) => {
  const { id } = await opened();
  const [delivery] = await sql<{ id: string }[]>`
    select d.id from webhook_deliveries d join requests r on r.id = d.request_id
     where d.organization_id = ${id} and r.npi = ${KNOWN}`;
  const rules = { webhookScheduleMs: [0, 1000], webhookLongestRestMs: 1000 };
  const claimed = await claimDelivery(db, delivery?.id ?? '', rules);
  if (claimed.kind !== 'attempt') throw new Error(claimed.kind);
  const { claim } = claimed;
  await json('org', 'close', id, '--yes', ...WHY);
  await json('org', 'erase', id, '--yes', '--name', 'Test', ...WHY);
  const attempt = {
    startedAt: claim.at,
    durationMs: 1,
    statusCode: 200,
    reason: null,
    responseExcerpt: Buffer.from(EMAIL),
  };
  const health = { kind: 'responded', accepted: true, address: '192.0.2.7' } as const;
  await recordAttempt(db, claim, attempt, { state: 'delivered' }, health);
  const { deliveryId } = claim;
  const [left] = await sql`
    select (select count(*)::int from webhook_attempts where delivery_id = ${deliveryId})
             as attempts,
           (select count(*)::int from webhook_hosts where organization_id = ${id})
             as hosts`;
  t.deepEqual({ ...left }, { attempts: 0, hosts: 0 });
});
