import { sql } from 'drizzle-orm';
import { type Database, query } from './client.ts';

/**
 * Notifies waiting callers when a request or a batch changes. It uses PostgreSQL's NOTIFY instead
 * of polling, and all waiting callers of a process share one connection.
 */
export interface Changes {
  /**
   * Watches some ids for changes. For a waiting client, pass the id of its request or batch (or
   * `endOf` that id), and the ids of its API key and its organization. Call this before you read
   * the current state. Otherwise you would miss a change between the read and this call.
   * @returns `next` resolves with true at the next change, or when a notification may have been
   * lost. It resolves with false after `stop` or `close`.
   */
  watch(...ids: readonly string[]): {
    readonly next: () => Promise<boolean>;
    readonly stop: () => void;
  };
  /**
   * Makes `next` resolve with false for all current and later watchers. Call it when the process
   * shuts down.
   */
  close(): void;
}

/**
 * Triggers send the id of a changed row to this channel: a request whose status changed, a batch
 * with any change, or an API key or an organization whose access changed. When a request or a batch
 * becomes final, the triggers send `endOf` of its id instead.
 */
const CHANNEL = 'changed';
const FINAL = ' final';
const HEARTBEAT = 'heartbeat';
const HEARTBEAT_MS = 3000;

/**
 * Returns the text to watch instead of the id, for a caller that only needs to know when the
 * request or batch becomes final.
 */
export function endOf(id: string): string {
  return id + FINAL;
}

/**
 * Opens one listening connection for the whole process when the first caller waits. While callers
 * wait, a heartbeat through the channel proves that the connection still works. If a heartbeat does
 * not arrive, the process listens again and wakes all waiting callers, so that they read changes
 * they may have missed.
 */
export function listenForChanges(db: Database): Changes {
  return new Listener(db);
}

class Listener implements Changes {
  readonly #db: Database;
  readonly #watchers = new Map<string, Set<Watcher>>();
  readonly #timer: NodeJS.Timeout;
  #listening: Promise<() => Promise<void>> | null = null;
  /** True if the last heartbeat has come back through the channel. */
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
    // Callers that watch the id without `endOf` also need to know that the request or batch became
    // final.
    if (payload.endsWith(FINAL)) {
      this.#wake(payload.slice(0, -FINAL.length));
    }
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
      // The next heartbeat tries to listen again.
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
      // The database is unavailable. The next heartbeat tries again.
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
