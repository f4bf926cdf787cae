import type { Command } from 'commander';
import {
  type ApiKey,
  type IssuedKey,
  issueKey,
  listKeys,
  reactivateKey,
  revokeKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { change, label, overlap } from './arguments.ts';
import { fields, type Report, type Run, table } from './print.ts';

const ONCE =
  'This is the only time the key is shown: hand it over now. It is stored nowhere; "keys rotate" replaces it.';

/** `keys`. */
export function addKeyCommands(program: Command, run: Run): void {
  const keys = program.command('keys').description('issue, rotate, revoke, reactivate and list API keys');
  change(
    keys
      .command('issue')
      .description('a new key, printed once')
      .argument('<ORG>', 'organization id (org_…)')
      .requiredOption('--name <NAME>', 'what the key is for', label(200)),
  ).action((id: string, options: ChangedBy & { readonly name: string }) =>
    run(id, async (db) => {
      const data = await issueKey(db, options, id, options.name);
      return { data, text: issuedText(data) };
    }),
  );
  change(
    keys
      .command('rotate')
      .description('a new key, printed once, in place of an active one')
      .argument('<KEY>', 'key id (key_…)')
      .option('--overlap <DURATION>', 'how long the old key stays valid, such as 1h', overlap, 0),
  ).action((id: string, options: ChangedBy & { readonly overlap: number }) =>
    run(id, async (db) => {
      const { issued, replaced } = await rotateKey(db, options, id, options.overlap);
      const text = `${issuedText(issued)}\n\n${fields({ 'replaces key': id, 'which ends': replaced.expiresAt })}`;
      return { data: { ...issued, replaced }, text };
    }),
  );
  change(
    keys
      .command('revoke')
      .description('end a key at once (403)')
      .argument('<KEY>', 'key id (key_…)')
      .option('--leaked', 'somebody else has it: it is not made valid again by mistake'),
  ).action((id: string, { leaked, ...by }: ChangedBy & { readonly leaked?: true }) =>
    run(id, async (db) => reportKey(await revokeKey(db, by, id, leaked))),
  );
  change(
    keys
      .command('reactivate')
      .description('make a revoked or expired key valid again, without an end')
      .argument('<KEY>', 'key id (key_…)')
      .option('--yes', 'also one that was revoked because it leaked'),
  ).action((id: string, { yes, ...by }: ChangedBy & { readonly yes?: true }) =>
    run(id, async (db) => reportKey(await reactivateKey(db, by, id, yes))),
  );
  keys
    .command('list')
    .description('all keys of an organization, oldest first, without the keys themselves')
    .argument('<ORG>', 'organization id (org_…)')
    .action((id: string) =>
      run(id, async (db) => {
        const data = await listKeys(db, id);
        const text = table(data, {
          KEY: (key) => key.id,
          NAME: ({ name }) => name,
          ENDS: ({ hint }) => `…${hint}`,
          STATE: ({ state }) => state,
          CREATED: ({ createdAt }) => createdAt,
          EXPIRES: ({ expiresAt }) => expiresAt,
          REVOKED: ({ revokedAt }) => revokedAt,
          LEAKED: ({ leaked }) => leaked,
        });
        return { data, text };
      }),
    );
}

function issuedText(issued: IssuedKey): string {
  const { id, organizationId, name, apiKey } = issued;
  return `${fields({ key: id, organization: organizationId, name, 'API key': apiKey })}\n\n${ONCE}`;
}

function reportKey(key: ApiKey): Report {
  const { id, organizationId, name, hint, state, expiresAt, revokedAt, leaked } = key;
  const text = fields({
    key: id,
    organization: organizationId,
    name,
    'ends with': hint,
    state,
    expires: expiresAt,
    revoked: revokedAt,
    leaked,
  });
  return { data: key, text };
}
