import { randomUUID } from 'node:crypto';
import { setTimeout } from 'node:timers/promises';
import { withCheckDigit } from '../../../deploy/local/sim/people.ts';
import {
  type EnvelopeResponse,
  openOrganization,
  type SubmitResponse,
} from '../../support/organization.ts';
import type { Stack } from '../../support/stack.ts';
import { Visitor } from '../../support/visitor.ts';
import {
  type Books,
  type Customer,
  HABITS,
  type Order,
  type RequestedType,
} from './books.ts';
import { RECEIVERS, type ReceiverKind, type World } from './world.ts';

// The customers of the simulated day. Each has its habits, and is careful: it repeats a request
// after a lost connection, a 409, a 429, or a 5xx, with the same Idempotency-Key.

const CUSTOMERS = 200;
export const CREDITS = 1_000_000;
/** The customers with the most traffic have asked for a higher limit. */
const LARGE = 20;
const LARGE_LIMIT = 2000;
const USUAL_LIMIT = 100;
const MEAN_NPIS = 6;
/** The share of NPIs for which an email was found before. */
const KNOWN_SHARE = 0.2;
/** Small, so that the flood also reaches the rate limit. */
const FLOOD_BULK = 12;
const POLL_MS = 2000;
/** A customer gives up a request after this time. */
const PATIENCE_MS = 300_000;

export function isSmall({ rank }: Customer): boolean {
  return rank > LARGE;
}

/** Opens the organizations. Nearly one in five has a receiver that is slow or fails. */
export async function openCustomers({ db }: Stack): Promise<Customer[]> {
  const ranks = Array.from({ length: CUSTOMERS }, (_, index) => index + 1);
  return await Promise.all(
    ranks.map(async (rank) => {
      const limit = rank <= LARGE ? LARGE_LIMIT : USUAL_LIMIT;
      const { organizationId, apiKey } = await openOrganization(db, CREDITS, limit);
      const habit = HABITS[rank % HABITS.length] ?? 'polls';
      const receiver = receiverOf(rank);
      return { rank, organizationId, apiKey, habit, receiver, earlier: null };
    }),
  );
}

function receiverOf(rank: number): ReceiverKind {
  switch (rank % 16) {
    case 2:
      return 'slow';
    case 7:
      return 'flaky';
    case 10:
      return 'failing';
    default:
      return 'good';
  }
}

/** Sends all requests of the customers, and writes them into the books. */
export class Market {
  readonly #world: World;
  readonly #books: Books;
  readonly #random: () => number;
  readonly #customers: readonly Customer[];
  readonly #weights: readonly number[];
  /** NPIs for which an email was found. */
  readonly #found: string[] = [];
  /** All that customers are doing. */
  readonly #open = new Set<Promise<void>>();
  #nextNpi = 100_000_000;

  /** @param random returns numbers from 0 to 1 */
  constructor(
    world: World,
    books: Books,
    customers: readonly Customer[],
    random: () => number,
  ) {
    this.#world = world;
    this.#books = books;
    this.#random = random;
    this.#customers = customers;
    // Zipf's law: the traffic of a customer is proportional to 1 / rank.
    this.#weights = customers.map(({ rank }) => 1 / rank);
  }

  /** Begins actions of random customers, at random times, until the signal. */
  async trade(npisPerSecond: number, ending: AbortSignal): Promise<void> {
    while (!ending.aborted) {
      this.#begin();
      const seconds = (MEAN_NPIS * -Math.log(1 - this.#random())) / npisPerSecond;
      await setTimeout(1000 * seconds, null, { signal: ending }).catch(() => {});
    }
  }

  /** Lets one customer submit a number of NPIs as fast as it can. */
  async flood(customer: Customer, npis: number): Promise<void> {
    let left = npis;
    const send = async () => {
      while (left > 0) {
        left -= FLOOD_BULK;
        await this.#submit(customer, { npis: this.#npis(FLOOD_BULK, 0), type: 'any' });
      }
    };
    await Promise.all(Array.from({ length: 4 }, send));
  }

  /** Waits until every customer has finished. */
  async finish(): Promise<void> {
    while (this.#open.size > 0) await Promise.all(this.#open);
  }

  /** Begins one action, which has `MEAN_NPIS` on average. */
  #begin(): void {
    const customer = this.#anyone();
    const dice = this.#random();
    if (dice < 0.06 && customer.earlier !== null) {
      this.#track(this.#order(customer, customer.earlier));
    } else if (dice > 0.995) {
      const size = 61 + Math.floor(60 * this.#random());
      this.#track(this.#upload(customer, this.#npis(size, KNOWN_SHARE)));
    } else {
      const npis = this.#npis(this.#sizeBy(dice), KNOWN_SHARE);
      this.#track(this.#order(customer, { npis, type: this.#type() }));
    }
  }

  /** Two in three submits are single. Small bulks are more common than large ones. */
  #sizeBy(dice: number): number {
    return dice > 0.7 ? 1 + Math.floor(60 * this.#random() ** 3) : 1;
  }

  #track(action: Promise<void>): void {
    const open = action.finally(() => this.#open.delete(open));
    this.#open.add(open);
  }

  #anyone(): Customer {
    const sum = this.#weights.reduce((a, b) => a + b, 0);
    let left = sum * this.#random();
    const chosen = this.#customers.find((_, index) => {
      left -= this.#weights[index] ?? 0;
      return left <= 0;
    });
    return chosen ?? (this.#customers[0] as Customer);
  }

  #type(): RequestedType {
    const dice = this.#random();
    if (dice < 0.7) return 'any';
    return dice < 0.9 ? 'professional' : 'personal';
  }

  /** Returns different NPIs. A share of them was found for a customer before. */
  #npis(count: number, knownShare: number): string[] {
    const npis = new Set<string>();
    while (npis.size < count) {
      const known = this.#found[Math.floor(this.#found.length * this.#random())];
      if (known !== undefined && this.#random() < knownShare) {
        npis.add(known);
      } else {
        npis.add(withCheckDigit(this.#nextNpi));
        this.#nextNpi += 1;
      }
    }
    return [...npis];
  }

  /** Submits an order, and gets its results as the customer is used to. */
  async #order(customer: Customer, order: Order): Promise<void> {
    const batchId = await this.#submit(customer, order);
    if (batchId === null) return;
    const results = await this.#results(customer, batchId);
    customer.earlier = order;
    for (const { npi, email } of results?.data ?? []) {
      if (email !== null) this.#found.push(npi);
    }
  }

  /** @returns the id of the batch, or null if the customer gave up */
  async #submit(customer: Customer, { npis, type }: Order): Promise<string | null> {
    const { habit, receiver } = customer;
    const hasWebhook = habit === 'real-time' || habit === 'batch';
    const url = this.#world.receivers[receiver].url + RECEIVERS[receiver].path;
    const [npi] = npis;
    const body = {
      ...(npis.length === 1 ? { npi } : { npis }),
      enrichment_email_type: type,
      webhook: hasWebhook ? { url, mode: habit } : undefined,
    };
    const path = npis.length === 1 ? '/api/v1/email' : '/api/v1/email/bulk';
    const accepted = await this.send<SubmitResponse>(customer, 'submit', path, body);
    if (accepted === null) return null;
    const mode = hasWebhook ? habit : null;
    const { batch_id: id, requests } = accepted;
    const ids = requests.map(({ request_id }) => request_id);
    this.#books.accepted.push({ customer, npis, type, mode, id, ids, at: Date.now() });
    return id;
  }

  /** Waits for the results, unless the customer gets them by webhook. */
  async #results(customer: Customer, id: string): Promise<EnvelopeResponse | null> {
    const path = `/api/v1/batch/${id}`;
    for (;;) {
      switch (customer.habit) {
        case 'polls':
          await setTimeout(POLL_MS);
          break;
        case 'waits':
          break;
        default:
          return null;
      }
      const kind = customer.habit === 'polls' ? 'poll' : 'wait';
      const envelope = await this.send<EnvelopeResponse>(customer, kind, path);
      if (envelope === null || envelope.batch.status === 'completed') return envelope;
    }
  }

  /** Uploads a file in the console, and waits for its end, like a person. */
  async #upload(customer: Customer, npis: readonly string[]): Promise<void> {
    const visitor = new Visitor(this.#world.baseUrl);
    await this.#patiently(() => visitor.signIn(customer.apiKey));
    const page = '/console/uploads';
    const file = new File([`npi\n${npis.join('\n')}\n`], 'npis.csv');
    const draft = await this.#patiently(async () => {
      const { token } = await visitor.get(page);
      return await visitor.upload(page, token, file);
    });
    const path = draft.path.split('?')[0] ?? '';
    await this.#patiently(async () => {
      const { token } = await visitor.get(path);
      const fields = { form_token: token, column: '0', sheet: '', type: 'any' };
      return await visitor.post(`${path}/start`, fields);
    });
    this.#books.uploads.push({ customer, npis, id: path.split('/').at(-1) ?? '' });
  }

  /** Repeats a step in the console while the service does not respond to it. */
  async #patiently<T extends { readonly status: number }>(step: () => Promise<T>) {
    for (;;) {
      const at = Date.now();
      const seen = await step().catch(() => null);
      const status = seen?.status ?? 0;
      this.#books.calls.push({ kind: 'console', at, ms: Date.now() - at, status });
      if (seen !== null && status < 500) return seen;
      await setTimeout(1000);
    }
  }

  /**
   * Sends a request until it succeeds: a POST with a body, otherwise a GET.
   * @returns null if it cannot succeed, or the customer gave up
   */
  async send<T>(
    { apiKey }: Customer,
    kind: 'submit' | 'poll' | 'wait' | 'check',
    path: string,
    body?: object,
  ): Promise<T | null> {
    const headers: Record<string, string> = { 'x-api-key': apiKey };
    if (kind === 'wait') headers.prefer = 'wait=30';
    const init: RequestInit = { headers };
    if (body !== undefined) {
      headers['content-type'] = 'application/json';
      headers['idempotency-key'] = randomUUID();
      Object.assign(init, { method: 'POST', body: JSON.stringify(body) });
    }
    const begun = Date.now();
    while (Date.now() < begun + PATIENCE_MS) {
      const at = Date.now();
      const { status, retryAfter, text } = await fetchText(
        `${this.#world.baseUrl}${path}`,
        init,
      );
      this.#books.calls.push({ kind, at, ms: Date.now() - at, status });
      if (status === 200 || status === 202) return JSON.parse(text) as T;
      const isRepeated = status === 0 || status === 409 || status === 429 || status > 499;
      if (!isRepeated) break;
      await setTimeout(1000 * retryAfter);
    }
    this.#books.givenUp.push(`${kind} ${path}`);
    return null;
  }
}

/** Returns the status 0 if there is no response. */
async function fetchText(url: string, init: RequestInit) {
  try {
    const response = await fetch(url, init);
    const { status, headers } = response;
    const retryAfter = Number(headers.get('retry-after') ?? 1);
    return { status, retryAfter, text: await response.text() };
  } catch {
    return { status: 0, retryAfter: 1, text: '' };
  }
}
