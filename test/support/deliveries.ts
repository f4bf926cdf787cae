import { ApplicationFailure } from '@temporalio/common';
import { MockActivityEnvironment } from '@temporalio/testing';
import { eq, sql } from 'drizzle-orm';
import { pino } from 'pino';
import { createWebhookActivities } from '../../activities/deliver.ts';
import type { AttemptResult, Message } from '../../activities/webhooks/post.ts';
import type { Database } from '../../db/connection/client.ts';
import { webhookDeliveries } from '../../db/schema.ts';
import { claimDelivery, recordAttempt } from '../../db/webhooks/attempts.ts';
import { resend } from '../../db/webhooks/resends.ts';
import type { AttemptReason, WebhookMode } from '../../db/words.ts';
import { openTestDatabase, travel } from './database.ts';
import {
  type Organization,
  openOrganization,
  submitAccepted,
  WORKER_RULES,
} from './organization.ts';
import { storeEmail } from './stored.ts';

/** The end of one call of the delivery activity. */
export type Look =
  | { readonly kind: 'over'; readonly state: string }
  | { readonly kind: 'wait'; readonly why: string; readonly afterMs: number };

export const HOUR = 3_600_000;
/** The default schedule (DECISIONS.md, Webhooks, schedule). */
export const SCHEDULE_MS = [
  0,
  5000,
  300_000,
  ...[0.5, 2, 5, 10, 14, 20, 24].map((hours) => hours * HOUR),
];
export const WEBHOOK_RULES = {
  webhookScheduleMs: SCHEDULE_MS,
  webhookLongestRestMs: HOUR / 2,
};
const KNOWN_NPI = '2000000010';

/**
 * Runs the delivery activity on a real database whose clock the test controls. The test does
 * Temporal's part. Submits are completed at once from the directory.
 */
export async function startDelivering(
  post: (message: Message) => Promise<AttemptResult>,
  scheduleMs: readonly number[] = SCHEDULE_MS,
) {
  const database = await openTestDatabase();
  const { db, url: databaseUrl } = database;
  const time = await travel(databaseUrl);
  await storeEmail(db, {
    ...{
      npi: KNOWN_NPI,
      email: 'a@clinic.example',
    },
  });
  const rules = {
    ...WORKER_RULES,
    ...WEBHOOK_RULES,
    webhookScheduleMs: scheduleMs,
  };
  const log = pino({ level: 'silent' });
  const startWorker = (secretKeys = db.secretKeys) =>
    createWebhookActivities({ db: { ...db, secretKeys }, log, post, rules });
  const worker = startWorker();

  return {
    db,
    databaseUrl,
    time,
    startWorker,
    organization: () => openOrganization(db, 1000),
    /**
     * Submits requests that are completed at once. Their host has returned 2xx before, unless the
     * mode is `unproven`.
     * @returns the IDs of their deliveries, `count` of them
     */
    async deliveries(
      organization: Organization,
      url: string,
      count: number,
      mode: WebhookMode | 'unproven' = 'real-time',
    ) {
      if (mode !== 'unproven') {
        await db.drizzle.execute(sql`
          insert into webhook_hosts (organization_id, host, failures, accepted_at)
          values (${organization.organizationId}, ${new URL(url).host}, 0, clock_timestamp()) on conflict do nothing`);
      }
      const ids: string[] = [];
      while (ids.length < count) {
        const npis = Array.from(
          { length: Math.min(60, count - ids.length) },
          () => KNOWN_NPI,
        );
        const { batchId } = await submitAccepted(db, organization, {
          npis,
          webhook: { url, mode: mode === 'unproven' ? 'real-time' : mode },
        });
        const rows = await db.drizzle
          .select({ id: webhookDeliveries.id })
          .from(webhookDeliveries)
          .where(eq(webhookDeliveries.batchId, batchId));
        ids.push(...rows.map(({ id }) => id));
      }
      return ids;
    },
    /** Calls the activity once. */
    async look(deliveryId: string, by = worker): Promise<Look> {
      try {
        const state: string = await new MockActivityEnvironment().run(by.deliverWebhook, {
          deliveryId,
        });
        return { kind: 'over', state };
      } catch (error) {
        if (!(error instanceof ApplicationFailure)) throw error;
        const { type, nextRetryDelay } = error;
        if (typeof nextRetryDelay !== 'number') throw error;
        const why =
          type === 'Webhook.not_delivered'
            ? 'tried'
            : String(type).replace('Webhook.', '');
        return { kind: 'wait', why, afterMs: nextRetryDelay };
      }
    },
    async stop() {
      await time.stop();
      await database.stop();
    },
  };
}

export type Delivering = Awaited<ReturnType<typeof startDelivering>>;

/** Like `startDelivering`, with one receiver whose response the test may change. */
export async function startResponding(reply: AttemptResult) {
  const receiver = {
    respond: (): AttemptResult | Promise<AttemptResult> => reply,
    calls: 0,
  };
  const life = await startDelivering(async () => {
    receiver.calls += 1;
    return await receiver.respond();
  });
  return { receiver, life };
}

/** Returns a receiver's response in the form that `post` returns. */
export function responded(
  status: number,
  retryAfterMs: number | null = null,
): AttemptResult {
  return {
    kind: 'responded',
    status,
    address: '192.0.2.1',
    retryAfterMs,
    excerpt: Buffer.from(`${status}\n`),
    body: null,
  };
}

/** A schedule whose waits are over when the next statement runs. */
const AT_ONCE = { ...WEBHOOK_RULES, webhookScheduleMs: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0] };

/** Logs one attempt with a response, as a worker would. */
export async function logAttempt(
  db: Database,
  deliveryId: string,
  statusCode: number,
  state: 'pending' | 'delivered' | 'failed',
  over: {
    readonly reason?: AttemptReason;
    readonly responseExcerpt?: Buffer;
    readonly durationMs?: number;
  } = {},
): Promise<void> {
  const claimed = await claimDelivery(db, deliveryId, AT_ONCE);
  if (claimed.kind !== 'attempt')
    throw new Error(`no attempt can be made: ${JSON.stringify(claimed)}`);
  const outcome = state === 'pending' ? { state, afterMs: 0 } : { state };
  const record = {
    startedAt: new Date(),
    durationMs: 5,
    statusCode,
    reason: null,
    responseExcerpt: null,
  };
  await recordAttempt(db, claimed.claim, { ...record, ...over }, outcome, {
    kind: 'responded',
    accepted: state === 'delivered',
    address: '192.0.2.1',
  });
}

/** Resends one delivery as an operator. */
export function resendOne(db: Database, deliveryId: string) {
  const one = { kind: 'one', deliveryId, owner: null } as const;
  return resend(db, one, { actor: 'test', reason: 'test' });
}
