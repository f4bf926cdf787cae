import type { Command } from 'commander';
import {
  createOrganization,
  listOrganizations,
  setLimit,
  showOrganization,
  suspendOrganization,
} from '../../db/accounts/organizations.ts';
import {
  reencryptWebhookSecrets,
  rotateWebhookSecret,
  showWebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import { type ChangedBy, recordReading } from '../../db/audit.ts';
import { change, integer, label } from './arguments.ts';
import { plain, type Run, table } from './print.ts';

/** `org` (or `organization`), `limits`, `webhook-secret`. */
export function addOrganizationCommands(program: Command, run: Run): void {
  const org = program
    .command('org')
    .alias('organization')
    .description('create, look at, suspend organizations');
  change(org, 'create', 'create an organization with no credits')
    .argument('<NAME>', 'for people', label(200))
    .action((name: string, options: ChangedBy) =>
      run(null, async (db) => plain(await createOrganization(db, options, name))),
    );
  org
    .command('list')
    .description('all organizations, oldest first')
    .action(() =>
      run(null, async (db) => {
        const data = await listOrganizations(db);
        const text = table(
          data.map(({ balance, sandboxOf, ...rest }) => ({
            ...rest,
            available: balance.available,
            sandboxOf,
          })),
        );
        return { data, text };
      }),
    );
  org
    .command('show')
    .description('balance, limit, and how many keys and batches there are')
    .argument('<ORG>', 'organization id (org_…)')
    .action((id: string) => run(id, async (db) => plain(await showOrganization(db, id))));
  for (const [name, suspended, description] of [
    [
      'suspend',
      true,
      'all its keys answer 403 from the next request on; lookups and webhook deliveries go on',
    ],
    ['resume', false, 'its keys are again what they were'],
  ] as const) {
    change(org, name, description)
      .argument('<ORG>', 'organization id (org_…)')
      .action((id: string, by: ChangedBy) =>
        run(id, async (db) => plain(await suspendOrganization(db, by, id, suspended))),
      );
  }

  const limits = program.command('limits').description("set an organization's rate limit");
  change(limits, 'set', 'how many requests each key may make in any 60 s, from the next request on')
    .argument('<ORG>', 'organization id (org_…)')
    .requiredOption('--per-minute <N>', '1 to 100000', integer(1, 100_000))
    .action((id: string, options: ChangedBy & { readonly perMinute: number }) =>
      run(id, async (db) => plain(await setLimit(db, options, id, options.perMinute))),
    );

  const secret = program
    .command('webhook-secret')
    .description('the secret that webhook deliveries are signed with');
  change(secret, 'show', 'the secret, to hand to the organization')
    .argument('<ORG>', 'organization id (org_…)')
    .action((id: string, by: ChangedBy) =>
      run(id, async (db) => {
        const shown = await showWebhookSecret(db, id);
        await recordReading(db, by, { action: 'webhook-secret.show', organizationId: id, subject: id });
        return plain(shown);
      }),
    );
  change(
    secret,
    'rotate',
    'a new secret; deliveries carry both signatures for 24 h, and until then it is not rotated again',
  )
    .argument('<ORG>', 'organization id (org_…)')
    .option('--force', 'also within the 24 h: the secret before the present one ends at once', false)
    .action((id: string, options: ChangedBy & { readonly force: boolean }) =>
      run(id, async (db) => plain(await rotateWebhookSecret(db, options, id, options.force))),
    );
  change(secret, 'reencrypt', 'encrypt all of them with the first key of SECRETS_KEY').action(
    (by: ChangedBy) => run(null, async (db) => plain({ reencrypted: await reencryptWebhookSecrets(db, by) })),
  );
}
