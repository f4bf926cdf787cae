import type { Database } from '../../db/connection/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';

type Stored = Omit<OwnEmail, 'validatedAt' | 'checked'> & {
  readonly lastValidatedAt: Date;
};

/**
 * Stores one address in the directory like an operator's import, as if it had passed our checks.
 */
export async function storeEmail(
  db: Database,
  { lastValidatedAt, ...known }: Stored,
): Promise<void> {
  await storeOwnEmails(db, [{ ...known, validatedAt: lastValidatedAt, checked: true }]);
}
