import type { Request } from '@hapi/hapi';
import { problem } from '../problems.ts';

// A client that sends more than its share waits before it gets a connection to PostgreSQL. Other
// clients don't notice, because waiting clients take turns. A full queue rejects requests at once.

/** Limits on the work in a queue. A client is an organization, or an address with an unknown key. */
interface QueueLimits {
  readonly maxRunning: number;
  readonly maxRunningPerClient: number;
  /** Running and waiting work of one client. */
  readonly maxPerClient: number;
  /** Running and waiting work of all clients. */
  readonly maxTotal: number;
}

/** The work of one client in a queue. */
interface Client {
  total: number;
  running: number;
  readonly waiting: Set<() => void>;
}

/** The longest wait for a turn, in case PostgreSQL hangs. */
const MAX_WAIT_MS = 12_000;

/** A bounded queue in which each waiting client gets one turn before any gets a second one. */
export class TurnQueue {
  readonly #limits: QueueLimits;
  /** The next turn belongs to the first of them that can use it. */
  readonly #clients = new Map<string, Client>();
  #total = 0;
  #running = 0;

  constructor(limits: QueueLimits) {
    this.#limits = limits;
  }

  /**
   * Enters the queue and does the work when its turn comes.
   * @throws {ApiError} as `enter` and `Place.inTurn`
   */
  inTurn<T>(clientId: string, work: () => Promise<T>): Promise<T> {
    return this.enter(clientId).inTurn(work);
  }

  /**
   * Enters the queue.
   * @throws {ApiError} 429 if the client has too much work in the queue, 503 if all clients together
   * have
   */
  enter(clientId: string): Place {
    const client = this.#clients.get(clientId) ?? { total: 0, running: 0, waiting: new Set() };
    if (client.total >= this.#limits.maxPerClient) throw problem('too_many_at_once', { wait: 1 });
    if (this.#total >= this.#limits.maxTotal) throw problem('overloaded', { wait: 1 });
    this.#clients.set(clientId, client);
    client.total += 1;
    this.#total += 1;
    return new Place({
      waitForTurn: () => this.#waitForTurn(client),
      endTurn: () => this.#endTurn(client),
      leave: () => this.#leave(clientId, client),
    });
  }

  /** @throws {ApiError} 503 after 12 s */
  async #waitForTurn(client: Client): Promise<void> {
    const { promise: turn, resolve: begin, reject } = Promise.withResolvers<void>();
    client.waiting.add(begin);
    const timer = setTimeout(() => {
      client.waiting.delete(begin);
      reject(problem('overloaded', { wait: 5 }));
    }, MAX_WAIT_MS);
    this.#beginTurns();
    await turn.finally(() => clearTimeout(timer));
  }

  #endTurn(client: Client): void {
    client.running -= 1;
    this.#running -= 1;
    this.#beginTurns();
  }

  #leave(clientId: string, client: Client): void {
    client.total -= 1;
    this.#total -= 1;
    if (client.total === 0) this.#clients.delete(clientId);
  }

  #beginTurns(): void {
    for (const [clientId, client] of this.#clients) {
      if (this.#running >= this.#limits.maxRunning) return;
      const [begin] = client.waiting;
      if (!begin || client.running >= this.#limits.maxRunningPerClient) continue;
      client.waiting.delete(begin);
      // Moves the client behind all others. The loop reaches it again after them.
      this.#clients.delete(clientId);
      this.#clients.set(clientId, client);
      client.running += 1;
      this.#running += 1;
      begin();
    }
  }
}

/** Moves one client's work through a queue. */
interface Steps {
  waitForTurn(): Promise<void>;
  endTurn(): void;
  leave(): void;
}

/** A place in a queue. It is used once, or given up. */
class Place {
  readonly #queue: Steps;
  #isFree = true;

  constructor(queue: Steps) {
    this.#queue = queue;
  }

  /**
   * Does the work when its turn comes, and leaves the queue.
   * @throws {ApiError} 503 after 12 s, or after `leave`
   */
  async inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (!this.#isFree) throw problem('overloaded', { wait: 1 });
    this.#isFree = false;
    try {
      await this.#queue.waitForTurn();
      return await work().finally(() => this.#queue.endTurn());
    } finally {
      this.#queue.leave();
    }
  }

  /** Gives up the place. Does nothing if it is already used. */
  leave(): void {
    if (!this.#isFree) return;
    this.#isFree = false;
    this.#queue.leave();
  }
}

export type { Place };

/** Creates the queues of an API process: half of the connections write, and the others read. */
export function createQueues(connections: number) {
  const half = Math.ceil(connections / 2);
  return {
    /** Key lookups and reads. */
    reads: new TurnQueue({
      maxRunning: half,
      maxRunningPerClient: Math.max(1, half - 1),
      maxPerClient: 1000,
      maxTotal: 5000,
    }),
    /** Submits and resends. While one of an organization finishes, its next can begin. */
    writes: new TurnQueue({
      maxRunning: half,
      maxRunningPerClient: 2,
      maxPerClient: 100,
      maxTotal: 100 * half,
    }),
    /**
     * Long polls, which need memory but no connection. A customer's two organizations, for live and
     * test keys, leave places for others.
     */
    waits: new TurnQueue({
      maxRunning: 1500,
      maxRunningPerClient: 500,
      maxPerClient: 500,
      maxTotal: 1500,
    }),
  };
}

/**
 * Reads for the request's organization, in its turn.
 * @throws {ApiError} as `TurnQueue.inTurn`
 */
export function readInTurn<T>(
  { server, auth }: Request,
  work: (organizationId: string) => Promise<T>,
): Promise<T> {
  const { organizationId } = auth.credentials;
  return server.app.queues.reads.inTurn(organizationId, () => work(organizationId));
}
