import { randomUUID } from 'node:crypto';
import { type Connection, checkList, checkOption } from './connection.ts';
import { type Call, createCaller } from './http.ts';
import pacing from './pacing.json' with { type: 'json' };
import type {
  Accepted,
  Batch,
  BatchStatus,
  BulkSubmit,
  CheckReport,
  Credits,
  Delivery,
  DeliveryStatus,
  Envelope,
  LedgerEntry,
  Resent,
  SingleSubmit,
  TestOutcome,
  UsageBy,
  UsageReport,
} from './types.ts';

export interface SubmitOptions {
  /**
   * The Idempotency-Key. The default is a random one, with which the client safely retries. Pass
   * your own if your program may repeat the submit after a crash.
   */
  readonly idempotencyKey?: string | undefined;
  /** The outcome of every NPI. Works only with a test key. */
  readonly testOutcome?: TestOutcome | undefined;
}

export interface PollOptions {
  /** Seconds for which the service may hold the response until all is final, at most 55. */
  readonly waitSeconds?: number | undefined;
}

export interface Period {
  /** Leaves out everything before this time. */
  readonly since?: Date | undefined;
  /** Leaves out everything from this time on. */
  readonly until?: Date | undefined;
}

/** The period is that of the submits. */
export interface BatchFilter extends Period {
  readonly status?: BatchStatus | undefined;
  readonly npi?: string | undefined;
}

/** The period is that of the submits. */
export interface DeliveryFilter extends Period {
  readonly status?: DeliveryStatus | undefined;
}

export interface UsageOptions extends Period {
  /** The default is `day`. */
  readonly by?: UsageBy | undefined;
}

/** The most NPIs that the service checks at once. */
const MAX_CHECKED = pacing.npisPerCheck;

/** One page of a list. */
type Page<Name extends string, Item> = Readonly<Record<Name, readonly Item[]>> & {
  readonly next_cursor: string | null;
};

/**
 * The operations of the API. Bodies are those of the API (`/docs/reference`). Each call stays
 * within the rate limit and is retried if the error may be temporary. Lists are read page by page
 * while you iterate over them.
 */
export class EnrichmentClient {
  readonly #call: Call;

  /** @throws {EnrichmentError} `api_key_unusable`, `base_url_unusable`, `option_invalid` */
  constructor(connection: Connection) {
    this.#call = createCaller(connection);
  }

  /** Submits one NPI. */
  async submitSingle(body: SingleSubmit, options?: SubmitOptions): Promise<Accepted> {
    return await this.#submit('/api/v1/email', body, options);
  }

  /** Submits 1 to 60 NPIs as one batch. */
  async submitBulk(body: BulkSubmit, options?: SubmitOptions): Promise<Accepted> {
    return await this.#submit('/api/v1/email/bulk', body, options);
  }

  /**
   * Checks any number of NPIs before a submit, free of charge: which would be looked up, and the most
   * credits that they can cost. An NPI that occurs several times is checked once.
   */
  async checkNpis(npis: readonly string[]): Promise<CheckReport> {
    checkList(npis);
    const different = [...new Set(npis)];
    const report = await this.#check(different.slice(0, MAX_CHECKED));
    for (let first = MAX_CHECKED; first < different.length; first += MAX_CHECKED) {
      const next = await this.#check(different.slice(first, first + MAX_CHECKED));
      report.data.push(...next.data);
      add(report.totals, next.totals);
      add(report.max_credits, next.max_credits);
    }
    return report;
  }

  /** Returns the result of one request. */
  async getRequest(requestId: string, options?: PollOptions): Promise<Envelope> {
    return await this.#poll(`/api/v1/email/${encodeURIComponent(requestId)}`, options);
  }

  /** Returns the results of a batch. */
  async getBatch(batchId: string, options?: PollOptions): Promise<Envelope> {
    return await this.#poll(pathOf(batchId), options);
  }

  /** Returns the organization's batches, newest first. */
  getBatches(filter: BatchFilter = {}): AsyncGenerator<Batch> {
    return this.#list('/api/v1/batches', 'batches', queryOf(filter));
  }

  /** Returns the webhook deliveries of a batch, each with its newest attempts. */
  getDeliveries(batchId: string): AsyncGenerator<Delivery> {
    return this.#list(`${pathOf(batchId)}/deliveries`, 'deliveries');
  }

  /**
   * Returns a webhook delivery with up to 50 attempts.
   * @param before only attempts with a lower `n`. The default is the newest attempts
   */
  async getDelivery(
    batchId: string,
    deliveryId: string,
    before?: number,
  ): Promise<Delivery> {
    const path = deliveryPath(batchId, deliveryId);
    const { body } = await this.#call<Delivery>(
      before === undefined ? path : `${path}?before=${before}`,
    );
    return body;
  }

  /**
   * Sends a webhook delivery again.
   * @throws {EnrichmentError} `delivery_pending` if it is being sent, also by a call of yours whose
   * response was lost; `resend_limited`, `webhooks_suspended`
   */
  async resendDelivery(batchId: string, deliveryId: string): Promise<Delivery> {
    const path = `${deliveryPath(batchId, deliveryId)}/resend`;
    const { body } = await this.#call<Delivery>(path, { method: 'POST' });
    return body;
  }

  /** Returns the webhook deliveries of all batches, newest first. */
  getAllDeliveries(filter: DeliveryFilter = {}): AsyncGenerator<Delivery> {
    return this.#list('/api/v1/deliveries', 'deliveries', queryOf(filter));
  }

  /**
   * Sends the webhook deliveries again that failed at a time or later, at most 500.
   * @throws {EnrichmentError} `webhooks_suspended`
   */
  async resendFailedDeliveries(failedSince: Date): Promise<Resent> {
    const path = '/api/v1/deliveries/resend';
    const given = { failed_since: timeOf(failedSince) };
    const { body } = await this.#call<Resent>(path, { method: 'POST', body: given });
    return body;
  }

  /** Returns the organization's credits. */
  async getCredits(): Promise<Credits> {
    const { body } = await this.#call<Credits>('/api/v1/credits');
    return body;
  }

  /** Returns every movement of credits, newest first. */
  getLedger(period: Period = {}): AsyncGenerator<LedgerEntry> {
    return this.#list('/api/v1/credits/ledger', 'entries', queryOf(period));
  }

  /**
   * Returns the usage of whole UTC days, by default of the current month.
   * @throws {EnrichmentError} if the period has more than 366 days
   */
  async getUsage(options: UsageOptions = {}): Promise<UsageReport> {
    const { body } = await this.#call<UsageReport>(`/api/v1/usage?${queryOf(options)}`);
    return body;
  }

  async #check(npis: readonly string[]): Promise<CheckReport> {
    const options = { method: 'POST', body: { npis } } as const;
    const { body } = await this.#call<CheckReport>('/api/v1/check', options);
    return body;
  }

  async #submit(
    path: string,
    submit: SingleSubmit | BulkSubmit,
    { idempotencyKey = randomUUID(), testOutcome }: SubmitOptions = {},
  ): Promise<Accepted> {
    // A test of null would test the text "null", which is then the key of every submit.
    const isKey =
      typeof idempotencyKey === 'string' && /^[\x21-\x7e]+$/.test(idempotencyKey);
    checkOption(isKey, 'idempotencyKey must be ASCII text without spaces.');
    const headers: Record<string, string> = { 'idempotency-key': idempotencyKey };
    if (testOutcome) headers['test-outcome'] = testOutcome;
    const options = { method: 'POST', headers, body: submit } as const;
    const { body } = await this.#call<Accepted>(path, options);
    return body;
  }

  async #poll(path: string, { waitSeconds }: PollOptions = {}): Promise<Envelope> {
    const headers: Record<string, string> = {};
    if (waitSeconds) headers.prefer = `wait=${waitSeconds}`;
    const { body } = await this.#call<Envelope>(path, { headers });
    return body;
  }

  async *#list<Name extends string, Item>(
    path: string,
    name: Name,
    query = new URLSearchParams(),
  ): AsyncGenerator<Item> {
    query.set('limit', '100');
    for (;;) {
      const { body } = await this.#call<Page<Name, Item>>(`${path}?${query}`);
      yield* body[name];
      if (body.next_cursor === null) return;
      query.set('cursor', body.next_cursor);
    }
  }
}

/** Adds numbers to those with the same name. */
function add<Name extends string>(
  sums: Record<Name, number>,
  numbers: Readonly<Record<Name, number>>,
): void {
  for (const name of Object.keys(sums) as Name[]) {
    sums[name] += numbers[name];
  }
}

function queryOf(options: object): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(options)) {
    if (value !== undefined) {
      query.set(name, timeOf(value));
    }
  }
  return query;
}

/** Returns a time for the API, and any other value as it is, which the API rejects if it must. */
function timeOf(value: Date | string): string {
  if (!(value instanceof Date)) {
    return value;
  }
  const isTime = !Number.isNaN(value.getTime());
  return isTime ? value.toISOString() : String(value);
}

function pathOf(batchId: string): string {
  return `/api/v1/batch/${encodeURIComponent(batchId)}`;
}

function deliveryPath(batchId: string, deliveryId: string): string {
  return `${pathOf(batchId)}/deliveries/${encodeURIComponent(deliveryId)}`;
}
