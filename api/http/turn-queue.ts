import type { Request } from '@hapi/hapi';
import { problem } from '../problems.ts';

// Requests wait in a queue before they get a connection to PostgreSQL. Waiting clients take turns,
// so a client with many requests doesn't delay the others. If a queue is full, further requests are
// rejected immediately.

/**
 * Limits on the work in a queue. A client is an organization, or an IP address if the request's key
 * is not known yet.
 */
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

/**
 * The longest wait for a turn. If PostgreSQL hangs, waiting requests are rejected after this time.
 */
const MAX_WAIT_MS = 12_000;

/** A bounded queue in which each waiting client gets one turn before any gets a second one. */
export class TurnQueue {
  readonly #limits: QueueLimits;
  /**
   * All clients with work in the queue, in the order of their turns. The first client that has
   * waiting work and is below its limit gets the next turn.
   */
  readonly #clients = new Map<string, Client>();
  #total = 0;
  #running = 0;

  constructor(limits: QueueLimits) {
    this.#limits = limits;
  }

  /**
   * Enters the queue and does the work when its turn comes.
   * @throws {ApiError} the errors of `enter` and of `Place.inTurn`
   */
  inTurn<T>(clientId: string, work: () => Promise<T>): Promise<T> {
    return this.enter(clientId).inTurn(work);
  }

  /**
   * Enters the queue.
   * @throws {ApiError} 429 if this client has too much work in the queue, 503 if the queue is full
   */
  enter(clientId: string): Place {
    const client = this.#clients.get(clientId) ?? {
      total: 0,
      running: 0,
      waiting: new Set(),
    };
    if (client.total >= this.#limits.maxPerClient)
      throw problem('too_many_at_once', { wait: 1 });
    if (this.#total >= this.#limits.maxTotal) {
      throw problem('overloaded', { wait: 1 });
    }
    this.#clients.set(clientId, client);
    client.total += 1;
    this.#total += 1;
    return new Place({
      waitForTurn: () => this.#waitForTurn(client),
      endTurn: () => this.#endTurn(client),
      leave: () => this.#leave(clientId, client),
    });
  }

  /** @throws {ApiError} 503 if the turn has not come after 12 s */
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
      if (!begin || client.running >= this.#limits.maxRunningPerClient) {
        continue;
      }
      client.waiting.delete(begin);
      // Moves the client to the end of the map. This loop reaches it again after all other clients.
      this.#clients.delete(clientId);
      this.#clients.set(clientId, client);
      client.running += 1;
      this.#running += 1;
      begin();
    }
  }
}

/** The functions of a queue that a `Place` calls. */
interface Steps {
  waitForTurn(): Promise<void>;
  endTurn(): void;
  leave(): void;
}

/** A place in a queue. Call either `inTurn` once, or `leave`. */
class Place {
  readonly #queue: Steps;
  #isFree = true;

  constructor(queue: Steps) {
    this.#queue = queue;
  }

  /**
   * Does the work when its turn comes, and leaves the queue.
   * @throws {ApiError} 503 if its turn has not come after 12 s, or if `leave` was called before
   */
  async inTurn<T>(work: () => Promise<T>): Promise<T> {
    if (!this.#isFree) throw problem('overloaded', { wait: 1 });
    this.#isFree = false;
    try {
      await this.#queue.waitForTurn();
      try {
        return await work();
      } finally {
        this.#queue.endTurn();
      }
    } finally {
      this.#queue.leave();
    }
  }

  /** Gives up the place. Does nothing if `inTurn` was already called. */
  leave(): void {
    if (!this.#isFree) return;
    this.#isFree = false;
    this.#queue.leave();
  }
}

export type { Place };

/**
 * Creates the queues of an API process. Reads and writes can each use half of the connections to
 * PostgreSQL.
 */
export function createQueues(connections: number) {
  const half = Math.ceil(connections / 2);
  const fifth = Math.max(1, Math.floor(connections / 5));
  return {
    /** Key lookups and reads. */
    reads: new TurnQueue({
      maxRunning: half,
      maxRunningPerClient: Math.max(1, half - 1),
      maxPerClient: 1000,
      maxTotal: 5000,
    }),
    /**
     * Submits and resends. Two of them can run per organization, so that one can begin while
     * another finishes.
     */
    writes: new TurnQueue({
      maxRunning: half,
      maxRunningPerClient: 2,
      maxPerClient: 100,
      maxTotal: 100 * half,
    }),
    /**
     * Files that are being sent, one per customer. Each keeps a connection, so they get few, and
     * none waits.
     */
    files: new TurnQueue({
      maxRunning: fifth,
      maxRunningPerClient: 1,
      maxPerClient: 1,
      maxTotal: fifth,
    }),
    /**
     * Requests that are held until something changes. They need memory, but no connection to
     * PostgreSQL. A customer has two organizations (one for live keys, one for test keys).
     * Together, they can use only two thirds of the places.
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
 * Runs `work`, which reads from the database, when it is the turn of the request's organization.
 * @throws {ApiError} as `TurnQueue.inTurn`
 */
export function readInTurn<T>(
  { server, auth }: Request,
  work: (organizationId: string) => Promise<T>,
): Promise<T> {
  const { organizationId } = auth.credentials;
  return server.app.queues.reads.inTurn(organizationId, () => work(organizationId));
}
