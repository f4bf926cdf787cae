import { and, eq, sql } from 'drizzle-orm';
import { span, type Transaction } from '../connection/client.ts';
import { idempotencyKeys } from '../schema.ts';

// Idempotency-Keys. A submit claims its key at the beginning of its transaction, and stores its
// response at the end (DECISIONS.md, Idempotency-Key).

/** The Idempotency-Key of a submit. The same key may be used for another method or path. */
export interface IdempotencyKey {
  readonly key: string;
  readonly method: string;
  readonly path: string;
  /** SHA-256 of the canonical body. */
  readonly fingerprint: Buffer;
}

/** An earlier submit with the same Idempotency-Key. */
export type EarlierSubmit =
  /** It had the same body. `response` is the stored body of its 202 response. */
  | { readonly kind: 'repeated'; readonly response: string }
  /** It had a different body. */
  | { readonly kind: 'mismatch' };

/** How long a submit waits for a running submit with the same key. */
const WAIT_MS = 5000;

/**
 * Claims an Idempotency-Key. If a concurrent transaction has the same key, the insert waits until
 * that transaction ends.
 * @param lifetimeMs the time after which the key may be used for another submit
 * @returns null if the key is new or expired
 * @throws {DatabaseError} 55P03 if the concurrent transaction still runs after 5 s
 */
export async function claimIdempotencyKey(
  tx: Transaction,
  organizationId: string,
  idempotency: IdempotencyKey,
  lifetimeMs: number,
): Promise<EarlierSubmit | null> {
  const { key, method, path, fingerprint } = idempotency;
  await tx.execute(sql.raw(`set local lock_timeout = ${WAIT_MS}`));
  const claimed = await tx
    .insert(idempotencyKeys)
    .values({
      organizationId,
      method,
      path,
      key,
      fingerprint,
      createdAt: sql`clock_timestamp()`,
      expiresAt: sql`clock_timestamp() + ${span(lifetimeMs)}`,
    })
    .onConflictDoUpdate({
      target: [
        idempotencyKeys.organizationId,
        idempotencyKeys.method,
        idempotencyKeys.path,
        idempotencyKeys.key,
      ],
      set: {
        fingerprint,
        response: null,
        createdAt: sql`excluded.created_at`,
        expiresAt: sql`excluded.expires_at`,
      },
      setWhere: sql`${idempotencyKeys.expiresAt} <= clock_timestamp()`,
    })
    .returning({ key: idempotencyKeys.key });
  await tx.execute(sql`set local lock_timeout = default`);
  if (claimed.length === 1) return null;
  const [stored] = await tx
    .select({
      fingerprint: idempotencyKeys.fingerprint,
      response: idempotencyKeys.response,
    })
    .from(idempotencyKeys)
    .where(isKey(organizationId, idempotency));
  if (!stored?.response)
    throw new Error('an Idempotency-Key was committed without its response');
  if (!stored.fingerprint.equals(fingerprint)) {
    return { kind: 'mismatch' };
  }
  return { kind: 'repeated', response: stored.response };
}

/** Stores the response of the submit that has claimed the key, for its repetitions. */
export async function storeResponse(
  tx: Transaction,
  organizationId: string,
  idempotency: IdempotencyKey,
  response: string,
): Promise<void> {
  await tx
    .update(idempotencyKeys)
    .set({ response })
    .where(isKey(organizationId, idempotency));
}

function isKey(organizationId: string, { key, method, path }: IdempotencyKey) {
  return and(
    eq(idempotencyKeys.organizationId, organizationId),
    eq(idempotencyKeys.method, method),
    eq(idempotencyKeys.path, path),
    eq(idempotencyKeys.key, key),
  );
}
