import test from 'ava';
import { type AuditRecord, listAudit } from '../../db/operations/audit.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import { openOrganization, openTestKey } from '../support/organization.ts';

// Tests `org low-credits`, with which operators set the alert `credits.low`.

const database = freshDatabase(test);
const { db } = database;
const { operator, json, text } = operatorOn(database.url);
const URL_TEXT = 'https://hooks.example.com/in?token=sesame';

async function newestAudit(organizationId: string): Promise<AuditRecord | undefined> {
  const [newest] = await listAudit(db, organizationId, 1);
  return newest;
}

test('an operator can set, show, and remove the alert of an organization', async (t) => {
  const { organizationId: id } = await openOrganization(db, 5);
  const command = ['org', 'low-credits', id];
  const set = await json(...command, '--below', '100', '--url', URL_TEXT, ...WHY);
  t.deepEqual(set, { organization_id: id, below: 100, host: 'hooks.example.com' });
  t.like(await newestAudit(id), {
    action: 'org.low-credits',
    details: { below: 100, host: 'hooks.example.com' },
  });
  const alert = { below: 100, url: 'https://hooks.example.com/***', sent_at: null };
  t.like(await json('org', 'show', id), { low_credit_alert: alert });
  t.notRegex(await text('audit', 'list', id), /sesame/);
  t.like(await json(...command, '--off', ...WHY), { below: null });
  t.like(await json('org', 'show', id), { low_credit_alert: null });
  t.like(await newestAudit(id), { details: { below: null, host: null } });
});

test('an alert with a forbidden URL, or without its URL or threshold, is rejected', async (t) => {
  const { organizationId: id } = await openOrganization(db, 5);
  const refused = async (...options: string[]) => {
    const { code, stdout } = await operator('org', 'low-credits', id, ...options, ...WHY);
    t.is(code, 2, options.join(' '));
    t.is(stdout, '');
  };
  for (const url of [
    'http://hooks.example.com/',
    'https://127.0.0.1/',
    'https://10.0.0.1/',
    'https://[::1]/',
    'https://localhost/',
    'https://vault.internal/',
    'https://user:word@hooks.example.com/',
    'hooks.example.com',
  ]) {
    await refused('--below', '100', '--url', url);
  }
  await refused();
  await refused('--below', '100');
  await refused('--url', URL_TEXT);
  await refused('--below', '0', '--url', URL_TEXT);
  await refused('--off', '--below', '100', '--url', URL_TEXT);
  t.like(await json('org', 'show', id), { low_credit_alert: null });
});

test('the command rejects a sandbox and says which organization to name', async (t) => {
  const { organizationId } = await openTestKey(db, await openOrganization(db, 0));
  const options = ['--below', '100', '--url', URL_TEXT, ...WHY];
  const { code, stderr } = await operator(
    'org',
    'low-credits',
    organizationId,
    ...options,
  );
  t.is(code, 1);
  t.regex(stderr, /name the organization that it belongs to/);
});
