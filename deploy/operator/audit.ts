import type { Command } from 'commander';
import { requireOrganization } from '../../db/accounts/organizations.ts';
import { listAudit, verifyAudit } from '../../db/audit.ts';
import { newestFirst } from './arguments.ts';
import { plain, type Run } from './print.ts';

/** `audit`. */
export function addAuditCommands(program: Command, run: Run): void {
  const audit = program.command('audit').description('read the audit log, and prove it');
  newestFirst(audit.command('list').description('every change made with this command, newest first'))
    .argument('[ORG]', 'organization id (org_…); all if none is given')
    .action((id: string | undefined, { limit }: { readonly limit: number }) =>
      run(id ?? null, async (db) => {
        if (id !== undefined) await requireOrganization(db, id);
        return plain(await listAudit(db, id ?? null, limit));
      }),
    );
  audit
    .command('verify')
    .description(
      'prove by its chain of hashes that no entry was changed, removed or slipped in; ends with 3 if one was',
    )
    .option('--noted <HASH>', 'the head of an earlier proof: whether that entry is still there')
    .action(({ noted = null }: { readonly noted?: string | null }) =>
      run(null, async (db) => {
        const proof = await verifyAudit(db, noted);
        return { ...plain(proof), exitCode: proof.brokenAt === null && proof.knowsNoted ? 0 : 3 };
      }),
    );
}
