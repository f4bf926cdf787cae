import { and, eq, isNull, sql } from 'drizzle-orm';
import { decryptSecret } from '../accounts/secrets.ts';
import { type Database, transaction } from '../connection/client.ts';
import { Refusal } from '../connection/errors.ts';
import { inventedId } from '../connection/ids.ts';
import { envelopeText } from '../requests/envelope.ts';
import { creditBalances, organizations } from '../schema.ts';
import { admitToHost } from './admission.ts';
import type { WebhookRules } from './attempts.ts';
import { ATTEMPT_FACTS } from './deliveries.ts';
import { type AdmittedHost, firstRestMs, type HostHealth, noteHost } from './hosts.ts';
import { giveBackAddresses } from './networks.ts';

// A test event is one delivery with an invented result, which a person sends from the console. It
// has no row, because nothing retries it and nothing lists it. Temporal keeps its outcome.

/** A test event, as its workflow gets it. */
export interface TestTarget {
  /** The id of the workflow, and the `webhook-id` of the delivery. */
  readonly testId: string;
  readonly organizationId: string;
  /** The URL, encrypted with SECRETS_KEY and `testId`, so that Temporal can't read it. */
  readonly target: string;
}

/** The result of `admitTestEvent`: everything for the attempt, or why it is not made now. */
export type AdmittedTest =
  | {
      readonly kind: 'go';
      readonly event: {
        readonly host: AdmittedHost;
        readonly url: string;
        readonly body: string;
        readonly secrets: readonly string[];
        readonly blocked: readonly string[];
        /** The time by PostgreSQL's clock, as for deliveries. */
        readonly at: Date;
      };
    }
  | { readonly kind: 'wait'; readonly why: 'suspended' | 'host_away' | 'no_room' };

const EXAMPLE = { npi: '2000000010', email: 'robin.example@clinic.example' } as const;
const CUSTOM_DATA = '{"test_event":true}';

/**
 * Prepares the attempt of a test event. It is sent only if the breaker is closed and a slot is free.
 * It takes no slot.
 * @throws {Refusal} `organization_missing`; {SecretKeyMissing}; {SecretUnreadable}
 */
export async function admitTestEvent(
  db: Database,
  { testId, organizationId, target }: TestTarget,
  { webhookScheduleMs, webhookLongestRestMs }: WebhookRules,
): Promise<AdmittedTest> {
  const url = decryptSecret(db.secretKeys, testId, target);
  const host = URL.parse(url)?.host ?? '';
  const rests = {
    firstMs: firstRestMs(webhookScheduleMs),
    longestMs: webhookLongestRestMs,
  };
  return await transaction(db, async (tx) => {
    const [row] = await tx
      .select({
        ...ATTEMPT_FACTS,
        isSuspended: organizations.webhooksSuspended,
        balance: creditBalances.available,
        at: sql<Date>`clock_timestamp()`,
      })
      .from(organizations)
      .innerJoin(creditBalances, eq(creditBalances.organizationId, organizations.id))
      .where(eq(organizations.id, organizationId));
    if (!row) throw new Refusal('organization_missing');
    if (row.isSuspended) return { kind: 'wait', why: 'suspended' };
    const secrets = row.secrets.map((stored) =>
      decryptSecret(db.secretKeys, organizationId, stored),
    );
    const { at, balance, blocked } = row;
    const key = { organizationId, host };
    const admission = await admitToHost(tx, key, true, rests);
    if (admission.kind === 'wait') {
      return { kind: 'wait', why: admission.why };
    }
    const { era, provenNetworks } = admission;
    const body = bodyOf(testId, url, at, balance);
    const admitted = { ...key, era, provenNetworks };
    return { kind: 'go', event: { host: admitted, url, body, secrets, blocked, at } };
  });
}

/** Returns the envelope of a completed batch, whose ids are never those of a real one. */
function bodyOf(testId: string, url: string, at: Date, balance: number): string {
  const item = {
    requestId: inventedId('req', testId),
    npi: EXAMPLE.npi,
    status: 'completed',
    // A test event costs nothing, as a free repeat does.
    replayed: true,
    creditsUsed: 0,
    email: EXAMPLE.email,
    emailType: 'professional',
    validatedAt: at.toISOString(),
    delivery: 'pending',
  } as const;
  const envelope = {
    batchId: inventedId('bat', testId),
    status: 'completed',
    total: 1,
    completedCount: 1,
    createdAt: at,
    updatedAt: at,
    webhookUrl: url,
    webhookMode: 'batch',
    customData: CUSTOM_DATA,
    balance,
    items: [item],
  } as const;
  return envelopeText(envelope, 'delivery');
}

/**
 * Records for the receiver's host what a test event showed, as for a delivery. So a 2xx proves the
 * host, and closes its breaker.
 */
export async function noteTestEvent(
  db: Database,
  host: AdmittedHost,
  health: HostHealth,
): Promise<void> {
  const { id, erasedAt } = organizations;
  await transaction(db, async (tx) => {
    const [kept] = await tx
      .select({ id })
      .from(organizations)
      .where(and(eq(id, host.organizationId), isNull(erasedAt)));
    // The host would be left in an erased organization.
    if (kept) await noteHost(tx, host, health);
  });
}

/** Reverts the count of a test event for these addresses, because nothing was sent. */
export async function uncountTestEvent(
  db: Database,
  organizationId: string,
  addresses: readonly string[],
): Promise<void> {
  await transaction(db, (tx) => giveBackAddresses(tx, organizationId, addresses));
}
