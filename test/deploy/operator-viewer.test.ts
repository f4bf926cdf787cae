import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'ava';
import { inspectBatch } from '../../db/requests/inspect.ts';
import { submit } from '../../db/requests/submit.ts';
import { writeSample } from '../../deploy/local/sample.ts';
import { asRole, freshDatabase, temporaryFolder } from '../support/database.ts';
import { CLINICIAN_HEADER, clinicianLine } from '../support/employers.ts';
import { operatorOn, WHY } from '../support/operator.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests the operator command with the database role npe_viewer, which only reads. People in support
// use this role.

const NPI = '2000000010';
const EMAIL = 'jane.roe@clinic.example';
const URL_WITH_TOKEN = 'https://hooks.example/?token=sesame';

const { db, sql, url } = freshDatabase(test);
const { operator, listCommands } = operatorOn(url, 'viewer');
const folder = temporaryFolder(test.after.always);

const CLINICIANS = 'DAC_NationalDownloadableFile.csv';

/** Ids for the commands. Each exists, so that a command is not refused only because of its id. */
const ids = { org: '', key: '', batch: '', request: '', delivery: '' };
/** A download of NPPES. */
let sample: string;

test.before(async () => {
  process.env.DATABASE_URL = asRole(url, 'viewer');
  delete process.env.TEMPORAL_ADDRESS;
  await writeFile(join(folder, 'rows.csv'), `npi,email\n${NPI},${EMAIL}\n`);
  await writeFile(join(folder, CLINICIANS), CLINICIAN_HEADER + clinicianLine({ NPI }));
  sample = await writeSample(folder);
  await storeEmail(db, { npi: NPI, email: EMAIL });
  const organization = await openOrganization(db, 10);
  const webhook = { url: URL_WITH_TOKEN, mode: 'batch' } as const;
  const command = submitCommand(organization, { npis: [NPI], webhook });
  const { batchId, requestIds } = acceptedIds(await submit(db, command, RULES));
  const [delivery] = (await inspectBatch(db, batchId)).deliveries;
  ids.org = organization.organizationId;
  ids.key = organization.keyId;
  ids.batch = batchId;
  ids.request = requestIds[0] ?? '';
  ids.delivery = delivery?.id ?? '';
});

/** Returns the arguments of each command that needs some, without `--reason` and `--actor`. */
function argumentsOf(): Readonly<Record<string, readonly string[]>> {
  const { org, key, batch, request, delivery } = ids;
  const file = join(folder, 'rows.csv');
  return {
    'org create': ['Acme'],
    'org show': [org],
    'org suspend': [org],
    'org resume': [org],
    'org rename': [org, 'Acme'],
    'org close': [org, '--yes'],
    'org erase': [org, '--yes', '--name', 'Acme'],
    'limits set': [org, '--per-minute', '9'],
    'webhook-secret show': [org],
    'webhook-secret rotate': [org, '--force'],
    'credits grant': [org, '5', '--reference', 'x'],
    'credits adjust': [org, '5'],
    'credits ledger': [org],
    'keys issue': [org, '--name', 'x'],
    'keys rotate': [key],
    'keys revoke': [key],
    'keys reactivate': [key],
    'keys list': [org],
    'batch show': [batch],
    'batch cancel': [batch, '--yes'],
    explain: [request],
    'lookups forget': [NPI],
    'webhooks show': [delivery],
    'webhooks resend': [delivery],
    'webhooks retry': ['--due'],
    'webhooks suspend': [org],
    'webhooks resume': [org],
    'webhooks block': ['192.0.2.1'],
    'webhooks unblock': ['192.0.2.1'],
    'import nppes': [sample],
    'import clinicians': [join(folder, CLINICIANS)],
    'import domains': [file],
    'import emails': [file],
    'import suppressions': [file],
    'suppress add': [NPI],
    'suppress remove': [NPI],
    'privacy export': [NPI],
    'privacy erase': [NPI, '--yes'],
  };
}

/** Returns the commands that viewers can run, by the help. */
async function listAllowed(): Promise<readonly string[]> {
  const { stdout } = await operator('--help');
  const [, allowed = ''] = /can run only: ([^.]*)\./.exec(stdout) ?? [];
  return allowed.replaceAll('\n', ' ').split(', ');
}

test('a viewer can run exactly the commands that the help lists', async (t) => {
  const allowed = await listAllowed();
  const args = argumentsOf();
  const commands = await listCommands();
  t.deepEqual(
    allowed.filter((name) => !commands.has(name)),
    [],
  );
  const before = await sql`select * from audit_log`;
  for (const [name, options] of commands) {
    const given = [...name.split(' '), ...(args[name] ?? [])];
    if (options.includes('--reason') && !options.includes('--reveal')) given.push(...WHY);
    const { code, stdout, stderr } = await operator(...given);
    if (allowed.includes(name)) {
      t.is(stderr, '', name);
      t.true(code === 0 || (name === 'status' && code === 3), name);
      t.notRegex(stdout, /jane|sesame|whsec_/, name);
    } else {
      t.is(code, 1, `argumentsOf may lack ${name}: ${stdout} ${stderr}`);
      t.regex(stderr, /denied permission \(42501\).*"operator --help" lists/, name);
    }
  }
  t.deepEqual(await sql`select * from audit_log`, before);
});

test('a viewer cannot reveal anything', async (t) => {
  const { code, stdout } = await operator('batch', 'show', ids.batch, '--reveal', ...WHY);
  t.deepEqual([code, stdout], [1, '']);
});
