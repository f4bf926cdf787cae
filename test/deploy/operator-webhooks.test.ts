import test from 'ava';
import { sql } from 'drizzle-orm';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import { newId } from '../../db/connection/ids.ts';
import { listAudit } from '../../db/operations/audit.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { listDeliveriesToLookAt } from '../../db/webhooks/due.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  BY,
  type Organization,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';

// Tests `webhooks`, with which operators see deliveries and send them again. No worker runs here,
// so resent deliveries stay as the command left them.

const URL_TEXT = 'https://hooks.example.com/in?token=sesame';
const NPI = '1000000010';

const database = freshDatabase(test);
const { db } = database;
let command: ReturnType<typeof operatorOn>;

test.before(async () => {
  command = operatorOn(database.url);
});

interface Listed {
  readonly id: string;
  readonly organization_id: string;
  readonly batch_id: string;
  readonly state: string;
  readonly url: string;
  readonly last_reason: string | null;
}

/** Submits with a webhook in real-time mode, and settles all requests unless `settled` is false. */
async function submitted(organization: Organization, count = 1, settled = true) {
  const npis: string[] = Array(count).fill(NPI);
  const webhook = { url: URL_TEXT, mode: 'real-time' as const };
  const { batchId, requestIds } = await submitAccepted(db, organization, {
    npis,
    webhook,
  });
  for (const requestId of settled ? requestIds : [])
    await settle(db, requestId, 'failed', 'test', RULES);
  const rows = await db.drizzle.execute<{ id: string }>(
    sql`select id from webhook_deliveries where batch_id = ${batchId} order by id`,
  );
  return { batchId, ids: rows.map(({ id }) => id) };
}

/** Makes the deliveries of a batch look as if their last attempt failed that long ago. */
async function fail(batchId: string, hoursAgo = 0): Promise<void> {
  await db.drizzle.execute(sql`
    update webhook_deliveries set state = 'failed', attempts = 1, step_at = null, due_at = null,
           decided_at = clock_timestamp() - make_interval(hours => ${hoursAgo}) where batch_id = ${batchId}`);
  await db.drizzle.execute(sql`
    insert into webhook_attempts (delivery_id, n, started_at, duration_ms, status_code, reason, response_excerpt)
    select id, 1, decided_at, 17, 410, 'http_status', convert_to(E'secret reply\x1b[2J', 'UTF8')
      from webhook_deliveries where batch_id = ${batchId}`);
}

async function failed(organization: Organization, count = 1, hoursAgo = 0) {
  const delivery = await submitted(organization, count);
  await fail(delivery.batchId, hoursAgo);
  return delivery;
}

/** Makes the deliveries of a batch wait an hour for their next attempt. */
async function wait(batchId: string): Promise<void> {
  await db.drizzle.execute(sql`
    update webhook_deliveries set step = 1, due_at = clock_timestamp() + interval '1 hour',
           checked_at = clock_timestamp() where batch_id = ${batchId}`);
}

async function statesOf(batchId: string): Promise<string[]> {
  const rows = await db.drizzle.execute<{ state: string }>(
    sql`select state from webhook_deliveries where batch_id = ${batchId} order by id`,
  );
  return rows.map(({ state }) => state);
}

async function auditedResends(organizationId: string) {
  const lines = await command.json<
    { action: string; actor: string; reason: string; subject: string }[]
  >(...['audit', 'list', organizationId]);
  return lines.filter(({ action }) => action === 'webhooks.resend');
}

test('operators can list and filter deliveries, newest first, with masked URLs', async (t) => {
  const [one, other] = [await openOrganization(db, 10), await openOrganization(db, 10)];
  const old = await failed(one);
  const pending = await submitted(one);
  const foreign = await failed(other);
  await db.drizzle.execute(sql`
    update webhook_deliveries set created_at = created_at - interval '2 days' where batch_id = ${old.batchId}`);
  const list = (...args: string[]) => command.json<Listed[]>('webhooks', 'list', ...args);
  const idsOf = async (...args: string[]) => (await list(...args)).map(({ id }) => id);
  const own = ['--organization', one.organizationId];
  t.deepEqual(await idsOf(...own), [...pending.ids, ...old.ids]);
  const everybodys = await idsOf('--limit', '1000');
  t.true(
    [...foreign.ids, ...pending.ids, ...old.ids].every((id) => everybodys.includes(id)),
  );
  t.deepEqual(await idsOf(...own, '--limit', '1'), pending.ids);
  t.deepEqual(await idsOf(...own, '--state', 'failed'), old.ids);
  t.deepEqual(await idsOf(...own, '--since', '24h'), pending.ids);
  t.deepEqual(await idsOf(...own, '--since', '2020-01-01T00:00Z'), [
    ...pending.ids,
    ...old.ids,
  ]);
  t.like(await list(...own, '--state', 'failed'), [
    {
      batch_id: old.batchId,
      state: 'failed',
      url: 'https://hooks.example.com/***',
      last_reason: 'http_status',
    },
  ]);
  t.is((await list(...own, '--reveal', ...WHY))[0]?.url, URL_TEXT);
  const text = await command.text('webhooks', 'list', ...own);
  t.regex(text, /^ID +STATE +ATTEMPTS +LAST REASON/);
  t.false(text.includes('sesame'));
});

test('webhooks show prints the attempts of a delivery, and its URL only with --reveal', async (t) => {
  const { ids, batchId } = await failed(await openOrganization(db, 10));
  const [id = ''] = ids;
  const masked = await command.text('webhooks', 'show', id);
  t.regex(masked, /^state +failed$/m);
  t.regex(masked, /^attempts +1$/m);
  t.regex(masked, /^1 +\S+Z +17 +410 +http_status$/m);
  t.false(masked.includes('sesame') || masked.includes('secret'));
  const revealed = await command.text('webhooks', 'show', id, '--reveal', ...WHY);
  t.true(revealed.includes(URL_TEXT));
  // Contains no characters that would move a terminal's cursor.
  t.true(revealed.includes('secret reply\\u001b[2J'));
  t.like(await command.json('webhooks', 'show', id), {
    id,
    batch_id: batchId,
    state: 'failed',
    resends: 0,
  });
  for (const unknown of [newId('msg'), 'npe_key']) {
    const { code, stdout, stderr } = await command.operator('webhooks', 'show', unknown);
    t.deepEqual([code, stdout], [1, '']);
    t.regex(stderr, /^operator: unknown delivery .*webhook-id.*\n$/);
    t.false(stderr.includes('npe_key'));
  }
});

test('resending by id is audited, and ids that cannot be resent are reported', async (t) => {
  const organization = await openOrganization(db, 10);
  const { ids, batchId } = await failed(organization, 2);
  const [first = '', second = ''] = ids;
  const open = await submitAccepted(db, organization, {
    npis: [NPI],
    webhook: { url: URL_TEXT, mode: 'batch' },
  });
  const [waiting] = await db.drizzle.execute<{ id: string }>(
    sql`select id from webhook_deliveries where batch_id = ${open.batchId}`,
  );
  t.regex(
    await command.text('webhooks', 'resend', first, ...WHY),
    /^msg_\S+ +pending: the sweep starts it/m,
  );
  t.deepEqual(await statesOf(batchId), ['pending', 'failed']);
  t.like(await auditedResends(organization.organizationId), [
    { subject: first, actor: 'tester', reason: 'a test' },
  ]);
  t.like(await command.json('webhooks', 'show', first), {
    id: first,
    state: 'pending',
    resends: 1,
  });

  const strange = newId('msg');
  const some = await command.operator(
    ...['webhooks', 'resend', second, waiting?.id ?? '', strange, ...WHY, '--json'],
  );
  t.is(some.code, 1);
  t.deepEqual(JSON.parse(some.stdout), [
    { delivery: second, outcome: 'resent' },
    { delivery: waiting?.id, outcome: 'pending' },
    { delivery: strange, outcome: 'unknown' },
  ]);
  t.deepEqual(await statesOf(batchId), ['pending', 'pending']);
  t.is((await auditedResends(organization.organizationId)).length, 2);
});

test('operators cannot resend while webhooks are suspended, but they can afterwards', async (t) => {
  const organization = await openOrganization(db, 10);
  const { organizationId } = organization;
  const { ids } = await failed(organization);
  await suspendWebhooks(db, BY, organizationId, true);
  const [never, open] = [
    await submitted(organization),
    await submitted(organization, 1, false),
  ];
  const resend = (id = '') => command.operator('webhooks', 'resend', id, ...WHY);
  for (const id of [...ids, ...never.ids]) {
    const { code, stdout } = await resend(id);
    t.is(code, 1);
    t.regex(
      stdout.replace(/\s+/g, ' '),
      /not resent: webhooks of its organization are suspended/,
    );
  }
  const all = [
    'webhooks',
    'resend',
    '--failed',
    '--organization',
    organizationId,
    '--since',
    '1h',
    ...WHY,
  ];
  for (const given of [all, [...all, '--dry-run']]) {
    const refused = await command.operator(...given);
    t.is(refused.code, 1);
    t.regex(
      refused.stderr,
      /^operator: webhooks of this organization are suspended.*"webhooks resume ORG"/,
    );
  }
  await command.text('webhooks', 'resume', organizationId, ...WHY);
  t.is((await resend(never.ids[0])).code, 0);
  t.deepEqual(await statesOf(never.batchId), ['pending']);
  t.regex(
    (await resend(open.ids[0])).stdout.replace(/\s+/g, ' '),
    /not resent: it is already under way, or its result/,
  );
  t.deepEqual(await statesOf(open.batchId), ['none']);
});

test("resend --failed sends an organization's failed deliveries since a time again", async (t) => {
  const [one, other] = [await openOrganization(db, 1000), await openOrganization(db, 10)];
  const recent = await failed(one, 3);
  const old = await failed(one, 1, 5);
  const foreign = await failed(other);
  const done = await submitted(one);
  await db.drizzle.execute(sql`update webhook_deliveries set state = 'delivered', decided_at = clock_timestamp(),
    step_at = null, due_at = null where batch_id = ${done.batchId}`);
  const all = (since: string) => [
    ...['webhooks', 'resend', '--failed', '--organization', one.organizationId],
    ...['--since', since, ...WHY],
  ];
  t.regex(await command.text(...all('2h')), /^resent +3\n\nThe workers start them/m);
  t.deepEqual(await statesOf(recent.batchId), ['pending', 'pending', 'pending']);
  for (const { batchId } of [old, foreign])
    t.deepEqual(await statesOf(batchId), ['failed']);
  t.deepEqual(await statesOf(done.batchId), ['delivered']);
  t.like(await auditedResends(one.organizationId), [
    {
      subject: one.organizationId,
      actor: 'tester',
      reason: 'a test',
      details: { resent: 3 },
    },
  ]);
  t.like(await command.json(...all('2h')), {
    organization_id: one.organizationId,
    resent: 0,
  });
  t.regex(
    await command.text(...all('2h')),
    /^resent +0\n\nNothing has failed since then: there is nothing to send\.$/m,
  );
  const moment = new Date(Date.now() - 6 * 3_600_000).toISOString();
  t.like(await command.json(...all(moment)), { resent: 1 });
});

test('with --dry-run, resend --failed and retry --due only count deliveries', async (t) => {
  const organization = await openOrganization(db, 1000);
  const { organizationId } = organization;
  const gone = await failed(organization, 2);
  const later = await submitted(organization);
  await wait(later.batchId);
  const of = ['--organization', organizationId, '--dry-run', ...WHY];
  const resend = ['webhooks', 'resend', '--failed', '--since', '1h'];
  t.like(await command.json(...resend, ...of), { failed: 2, resent: 0 });
  const retry = ['deliveries', 'retry', '--due'];
  t.like(await command.json(...retry, ...of), { waiting: 1, hastened: 0 });
  t.deepEqual(await statesOf(gone.batchId), ['failed', 'failed']);
  t.deepEqual(await auditedResends(organizationId), []);
  t.like(await command.json('webhooks', 'show', later.ids[0] ?? ''), { resends: 0 });
});

test('retry --due makes waiting deliveries due, except those of suspended organizations', async (t) => {
  const organization = await openOrganization(db, 1000);
  const { organizationId } = organization;
  const later = await submitted(organization, 2);
  await wait(later.batchId);
  const [id = ''] = (await submitted(organization)).ids;
  const suspended = await openOrganization(db, 10);
  const held = await submitted(suspended);
  await wait(held.batchId);
  await suspendWebhooks(db, BY, suspended.organizationId, true);

  const retry = ['deliveries', 'retry', '--due', '--organization'];
  t.regex(
    await command.text(...retry, organizationId, ...WHY),
    /^hastened +2\n\nThe workers start them/m,
  );
  t.like(await command.json(...retry, organizationId, ...WHY), { hastened: 0 });
  t.like(await command.json(...retry, suspended.organizationId, ...WHY), { hastened: 0 });
  const due = await listDeliveriesToLookAt(db, 0, 0, 1000);
  const rounds = later.ids.map((one) => due.find((d) => d.deliveryId === one)?.round);
  t.deepEqual(rounds, ['new', 'new']);
  t.is(due.find((d) => d.deliveryId === id)?.round, 'first');
  const [entry] = await listAudit(db, organizationId, 1);
  t.like(entry, { action: 'webhooks.retry', details: { hastened: 2 } });
});

test.serial(
  'many deliveries are resent in several small transactions, each exactly once',
  async (t) => {
    const organization = await openOrganization(db, 1000);
    const { organizationId } = organization;
    for (let n = 0; n < 9; n += 1) {
      const { batchId } = await submitted(organization, 60, false);
      await fail(batchId);
    }
    // The deliveries fail again before the command ends. The trigger affects all organizations, but
    // no other test runs now.
    await db.drizzle.execute(sql`
    create function fail_again() returns trigger language plpgsql as $$
    begin
      new.state := 'failed'; new.decided_at := clock_timestamp(); new.step_at := null; new.due_at := null;
      return new;
    end $$`);
    await db.drizzle.execute(
      sql.raw(`create trigger fail_again before update of state on webhook_deliveries for each row
      when (new.state = 'pending' and current_setting('application_name') = 'operator')
      execute function fail_again()`),
    );
    const { code, stdout, stderr } = await command.operator(
      ...[
        'webhooks',
        'resend',
        '--failed',
        '--organization',
        organizationId,
        '--since',
        '1h',
        ...WHY,
        '--json',
      ],
    );
    await db.drizzle.execute(sql`drop trigger fail_again on webhook_deliveries`);
    t.is(code, 0);
    t.like(JSON.parse(stdout), { resent: 540 });
    // Progress is on stderr, so that stdout has only the document.
    t.is(stderr, '500 deliveries resent, more to come\n');
    const rounds = await db.drizzle.execute<{
      state: string;
      resends: number;
      n: number;
    }>(sql`
    select d.state, d.resends, count(*) as n from webhook_deliveries d join batches b on b.id = d.batch_id
     where b.organization_id = ${organizationId} group by d.state, d.resends`);
    t.deepEqual([...rounds], [{ state: 'failed', resends: 1, n: 540 }]);
  },
);

test('a resend with incomplete arguments is wrong usage and resends nothing', async (t) => {
  const organization = await openOrganization(db, 10);
  const { ids, batchId } = await failed(organization);
  const org = ['--organization', organization.organizationId];
  for (const args of [
    [],
    ['--failed'],
    ['--failed', ...org],
    ['--failed', '--since', '24h'],
    ['--failed', ...org, '--since', '24h', ...ids],
    [...ids, ...org],
    [...ids, '--since', '24h'],
    [...ids, '--dry-run'],
  ]) {
    const { code, stdout, stderr } = await command.operator(
      'webhooks',
      'resend',
      ...args,
      ...WHY,
    );
    t.deepEqual([code, stdout], [2, ''], args.join(' '));
    t.regex(stderr, /give delivery ids, or --failed with --organization and --since/);
  }
  const soon = new Date(Date.now() + 3_600_000).toISOString();
  for (const since of [
    'yesterday',
    '24',
    '2026-11-20',
    '2026-11-20T00:00',
    '2026-13-01T00:00Z',
    '-1h',
    soon,
  ]) {
    const { code, stderr } = await command.operator(
      ...['webhooks', 'resend', '--failed', ...org, `--since=${since}`, ...WHY],
    );
    t.is(code, 2, since);
    t.regex(stderr, /a time ago, such as 24h, or a past moment/);
  }
  t.is(
    (await command.operator('webhooks', 'resend', ...ids)).code,
    2,
    'without a reason',
  );
  t.is((await command.operator('webhooks', 'list', '--state', 'lost')).code, 2);
  t.deepEqual(await statesOf(batchId), ['failed']);
});

test('a resend for an unknown organization fails and names the organization', async (t) => {
  const unknown = newId('org');
  for (const args of [
    ['list', '--organization', unknown],
    ['resend', '--failed', '--organization', unknown, '--since', '24h', ...WHY],
  ]) {
    const { code, stderr } = await command.operator('webhooks', ...args);
    t.is(code, 1);
    t.true(stderr.startsWith(`operator: unknown organization ${unknown}`), stderr);
  }
});

interface Unconfirmed {
  readonly blocked: boolean;
  readonly pending_deliveries: number;
  readonly hosts: number;
  readonly organizations: number;
}

test.serial(
  'blocking a wide range of webhook targets shows its effect and needs --yes',
  async (t) => {
    const pending = async (url: string) => {
      const organization = await openOrganization(db, 10);
      await submit(
        db,
        submitCommand(organization, { npis: [NPI], webhook: { url, mode: 'batch' } }),
        RULES,
      );
    };
    await pending('https://a.far-reach.com/in?token=sesame');
    await pending('https://user:word@b.far-reach.com:8443/');
    await pending('https://203.0.113.9/in');
    await pending('https://[2001:db8:77::9]/in');
    for (const [target, hosts] of [
      ['far-reach.com', 2],
      ['co.uk', 0],
      ['herokuapp.com', 0],
      ['203.0.112.0/23', 1],
      ['2001:db8::/32', 1],
    ] as const) {
      const { code, stdout } = await command.operator(
        'webhooks',
        'block',
        target,
        ...WHY,
        '--json',
      );
      t.is(code, 1, target);
      const told = JSON.parse(stdout) as Unconfirmed;
      t.like(
        told,
        { blocked: false, pending_deliveries: hosts, hosts, organizations: hosts },
        target,
      );
      const asText = await command.operator('webhooks', 'block', target, ...WHY);
      t.regex(asText.stdout, /Nothing was blocked: add --yes to block it\.\n$/);
      t.is(/: \d+ host names with pending/.test(asText.stdout), target.includes('/'));
    }
    for (const target of ['0.0.0.0/0', '::/0', 'com'])
      t.is((await command.operator('webhooks', 'block', target, ...WHY)).code, 1, target);
    const targets = async () =>
      (await command.json<{ target: string }[]>('webhooks', 'blocks')).map(
        ({ target }) => target,
      );
    t.deepEqual(await targets(), []);
    await command.text('webhooks', 'block', 'far-reach.com', '--yes', ...WHY);
    await command.text('webhooks', 'block', 'a.near.far-reach.com', ...WHY);
    await command.text('webhooks', 'block', '2001:db8:77::/48', ...WHY);
    t.is((await targets()).length, 3);
    for (const target of await targets())
      await command.text('webhooks', 'unblock', target, ...WHY);
  },
);

test.serial(
  'a webhook target can be blocked for all organizations, listed, and unblocked',
  async (t) => {
    const outcome = async (...args: string[]) =>
      (await command.json<{ outcome: string }>('webhooks', ...args, ...WHY)).outcome;
    t.is(await outcome('block', '198.51.100.0/24'), 'blocked');
    t.is(await outcome('block', 'Victim.Example.'), 'blocked');
    t.is(
      await outcome('block', 'victim.example'),
      'was blocked already; nothing was changed',
    );
    t.is(await outcome('block', '2001:DB8::1'), 'blocked');
    const targets = async () =>
      (await command.json<{ target: string }[]>('webhooks', 'blocks')).map(
        ({ target }) => target,
      );
    t.deepEqual(await targets(), [
      '2001:db8::1/128',
      'victim.example',
      '198.51.100.0/24',
    ]);
    t.regex(await command.text('webhooks', 'blocks'), /victim\.example +a test +\S+Z/);
    for (const bad of [
      'https://victim.example',
      'victim.example:8443',
      '198.51.100.0/33',
      'a b',
      '127.1',
      '',
    ])
      t.is((await command.operator('webhooks', 'block', bad, ...WHY)).code, 2, bad);
    for (const target of ['2001:db8::1', '198.51.100.0/24', 'victim.example'])
      t.is(await outcome('unblock', target), 'unblocked');
    t.is(
      await outcome('unblock', 'victim.example'),
      'was not blocked; nothing was changed',
    );
    t.deepEqual(await targets(), []);
    const lines = await command.json<{ action: string; subject: string }[]>(
      ...['audit', 'list', '--limit', '1000'],
    );
    t.deepEqual(
      lines
        .filter(({ subject }) => subject === 'victim.example')
        .map(({ action }) => action),
      ['webhooks.unblock', 'webhooks.block'],
    );
  },
);
