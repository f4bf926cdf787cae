import type { Command } from 'commander';
import {
  type IssuedKey,
  issueKey,
  listKeys,
  reactivateKey,
  revokeKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { change, label, overlap } from './arguments.ts';
import { fields, plain, type Run } from './print.ts';

const ONCE =
  'This is the only time the key is shown: hand it over now. It is stored nowhere; "keys rotate" replaces it.';

/** `keys`. */
export function addKeyCommands(program: Command, run: Run): void {
  const keys = program.command('keys').description('issue, rotate, revoke, reactivate and list API keys');
  change(keys, 'issue', 'a new key, printed once')
    .argument('<ORG>', 'organization id (org_…)')
    .requiredOption('--name <NAME>', 'what the key is for', label(200))
    .option('--test', 'a test key, for the sandbox of the organization; the first one makes the sandbox')
    .action(
      (id: string, { name, test, ...by }: ChangedBy & { readonly name: string; readonly test?: true }) =>
        run(id, async (db) => {
          const data = await issueKey(db, by, id, name, test);
          return { data, text: issuedText(data) };
        }),
    );
  change(keys, 'rotate', 'a new key, printed once, in place of an active one')
    .argument('<KEY>', 'key id (key_…)')
    .option('--overlap <DURATION>', 'how long the old key stays valid, such as 1h', overlap, 0)
    .action((id: string, options: ChangedBy & { readonly overlap: number }) =>
      run(id, async (db) => {
        const { issued, replaced } = await rotateKey(db, options, id, options.overlap);
        const data = { ...issued, replaced };
        return { data, text: issuedText(data) };
      }),
    );
  change(keys, 'revoke', 'end a key at once (403)')
    .argument('<KEY>', 'key id (key_…)')
    .option('--leaked', 'somebody else has it: it is not made valid again by mistake')
    .action((id: string, { leaked, ...by }: ChangedBy & { readonly leaked?: true }) =>
      run(id, async (db) => plain(await revokeKey(db, by, id, leaked))),
    );
  change(keys, 'reactivate', 'make a revoked or expired key valid again, without an end')
    .argument('<KEY>', 'key id (key_…)')
    .option('--yes', 'also one that was revoked because it leaked')
    .action((id: string, { yes, ...by }: ChangedBy & { readonly yes?: true }) =>
      run(id, async (db) => plain(await reactivateKey(db, by, id, yes))),
    );
  keys
    .command('list')
    .description('all keys of an organization, oldest first, without the keys themselves')
    .argument('<ORG>', 'organization id (org_…)')
    .action((id: string) => run(id, async (db) => plain(await listKeys(db, id))));
}

function issuedText(issued: IssuedKey): string {
  return `${fields(issued)}\n\n${ONCE}`;
}
