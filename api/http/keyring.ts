import { type Authentication, authenticate } from '../../db/accounts/keys.ts';
import type { Database } from '../../db/client.ts';
import { keepLast } from './overload.ts';

/** So long a key that was good is taken for good: a revocation takes effect within a second, on every instance. */
const TRUST_MS = 1000;
/** The oldest are forgotten, and looked up again. */
const MAX_KEYS = 10_000;

type Owner = Extract<Authentication, { kind: 'active' }>;

/** The keys that were good when this process last looked them up: whose key it is never changes. */
export function createKeyring(db: Database) {
  const keys = new Map<string, { readonly owner: Owner; readonly until: number }>();
  return {
    /** Whose key it was when it was last good, and whether that still holds; null if it has not been seen. */
    find(hash: Buffer): { readonly owner: Owner; readonly isTrusted: boolean } | null {
      const known = keys.get(hash.toString('base64'));
      return known ? { owner: known.owner, isTrusted: performance.now() < known.until } : null;
    },
    /** Asks the database. */
    async lookUp(hash: Buffer): Promise<Authentication> {
      const id = hash.toString('base64');
      const begun = performance.now();
      const owner = await authenticate(db, hash);
      if (owner.kind === 'active') keepLast(keys, id, { owner, until: begun + TRUST_MS }, MAX_KEYS);
      else keys.delete(id);
      return owner;
    },
  };
}
