import test from 'ava';
import { sql } from 'drizzle-orm';
import { type AuditRecord, listAudit } from '../../db/operations/audit.ts';
import { hashAddress } from '../../db/privacy/suppressions.ts';
import { inspectBatch } from '../../db/requests/inspect.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import { operatorOn, spawnOperator, WHY } from '../support/operator.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests that reading secrets or personal data is audited, and that personal data can stay off
// command lines.

const NPI = '2000010010';
const EMAIL = 'jane.roe@clinic.example';

const { db, url } = freshDatabase(test);
/** Commands that show secrets or personal data, and the audit record of each. */
let readings: readonly (readonly [
  args: readonly string[],
  record: Partial<AuditRecord>,
])[];

test.before(async () => {
  await storeEmail(db, { npi: NPI, email: EMAIL });
  const organization = await openOrganization(db, 10);
  const { organizationId } = organization;
  const webhook = { url: 'https://hooks.example/?token=sesame', mode: 'batch' } as const;
  const command = submitCommand(organization, { npis: [NPI], webhook });
  const { batchId, requestIds } = acceptedIds(await submit(db, command, RULES));
  const requestId = requestIds[0] ?? '';
  const [delivery] = (await inspectBatch(db, batchId)).deliveries;
  const deliveryId = delivery?.id ?? '';
  const revealed = (action: string, subject: string) => ({
    action,
    organizationId,
    subject,
  });
  readings = [
    [
      ['webhook-secret', 'show', organizationId],
      revealed('webhook-secret.show', organizationId),
    ],
    [['batch', 'show', batchId, '--reveal'], revealed('batch.reveal', batchId)],
    [['explain', requestId, '--reveal'], revealed('explain.reveal', requestId)],
    [
      ['explain', NPI, '--reveal'],
      { action: 'explain.reveal', organizationId: null, subject: NPI },
    ],
    [
      ['webhooks', 'show', deliveryId, '--reveal'],
      revealed('webhooks.reveal', deliveryId),
    ],
    [
      ['webhooks', 'list', '--organization', organizationId, '--reveal'],
      revealed('webhooks.reveal', organizationId),
    ],
    [
      ['webhooks', 'list', '--reveal'],
      { action: 'webhooks.reveal', organizationId: null, subject: 'all' },
    ],
    [
      ['privacy', 'export', NPI],
      { action: 'privacy.export', organizationId: null, subject: NPI },
    ],
    [
      ['privacy', 'export', EMAIL],
      { action: 'privacy.export', subject: hashAddress(EMAIL) },
    ],
  ];
});

const HIDDEN = /whsec_|sesame|jane\.roe@/;

test.serial(
  'an operator needs a reason to read secrets or personal data, which is audited',
  async (t) => {
    const { operator } = operatorOn(url);
    for (const [args, record] of readings) {
      const name = args.join(' ');
      const before = (await listAudit(db, null, 1000)).length;
      const refused = await operator(...args);
      t.deepEqual([refused.code, refused.stdout], [2, ''], name);
      t.regex(refused.stderr, /--reason/, name);
      t.is((await listAudit(db, null, 1000)).length, before, name);

      const shown = await operator(...args, ...WHY);
      t.deepEqual([shown.code, shown.stderr], [0, ''], name);
      t.regex(shown.stdout, HIDDEN, name);
      const [newest, ...others] = await listAudit(db, null, 1000);
      t.is(others.length, before, name);
      t.like(newest, { ...record, actor: 'tester', reason: 'a test' }, name);
      t.notRegex(JSON.stringify(newest), HIDDEN, name);
    }
  },
);

test.serial(
  'personal data is not shown if the audit log cannot record that',
  async (t) => {
    const { operator } = operatorOn(url);
    await db.drizzle.execute(sql`create trigger full_disk before insert on audit_log
    for each row execute function refuse_change()`);
    for (const [args] of readings) {
      const { code, stdout } = await operator(...args, ...WHY);
      t.deepEqual([code, stdout], [1, ''], args.join(' '));
    }
    await db.drizzle.execute(sql`drop trigger full_disk on audit_log`);
  },
);

test.serial(
  'a privacy export is rejected if its reason contains an email address',
  async (t) => {
    const { code, stdout } = await operatorOn(url).operator(
      'privacy',
      'export',
      NPI,
      '--reason',
      EMAIL,
    );
    t.deepEqual([code, stdout], [2, '']);
  },
);

test.serial(
  'an email address can be read from stdin, to keep it off the command line',
  async (t) => {
    const given = (...args: string[]) =>
      spawnOperator(url, [...args, '-', ...WHY], `${EMAIL}\n`);
    const exported = await given('privacy', 'export');
    t.deepEqual([exported.code, exported.stderr], [0, '']);
    t.like(JSON.parse(exported.stdout), {
      subject: { email: EMAIL },
      stored_emails: [{ npi: NPI }],
    });
    t.is((await given('suppress', 'add')).code, 0);
    t.is((await given('suppress', 'remove')).code, 0);
    t.regex((await given('privacy', 'erase', '--yes')).stdout, /^stored emails +1$/m);

    const nothing = await spawnOperator(
      url,
      ['privacy', 'erase', '-', '--yes', ...WHY],
      'jane at clinic',
    );
    t.deepEqual([nothing.code, nothing.stdout], [2, '']);
    t.notRegex(nothing.stderr, /jane/);
  },
);
