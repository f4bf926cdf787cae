import type { Command } from 'commander';
import { adjustCredits, grantCredits, listLedger } from '../../db/accounts/credits.ts';
import {
  type IssuedKey,
  issueKey,
  listKeys,
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
} from '../../db/accounts/organizations.ts';
import { readUsage } from '../../db/accounts/usage.ts';
import {
  reencryptWebhookSecrets,
  rotateWebhookSecret,
  showWebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import { type ChangedBy, listAudit, recordReading } from '../../db/audit.ts';
import { parseDuration } from '../config/values.ts';
import { change, integer, label, lists, OF_ORG, ORG, parser, pastMoment } from './arguments.ts';
import { fields, type Report, type Run, table } from './print.ts';

const CREDITS_AT_MOST = 1_000_000_000;
const OVERLAP_AT_MOST_MS = 30 * 86_400_000;
const KEY = ['<KEY>', 'key id (key_…)'] as const;

/**
 * Adds `org` (or `organization`), `limits`, `webhook-secret`, `usage`, `credits`, `keys`, `audit`.
 */
export function addCommands(program: Command, run: Run): void {
  addOrganizationCommands(program, run);
  addUsageCommand(program, run);
  addCreditCommands(program, run);
  addKeyCommands(program, run);
  addAuditCommands(program, run);
}

function addOrganizationCommands(program: Command, run: Run): void {
  const org = program
    .command('org')
    .alias('organization')
    .description('create, look at, suspend organizations');
  change(org, 'create', 'create an organization with no credits')
    .argument('<NAME>', 'for people', label(200))
    .action((name: string, by: ChangedBy) => run((db) => createOrganization(db, by, name)));
  lists(
    org.command('list').description('organizations, newest first'),
    run,
    'createdAt',
    (db) => listOrganizations(db),
    ({ balance: { available }, sandboxOf, ...rest }) => ({ ...rest, available, sandboxOf }),
  );
  org
    .command('show')
    .description('balance, limit, and how many keys and batches there are')
    .argument(...ORG)
    .action((id: string) => run((db) => showOrganization(db, id)));
  for (const [name, suspended, description] of [
    [
      'suspend',
      true,
      'all its keys answer 403 from the next request on; lookups and webhook deliveries go on',
    ],
    ['resume', false, 'its keys are again what they were'],
  ] as const) {
    change(org, name, description)
      .argument(...ORG)
      .action((id: string, by: ChangedBy) =>
        run((db) => suspendOrganization(db, by, id, suspended)),
      );
  }

  const limits = program.command('limits').description("set an organization's rate limit");
  change(limits, 'set', 'how many requests each key may make in any 60 s, from the next request on')
    .argument(...ORG)
    .requiredOption('--per-minute <N>', '1 to 100000', integer(1, 100_000))
    .action((id: string, by: ChangedBy & { readonly perMinute: number }) =>
      run((db) => setLimit(db, by, id, by.perMinute)),
    );

  const secret = program
    .command('webhook-secret')
    .description('the secret that webhook deliveries are signed with');
  change(secret, 'show', 'the secret, to hand to the organization')
    .argument(...ORG)
    .action((id: string, by: ChangedBy) =>
      run(async (db) => {
        const shown = await showWebhookSecret(db, id);
        await recordReading(db, by, {
          action: 'webhook-secret.show',
          organizationId: id,
          subject: id,
        });
        return shown;
      }),
    );
  change(
    secret,
    'rotate',
    'a new secret; deliveries carry both signatures for 24 h, and until then it is not rotated again',
  )
    .argument(...ORG)
    .option(
      '--force',
      'also within the 24 h, or if its key is lost: the secret before the present one, or that cannot be read, ends at once',
      false,
    )
    .action((id: string, by: ChangedBy & { readonly force: boolean }) =>
      run((db) => rotateWebhookSecret(db, by, id, by.force)),
    );
  change(secret, 'reencrypt', 'encrypt all of them with the first key of SECRETS_KEY').action(
    (by: ChangedBy) => run(async (db) => ({ reencrypted: await reencryptWebhookSecrets(db, by) })),
  );
}

interface UsageOptions {
  readonly since?: Date;
  readonly until?: Date;
  readonly organization?: string | null;
}

/** Adds `usage`, the basis of invoices. */
function addUsageCommand(program: Command, run: Run): void {
  program
    .command('usage')
    .description("organizations' requests by outcome and type, and their credits, in a time")
    .option('--since <WHEN>', 'from then on (default: 30d)', pastMoment)
    .option('--until <WHEN>', 'to before then (default: now)', pastMoment)
    .option(...OF_ORG)
    .action(
      ({ since = pastMoment('30d'), until = new Date(), organization = null }: UsageOptions) =>
        run(async (db) => {
          const usage = await readUsage(db, organization, since, until);
          const text = `From ${since.toISOString()} to before ${until.toISOString()}\n\n${table(usage)}`;
          return { data: usage.map((line) => ({ since, until, ...line })), text };
        }),
    );
}

function addCreditCommands(program: Command, run: Run): void {
  const credits = program
    .command('credits')
    .description('grant and adjust credits, read the ledger');
  change(credits, 'grant', 'add credits that were bought')
    .argument(...ORG)
    .argument('<AMOUNT>', '1 to 1000000000', integer(1, CREDITS_AT_MOST))
    .option('--reference <TEXT>', 'the invoice or order; granted only once under it', label(200))
    .action(
      (
        organizationId: string,
        amount: number,
        options: ChangedBy & { readonly reference?: string },
      ) =>
        run(async (db) => ({
          organizationId,
          ...(await grantCredits(db, options, organizationId, amount, options.reference)),
        })),
    );
  change(credits, 'adjust', 'correct a balance; never takes more than is available')
    .argument(...ORG)
    .argument('<AMOUNT>', 'may be negative', creditsToAdjust)
    .action((organizationId: string, amount: number, by: ChangedBy) =>
      run(async (db) => ({
        organizationId,
        ...(await adjustCredits(db, by, organizationId, amount)),
      })),
    );
  lists(
    credits
      .command('ledger')
      .description('every movement of credits, newest first')
      .argument(...ORG),
    run,
    'createdAt',
    async (db, { limit }, id) => (await listLedger(db, id, { after: null, limit })).entries,
  );
}

const creditsToAdjust = parser(
  'another amount: an adjustment of 0 changes nothing',
  (text) => integer(-CREDITS_AT_MOST, CREDITS_AT_MOST)(text) || null,
);

function addKeyCommands(program: Command, run: Run): void {
  const keys = program
    .command('keys')
    .description('issue, rotate, revoke, reactivate and list API keys');
  change(keys, 'issue', 'a new key, printed once')
    .argument(...ORG)
    .requiredOption('--name <NAME>', 'what the key is for', label(200))
    .option(
      '--test',
      'a test key, for the sandbox of the organization; the first one makes the sandbox',
    )
    .action((id: string, by: ChangedBy & { readonly name: string; readonly test?: true }) =>
      run(async (db) => shownOnce(await issueKey(db, by, id, by.name, by.test))),
    );
  change(keys, 'rotate', 'a new key, printed once, in place of an active one')
    .argument(...KEY)
    .option('--overlap <DURATION>', 'how long the old key stays valid, such as 1h', overlap, 0)
    .action((id: string, by: ChangedBy & { readonly overlap: number }) =>
      run(async (db) => {
        const { issued, replaced } = await rotateKey(db, by, id, by.overlap);
        return shownOnce({ ...issued, replaced });
      }),
    );
  change(keys, 'revoke', 'end a key at once (403)')
    .argument(...KEY)
    .option('--leaked', 'somebody else has it: it is not made valid again by mistake')
    .action((id: string, by: ChangedBy & { readonly leaked?: true }) =>
      run((db) => revokeKey(db, by, id, by.leaked)),
    );
  change(keys, 'reactivate', 'make a revoked or expired key valid again, without an end')
    .argument(...KEY)
    .option('--yes', 'also one that was revoked because it leaked')
    .action((id: string, by: ChangedBy & { readonly yes?: true }) =>
      run((db) => reactivateKey(db, by, id, by.yes)),
    );
  lists(
    keys
      .command('list')
      .description('keys of an organization, newest first, without the keys themselves')
      .argument(...ORG),
    run,
    'createdAt',
    (db, _, id) => listKeys(db, id),
  );
}

function shownOnce<T extends IssuedKey>(data: T): Report {
  const once =
    'This is the only time the key is shown: hand it over now. It is stored nowhere; "keys rotate" replaces it.';
  return { data, text: `${fields(data)}\n\n${once}` };
}

/** Parses a duration. @returns milliseconds */
const overlap = parser('a duration of at most 30d, such as 0s, 15m, 1h or 7d', (text) => {
  const ms = parseDuration(text);
  return ms !== null && ms <= OVERLAP_AT_MOST_MS ? ms : null;
});

function addAuditCommands(program: Command, run: Run): void {
  const audit = program.command('audit').description('read the audit log');
  lists(
    audit
      .command('list')
      .description('every change made with this command, newest first')
      .argument('[ORG]', `${ORG[1]}; all if none is given`),
    run,
    'at',
    (db, { limit }, id?: string) => listAudit(db, id ?? null, limit),
  );
}
