import type { Command } from 'commander';
import { requireOrganization } from '../../db/accounts/organizations.ts';
import { listAudit } from '../../db/audit.ts';
import { newestFirst } from './arguments.ts';
import { plain, type Run } from './print.ts';

/** `audit`. */
export function addAuditCommands(program: Command, run: Run): void {
  const audit = program.command('audit').description('read the audit log');
  newestFirst(audit.command('list').description('every change made with this command, newest first'))
    .argument('[ORG]', 'organization id (org_…); all if none is given')
    .action((id: string | undefined, { limit }: { readonly limit: number }) =>
      run(id ?? null, async (db) => {
        if (id !== undefined) await requireOrganization(db, id);
        return plain(await listAudit(db, id ?? null, limit));
      }),
    );
}
