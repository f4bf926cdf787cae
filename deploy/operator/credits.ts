import type { Command } from 'commander';
import { adjustCredits, grantCredits, listLedger } from '../../db/accounts/credits.ts';
import { requireOrganization } from '../../db/accounts/organizations.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { change, creditsToAdjust, creditsToGrant, newestFirst } from './arguments.ts';
import { plain, type Run } from './print.ts';

/** `credits`. */
export function addCreditCommands(program: Command, run: Run): void {
  const credits = program.command('credits').description('grant and adjust credits, read the ledger');
  change(credits, 'grant', 'add credits that were bought')
    .argument('<ORG>', 'organization id (org_…)')
    .argument('<AMOUNT>', '1 to 1000000000', creditsToGrant)
    .action((id: string, amount: number, options: ChangedBy) =>
      run(id, async (db) => plain({ organizationId: id, ...(await grantCredits(db, options, id, amount)) })),
    );
  change(credits, 'adjust', 'correct a balance; never takes more than is available')
    .argument('<ORG>', 'organization id (org_…)')
    .argument('<AMOUNT>', 'may be negative', creditsToAdjust)
    .action((id: string, amount: number, options: ChangedBy) =>
      run(id, async (db) => plain({ organizationId: id, ...(await adjustCredits(db, options, id, amount)) })),
    );
  newestFirst(credits.command('ledger').description('every movement of credits, newest first'))
    .argument('<ORG>', 'organization id (org_…)')
    .action((id: string, { limit }: { readonly limit: number }) =>
      run(id, async (db) => {
        await requireOrganization(db, id);
        return plain((await listLedger(db, id, { after: null, limit })).entries);
      }),
    );
}
