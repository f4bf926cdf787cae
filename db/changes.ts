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
 * change), a key or an organization (its access). When a request or batch becomes final, the id is
 * sent with `endOf`.
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
  const watchers = new Map<string, Set<() => void>>();
  let closed = false;
  let listening: Promise<() => Promise<void>> | null = null;
  let heard = true;

  const wake = (payload: string) => {
    if (payload === HEARTBEAT) heard = true;
    // A watcher of the id itself is notified of the end too.
    for (const id of new Set([payload, payload.replace(FINAL, '')])) {
      for (const notify of watchers.get(id) ?? []) notify();
    }
  };
  const wakeAll = () => {
    for (const id of watchers.keys()) wake(id);
  };
  const listen = async () => {
    if (listening) return;
    listening = db.listen(CHANNEL, wake, wakeAll);
    try {
      await listening;
      heard = true;
    } catch {
      // The next heartbeat tries again.
      listening = null;
    }
  };
  const beat = async () => {
    if (watchers.size === 0) return;
    if (!heard && listening) {
      const ended = listening;
      listening = null;
      await (await ended)().catch(() => {});
    }
    await listen();
    heard = false;
    // If this fails because the database is unavailable, a later heartbeat tries again.
    await query(db, (tx) => tx.execute(sql`select pg_notify(${CHANNEL}, ${HEARTBEAT})`)).catch(
      () => {},
    );
  };
  const timer = setInterval(() => void beat(), HEARTBEAT_MS).unref();

  return {
    watch(...ids) {
      void listen();
      let pending = Promise.withResolvers<void>();
      let stopped = false;
      const notify = () => pending.resolve();
      for (const id of ids) watchers.set(id, (watchers.get(id) ?? new Set()).add(notify));
      return {
        async next() {
          if (closed || stopped) return false;
          await pending.promise;
          pending = Promise.withResolvers<void>();
          return !(closed || stopped);
        },
        stop() {
          stopped = true;
          notify();
          for (const id of ids) {
            const group = watchers.get(id);
            group?.delete(notify);
            if (group?.size === 0) watchers.delete(id);
          }
        },
      };
    },
    close() {
      closed = true;
      clearInterval(timer);
      wakeAll();
    },
  };
}
