import type { Database } from '../../db/connection/client.ts';
import { type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';

type Stored = Pick<OwnEmail, 'npi' | 'email'> &
  Partial<Pick<OwnEmail, 'emailType' | 'source'>> & { readonly lastValidatedAt?: Date };

/**
 * Stores one address in the directory like an operator's import, as if it had passed our checks. By
 * default it is professional, and was validated just now.
 */
export async function storeEmail(
  db: Database,
  { npi, email, emailType = 'professional', source = 'test', lastValidatedAt }: Stored,
): Promise<void> {
  const validatedAt = lastValidatedAt ?? new Date();
  const own = { npi, email, emailType, source, validatedAt, checked: true };
  await storeOwnEmails(db, [own]);
}
