import { sql } from 'drizzle-orm';
import { type Database, query } from './client.ts';

/**
 * Waiting for a request or a batch to change, without a loop and without a connection per waiter.
 */
export interface Changes {
  /**
   * Watches a request or a batch by its id, or by `endOf` its id, and the key and the organization
   * for which somebody does. Start before reading their state, so that no change falls between the
   * two.
   * @returns `next` resolves with true at the next change, or when one may have been missed; with
   * false once there is nothing to wait for any more: stopped, or closed
   */
  watch(...ids: readonly string[]): {
    readonly next: () => Promise<boolean>;
    readonly stop: () => void;
  };
  /** Wakes everybody, now and from now on: the process is about to end. */
  close(): void;
}

/**
 * Triggers notify this channel with the id of what has changed: a request (its status), a batch
 * (anything), a key or an organization (who may see it); with `endOf` the id of a request or batch
 * that has become final.
 */
const CHANNEL = 'changed';
const FINAL = ' final';
const HEARTBEAT = 'heartbeat';
const HEARTBEAT_MS = 3000;

/** What to watch of a request or a batch if nothing but its end matters. */
export function endOf(id: string): string {
  return id + FINAL;
}

/**
 * Listens on one connection for the whole process, from the first waiter on. While there are
 * waiters, a heartbeat through the channel itself proves that it still hears; if it does not, it
 * listens anew and everybody is woken to read what may have been missed.
 */
export function listenForChanges(db: Database): Changes {
  const watchers = new Map<string, Set<() => void>>();
  let closed = false;
  let listening: Promise<() => Promise<void>> | null = null;
  let heard = true;

  const wake = (payload: string) => {
    if (payload === HEARTBEAT) heard = true;
    // The end is a change too.
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
    // With the database away there is nothing to prove; the beat after its return will.
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
