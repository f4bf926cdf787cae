import { setTimeout } from 'node:timers/promises';
import type { PendingQuery, Row, Sql } from 'postgres';

/** A commit takes milliseconds. On an overloaded server, it can take a second. */
const PATIENCE_MS = 3000;

/**
 * Tests whether PostgreSQL commits transactions. It does not while a synchronous standby is gone or
 * the disk hangs, although it still reads.
 *
 * The test commits a message in the WAL. This changes no table and needs no right, so roles that
 * only read can run it, too. `statement_timeout` does not end a commit, so the time limit is ours.
 * The test has its own connection. All connections of the pool may be committing, and a cancel that
 * comes late must not hit the statement of another caller.
 */
export class CommitCheck {
  readonly #client: Sql;
  #running: Promise<boolean> | null = null;
  /** True until the write of the last test has ended. */
  #isWriting = false;

  /** @param client a pool with one connection */
  constructor(client: Sql) {
    this.#client = client;
  }

  /** Returns false if PostgreSQL responds, but commits nothing within 3 s. */
  async canCommit(): Promise<boolean> {
    this.#running ??= this.#test().finally(() => {
      this.#running = null;
    });
    return await this.#running;
  }

  async #test(): Promise<boolean> {
    if (this.#isWriting) return false;
    // Without this, a slow connect would count as a slow commit.
    const isConnected = await endsInTime(this.#client`select 1`);
    if (!isConnected) return true;
    const write = this.#client`select pg_logical_emit_message(true, 'npe', '')`;
    this.#isWriting = true;
    const stopWriting = () => {
      this.#isWriting = false;
    };
    void write.then(stopWriting, stopWriting);
    return await endsInTime(write);
  }
}

/**
 * Waits until a statement has succeeded or failed. Cancels it after `PATIENCE_MS`. A canceled wait
 * for a standby leaves the transaction committed, and the connection can be used again.
 * @returns false if the statement was canceled
 */
async function endsInTime(statement: PendingQuery<Row[]>): Promise<boolean> {
  const ended = statement.then(
    () => true,
    () => true,
  );
  const late = setTimeout(PATIENCE_MS, false, { ref: false });
  if (await Promise.race([ended, late])) return true;
  // The type says void, but it is a promise, which fails if PostgreSQL takes no connection.
  void Promise.resolve(statement.cancel()).catch(() => {});
  return false;
}
