import { type Command, Option } from 'commander';
import { adjustCredits, grantCredits } from '../../db/accounts/credits.ts';
import {
  type IssuedKey,
  issueKey,
  KEY_OVERLAP_MS,
  listKeys,
  reactivateKey,
  revokeKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import { listLedger } from '../../db/accounts/ledger.ts';
import {
  createOrganization,
  listOrganizations,
  setLimit,
  showOrganization,
  suspendOrganization,
} from '../../db/accounts/organizations.ts';
import { readUsage } from '../../db/accounts/usage.ts';
import {
  countOldSecrets,
  reencryptWebhookSecrets,
  rotateWebhookSecret,
  showWebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import type { Database } from '../../db/connection/client.ts';
import { type ChangedBy, listAudit, recordReading } from '../../db/operations/audit.ts';
import { KEY_ROLES, type KeyRole } from '../../db/words.ts';
import { parseDuration } from '../config/values.ts';
import {
  change,
  countedSince,
  dryRun,
  endsBefore,
  integer,
  label,
  lists,
  OF_ORG,
  ORG,
  parser,
} from './arguments.ts';
import { addClosingCommands } from './closing.ts';
import { fields, leading, type Report, type Run, shown, table } from './print.ts';

const MAX_CREDITS = 1_000_000_000;
/** The usual overlap of a rotation, which is the same as for webhook secrets. */
const MAX_OVERLAP_MS = 30 * 86_400_000;
const KEY = ['<KEY>', 'key id (key_…)'] as const;

/**
 * Adds the commands `org` (or `organization`), `limits`, `webhook-secret`, `usage`, `credits`,
 * `keys`, and `audit`.
 */
export function addCommands(program: Command, run: Run): void {
  const org = addOrganizationCommands(program, run);
  addClosingCommands(org, run);
  addLimitCommands(program, run);
  addWebhookSecretCommands(program, run);
  addUsageCommand(program, run);
  addCreditCommands(program, run);
  addKeyCommands(program, run);
  addAuditCommands(program, run);
}

function addOrganizationCommands(program: Command, run: Run): Command {
  const org = program
    .command('org')
    .alias('organization')
    .description('create, show, list, rename, suspend, close, and erase organizations');
  change(org, 'create', 'create an organization with no credits')
    .argument('<NAME>', 'a name for people', label(200))
    .action((name: string, by: ChangedBy) =>
      run((db) => createOrganization(db, by, name)),
    );
  lists(
    org.command('list').description('list organizations, newest first'),
    run,
    'createdAt',
    (db) => listOrganizations(db),
    ({ balance: { available }, erasedAt: _erasedAt, ...rest }) =>
      leading({ ...rest, available }, ['id', 'name', 'available', 'suspended']),
  );
  org
    .command('show')
    .description('show the balance, the limit, and the number of keys and batches')
    .argument(...ORG)
    .action((id: string) => run(async (db) => shown(await showOrganization(db, id))));
  change(
    org,
    'suspend',
    "reject an organization's keys with 403; its open lookups and webhook deliveries continue",
  )
    .argument(...ORG)
    .action((id: string, by: ChangedBy) =>
      run((db) => suspendOrganization(db, by, id, true)),
    );
  change(
    org,
    'resume',
    'end a suspension, or open a closed organization; keys that are not revoked work again',
  )
    .argument(...ORG)
    .action((id: string, by: ChangedBy) =>
      run((db) => suspendOrganization(db, by, id, false)),
    );
  return org;
}

function addLimitCommands(program: Command, run: Run): void {
  const limits = program
    .command('limits')
    .description("set an organization's rate limit");
  change(limits, 'set', 'set the number of requests that each key may send in any 60 s')
    .argument(...ORG)
    .requiredOption('--per-minute <N>', '1 to 100000 (required)', integer(1, 100_000))
    .action((id: string, by: ChangedBy & { readonly perMinute: number }) =>
      run((db) => setLimit(db, by, id, by.perMinute)),
    );
}

function addWebhookSecretCommands(program: Command, run: Run): void {
  const secret = program
    .command('webhook-secret')
    .description('show, rotate, and encrypt again the secrets that sign webhooks');
  change(secret, 'show', 'print the secret, to give it to the organization')
    .argument(...ORG)
    .action((id: string, by: ChangedBy) => run((db) => showSecret(db, by, id)));
  change(
    secret,
    'rotate',
    'replace the secret; for 24 h, deliveries have both signatures, and another rotation needs --force',
  )
    .argument(...ORG)
    .option(
      '--force',
      'rotate even if the last rotation was less than 24 h ago or the encryption key is lost; the previous secret ends at once',
    )
    .action((id: string, by: ChangedBy & { readonly force?: true }) =>
      run((db) => rotateWebhookSecret(db, by, id, by.force)),
    );
  change(secret, 'reencrypt', 'encrypt all secrets with the first key of SECRETS_KEY')
    .addOption(dryRun())
    .action((options: ReencryptOptions) => run((db) => reencrypt(db, options)));
}

interface ReencryptOptions extends ChangedBy {
  readonly dryRun?: true;
}

async function reencrypt(
  db: Database,
  { dryRun, ...by }: ReencryptOptions,
): Promise<object> {
  const withOldKey = await countOldSecrets(db);
  if (dryRun) return { withOldKey, reencrypted: 0 };
  return { withOldKey, reencrypted: await reencryptWebhookSecrets(db, by) };
}

async function showSecret(db: Database, by: ChangedBy, id: string): Promise<object> {
  const secret = await showWebhookSecret(db, id);
  const action = 'webhook-secret.show';
  await recordReading(db, by, { action, organizationId: id, subject: id });
  return secret;
}

interface UsageOptions {
  readonly since: Date;
  readonly until?: Date;
  readonly organization?: string | null;
}

/** Adds the command `usage`. Invoices are based on its numbers. */
function addUsageCommand(program: Command, run: Run): void {
  const usage = program
    .command('usage')
    .description(
      'count the requests (by outcome and type) and credits of each organization',
    )
    .addOption(countedSince());
  endsBefore(usage, 'count up to this time, exclusive')
    .option(...OF_ORG)
    .action((options: UsageOptions) => run((db) => reportUsage(db, options)));
}

async function reportUsage(db: Database, options: UsageOptions): Promise<Report> {
  const { since, until = new Date(), organization = null } = options;
  const usage = await readUsage(db, organization, since, until);
  const heading = `From ${since.toISOString()} to before ${until.toISOString()}`;
  const data = usage.map((line) => ({ since, until, ...line }));
  const rows = usage.map(({ organizationId, ...line }) => ({
    ...leading(line, ['name', 'charged', 'sourceDollars']),
    organizationId,
  }));
  return { data, parts: [heading, table<object>(rows)] };
}

interface GrantOptions extends ChangedBy {
  readonly reference: string;
}

function addCreditCommands(program: Command, run: Run): void {
  const credits = program
    .command('credits')
    .description('grant and adjust credits, and read the ledger');
  change(credits, 'grant', 'add credits that were bought')
    .argument(...ORG)
    .argument('<AMOUNT>', `1 to ${MAX_CREDITS}`, integer(1, MAX_CREDITS))
    .requiredOption(
      '--reference <TEXT>',
      'the number of an invoice or order, for which credits are granted only once (required)',
      label(200),
    )
    .action((organizationId: string, amount: number, options: GrantOptions) =>
      run(async (db) => {
        const granted = await grantCredits(
          db,
          options,
          organizationId,
          amount,
          options.reference,
        );
        return { organizationId, reference: options.reference, ...granted };
      }),
    );
  change(
    credits,
    'adjust',
    'correct a balance; rejected if it takes more credits than are available',
  )
    .argument(...ORG)
    .argument('<AMOUNT>', 'may be negative', creditsToAdjust)
    .action((organizationId: string, amount: number, by: ChangedBy) =>
      run(async (db) => {
        const adjusted = await adjustCredits(db, by, organizationId, amount);
        return { organizationId, ...adjusted };
      }),
    );
  lists(
    credits
      .command('ledger')
      .description('list all movements of credits, newest first')
      .argument(...ORG),
    run,
    'createdAt',
    async (db, { limit }, id) =>
      (await listLedger(db, id, { since: null, until: null, after: null, limit }))
        .entries,
    (entry) => leading(entry, ['createdAt', 'kind', 'amount', 'availableAfter', 'npi']),
  );
}

const amountToAdjust = integer(-MAX_CREDITS, MAX_CREDITS);
const creditsToAdjust = parser(
  'another amount: an adjustment of 0 changes nothing',
  (text) => {
    const amount = amountToAdjust(text);
    if (amount === 0) return null;
    return amount;
  },
);

function addKeyCommands(program: Command, run: Run): void {
  const keys = program
    .command('keys')
    .description('issue, rotate, revoke, reactivate, and list API keys');
  change(keys, 'issue', 'create a key and print it once')
    .argument(...ORG)
    .requiredOption('--name <NAME>', 'the purpose of the key (required)', label(200))
    .option(
      '--test',
      "issue a test key for the organization's sandbox; the first one creates the sandbox",
    )
    .addOption(
      new Option(
        '--role <ROLE>',
        'read spends nothing, member also submits, and full also manages keys and the secret',
      )
        .choices([...KEY_ROLES])
        .default('full'),
    )
    .action((id: string, options: IssueOptions) => run((db) => issue(db, id, options)));
  change(keys, 'rotate', 'replace an active key, and print the new one once')
    .argument(...KEY)
    .addOption(
      new Option(
        '--overlap <DURATION>',
        'time for which the old key stays valid, such as 7d, or 0; if it has leaked, use "keys revoke --leaked"',
      )
        .argParser(overlap)
        .default(KEY_OVERLAP_MS, '24h'),
    )
    .action((id: string, by: ChangedBy & { readonly overlap: number }) =>
      run(async (db) => {
        const { issued, replaced } = await rotateKey(db, by, id, by.overlap);
        return shownOnce({ ...issued, replaced });
      }),
    );
  change(keys, 'revoke', 'revoke a key, so that its requests immediately get a 403')
    .argument(...KEY)
    .option('--leaked', 'record that it leaked, so that "keys reactivate" needs --yes')
    .action((id: string, by: ChangedBy & { readonly leaked?: true }) =>
      run((db) => revokeKey(db, by, id, by.leaked)),
    );
  change(
    keys,
    'reactivate',
    'make a revoked or expired key valid again, without an expiry',
  )
    .argument(...KEY)
    .option('--yes', 'reactivate a key that was revoked because it leaked')
    .action((id: string, by: ChangedBy & { readonly yes?: true }) =>
      run((db) => reactivateKey(db, by, id, by.yes)),
    );
  addKeyList(keys, run);
}

interface IssueOptions extends ChangedBy {
  readonly name: string;
  readonly role: KeyRole;
  readonly test?: true;
}

async function issue(
  db: Database,
  id: string,
  { name, role, test: forSandbox, ...by }: IssueOptions,
): Promise<Report> {
  return shownOnce(await issueKey(db, by, id, name, { role, forSandbox }));
}

function addKeyList(keys: Command, run: Run): void {
  lists(
    keys
      .command('list')
      .description(
        'list the keys of an organization, newest first, without their secrets',
      )
      .argument(...ORG),
    run,
    'createdAt',
    (db, _, id) => listKeys(db, id),
    (key) => leading(key, ['id', 'hint', 'role', 'state', 'lastUsedAt', 'name']),
  );
}

function shownOnce<T extends IssuedKey>(data: T): Report {
  const once =
    'This is the only time the key is shown. Hand it over now. We do not store it; "keys rotate" replaces it.';
  return { data, parts: [fields(data), once] };
}

/** Parses the value of `--overlap`. @returns milliseconds */
const overlap = parser(
  '0, or a duration of at most 30d, such as 15m, 1h or 7d',
  (text) => {
    const ms = text === '0' ? 0 : parseDuration(text);
    if (ms === null || ms > MAX_OVERLAP_MS) return null;
    return ms;
  },
);

function addAuditCommands(program: Command, run: Run): void {
  const audit = program.command('audit').description('read the audit log');
  lists(
    audit
      .command('list')
      .description('list the changes and readings by operators, newest first')
      .argument('[ORG]', `${ORG[1]} (default: all)`),
    run,
    'at',
    (db, { limit }, id?: string) => listAudit(db, id ?? null, limit),
    (entry) => leading(entry, ['at', 'action', 'subject', 'actor', 'reason']),
  );
}
