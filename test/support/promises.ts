import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type EnvelopeResponse,
  eventually,
  type Organization,
  type SubmitResponse,
} from './organization.ts';
import type { Receiver } from './receiver.ts';
import { ordinaryNpis } from './vendors.ts';

/**
 * A client with this many unfinished batches waits before it submits the next one, so the load
 * follows the machine's speed. During an outage it does not wait forever.
 */
const OPEN_BATCHES = 3;
const MOST_POLLS = 20;
/** A client repeats a submit after this time, which is less than our `Retry-After`. */
const RETRY_MS = 200;

interface Accepted {
  readonly client: Organization;
  readonly npis: readonly string[];
}

interface Changed {
  readonly requestId: string;
  readonly seen: string;
  readonly now: string;
}

/** The promises that the service made to its clients, and those that it broke. */
export interface Account {
  /** Responses by method, status, and code of the problem. */
  readonly responses: Readonly<Record<string, number>>;
  /** The longest time in seconds without a 202 for any client. */
  readonly outage: number;
  readonly accepted: number;
  /** Accepted batches that are now a 404. */
  readonly lost: readonly string[];
  /** Final results that a client saw, by poll or webhook. */
  readonly results: number;
  /** Requests of batches that still exist, with another outcome than the client saw. */
  readonly changed: readonly Changed[];
  /** Requests that a server with fewer changes had open, although a client had seen their result. */
  readonly reopened: readonly string[];
  readonly webhooks: number;
  /** Webhooks that came again, with the `webhook-id` of an earlier one. */
  readonly repeated: number;
  /** Requests of batches that still exist, whose webhook never came. */
  readonly silent: readonly string[];
  /** Credits that the polls of existing batches show as spent. */
  readonly charged: number;
}

type Response = { readonly status: number; readonly json: unknown } | null;

/**
 * Clients that submit, poll, and receive webhooks without a pause, and write down each promise that
 * the service makes. Every third submit repeats NPIs that are already final, so that some requests
 * are replays. A submit without a 202 is repeated with the same `Idempotency-Key`.
 */
export class Clients {
  readonly #baseUrl: string;
  readonly #receiver: Receiver;
  readonly #responses: Record<string, number> = {};
  readonly #accepted = new Map<string, Accepted>();
  /** Outcomes of final requests, as the client first saw them. */
  readonly #results = new Map<string, string>();
  readonly #reopened: string[] = [];
  #working: Promise<unknown> = Promise.resolve();
  #isRunning = false;
  #lastAccepted = 0;
  #outage = 0;

  constructor(baseUrl: string, receiver: Receiver) {
    this.#baseUrl = baseUrl;
    this.#receiver = receiver;
  }

  start(clients: readonly Organization[]): void {
    this.#isRunning = true;
    this.#lastAccepted = performance.now();
    this.#working = Promise.all(
      clients.map((client, which) => this.#work(client, which)),
    );
  }

  async stop(): Promise<void> {
    this.#isRunning = false;
    await this.#working;
  }

  /** Waits until this many more batches are accepted. */
  async more(count: number): Promise<void> {
    const enough = this.#accepted.size + count;
    await eventually(async () => this.#accepted.size >= enough || null);
  }

  /** Waits until there are more responses that match. */
  async moreResponses(pattern: RegExp): Promise<void> {
    const count = () =>
      Object.entries(this.#responses)
        .filter(([what]) => pattern.test(what))
        .reduce((sum, [, times]) => sum + times, 0);
    const before = count();
    await eventually(async () => count() > before || null);
  }

  /**
   * Notes which results the next server has lost. No client may reach that server yet.
   * @param open the requests that are open on that server
   */
  noteReopened(open: readonly string[]): void {
    this.#noteWebhooks();
    this.#reopened.push(...open.filter((id) => this.#results.has(id)));
  }

  /**
   * Waits until all accepted batches are completed or unknown, and their webhooks received. Returns
   * which promises are kept.
   */
  async account(): Promise<Account> {
    // Webhooks are promises too, even those about batches that are lost.
    this.#noteWebhooks();
    const lost: string[] = [];
    const changed: Changed[] = [];
    const requests: string[] = [];
    let charged = 0;
    for (const [batchId, { client }] of this.#accepted) {
      const envelope = await this.#end(client, batchId);
      if (envelope === null) {
        lost.push(batchId);
        continue;
      }
      charged += envelope.usage.credits_used;
      for (const one of envelope.data) {
        requests.push(one.request_id);
        const seen = this.#results.get(one.request_id);
        const now = outcomeOf(one);
        if (seen === undefined || seen === now) continue;
        changed.push({ requestId: one.request_id, seen, now });
      }
    }
    const received = this.#noteWebhooks();
    const silent = requests.filter((id) => !received.has(id));
    const ids = this.#receiver.deliveries().map(({ id }) => id);
    return {
      responses: this.#responses,
      outage: Math.round(this.#outage / 100) / 10,
      accepted: this.#accepted.size,
      lost,
      results: this.#results.size,
      changed,
      reopened: this.#reopened,
      webhooks: ids.length,
      repeated: ids.length - new Set(ids).size,
      silent,
      charged,
    };
  }

  async #work(client: Organization, which: number): Promise<void> {
    const found = ordinaryNpis('found', 4000, which * 100_000).values();
    const notFound = ordinaryNpis('not_found', 2000, which * 100_000).values();
    const finished: string[] = [];
    const open: string[] = [];
    for (let nth = 0; this.#isRunning; nth += 1) {
      const repeated = this.#accepted.get(finished[nth % finished.length] ?? '');
      const npis = [found.next().value, notFound.next().value] as string[];
      const isRepeat = nth % 3 === 2 && repeated !== undefined;
      const batchId = await this.#submit(client, isRepeat ? repeated.npis : npis);
      if (batchId !== null) open.push(batchId);
      for (let polls = 0; polls < MOST_POLLS && this.#isRunning; polls += 1) {
        for (const one of [...open]) {
          if (!(await this.#poll(client, one))) continue;
          open.splice(open.indexOf(one), 1);
          finished.push(one);
        }
        await sleep(50);
        if (open.length < OPEN_BATCHES) break;
      }
    }
  }

  /** Submits until the response is a 202. @returns the batch, or null if the load has ended */
  async #submit(client: Organization, npis: readonly string[]): Promise<string | null> {
    const webhook = { url: `${this.#receiver.url}/hook`, mode: 'real-time' };
    const key = randomUUID();
    while (this.#isRunning) {
      const body = JSON.stringify({ npis, webhook });
      const response = await this.#call(client, 'POST', '/api/v1/email/bulk', body, key);
      if (response?.status === 202) {
        const { batch_id: batchId } = response.json as SubmitResponse;
        this.#accepted.set(batchId, { client, npis });
        const now = performance.now();
        this.#outage = Math.max(this.#outage, now - this.#lastAccepted);
        this.#lastAccepted = now;
        return batchId;
      }
      await sleep(RETRY_MS);
    }
    return null;
  }

  /** Returns whether the batch needs no further poll. */
  async #poll(client: Organization, batchId: string): Promise<boolean> {
    const response = await this.#call(client, 'GET', `/api/v1/batch/${batchId}`);
    if (response?.status === 404) return true;
    if (response?.status !== 200) return false;
    const { batch, data } = response.json as EnvelopeResponse;
    this.#noteResults(data);
    return batch.status === 'completed';
  }

  #noteResults(data: EnvelopeResponse['data']): void {
    for (const one of data) {
      if (!isFinal(one) || this.#results.has(one.request_id)) continue;
      this.#results.set(one.request_id, outcomeOf(one));
    }
  }

  /** Notes the results in all webhooks. @returns their requests */
  #noteWebhooks(): ReadonlySet<string> {
    const requests = new Set<string>();
    for (const { body } of this.#receiver.deliveries()) {
      const { data } = JSON.parse(body) as EnvelopeResponse;
      this.#noteResults(data);
      for (const { request_id } of data) requests.add(request_id);
    }
    return requests;
  }

  /** Waits until a batch is completed and its webhooks are sent. @returns null if it is unknown */
  async #end(client: Organization, batchId: string): Promise<EnvelopeResponse | null> {
    const { status, json } = await eventually(async () => {
      const response = await this.#call(client, 'GET', `/api/v1/batch/${batchId}`);
      if (response?.status === 404) return response;
      const { batch, webhook } = Object(response?.json) as Partial<EnvelopeResponse>;
      const isOver = batch?.status === 'completed' && webhook?.status === 'delivered';
      return isOver ? response : null;
    });
    return status === 404 ? null : (json as EnvelopeResponse);
  }

  async #call(
    { apiKey }: Organization,
    method: 'GET' | 'POST',
    path: string,
    body: string | null = null,
    key = '',
  ): Promise<Response> {
    const headers: Record<string, string> = { authorization: `Bearer ${apiKey}` };
    if (body !== null) {
      headers['content-type'] = 'application/json';
      headers['idempotency-key'] = key;
    }
    const response = await fetch(`${this.#baseUrl}${path}`, { method, headers, body })
      .then(async (got) => ({ status: got.status, json: await got.json() }))
      .catch(() => null);
    const { code } = Object(response?.json) as { readonly code?: string };
    const what = [method, response?.status ?? 'no response', code].filter(Boolean);
    const counted = what.join(' ');
    this.#responses[counted] = (this.#responses[counted] ?? 0) + 1;
    return response;
  }
}

function isFinal({ status }: EnvelopeResponse['data'][number]): boolean {
  return ['completed', 'not_found', 'failed'].includes(status);
}

function outcomeOf({ status, email }: EnvelopeResponse['data'][number]): string {
  return email === null ? status : `${status} ${email}`;
}
