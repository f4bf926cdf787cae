import { sql } from 'drizzle-orm';
import { type Database, query } from './client.ts';

/**
 * Waits for changes of requests and batches. It does not poll, and does not need a connection per
 * waiter.
 */
export interface Changes {
  /**
   * Watches ids: a request or a batch (or `endOf` its id), and the key and the organization of the
   * waiting client. Start watching before reading their state, so that no change falls in between.
   * @returns `next` resolves with true at the next change, or when a change may have been missed.
   * It resolves with false after `stop` or `close`.
   */
  watch(...ids: readonly string[]): {
    readonly next: () => Promise<boolean>;
    readonly stop: () => void;
  };
  /** Wakes all waiters, including later ones, because the process is about to end. */
  close(): void;
}

/**
 * Triggers notify this channel with the id of the changed row: a request (its status), a batch (any
 * change), a key or an organization (its access). When a request or batch becomes final, they send
 * `endOf` its id instead.
 */
const CHANNEL = 'changed';
const FINAL = ' final';
const HEARTBEAT = 'heartbeat';
const HEARTBEAT_MS = 3000;

/** Returns the name to watch if only the end of a request or batch matters. */
export function endOf(id: string): string {
  return id + FINAL;
}

/**
 * Listens on one connection for the whole process, starting with the first waiter. While there are
 * waiters, a heartbeat through the channel proves that the connection still works. If a heartbeat
 * is missing, this listens again and wakes all waiters, so that they read changes they may have
 * missed.
 */
export function listenForChanges(db: Database): Changes {
  return new Listener(db);
}

class Listener implements Changes {
  readonly #db: Database;
  readonly #watchers = new Map<string, Set<Watcher>>();
  readonly #timer: NodeJS.Timeout;
  #listening: Promise<() => Promise<void>> | null = null;
  /** Whether the last heartbeat has arrived. */
  #heard = true;
  #closed = false;

  constructor(db: Database) {
    this.#db = db;
    this.#timer = setInterval(() => void this.#beat(), HEARTBEAT_MS).unref();
  }

  watch(...ids: readonly string[]) {
    void this.#listen();
    const watcher = new Watcher();
    if (this.#closed) watcher.end();
    for (const id of ids) this.#add(id, watcher);
    return {
      next: () => watcher.next(),
      stop: () => {
        watcher.end();
        for (const id of ids) this.#remove(id, watcher);
      },
    };
  }

  close(): void {
    this.#closed = true;
    clearInterval(this.#timer);
    for (const group of this.#watchers.values()) {
      for (const watcher of group) watcher.end();
    }
  }

  #add(id: string, watcher: Watcher): void {
    const group = this.#watchers.get(id);
    if (group) group.add(watcher);
    else this.#watchers.set(id, new Set([watcher]));
  }

  #remove(id: string, watcher: Watcher): void {
    const group = this.#watchers.get(id);
    group?.delete(watcher);
    if (group?.size === 0) this.#watchers.delete(id);
  }

  #notify(payload: string): void {
    if (payload === HEARTBEAT) this.#heard = true;
    this.#wake(payload);
    // A watcher of the id itself is notified of the end too.
    if (payload.endsWith(FINAL)) this.#wake(payload.slice(0, -FINAL.length));
  }

  #wake(id: string): void {
    for (const watcher of this.#watchers.get(id) ?? []) watcher.notify();
  }

  #wakeAll(): void {
    for (const id of this.#watchers.keys()) this.#wake(id);
  }

  async #listen(): Promise<void> {
    if (this.#listening) return;
    this.#listening = this.#db.listen(
      CHANNEL,
      (payload) => this.#notify(payload),
      () => this.#wakeAll(),
    );
    try {
      await this.#listening;
      this.#heard = true;
    } catch {
      // The next heartbeat tries again.
      this.#listening = null;
    }
  }

  async #beat(): Promise<void> {
    if (this.#watchers.size === 0) return;
    if (!this.#heard && this.#listening) {
      const listening = this.#listening;
      this.#listening = null;
      const unlisten = await listening;
      await unlisten().catch(() => {});
    }
    await this.#listen();
    this.#heard = false;
    const notify = sql`select pg_notify(${CHANNEL}, ${HEARTBEAT})`;
    try {
      await query(this.#db, (tx) => tx.execute(notify));
    } catch {
      // The database is unavailable. A later heartbeat tries again.
    }
  }
}

/** The state of one call of `watch`. */
class Watcher {
  #pending = Promise.withResolvers<void>();
  #ended = false;

  notify(): void {
    this.#pending.resolve();
  }

  end(): void {
    this.#ended = true;
    this.notify();
  }

  async next(): Promise<boolean> {
    if (this.#ended) return false;
    await this.#pending.promise;
    this.#pending = Promise.withResolvers<void>();
    return !this.#ended;
  }
}
