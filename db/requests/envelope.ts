import { and, asc, eq, getTableColumns, isNull, or, sql } from 'drizzle-orm';
import { type Database, query } from '../client.ts';
import { batches, creditBalances, requests, webhookDeliveries } from '../schema.ts';
import type { DeliveryState, RequestStatus } from '../words.ts';

// The envelope (api/README.md, The envelope) has one builder for single polls, batch polls and deliveries.

/** What is asked for: one request, or its whole batch, of one organization. */
export type EnvelopeSubject =
  | { readonly organizationId: string; readonly requestId: string }
  | { readonly organizationId: string; readonly batchId: string };

/** All that an envelope says, read in one statement and so at one moment. */
export interface Envelope {
  readonly batch: Omit<typeof batches.$inferSelect, 'customData'>;
  readonly customData: string | null;
  readonly balance: number;
  /** In the order of the submit. The email fields of a request are null as well if nobody may have them now. */
  readonly items: readonly {
    readonly request: Request;
    readonly delivery: DeliveryState | null;
  }[];
}

type Request = typeof requests.$inferSelect;

const { customData: _text, ...BATCH } = getTableColumns(batches);

/**
 * Reads an envelope; the organization is part of the question, so that another one's id is as unknown as any.
 * @returns null if this organization has no such request or batch
 * @throws {DatabaseError}
 */
export async function findEnvelope(db: Database, subject: EnvelopeSubject): Promise<Envelope | null> {
  if (!(await belongs(db, subject))) return null;
  const rows = await query(db, (tx) =>
    tx
      .select({
        batch: BATCH,
        // Up to 16 KiB: once, not with each of 60 rows.
        customData: sql<string | null>`case when row_number() over (order by ${requests.position}) = 1
          then ${batches.customData} end`,
        balance: creditBalances.available,
        request: requests,
        // Asked with every answer: who was suppressed after it was given is not given again.
        withheld: sql<boolean>`${requests.email} is not null and is_suppressed(${requests.npi}, ${requests.email})`,
        delivery: webhookDeliveries.state,
      })
      .from(requests)
      .innerJoin(batches, eq(batches.id, requests.batchId))
      .innerJoin(creditBalances, eq(creditBalances.organizationId, batches.organizationId))
      .leftJoin(
        webhookDeliveries,
        and(
          eq(webhookDeliveries.batchId, batches.id),
          or(eq(webhookDeliveries.requestId, requests.id), isNull(webhookDeliveries.requestId)),
        ),
      )
      .where(
        'requestId' in subject ? eq(requests.id, subject.requestId) : eq(requests.batchId, subject.batchId),
      )
      .orderBy(asc(requests.position)),
  );
  const [first] = rows;
  if (!first) return null;
  const { batch, customData, balance } = first;
  const items = rows.map(({ request, withheld, delivery }) => ({
    request: withheld ? { ...request, ...WITHHELD } : request,
    delivery,
  }));
  return { batch, customData, balance, items };
}

const WITHHELD = { email: null, emailType: null, emailLastValidatedAt: null } as const;

/**
 * A statement of its own, on one table: the plan of the join below depends on how much it expects to find for an id,
 * and its time would tell a foreign id from an unknown one.
 */
async function belongs(db: Database, subject: EnvelopeSubject): Promise<boolean> {
  const { organizationId } = subject;
  const rows = await query(db, (tx) =>
    'requestId' in subject
      ? tx
          .select({ id: requests.id })
          .from(requests)
          .where(and(eq(requests.id, subject.requestId), eq(requests.organizationId, organizationId)))
      : tx
          .select({ id: batches.id })
          .from(batches)
          .where(and(eq(batches.id, subject.batchId), eq(batches.organizationId, organizationId))),
  );
  return rows.length === 1;
}

/**
 * The envelope as JSON text. `custom_data` is spliced in as the text it was sent as, because parsing it would lose
 * numbers, key order and more (DECISIONS.md, custom_data).
 * @param reader a delivery says `pending` of itself: it isn't over while it is read
 */
export function envelopeText(
  { batch, customData, balance, items }: Envelope,
  reader: 'poll' | 'delivery',
): string {
  const webhook = batch.webhookUrl && {
    url: batch.webhookUrl,
    mode: batch.webhookMode,
    status: reader === 'delivery' ? 'pending' : deliveryStatus(items.map((item) => item.delivery ?? 'none')),
  };
  const usage = { credits_used: items.reduce((sum, { request }) => sum + request.creditsUsed, 0), balance };
  const head = {
    id: batch.id,
    status: batch.status,
    total: batch.total,
    completed_count: batch.completedCount,
    created_at: batch.createdAt.toISOString(),
    updated_at: batch.updatedAt.toISOString(),
  };
  const data = items.map(({ request }) => dataItem(request));
  return `{"batch":${JSON.stringify(head)},"webhook":${JSON.stringify(webhook)},"custom_data":${
    customData ?? 'null'
  },"usage":${JSON.stringify(usage)},"data":${JSON.stringify(data)}}`;
}

/** The body of the 202 (api/README.md, Submitting). */
export function submitResponse(
  batchId: string,
  rows: readonly { id: string; npi: string; status: RequestStatus }[],
): string {
  return JSON.stringify({
    batch_id: batchId,
    status: rows.every((row) => row.status === 'completed') ? 'completed' : 'in-progress',
    requests: rows.map(({ id, npi }) => ({ npi, request_id: id, poll_url: `/api/v1/email/${id}` })),
  });
}

/** Any pending → pending, else any failed → failed, else delivered; `none` if nothing will be sent. */
function deliveryStatus(states: readonly DeliveryState[]): DeliveryState {
  const order: readonly DeliveryState[] = ['pending', 'failed', 'delivered', 'none'];
  return order.find((state) => states.includes(state)) ?? 'none';
}

function dataItem(request: Request) {
  return {
    request_id: request.id,
    npi: request.npi,
    status: request.status,
    replayed: request.replayed,
    email_type: request.emailType,
    email: request.email,
    email_last_validated: request.emailLastValidatedAt?.toISOString() ?? null,
    email_status: request.email === null ? null : 'valid',
  };
}
