import type { Command } from 'commander';
import { closeOrganization, countClosing } from '../../db/accounts/closing.ts';
import {
  findOrganizations,
  renameOrganization,
} from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import { countErasing, eraseOrganization } from '../../db/privacy/organizations.ts';
import {
  type Confirmed,
  change,
  confirmed,
  exitCodeOf,
  label,
  ORG,
} from './arguments.ts';
import { fields, type Report, type Run } from './print.ts';

/** Adds the commands `org rename`, `org close`, and `org erase`. */
export function addClosingCommands(org: Command, run: Run): void {
  change(org, 'rename', 'rename an organization and its sandbox')
    .argument(...ORG)
    .argument('<NAME>', 'the new name', label(200))
    .action((id: string, name: string, by: ChangedBy) =>
      run((db) => renameOrganization(db, by, id, name)),
    );
  const close = change(
    org,
    'close',
    'revoke all keys, refund open requests, and stop webhooks; "org resume" opens it again',
  );
  confirmed(close.argument(...ORG), 'close it').action((id: string, options: Confirmed) =>
    run((db) => closeOne(db, options, id)),
  );
  addEraseCommand(org, run);
}

interface EraseOptions extends Confirmed {
  readonly name?: string;
}

function addEraseCommand(org: Command, run: Run): void {
  const erase = change(
    org,
    'erase',
    'erase the names, URLs, keys, custom_data, and results of a closed organization permanently',
  );
  confirmed(erase.argument(...ORG), 'erase it; needs --name')
    .option('--name <NAME>', "the organization's name, to confirm", label(200))
    .action((id: string, options: EraseOptions) => {
      const { yes = false, name } = options;
      if (yes && name === undefined) {
        erase.error('error: --yes needs --name, to confirm which organization is meant');
      }
      return run((db) => eraseOne(db, options, id));
    });
}

const CLOSED =
  'Closed. Vendor calls that are under way end by themselves and charge nothing.';
const NOT_CLOSED = 'Nothing was changed: add --yes to close the organization.';
const ERASED = 'Erased. The ledger was kept.';
const NOT_ERASED =
  'Nothing was erased: add --yes and --name to erase the organization for good.';

async function closeOne(db: Database, options: Confirmed, id: string): Promise<Report> {
  const counts = await countClosing(db, id);
  const { yes = false } = options;
  if (yes) await closeOrganization(db, options, id);
  const [organization] = await findOrganizations(db, id);
  const data = { id, name: organization?.name, closed: yes, ...counts };
  const parts = [fields(data), yes ? CLOSED : NOT_CLOSED];
  return { data, parts, exitCode: exitCodeOf(options) };
}

async function eraseOne(
  db: Database,
  options: EraseOptions,
  id: string,
): Promise<Report> {
  const counts = await countErasing(db, id);
  const { yes = false, name = '' } = options;
  if (yes) await eraseOrganization(db, options, id, name);
  const data = { id, erased: yes, ...counts };
  const parts = [fields(data), yes ? ERASED : NOT_ERASED];
  return { data, parts, exitCode: exitCodeOf(options) };
}
