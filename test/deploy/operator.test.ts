import { spawn } from 'node:child_process';
import { tmpdir, userInfo } from 'node:os';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { adjustCredits, balanceOf, grantCredits } from '../../db/accounts/credits.ts';
import {
  authenticate,
  issueKey,
  listKeys,
  parseApiKey,
  reactivateKey,
  revokeKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import {
  createOrganization,
  listOrganizations,
  setLimit,
  showOrganization,
  suspendOrganization,
  suspendWebhooks,
} from '../../db/accounts/organizations.ts';
import {
  rotateWebhookSecret,
  showWebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import { DatabaseError } from '../../db/connection/errors.ts';
import { newId } from '../../db/connection/ids.ts';
import { recordVendorResponse } from '../../db/lookups/vendor-attempts.ts';
import { beginVendorStep } from '../../db/lookups/vendor-steps.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { KEY_ROLES } from '../../db/words.ts';
import { runOperator } from '../../deploy/operator.ts';
import { explain } from '../../deploy/problem.ts';
import { freshDatabase, SECRETS_KEY } from '../support/database.ts';
import { logAttempt } from '../support/deliveries.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { BARE, type Ended, endWithThisProcess } from '../support/programs.ts';
import { storeEmail } from '../support/stored.ts';

const COMMAND = fileURLToPath(new URL('../../deploy/operator.ts', import.meta.url));
const API_KEY = /npe_[0-9A-Za-z]{36}/;

const database = freshDatabase(test);
const { db } = database;

const { operator, text, json } = operatorOn(database.url);

/** Runs the command as an operator would, with its output in a pipe. */
function spawned(
  args: readonly string[],
  databaseUrl = database.url,
  reads = true,
): Promise<Ended> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [COMMAND, ...args], {
      // A folder in which the local stack of this checkout is not found.
      cwd: tmpdir(),
      env: { ...BARE, DATABASE_URL: databaseUrl, SECRETS_KEY },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    endWithThisProcess(child);
    let stdout = '';
    let stderr = '';
    if (reads) child.stdout.on('data', (chunk: Buffer) => (stdout += chunk));
    else child.stdout.destroy();
    child.stderr.on('data', (chunk: Buffer) => (stderr += chunk));
    child.once('error', reject);
    child.once('close', (code) => resolve({ code, stdout, stderr }));
  });
}

interface Audited {
  readonly action: string;
  readonly actor: string;
  readonly reason: string;
  readonly subject: string;
  readonly details: Record<string, unknown>;
}

/** Returns the newest audit record of an organization. */
async function audited(organizationId: string): Promise<Audited | undefined> {
  return (await json<Audited[]>('audit', 'list', organizationId, '--limit', '1'))[0];
}

async function createOrg(name = 'Acme Health'): Promise<string> {
  return (await json<{ id: string }>('org', 'create', name, ...WHY)).id;
}

test('an operator can create, list, and show an organization', async (t) => {
  const name = 'Größe & Söhne 医院';
  const id = await createOrg(name);
  t.regex(id, /^org_/);
  t.like(await audited(id), {
    action: 'org.create',
    actor: 'tester',
    reason: 'a test',
    subject: id,
  });
  const listed = await json<{ id: string; name: string }[]>('org', 'list');
  t.is(listed.find((one) => one.id === id)?.name, name);
  t.like(await json('org', 'show', id), {
    id,
    name,
    requests_per_minute: 100,
    webhooks_suspended: false,
    balance: { total: 0, used: 0, held: 0, available: 0 },
    keys: { active: 0, inactive: 0, revoked: 0 },
    batches: { in_progress: 0, completed: 0 },
  });
  t.regex(await text('org', 'list'), /^ID +NAME +AVAILABLE +SUSPENDED/);
  t.regex(await text('org', 'show', id), /^balance available +0$/m);
});

test('an operator can grant and adjust credits, and the ledger shows each change', async (t) => {
  const id = await createOrg();
  const bought = ['1000', '--reference', 'invoice 16', ...WHY];
  t.like(await json('credits', 'grant', id, ...bought), {
    organization_id: id,
    available: 1000,
    reference: 'invoice 16',
  });
  t.like(await audited(id), {
    action: 'credits.grant',
    details: { amount: 1000, available: 1000, reference: 'invoice 16' },
  });
  t.like(await json('credits', 'adjust', id, '-300', ...WHY), {
    available: 700,
    total: 700,
  });
  t.like(await audited(id), {
    action: 'credits.adjust',
    details: { amount: -300, available: 700 },
  });
  const ledger = await json<Record<string, unknown>[]>('credits', 'ledger', id);
  t.like(ledger, [
    { kind: 'adjustment', amount: -300, available_after: 700, request_id: null },
    { kind: 'grant', amount: 1000, available_after: 1000, request_id: null },
  ]);
  t.is((await json<unknown[]>('credits', 'ledger', id, '--limit', '1')).length, 1);
  t.regex(await text('credits', 'ledger', id), /adjustment +-300 +700 +- /m);
});

test('a grant is made once, and repeating it only reports the first grant', async (t) => {
  const [id, other] = [await createOrg(), await createOrg()];
  const grant = (organization: string, amount: string, reference: string) =>
    operator('credits', 'grant', organization, amount, '--reference', reference, ...WHY);
  t.is((await grant(id, '1000', 'invoice 17')).code, 0);
  t.like(await audited(id), {
    details: { amount: 1000, available: 1000, reference: 'invoice 17' },
  });
  for (const amount of ['1000', '5']) {
    const { code, stdout, stderr } = await grant(id, amount, ' invoice 17 ');
    t.is(code, 1);
    t.is(stdout, '');
    t.regex(
      stderr,
      /^operator: nothing was granted: .* 1,000 credits with the same reference at 20\S+Z;/,
    );
  }
  t.like(await balanceOf(db, id), { available: 1000, total: 1000 });
  t.is((await grant(id, '5', 'invoice 18')).code, 0);
  t.is((await grant(other, '7', 'invoice 17')).code, 0);
  t.like(await balanceOf(db, id), { total: 1005 });
});

test('a grant without a reference is wrong usage', async (t) => {
  const id = await createOrg();
  for (const given of [[], ['--reference', ' ']]) {
    const { code, stdout, stderr } = await operator(
      'credits',
      'grant',
      id,
      '5',
      ...given,
      ...WHY,
    );
    t.deepEqual([code, stdout], [2, '']);
    t.regex(stderr, /--reference/);
  }
  t.like(await balanceOf(db, id), { total: 0 });
});

test('only one of several concurrent grants with the same reference adds credits', async (t) => {
  const id = await createOrg();
  const grant = () =>
    operator('credits', 'grant', id, '9', '--reference', 'invoice 19', ...WHY);
  const codes = (await Promise.all(Array.from({ length: 5 }, grant))).map(
    ({ code }) => code,
  );
  t.deepEqual(codes.sort(), [0, 1, 1, 1, 1]);
  t.like(await balanceOf(db, id), { total: 9 });
});

test('an adjustment to less than zero credits is rejected and not audited', async (t) => {
  const id = await createOrg();
  await text('credits', 'grant', id, '5', '--reference', 'x', ...WHY);
  const refused = await operator('credits', 'adjust', id, '-6', ...WHY);
  t.is(refused.code, 1);
  t.is(refused.stdout, '');
  t.regex(refused.stderr, /^operator: .*more credits than are available.*\n$/);
  t.like(await balanceOf(db, id), { available: 5, total: 5 });
  t.like(await audited(id), { action: 'credits.grant' });
});

test('an adjustment cannot remove credits that are held for running requests', async (t) => {
  const organization = await openOrganization(db, 2);
  const held = await submit(
    db,
    submitCommand(organization, { npis: ['2000000101'] }),
    RULES,
  );
  t.is(held.kind, 'accepted');
  const { organizationId } = organization;
  t.is((await operator('credits', 'adjust', organizationId, '-2', ...WHY)).code, 1);
  t.like(await json('credits', 'adjust', organizationId, '-1', ...WHY), {
    available: 0,
    held: 1,
    total: 1,
  });
  const ledger = await json<{ kind: string; available_after: number }[]>(
    'credits',
    'ledger',
    organizationId,
  );
  t.deepEqual(
    ledger.map(({ kind, available_after }) => [kind, available_after]),
    [
      ['adjustment', 0],
      ['hold', 1],
      ['grant', 2],
    ],
  );
});

test('an amount of credits that is not a whole number in range is wrong usage', async (t) => {
  const id = await createOrg();
  for (const amount of [
    '0',
    '-5',
    '1e9',
    '1.5',
    '1,000',
    '0x10',
    '1000000001',
    '99999999999',
    'ten',
    '',
    '٣',
  ]) {
    const { code, stderr } = await operator(
      ...['credits', 'grant', id, amount, '--reference', 'x'],
      ...WHY,
    );
    t.is(code, 2, amount);
    t.regex(stderr, /whole number from 1 to 1000000000/, amount);
  }
  t.is((await operator('credits', 'adjust', id, '0', ...WHY)).code, 2);
  t.like(await balanceOf(db, id), { total: 0 });
});

test('a key is issued with a role, which lists and the audit log show', async (t) => {
  const id = await createOrg();
  for (const role of KEY_ROLES) {
    const args = ['keys', 'issue', id, '--name', role, '--role', role, ...WHY];
    t.like(await json(...args), { role });
  }
  t.like(await json('keys', 'issue', id, '--name', 'k', ...WHY), { role: 'full' });
  t.regex(await text('keys', 'list', id), /ROLE/);
  const listed = await json<{ role: string }[]>('keys', 'list', id);
  t.deepEqual(
    listed.map(({ role }) => role),
    ['full', ...KEY_ROLES.toReversed()],
  );
  const [entry] = await json<{ details: object }[]>('audit', 'list', id);
  t.like(entry?.details, { role: 'full' });
  const wrong = ['keys', 'issue', id, '--name', 'k', '--role', 'admin', ...WHY];
  t.is((await operator(...wrong)).code, 2);
});

test('an API key is printed when it is issued, and never again', async (t) => {
  const id = await createOrg();
  const issuing = await text('keys', 'issue', id, '--name', 'production', ...WHY);
  const apiKey = API_KEY.exec(issuing)?.[0] ?? '';
  t.regex(issuing, /only time the key is shown/);
  t.is((await authenticate(db, parseApiKey(apiKey) ?? Buffer.alloc(0))).kind, 'active');

  const later = [
    await text('keys', 'list', id),
    await text('keys', 'list', id, '--json'),
    await text('audit', 'list', id, '--json'),
    await text('org', 'show', id, '--json'),
  ].join('\n');
  t.false(later.includes(apiKey.slice(4, 34)));
  t.notRegex(later, API_KEY);
  t.like(await json('keys', 'list', id), [
    { name: 'production', hint: apiKey.slice(-4), state: 'active' },
  ]);
});

test('revoking, reactivating, and rotating a key is recorded in the audit log', async (t) => {
  const id = await createOrg();
  const issued = await json<{ id: string; api_key: string }>(
    'keys',
    'issue',
    id,
    '--name',
    'k',
    ...WHY,
  );
  const state = async (apiKey: string) =>
    (await authenticate(db, parseApiKey(apiKey) ?? Buffer.alloc(0))).kind;
  t.like(await audited(id), { action: 'keys.issue', subject: issued.id });

  t.like(await json('keys', 'revoke', issued.id, ...WHY), {
    id: issued.id,
    state: 'revoked',
  });
  t.is(await state(issued.api_key), 'revoked');
  t.like(await audited(id), {
    action: 'keys.revoke',
    details: { from: 'active', to: 'revoked' },
  });

  t.like(await json('keys', 'reactivate', issued.id, ...WHY), { state: 'active' });
  t.is(await state(issued.api_key), 'active');
  t.like(await audited(id), {
    action: 'keys.reactivate',
    details: { from: 'revoked', to: 'active' },
  });

  const next = await json<{
    id: string;
    api_key: string;
    replaced: { state: string; expires_at: string };
  }>('keys', 'rotate', issued.id, ...WHY);
  t.is(next.replaced.state, 'active', 'for a day more');
  const left = Date.parse(next.replaced.expires_at) - Date.now();
  t.true(Math.abs(left - 86_400_000) < 600_000, `${left} ms`);
  t.is(await state(next.api_key), 'active');
  t.like(await audited(id), {
    action: 'keys.rotate',
    subject: issued.id,
    details: { new_key_id: next.id },
  });

  const rotating = await text('keys', 'rotate', next.id, '--overlap', '0', ...WHY);
  t.is(await state(next.api_key), 'inactive', 'without an overlap at once');
  t.is(await state(API_KEY.exec(rotating)?.[0] ?? ''), 'active');
});

test('an operator can set the rate limit of an organization', async (t) => {
  const id = await createOrg();
  t.like(await json('limits', 'set', id, '--per-minute', '250', ...WHY), {
    requests_per_minute: 250,
  });
  t.like(await audited(id), { action: 'limits.set', details: { from: 100, to: 250 } });
  t.is((await operator('limits', 'set', id, '--per-minute', '0', ...WHY)).code, 2);
});

test('an operator can suspend and resume an organization, as "org" or "organization"', async (t) => {
  const id = await createOrg();
  for (const name of ['org', 'organization']) {
    t.like(await json(name, 'suspend', id, ...WHY), { id, suspended: true });
    t.like(await audited(id), { action: 'org.suspend', actor: 'tester', subject: id });
  }
  t.regex(await text('org', 'show', id), /^suspended +yes$/m);
  t.regex(await text('org', 'list'), new RegExp(`^${id} .*\\syes\\s`, 'm'));
  t.like(await json('org', 'resume', id, ...WHY), {
    suspended: false,
    webhooks_suspended: false,
  });
  t.like(await audited(id), { action: 'org.resume', details: { from: true, to: false } });
  t.regex(await text('org', 'show', id), /^suspended +no$/m);
  t.is((await operator('org', 'suspend', id)).code, 2, 'without a reason');
});

test('a leaked key is reactivated only with --yes', async (t) => {
  const id = await createOrg();
  const issued = await json<{ id: string }>('keys', 'issue', id, '--name', 'k', ...WHY);
  t.like(await json('keys', 'revoke', issued.id, '--leaked', ...WHY), {
    state: 'revoked',
    leaked: true,
  });
  t.like(await audited(id), { action: 'keys.revoke', details: { leaked: true } });
  const refused = await operator('keys', 'reactivate', issued.id, ...WHY);
  t.deepEqual([refused.code, refused.stdout], [2, '']);
  t.regex(refused.stderr, /^operator: .*leaked.*--yes.*\n$/);
  t.like(await audited(id), { action: 'keys.revoke' });
  t.like(await json('keys', 'reactivate', issued.id, '--yes', ...WHY), {
    state: 'active',
    leaked: false,
  });
  t.like(await audited(id), { action: 'keys.reactivate', details: { leaked: true } });
});

test('an operator can suspend and resume the webhooks of an organization', async (t) => {
  const id = await createOrg();
  t.like(await json('webhooks', 'suspend', id, ...WHY), { webhooks_suspended: true });
  t.like(await audited(id), { action: 'webhooks.suspend' });
  t.regex(await text('org', 'show', id), /^webhooks suspended +yes$/m);
  t.like(await json('webhooks', 'resume', id, ...WHY), { webhooks_suspended: false });
  t.like(await audited(id), { action: 'webhooks.resume' });
});

test('batch show prints vendor responses and webhook attempts, and masks emails', async (t) => {
  const [found, open] = ['2000000111', '2000000129'];
  const email = 'jane.roe@clinic.example';
  await storeEmail(db, {
    npi: found,
    email,
  });
  const organization = await openOrganization(db, 10);
  const url = 'https://hooks.example/in?token=sesame';
  const command = submitCommand(organization, {
    npis: [found, open],
    webhook: { url, mode: 'batch' },
    customData: '{"note":"between us"}',
  });
  const { batchId, requestIds } = acceptedIds(await submit(db, command, RULES));
  const requestId = requestIds[1] ?? '';
  const step = await beginVendorStep(db, {
    ...{
      requestId,
      vendor: 'rocketreach',
      mayRepeat: false,
      callMs: 1000,
      freshnessMs: RULES.freshnessMs,
    },
    ...{ limits: { rates: [], dailyCredits: null }, cost: () => 1, patienceMs: 0 },
  });
  if (step.kind !== 'ask') throw new Error(`the first step is ${step.kind}`);
  const miss = {
    state: 'miss',
    reason: 'no profile',
    credits: 0,
    named: null,
    freshnessMs: RULES.freshnessMs,
  } as const;
  await recordVendorResponse(db, step.key, { ...miss, outcome: { kind: 'responded' } });
  await settle(db, requestId, 'finished', 'no vendor knows one', RULES);
  const [pending] = (
    await json<{ deliveries: { id: string }[] }>('batch', 'show', batchId)
  ).deliveries;
  const responseExcerpt = Buffer.from(`\u001b[2J${email}`);
  await logAttempt(db, pending?.id ?? '', 500, 'pending', {
    durationMs: 42,
    responseExcerpt,
  });

  const shown = await json('batch', 'show', batchId);
  t.like(shown, {
    id: batchId,
    status: 'completed',
    completed_count: 2,
    webhook_url: 'https://hooks.example/***',
    requests: [
      {
        npi: found,
        status: 'completed',
        email: 'j***@clinic.example',
        credits_used: 1,
        vendor_attempts: [],
      },
      {
        npi: open,
        status: 'not_found',
        email: null,
        reason: 'no vendor knows one',
        credits_used: 0,
        vendor_attempts: [
          { vendor: 'rocketreach', n: 1, state: 'miss', reason: 'no profile' },
        ],
      },
    ],
    deliveries: [
      {
        request_id: null,
        state: 'pending',
        attempts: [{ n: 1, duration_ms: 42, status_code: 500 }],
      },
    ],
  });
  const hidden = `${JSON.stringify(shown)}${await text('batch', 'show', batchId)}`;
  for (const secret of [email, 'jane', 'sesame', 'between us'])
    t.false(hidden.includes(secret), secret);
  t.regex(hidden, /rocketreach +1 +miss +no profile/);

  const revealed = await text('batch', 'show', batchId, '--reveal', ...WHY);
  t.true(revealed.includes(email) && revealed.includes(url));
  t.false(
    revealed.includes('\u001b'),
    'what a receiver returns does not reach the terminal as it is',
  );
  t.like(await json('batch', 'show', batchId, '--reveal', ...WHY), {
    requests: [{ email }, { email: null }],
  });
});

test('the audit log of all organizations is listed, newest first', async (t) => {
  const first = await createOrg('first');
  const second = await createOrg('second');
  const subjects = (await json<Audited[]>('audit', 'list', '--limit', '1000')).map(
    ({ subject }) => subject,
  );
  t.true(subjects.includes(first));
  t.true(subjects.indexOf(second) < subjects.indexOf(first));
  t.true(
    (await json<Audited[]>('audit', 'list', first)).every(
      ({ subject }) => subject === first,
    ),
  );
  t.regex(await text('audit', 'list', first), /org\.create +org_\w+ +tester/);
});

test('a change is rolled back if it cannot be recorded in the audit log', async (t) => {
  const { organizationId, keyId, apiKey } = await openOrganization(db, 10);
  const shown = async () => [
    await showOrganization(db, organizationId),
    await showWebhookSecret(db, organizationId),
    await listKeys(db, organizationId),
    (await listOrganizations(db)).filter(({ name }) => name === 'Unrecorded'),
  ];
  const before = await shown();
  const nobody = { actor: '', reason: 'a test' };
  const changes = {
    create: createOrganization(db, nobody, 'Unrecorded'),
    grant: grantCredits(db, nobody, organizationId, 5, 'unrecorded'),
    adjust: adjustCredits(db, nobody, organizationId, -5),
    limit: setLimit(db, nobody, organizationId, 5),
    suspend: suspendWebhooks(db, nobody, organizationId, true),
    'suspend all': suspendOrganization(db, nobody, organizationId, true),
    secret: rotateWebhookSecret(db, nobody, organizationId),
    issue: issueKey(db, nobody, organizationId, 'k'),
    rotate: rotateKey(db, nobody, keyId, 0),
    revoke: revokeKey(db, nobody, keyId),
    reactivate: reactivateKey(db, nobody, keyId),
  };
  for (const [name, change] of Object.entries(changes)) {
    await t.throwsAsync(change, { code: '23514', instanceOf: DatabaseError }, name);
  }
  t.deepEqual(await shown(), before);
  t.is((await authenticate(db, parseApiKey(apiKey) ?? Buffer.alloc(0))).kind, 'active');
});

test('the actor in the audit log is by default the user of the operating system', async (t) => {
  const { id } = await json<{ id: string }>('org', 'create', 'x', '--reason', 'y');
  t.is((await audited(id))?.actor, userInfo().username);
});

test('the operator command rejects a change without a reason', async (t) => {
  const id = await createOrg();
  for (const given of [
    [],
    ['--reason', ''],
    ['--reason', '   '],
    ['--reason', 'x'.repeat(1001)],
  ]) {
    const { code, stdout, stderr } = await operator(
      'credits',
      'grant',
      id,
      '5',
      '--reference',
      'x',
      ...given,
    );
    t.is(code, 2);
    t.is(stdout, '');
    t.regex(stderr, /--reason/);
  }
  t.like(await balanceOf(db, id), { total: 0 });
});

test('an unknown id is reported in one sentence, with exit code 1', async (t) => {
  const [org, key, batch] = [newId('org'), newId('key'), newId('bat')];
  const commands: [string, string[]][] = [
    [org, ['org', 'show', org]],
    [org, ['credits', 'grant', org, '5', '--reference', 'x', ...WHY]],
    [org, ['credits', 'ledger', org]],
    [org, ['keys', 'issue', org, '--name', 'k', ...WHY]],
    [org, ['keys', 'list', org]],
    [org, ['limits', 'set', org, '--per-minute', '5', ...WHY]],
    [org, ['webhook-secret', 'show', org, ...WHY]],
    [org, ['webhook-secret', 'rotate', org, ...WHY]],
    [org, ['webhooks', 'suspend', org, ...WHY]],
    [org, ['audit', 'list', org]],
    [key, ['keys', 'rotate', key, ...WHY]],
    [key, ['keys', 'revoke', key, ...WHY]],
    [key, ['keys', 'reactivate', key, ...WHY]],
    [batch, ['batch', 'show', batch]],
  ];
  for (const [id, args] of commands) {
    const { code, stdout, stderr } = await operator(...args);
    const name = args.slice(0, 2).join(' ');
    t.is(code, 1, name);
    t.is(stdout, '', name);
    t.regex(
      stderr,
      new RegExp(`^operator: unknown (organization|key|batch) ${id}.*\n$`),
      name,
    );
  }
});

test('if an API key is given instead of its id, the error does not print it', async (t) => {
  const id = await createOrg();
  const { api_key: apiKey } = await json<{ api_key: string }>(
    'keys',
    'issue',
    id,
    '--name',
    'k',
    ...WHY,
  );
  const { code, stderr } = await operator('keys', 'revoke', apiKey, ...WHY);
  t.is(code, 1);
  t.false(stderr.includes(apiKey));
  t.regex(stderr, /unknown key \(an id looks like key_/);
});

test('the error about an unreachable database has its host and port but no password', async (t) => {
  const url = 'postgres://somebody:hunter2@127.0.0.1:1/x';
  const { code, stdout, stderr } = await operatorOn(url).operator('org', 'list');
  t.is(code, 1);
  t.is(stdout, '');
  t.regex(
    stderr,
    /^operator: cannot reach PostgreSQL at 127\.0\.0\.1:1 \(ECONNREFUSED\).*DATABASE_URL.*\n$/,
  );
  t.notRegex(stderr, /hunter2|somebody/);
});

test('if the connection breaks during a change, the error refers to the audit log', (t) => {
  for (const code of ['CONNECTION_CLOSED', 'client_deadline', '57P01']) {
    const sentence = explain(
      new DatabaseError(code),
      [],
      'postgres://u:hunter2@db.example/x',
      'changing',
    );
    t.regex(
      sentence,
      /^lost the connection to PostgreSQL at db\.example:5432 .*"audit list" shows whether/,
    );
    t.notRegex(sentence, /hunter2/);
  }
});

test('the error about a database without tables says to run the migrations', async (t) => {
  const url = new URL(database.url);
  url.pathname = '/postgres';
  const { code, stderr } = await operatorOn(url.href).operator('org', 'list');
  t.is(code, 1);
  t.regex(stderr, /npm run migrate/);
});

test('the error about a missing DATABASE_URL names that setting', async (t) => {
  const { code, stdout, stderr } = await spawned(['org', 'list'], '');
  t.deepEqual([code, stdout], [1, '']);
  t.regex(stderr, /^operator: .*\n +DATABASE_URL is missing\n$/);
});

test('the operator command prints JSON or a table on stdout, and errors on stderr', async (t) => {
  const args = ['--json', 'org', 'create', 'Acme', '--reason', 'a test'];
  const created = await operator(...args);
  t.deepEqual([created.code, created.stderr], [0, '']);
  const { id } = JSON.parse(created.stdout) as { id: string };
  const granted = await spawned(['credits', 'adjust', id, '25', ...WHY]);
  t.deepEqual([granted.code, granted.stderr], [0, '']);
  t.regex(granted.stdout, /^available +25$/m);
  t.false(granted.stdout.includes('\u001b'), 'colors in a pipe');
  const taken = await spawned(['credits', 'adjust', id, '-26', ...WHY]);
  t.deepEqual([taken.code, taken.stdout], [1, '']);
  t.regex(taken.stderr, /^operator: [^\n]+\n$/);
  const wrong = await operator('credits', 'grant', id, '-5', '--reference', 'x', ...WHY);
  t.deepEqual([wrong.code, wrong.stdout], [2, '']);
});

test('wrong usage has exit code 2, and the error says how to get help', async (t) => {
  for (const args of [
    [],
    ['nope'],
    ['org'],
    ['org', 'show'],
    ['org', 'list', 'extra'],
    ['org', 'list', '--bogus'],
    ['keys', 'issue', 'org_x', ...WHY],
    ['keys', 'rotate', 'key_x', '--overlap', 'soon', ...WHY],
    ['credits', 'ledger', 'org_x', '--limit', '0'],
    ['usage', '--since', '1d', '--until', '2d'],
    ['usage', '--until', '31d'],
    ['lookups', 'forget', '--since', '1h', '--until', '2h', ...WHY],
    ['org', 'create', 'two\nlines', ...WHY],
  ]) {
    const { code, stdout, stderr } = await operator(...args);
    t.is(code, 2, args.join(' '));
    t.is(stdout, '', args.join(' '));
    t.regex(stderr, /help/, args.join(' '));
  }
});

test('with --json, an error is JSON on the last line of stderr', async (t) => {
  for (const [args, exitCode, code, message] of [
    [['org', 'show', 'nobody'], 1, 'organization_missing', /^unknown organization/],
    [['org', 'list', '--limit', '0'], 2, 'usage', /'--limit <N>'/],
    [['org'], 2, 'usage', /--help/],
  ] as const) {
    const ended = await operator(...args, '--json');
    t.deepEqual([ended.code, ended.stdout], [exitCode, '']);
    const { error } = JSON.parse(ended.stderr) as { error: Record<string, string> };
    t.is(error.code, code);
    t.regex(error.message ?? '', message);
    t.is(ended.stderr.split('\n').length, 2);
  }
  const away = await operatorOn('postgres://u:p@127.0.0.1:1/x').operator(
    '--json',
    'vendors',
  );
  t.is(away.code, 1);
  t.is(JSON.parse(away.stderr).error.code, 'database_unavailable');
});

test('help is wrapped at 80 characters in a pipe', async (t) => {
  for (const args of [[], ['import', 'emails'], ['webhooks', 'block']]) {
    const { stdout } = await operator(...args, '--help');
    const long = stdout.split('\n').filter((line) => line.length > 80);
    t.deepEqual(long, []);
  }
});

test('the help of the operator command needs no database and shows examples', async (t) => {
  let stdout = '';
  const code = await runOperator(['--help'], {
    config: () => {
      throw new Error('the help needs no configuration');
    },
    stdout: (text) => (stdout += text),
    stderr: (text) => t.fail(text),
  });
  t.is(code, 0);
  t.regex(stdout, /Examples:\n +npm run operator -- org create/);
  t.regex((await operator('batch', 'show', '--help')).stdout, /--reveal/);
  t.regex((await operator('privacy', 'erase', '--help')).stdout, /\(default: now\)/);
});

test('the operator command does not crash if its output goes to a closed pipe', async (t) => {
  await createOrg();
  t.deepEqual(await spawned(['org', 'list'], database.url, false), {
    code: 0,
    stdout: '',
    stderr: '',
  });
});
