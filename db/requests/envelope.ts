import { sql } from 'drizzle-orm';
import { type Database, statement } from '../connection/client.ts';
import { readByCursor } from '../connection/cursor.ts';
import type { batches, requests } from '../schema.ts';
import {
  type DeliveryState,
  PUBLIC_REASONS,
  type PublicReason,
  type RequestStatus,
} from '../words.ts';

// The envelope is the JSON object that polls return and webhook deliveries send
// (api/docs/lifecycle.md, The envelope). This file builds it for all of them, so that they have the
// same content.

/** The subject of an envelope: one request of an organization, or a whole batch. */
export type EnvelopeSubject =
  | { readonly organizationId: string; readonly requestId: string }
  | { readonly organizationId: string; readonly batchId: string };

/**
 * The state of an envelope. Reading it shows whether the envelope has changed, and costs much less
 * than reading the whole envelope.
 */
export interface EnvelopeState {
  readonly batchId: string;
  /** A text that changes whenever anything in the envelope changes. */
  readonly version: string;
  /**
   * The statuses of the requests in the envelope, separated by spaces. The envelope of a single
   * request contains only its own status, not those of the other requests in its batch.
   */
  readonly statuses: string;
  readonly isFinal: boolean;
  /** The time since the submit in milliseconds, by PostgreSQL's clock. */
  readonly ageMs: number;
}

type BatchFields = 'status' | 'total' | 'completedCount' | 'createdAt' | 'updatedAt';
type ClientFields = 'webhookUrl' | 'webhookMode' | 'customData';

/**
 * The content of an envelope. It is read in one statement, so that all values are from the same
 * moment.
 */
export interface Envelope
  extends EnvelopeState,
    Readonly<Pick<typeof batches.$inferSelect, BatchFields | ClientFields>> {
  readonly balance: number;
  /**
   * The requests in the order in which the client listed them. If an email may no longer be
   * returned, because it was suppressed later, its email fields are null.
   */
  readonly items: readonly Item[];
}

/** The fields of an envelope that its text contains. */
export type EnvelopeContent = Omit<Envelope, Exclude<keyof EnvelopeState, 'batchId'>>;

type ItemFields = 'npi' | 'status' | 'replayed' | 'creditsUsed' | 'email' | 'emailType';

interface Item extends Readonly<Pick<typeof requests.$inferSelect, ItemFields>> {
  readonly requestId: string;
  readonly validatedAt: string | null;
  readonly delivery: DeliveryState | null;
}

// Polls are frequent, so their statements are prepared. Each first finds the batch by the id and the
// organization in one index lookup. The response time therefore does not reveal whether an id
// belongs to another organization. Triggers increase the batch's `updated_at`, which is part of the
// version, with every change of a request or a delivery.

const ID = sql.placeholder('id');
const ORGANIZATION_ID = sql.placeholder('organizationId');

type EnvelopeRow = Omit<Envelope, 'statuses' | 'isFinal'>;

/** The fields of a request in an envelope or a file, of `requests r` and `GIVEN`. */
const ITEM = sql`
  r.id as "requestId",
  r.npi,
  r.status,
  r.replayed,
  r.credits_used as "creditsUsed",
  given.email,
  case when given.email is not null then r.email_type end as "emailType",
  case when given.email is not null then r.email_last_validated_at end as "validatedAt"`;

/**
 * The email of `requests r`, or null for a person who was suppressed after the email was recorded.
 * The check is skipped if no suppression has changed since then (`suppression_changes s`), and for
 * sandbox requests. Without "offset 0", PostgreSQL would run the check once for each of three fields.
 */
const GIVEN = sql`lateral (
  select case
           when r.email is not null
             and (r.suppression_change = s.n
                  or r.test_outcome is not null
                  or not is_suppressed(r.npi, r.email))
           then r.email
         end as email offset 0
) given`;

/** Reads the envelope of a whole batch. */
const readBatchEnvelope = statement<EnvelopeRow>(sql`
    select b.id as "batchId",
           (extract(epoch from clock_timestamp() - b.created_at) * 1000)::float8 as "ageMs",
           concat_ws(' ', b.updated_at, c.available, s.n) as version,
           b.status,
           b.total,
           b.completed_count as "completedCount",
           b.created_at as "createdAt",
           b.updated_at as "updatedAt",
           b.webhook_url as "webhookUrl",
           b.webhook_mode as "webhookMode",
           b.custom_data as "customData",
           c.available as balance,
           content.items
      from batches b
      join credit_balances c on c.organization_id = b.organization_id
     cross join suppression_changes s
     cross join lateral (
       select json_agg(item) as items from (
        select ${ITEM}, d.state as delivery
          from requests r
         cross join ${GIVEN}
          left join webhook_deliveries d
            on d.batch_id = b.id and (d.request_id = r.id or d.request_id is null)
         where r.batch_id = b.id
         order by r.position
      ) item
     ) content
     where b.id = (
       select id from batches where id = ${ID} and organization_id = ${ORGANIZATION_ID})`);

/**
 * Reads the envelope of one request. It has one item, so it needs no aggregate function and no
 * order.
 */
const readRequestEnvelope = statement<EnvelopeRow>(sql`
    select b.id as "batchId",
           (extract(epoch from clock_timestamp() - b.created_at) * 1000)::float8 as "ageMs",
           concat_ws(' ', b.updated_at, c.available, s.n) as version,
           b.status,
           b.total,
           b.completed_count as "completedCount",
           b.created_at as "createdAt",
           b.updated_at as "updatedAt",
           b.webhook_url as "webhookUrl",
           b.webhook_mode as "webhookMode",
           b.custom_data as "customData",
           c.available as balance,
           content.items
      from batches b
      join credit_balances c on c.organization_id = b.organization_id
     cross join suppression_changes s
     cross join lateral (
       select json_build_array(item) as items from (
        select ${ITEM}, d.state as delivery
          from requests r
         cross join ${GIVEN}
          left join webhook_deliveries d
            on d.batch_id = b.id and (d.request_id = r.id or d.request_id is null)
         where r.id = ${ID}
      ) item
     ) content
     where b.id = (
       select batch_id from requests where id = ${ID} and organization_id = ${ORGANIZATION_ID})`);

/** Reads the state of the envelope of a whole batch. */
const readBatchState = statement<EnvelopeState>(sql`
    select b.id as "batchId",
           (extract(epoch from clock_timestamp() - b.created_at) * 1000)::float8 as "ageMs",
           concat_ws(' ', b.updated_at, c.available, s.n) as version,
           content.statuses,
           content."isFinal"
      from batches b
      join credit_balances c on c.organization_id = b.organization_id
     cross join suppression_changes s
     cross join lateral (
       select string_agg(status, ' ' order by position) as statuses,
              bool_and(settled_at is not null) as "isFinal"
         from requests r
        where r.batch_id = b.id
     ) content
     where b.id = (
       select id from batches where id = ${ID} and organization_id = ${ORGANIZATION_ID})`);

/** Reads the state of the envelope of one request. */
const readRequestState = statement<EnvelopeState>(sql`
    select b.id as "batchId",
           (extract(epoch from clock_timestamp() - b.created_at) * 1000)::float8 as "ageMs",
           concat_ws(' ', b.updated_at, c.available, s.n) as version,
           content.statuses,
           content."isFinal"
      from batches b
      join credit_balances c on c.organization_id = b.organization_id
     cross join suppression_changes s
     cross join lateral (
       select string_agg(status, ' ' order by position) as statuses,
              bool_and(settled_at is not null) as "isFinal"
         from requests r
        where r.id = ${ID}
     ) content
     where b.id = (
       select batch_id from requests where id = ${ID} and organization_id = ${ORGANIZATION_ID})`);

/**
 * Reads an envelope. An id that belongs to another organization is treated as unknown.
 * @returns null if this organization has no such request or batch
 */
export async function findEnvelope(
  db: Database,
  subject: EnvelopeSubject,
): Promise<Envelope | null> {
  const row = await readEnvelope(db, subject);
  if (!row) return null;
  const statuses = row.items.map(({ status }) => status);
  return {
    ...row,
    statuses: statuses.join(' '),
    isFinal: statuses.every(
      (status) => status !== 'accepted' && status !== 'in-progress',
    ),
  };
}

async function readEnvelope(
  db: Database,
  subject: EnvelopeSubject,
): Promise<EnvelopeRow | undefined> {
  const { organizationId } = subject;
  if ('requestId' in subject) {
    const [row] = await readRequestEnvelope(db, {
      id: subject.requestId,
      organizationId,
    });
    return row;
  }
  const [row] = await readBatchEnvelope(db, { id: subject.batchId, organizationId });
  return row;
}

/**
 * Reads only the state of an envelope, which is much cheaper than `findEnvelope`.
 * @returns null if this organization has no such request or batch
 */
export async function findEnvelopeState(
  db: Database,
  subject: EnvelopeSubject,
): Promise<EnvelopeState | null> {
  const { organizationId } = subject;
  if ('requestId' in subject) {
    const [row = null] = await readRequestState(db, {
      id: subject.requestId,
      organizationId,
    });
    return row;
  }
  const [row = null] = await readBatchState(db, { id: subject.batchId, organizationId });
  return row;
}

/** The number of results that are in memory at once when a file is read. */
const FILE_PART = 100;

/** A result as the console shows it. The envelope does not have the last two fields. */
export interface ShownItem extends DataItem {
  readonly refusal: PublicReason | null;
  /** The day of the deactivation in NPPES, such as `2026-01-05`, or null. */
  readonly deactivated_on: string | null;
}

/**
 * Reads the results of batches for a page or a file, in the order in which the client listed them,
 * and waits for `work` after some of them. Leaves out batches that are not the organization's.
 */
export async function readResults(
  db: Database,
  organizationId: string,
  batchIds: readonly string[],
  work: (results: readonly ShownItem[]) => Promise<void>,
): Promise<void> {
  const statement = sql`
    select ${ITEM}, refused.refusal, d.deactivated_on::text as "deactivatedOn"
      from unnest(${sql.param(batchIds)}::text[]) with ordinality part (id, n)
      join batches b on b.id = part.id and b.organization_id = ${organizationId}
      join requests r on r.batch_id = b.id
     cross join suppression_changes s
     cross join ${GIVEN}
     cross join lateral (
       select case when r.reason = any(${sql.param([...PUBLIC_REASONS])}::text[]) then r.reason end
                as refusal) refused
      left join providers d
        on d.npi = r.npi and d.origin = 'nppes' and refused.refusal = 'deactivated'
     order by part.n, r.position`;
  await readByCursor<Item & Refused>(db, statement, FILE_PART, (items) =>
    work(items.map(shownItem)),
  );
}

interface Refused {
  readonly refusal: PublicReason | null;
  readonly deactivatedOn: string | null;
}

function shownItem({ refusal, deactivatedOn, ...item }: Item & Refused): ShownItem {
  return { ...dataItem(item), refusal, deactivated_on: deactivatedOn };
}

/**
 * Returns the envelope as JSON text. `custom_data` is inserted as the text that the client sent,
 * because parsing it would lose number precision, key order, and more (DECISIONS.md, custom_data).
 * @param reader `delivery` for the body of a webhook delivery. Its webhook status is `pending`,
 * because the delivery is not finished yet
 */
export function envelopeText(
  envelope: EnvelopeContent,
  reader: 'poll' | 'delivery',
): string {
  const { customData, balance, items } = envelope;
  const usage = {
    credits_used: items.reduce((sum, { creditsUsed }) => sum + creditsUsed, 0),
    balance,
  };
  const members = [
    `"batch":${JSON.stringify(batchObject(envelope))}`,
    `"webhook":${JSON.stringify(webhookObject(envelope, reader))}`,
    `"custom_data":${customData ?? 'null'}`,
    `"usage":${JSON.stringify(usage)}`,
    `"data":${JSON.stringify(items.map(dataItem))}`,
  ];
  return `{${members.join(',')}}`;
}

function webhookObject(
  { webhookUrl, webhookMode, items }: EnvelopeContent,
  reader: 'poll' | 'delivery',
): object | null {
  if (webhookUrl === null) return null;
  let status: DeliveryState = 'pending';
  if (reader === 'poll') {
    status = deliveryStatus(items.map(({ delivery }) => delivery ?? 'none'));
  }
  return { url: webhookUrl, mode: webhookMode, status };
}

/** Returns the value of the envelope's member `batch`. */
export function batchObject(batch: Pick<Envelope, 'batchId' | BatchFields>) {
  return {
    id: batch.batchId,
    status: batch.status,
    total: batch.total,
    completed_count: batch.completedCount,
    created_at: batch.createdAt.toISOString(),
    updated_at: batch.updatedAt.toISOString(),
  };
}

/** Returns the body of the 202 response (api/docs/lifecycle.md, Submitting). */
export function submitResponse(
  batchId: string,
  rows: readonly { id: string; npi: string; status: RequestStatus }[],
): string {
  const isCompleted = rows.every(({ status }) => status === 'completed');
  return JSON.stringify({
    batch_id: batchId,
    status: isCompleted ? 'completed' : 'in-progress',
    requests: rows.map(({ id, npi }) => ({
      npi,
      request_id: id,
      poll_url: `/api/v1/email/${id}`,
    })),
  });
}

/**
 * Combines the states of deliveries: `pending` if any is pending, else `failed` if any failed, else
 * `delivered`. Returns `none` if nothing will be sent.
 */
function deliveryStatus(states: readonly DeliveryState[]): DeliveryState {
  const order: readonly DeliveryState[] = ['pending', 'failed', 'delivered', 'none'];
  return order.find((state) => states.includes(state)) ?? 'none';
}

export type DataItem = ReturnType<typeof dataItem>;

/** Returns a member of `data`. */
export function dataItem(item: Item) {
  let lastValidated: string | null = null;
  if (item.validatedAt !== null) {
    lastValidated = new Date(item.validatedAt).toISOString();
  }
  return {
    request_id: item.requestId,
    npi: item.npi,
    status: item.status,
    replayed: item.replayed,
    email_type: item.emailType,
    email: item.email,
    email_last_validated: lastValidated,
    email_status: item.email === null ? null : 'valid',
  };
}
