import { ApplicationFailure } from '@temporalio/common';
import { MockActivityEnvironment } from '@temporalio/testing';
import { eq } from 'drizzle-orm';
import { pino } from 'pino';
import { createWebhookActivities } from '../../activities/deliver.ts';
import type { Answer, Message } from '../../activities/webhooks/post.ts';
import { type Database, openDatabase } from '../../db/client.ts';
import { storeEmail } from '../../db/lookups/directory.ts';
import { submit } from '../../db/requests/submit.ts';
import { webhookDeliveries } from '../../db/schema.ts';
import type { WebhookMode } from '../../db/words.ts';
import { openTestDatabase } from './database.ts';
import { acceptedIds, type Organization, openOrganization, RULES, submitCommand } from './organization.ts';
import { travel } from './travel.ts';

/** How one call of the delivery activity ended. */
export type Look =
  | { readonly kind: 'over'; readonly state: string }
  | { readonly kind: 'wait'; readonly why: string; readonly afterMs: number };

export const HOUR = 3_600_000;
/** DECISIONS.md, Webhooks, schedule. */
export const SCHEDULE_MS = [0, 5000, 300_000, ...[0.5, 2, 5, 10, 14, 20, 24].map((hours) => hours * HOUR)];
const KNOWN_NPI = '2000000010';

/**
 * The delivery activity over a real database whose clock is ours: what Temporal would do, the test does. Submits are
 * completed at once, from the directory.
 */
export async function startDelivering(
  post: (message: Message) => Promise<Answer>,
  scheduleMs: readonly number[] = SCHEDULE_MS,
) {
  const database = await openTestDatabase();
  const time = await travel(database.url);
  const db: Database = openDatabase({ url: database.url, poolSize: 20, applicationName: 'test' });
  await storeEmail(db, {
    ...{ npi: KNOWN_NPI, email: 'a@clinic.example', emailType: 'professional', source: 'test' },
    lastValidatedAt: new Date(),
  });
  const rules = {
    ...{ freshnessMs: 30 * 24 * HOUR, replayMs: 30 * 24 * HOUR, greylistMs: 1000 },
    ...{ webhookScheduleMs: scheduleMs, webhookLogMs: 30 * 24 * HOUR },
    sweep: { startAfterMs: 0, settleAfterMs: 0, checkEveryMs: 0 },
  };
  const log = pino({ level: 'silent' });
  const startWorker = () => createWebhookActivities({ db, log, post, rules });
  const worker = startWorker();

  return {
    db,
    databaseUrl: database.url,
    time,
    startWorker,
    organization: () => openOrganization(db, 1000),
    /** Submits that are completed at once. @returns the ids of their deliveries, `count` of them */
    async deliveries(
      organization: Organization,
      url: string,
      count: number,
      mode: WebhookMode = 'real-time',
    ) {
      const ids: string[] = [];
      while (ids.length < count) {
        const npis = Array.from({ length: Math.min(60, count - ids.length) }, () => KNOWN_NPI);
        const command = submitCommand(organization, { npis, webhook: { url, mode } });
        const { batchId } = acceptedIds(await submit(db, command, RULES));
        const rows = await db.drizzle
          .select({ id: webhookDeliveries.id })
          .from(webhookDeliveries)
          .where(eq(webhookDeliveries.batchId, batchId));
        ids.push(...rows.map(({ id }) => id));
      }
      return ids;
    },
    /** One call of the activity. */
    async look(deliveryId: string, by = worker): Promise<Look> {
      try {
        const state: string = await new MockActivityEnvironment().run(by.deliverWebhook, { deliveryId });
        return { kind: 'over', state };
      } catch (error) {
        if (!(error instanceof ApplicationFailure)) throw error;
        const { type, nextRetryDelay } = error;
        if (typeof nextRetryDelay !== 'number') throw error;
        const why = type === 'WebhookNotDelivered' ? 'tried' : String(type).replace('Webhook.', '');
        return { kind: 'wait', why, afterMs: nextRetryDelay };
      }
    },
    async stop() {
      await time.close();
      await db.close();
      await database.stop();
    },
  };
}

export type Delivering = Awaited<ReturnType<typeof startDelivering>>;

/** What a receiver answered, as `post` gives it. */
export function answered(status: number, retryAfterMs: number | null = null): Answer {
  return { kind: 'answered', status, retryAfterMs, excerpt: Buffer.from(`${status}\n`), body: null };
}
