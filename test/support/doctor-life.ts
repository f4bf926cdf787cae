import { sql } from 'drizzle-orm';
import { adjustCredits } from '../../db/accounts/credits.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { eraseSubject } from '../../db/privacy/privacy.ts';
import { markStarted } from '../../db/requests/outbox.ts';
import { beginForSandbox } from '../../db/requests/sandbox.ts';
import { type LookupEnd, settle } from '../../db/requests/settle.ts';
import { type SubmitCommand, submit } from '../../db/requests/submit.ts';
import type { EmailType } from '../../db/words.ts';
import { logAttempt } from './deliveries.ts';
import {
  ASKED,
  acceptedIds,
  BY,
  openOrganization,
  openTestKey,
  RULES,
  submitAccepted,
  submitCommand,
} from './organization.ts';
import { storeEmail } from './stored.ts';

export interface Accepted {
  readonly batchId: string;
  /** In the order of the NPIs. */
  readonly requestIds: readonly [string, ...string[]];
}

export type Life = Awaited<ReturnType<typeof live>>;

const URL = 'https://hooks.example/';
/** Long enough that open requests don't become overdue, even on a slow machine. */
const LIFE_RULES = { ...RULES, lookupTimeoutMs: 3_600_000 };

/**
 * Creates a little of everything that happens to two organizations: responses from the directory,
 * immediate and late replays, a charge, releases of both kinds, a personal email, open requests,
 * deliveries in every state, an adjustment, an erasure, and a sandbox.
 */
export async function live(db: Database) {
  const organization = await openOrganization(db, 100);
  const other = await openOrganization(db, 100);
  const accept = async (
    over: Partial<SubmitCommand> & Pick<SubmitCommand, 'npis'>,
  ): Promise<Accepted> => {
    const outcome = await submit(db, submitCommand(organization, over), LIFE_RULES);
    const { batchId, requestIds } = acceptedIds(outcome);
    if (outcome.kind === 'accepted') await markStarted(db, outcome.start.batchId);
    const [first, ...rest] = requestIds;
    if (first === undefined) throw new Error('nothing was accepted');
    return { batchId, requestIds: [first, ...rest] };
  };
  const know = (npi: string, emailType: EmailType) =>
    storeEmail(db, {
      npi,
      email: `person-${npi}@clinic.example`,
      emailType,
    });
  const end = async (requestId: string | undefined, how: LookupEnd) => {
    await settle(db, requestId ?? '', how, 'no_source', RULES);
  };

  await know('2000000010', 'professional');
  const stored = await accept({ npis: ['2000000010'] });
  const replayed = await accept({ npis: ['2000000010'] });
  await know('2000000028', 'personal');
  const personal = await accept({ npis: ['2000000028'], requestedType: 'personal' });

  // The repeated NPI leads to a charge, and to a replay whose hold is released.
  const bulk = await accept({
    npis: ['2000000036', '2000000036', '2000000044', '2000000051'],
  });
  await know('2000000036', 'professional');
  await end(bulk.requestIds[0], 'finished');
  await end(bulk.requestIds[1], 'finished');
  await end(bulk.requestIds[2], 'finished');
  await end(bulk.requestIds[3], 'failed');
  const open = await accept({
    npis: ['2000000069', '2000000077', '2000000085', '2000000093'],
  });

  const attempt = (
    deliveryId: string,
    statusCode: number,
    state: 'pending' | 'delivered' | 'failed',
  ) => logAttempt(db, deliveryId, statusCode, state);
  const deliveriesOf = async (batchId: string) => {
    const rows = await db.drizzle.execute<{ id: string }>(sql`
      select id from webhook_deliveries where batch_id = ${batchId} order by id`);
    return rows.map(({ id }) => id);
  };
  const told = await accept({
    npis: ['2000000101'],
    webhook: { url: URL, mode: 'batch' },
  });
  await end(told.requestIds[0], 'finished');
  const [toldDelivery = ''] = await deliveriesOf(told.batchId);
  await attempt(toldDelivery, 500, 'pending');
  await attempt(toldDelivery, 204, 'delivered');
  const refused = await accept({
    npis: ['2000000119'],
    webhook: { url: URL, mode: 'real-time' },
  });
  await end(refused.requestIds[0], 'failed');
  const [refusedDelivery = ''] = await deliveriesOf(refused.batchId);
  await attempt(refusedDelivery, 410, 'failed');
  const telling = await accept({
    npis: ['2000000127', '2000000135'],
    webhook: { url: URL, mode: 'real-time' },
  });
  await end(telling.requestIds[0], 'finished');
  await end(telling.requestIds[1], 'failed');
  const running = await accept({
    npis: ['2000000143', '2000000150'],
    webhook: { url: URL, mode: 'real-time' },
  });
  await suspendWebhooks(db, BY, organization.organizationId, true);
  await accept({ npis: ['2000000168'], webhook: { url: URL, mode: 'batch' } });

  const idempotency = {
    key: 'order-17',
    method: 'POST',
    path: '/api/v1/email',
    fingerprint: Buffer.from('body'),
  };
  await accept({ npis: ['2000000176'], idempotency });
  await adjustCredits(db, BY, organization.organizationId, -5);

  await know('2000000184', 'professional');
  await accept({ npis: ['2000000184', '2000000184'] });
  await eraseSubject(db, ASKED, { npi: '2000000184' });

  const testKey = await openTestKey(db, organization);
  const outcomes = ['stored', 'replayed', 'slow'] as const;
  const { requestIds: tests } = await submitAccepted(db, testKey, {
    npis: ['2000000184', '2000000192', '2000000200'],
    outcomes,
  });
  for (const id of tests) await beginForSandbox(db, id);

  return {
    organizationId: organization.organizationId,
    otherOrganizationId: other.organizationId,
    /** Completed at once, charged. */
    stored,
    /** Completed at once, free. */
    replayed,
    /** Charged 3. */
    personal,
    /** Charged; replayed, its hold released; not_found; failed. */
    bulk,
    /** Four open requests, no webhook. */
    open,
    /** Sandbox requests: charged, a replay that was not paid for, and one in progress. */
    tests,
    told: { ...told, delivery: toldDelivery },
    refused: { ...refused, delivery: refusedDelivery },
    /** Its two deliveries are pending, and nothing was sent. */
    telling: { ...telling, deliveries: await deliveriesOf(telling.batchId) },
    /** Two open requests with a delivery each. */
    running: { ...running, deliveries: await deliveriesOf(running.batchId) },
  };
}
