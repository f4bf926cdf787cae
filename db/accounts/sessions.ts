import { hash, randomBytes } from 'node:crypto';
import { eq } from 'drizzle-orm';
import { type Database, query, run, span } from '../connection/client.ts';
import { consoleSessions } from '../schema.ts';
import type { KeyRole } from '../words.ts';

// Sessions of the console. The visitor's cookie has a random id, of which we store only the hash. A
// session acts with the API key that its visitor signed in with, so it can do no more than the key.

/** A session, with the key that it acts with and the owner of the key. */
export interface Session {
  /** The hash of the API key, as `parseApiKey` returns it. */
  readonly keyHash: Buffer;
  readonly keyId: string;
  readonly keyName: string;
  readonly role: KeyRole;
  readonly organizationId: string;
  readonly customerId: string;
  readonly requestsPerMinute: number;
}

/** A session ends after this time without a request. */
const IDLE_MS = 8 * 3_600_000;
/** A session ends this time after its visitor signed in, even if it is used. */
export const SESSION_MS = 7 * 24 * 3_600_000;

/**
 * Starts a session.
 * @returns the id of the session, which is shown only once
 */
export async function openSession(db: Database, apiKeyId: string): Promise<string> {
  const id = randomBytes(32).toString('base64url');
  await query(db, (tx) =>
    tx.insert(consoleSessions).values({ hash: hashOf(id), apiKeyId }),
  );
  return id;
}

/**
 * Returns a session and records its use, or returns null if the session has ended. The caller must
 * check the key, which may have been revoked.
 */
export async function useSession(db: Database, id: string): Promise<Session | null> {
  const [session] = await run<Session>(db)`
    update console_sessions s
       set used_at = clock_timestamp()
      from api_keys k
      join organizations o on o.id = k.organization_id
     where s.hash = ${hashOf(id)}
       and s.used_at > clock_timestamp() - ${span(IDLE_MS)}
       and s.created_at > clock_timestamp() - ${span(SESSION_MS)}
       and k.id = s.api_key_id
    returning k.hash as "keyHash",
              k.id as "keyId",
              k.name as "keyName",
              k.role as "role",
              o.id as "organizationId",
              coalesce(o.sandbox_of, o.id) as "customerId",
              o.requests_per_minute as "requestsPerMinute"`;
  return session ?? null;
}

/** Ends a session. Does nothing if it has already ended. */
export async function endSession(db: Database, id: string): Promise<void> {
  await query(db, (tx) =>
    tx.delete(consoleSessions).where(eq(consoleSessions.hash, hashOf(id))),
  );
}

function hashOf(id: string): Buffer {
  return hash('sha256', id, 'buffer');
}
