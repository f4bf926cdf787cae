import type { Database } from '../../db/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';

type Stored = Omit<OwnEmail, 'validatedAt' | 'checked'> & { readonly lastValidatedAt: Date };

/** Puts one address into the directory, as an operator's import does, and as if our checks had passed it. */
export async function storeEmail(db: Database, { lastValidatedAt, ...known }: Stored): Promise<void> {
  await storeOwnEmails(db, [{ ...known, validatedAt: lastValidatedAt, checked: true }]);
}
