import type { Database } from '../../db/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';

type Stored = Omit<OwnEmail, 'validatedAt'> & { readonly lastValidatedAt: Date };

/** Puts one address into the directory, as an operator's import does. */
export async function storeEmail(db: Database, { lastValidatedAt, ...known }: Stored): Promise<void> {
  await storeOwnEmails(db, [{ ...known, validatedAt: lastValidatedAt }]);
}
