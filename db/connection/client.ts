import {
  DrizzleQueryError,
  fillPlaceholders,
  type SQL,
  type SQLWrapper,
  sql,
} from 'drizzle-orm';
import { PgDialect } from 'drizzle-orm/pg-core';
import { drizzle, type PostgresJsDatabase } from 'drizzle-orm/postgres-js';
import postgres, { type ISql, type Sql, type TransactionSql } from 'postgres';
import type { SecretKey } from '../accounts/secrets.ts';
import { CommitCheck } from './commit-check.ts';
import { DatabaseError, OperatorProblem, toDatabaseError } from './errors.ts';
import { connect } from './tls.ts';

export type Transaction = Parameters<Parameters<PostgresJsDatabase['transaction']>[0]>[0];

/** A pool of connections to PostgreSQL. All queries go through it. */
export interface Database {
  /**
   * Runs statements outside a transaction. Use it inside `query`, which maps errors to
   * `DatabaseError`.
   */
  readonly drizzle: PostgresJsDatabase & { readonly $client: Sql };
  /** Milliseconds after which a call fails with `client_deadline`. */
  readonly deadlineMs: number;
  /** Keys that encrypt webhook secrets. Empty in processes that do not use webhook secrets. */
  readonly secretKeys: readonly SecretKey[];
  /**
   * `size`: the maximum number of connections. `asked`: calls in progress, including those that
   * wait for a connection.
   */
  readonly pool: { readonly size: number; asked: number };
  /**
   * Calls `onNotify` for each NOTIFY on a channel. Uses a separate connection. A lost connection
   * may go unnoticed, because postgres.js tries to listen again only once.
   * @param onGap called whenever listening starts or restarts, because notifications before that
   * may be lost
   * @returns a function that stops listening
   */
  listen(
    channel: string,
    onNotify: (payload: string) => void,
    onGap: () => void,
  ): Promise<() => Promise<void>>;
  /**
   * Tests with a small write whether transactions commit. Returns false if PostgreSQL responds, but
   * commits nothing within 3 s. If it does not respond at all, returns true.
   */
  canCommit(): Promise<boolean>;
  /** Closes the pool. Running statements have up to 5 s to finish. */
  close(): Promise<void>;
}

export interface DatabaseOptions {
  /** The URL of the database, `postgres://…`. It overrides all PG* environment variables. */
  readonly url: string;
  /** The maximum number of connections. */
  readonly poolSize: number;
  /** The name that PostgreSQL shows for the connections, in `pg_stat_activity`. */
  readonly applicationName: string;
  readonly secretKeys?: readonly SecretKey[];
  /** The deadline of a call in milliseconds, 12,000 by default. Tests set others. */
  readonly deadlineMs?: number;
}

/**
 * PostgreSQL cancels a statement after 10 s, before the client's deadline of 12 s. So a call fails
 * with `client_deadline` only if several statements together were slow, or if the connection is
 * dead. With a longer deadline, PostgreSQL cancels a statement 2 s before it.
 */
const STATEMENT_TIMEOUT_MS = 10_000;
const CLIENT_DEADLINE_MS = 12_000;
/** The connection of `canCommit` is closed after this time without a test. */
const CHECK_IDLE_SECONDS = 60;

/**
 * Checks that postgres.js has our patch (see patches/README.md). Long-running programs and programs
 * that write to the database call this first.
 * @throws {OperatorProblem} if postgres.js is unpatched
 */
export function requirePatchedDriver(): void {
  if ('survivesLoss' in postgres) return;
  throw new OperatorProblem(
    'postgres.js was installed without its patch, and would end this process when the connection ' +
      'to PostgreSQL is lost; run "npm run postinstall" in the folder that has package.json and ' +
      'patches/',
  );
}

/**
 * Opens a pool. Connections are made when they are needed.
 * @throws {OperatorProblem} if postgres.js is unpatched
 */
export function openDatabase(options: DatabaseOptions): Database {
  requirePatchedDriver();
  const { url, poolSize, deadlineMs = CLIENT_DEADLINE_MS, secretKeys = [] } = options;
  const statementMs = Math.max(STATEMENT_TIMEOUT_MS, deadlineMs - 2000);
  const settings = {
    max: poolSize,
    // In seconds. A second attempt fits into the deadline.
    connect_timeout: deadlineMs / 2000,
    // Waits at most 2 s between two attempts, so that the pool reconnects soon after PostgreSQL is
    // back.
    backoff: (retries: number) => Math.min(2, 0.1 * 2 ** retries),
    onnotice: () => {},
    connection: {
      application_name: options.applicationName,
      statement_timeout: statementMs,
      idle_in_transaction_session_timeout: statementMs,
    },
  };
  const client = connect(url, settings);
  const listeners = new Set<Sql>();
  const checking = connect(url, {
    ...settings,
    max: 1,
    idle_timeout: CHECK_IDLE_SECONDS,
  });
  const commits = new CommitCheck(checking);
  const database = drizzle(prepareStatements(client));
  // drizzle converts times and bigints, because it knows the types of a table's columns. It does
  // not know the types in raw SQL statements, so the driver converts their values. 1184 is the type
  // timestamptz, and 20 is bigint.
  const { parsers, serializers } = client.options;
  parsers[1184] = (text: string) => new Date(text);
  serializers[1184] = (time: Date | string) =>
    time instanceof Date ? time.toISOString() : time;
  parsers[20] = Number;
  return {
    drizzle: database,
    deadlineMs,
    secretKeys,
    pool: { size: poolSize, asked: 0 },
    async listen(channel, onNotify, onGap) {
      // A client of postgres.js keeps each listener that failed, so each attempt has its own.
      const listener = connect(url, settings);
      listeners.add(listener);
      const stop = async () => {
        listeners.delete(listener);
        await listener.end({ timeout: 0 });
      };
      try {
        await listener.listen(channel, onNotify, onGap);
        return stop;
      } catch (error) {
        await stop();
        throw toDatabaseError(error);
      }
    },
    canCommit: () => commits.canCommit(),
    close: async () => {
      await Promise.all([...listeners].map((listener) => listener.end({ timeout: 0 })));
      await Promise.all([client.end({ timeout: 5 }), checking.end({ timeout: 1 })]);
    },
  };
}

/**
 * Makes drizzle prepare its statements, which it cannot do itself (drizzle-orm issue 6096). This saves
 * a round trip and a plan per statement. Each connection keeps the plan of every text, so a list is
 * passed as one array, not as one placeholder per item.
 */
function prepareStatements(client: Sql): Sql {
  const { begin } = client;
  const beginPrepared = (work: (tx: TransactionSql) => unknown) =>
    begin(async (tx) => {
      try {
        return await work(prepareUnsafe(tx));
      } catch (error) {
        throw withoutWrapper(error);
      }
    });
  return Object.assign(prepareUnsafe(client), { begin: beginPrepared as Sql['begin'] });
}

/** Changes `unsafe`, which drizzle calls for each statement, so that it prepares the statement. */
function prepareUnsafe<T extends ISql>(client: T): T {
  const { unsafe } = client;
  const prepared: ISql['unsafe'] = (text, values, options) =>
    unsafe(text, values, { ...options, prepare: true });
  return Object.assign(client, { unsafe: prepared });
}

/**
 * Returns the driver's error instead of drizzle's wrapper. After a statement fails, later
 * statements of the same transaction fail with 25P02. The driver then throws the first failure
 * instead of 25P02, but only if it receives an instance of its own error class.
 */
function withoutWrapper(error: unknown): unknown {
  if (error instanceof DrizzleQueryError && error.cause) {
    return error.cause;
  }
  return error;
}

/**
 * Runs statements outside an explicit transaction.
 * @throws {DatabaseError} with `code` and `constraint` only, because the driver's message contains
 * bound values
 */
export function query<T>(
  db: Database,
  work: (tx: PostgresJsDatabase) => Promise<T>,
): Promise<T> {
  return bounded(db, () => work(db.drizzle));
}

/**
 * Runs one statement, in a transaction or on its own: run(db)`select …`. It throws the same errors
 * as `query`.
 * @returns the rows of its result
 */
export function run<Row = unknown>(by: Database | Pick<Transaction, 'execute'>) {
  return async (text: TemplateStringsArray, ...values: readonly unknown[]) => {
    const statement = sql(text, ...values);
    if ('execute' in by) {
      return [...(await by.execute(statement))] as Row[];
    }
    const rows = await query(by, (tx) => tx.execute(statement));
    return [...rows] as Row[];
  };
}

/** Returns the first row of a statement that always returns a row. */
export function only<Row>([row]: readonly Row[]): Row {
  if (!row) throw new Error('no row');
  return row;
}

/**
 * Prepares a statement that runs often. Its SQL text is built only once.
 * @param template contains a `sql.placeholder` for each value
 * @returns a function that runs the statement with named values and returns its rows. It throws the
 * same errors as `query`.
 */
export function statement<Row>(template: SQL) {
  const { sql: text, params } = new PgDialect().sqlToQuery(template);
  return async (db: Database, values: Readonly<Record<string, string>>) => {
    const filled = fillPlaceholders(params, values) as string[];
    const rows = await bounded(db, () => db.drizzle.$client.unsafe(text, filled));
    return [...rows] as unknown as Row[];
  };
}

/**
 * Runs `work` in one READ COMMITTED transaction. The rules about credits rely on row locks and
 * constraints, not on the isolation level SERIALIZABLE. So a transaction is run again only if
 * PostgreSQL aborted it to resolve a deadlock. It runs three times at most.
 *
 * If the deadline passes before COMMIT is sent, the transaction is rolled back, even if `work` ends
 * later. The outcome is unknown only if COMMIT was sent and got no response.
 * @throws {DatabaseError} like `query`, and any error of `work`
 */
export async function transaction<T>(
  db: Database,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await bounded(db, (deadline) =>
        db.drizzle.transaction(async (tx) => {
          // The deadline may have passed during the wait for a connection.
          deadline.check();
          const result = await work(tx);
          // COMMIT is sent in this turn of the event loop, so the deadline's timer cannot fire
          // before that. COMMIT gets a new deadline. Otherwise, after slow work, a transaction that
          // commits could be reported as failed.
          deadline.renew();
          return result;
        }),
      );
    } catch (error) {
      if (!(error instanceof DatabaseError && error.code === '40P01' && attempt < 3))
        throw error;
    }
  }
}

/**
 * Settings for a transaction that reads whole tables. Its statements need more memory and time than
 * those of the API and the workers.
 */
const WHOLE_TABLES = Object.entries({
  statement_timeout: '15min',
  lock_timeout: '5s',
  work_mem: '256MB',
  parallel_setup_cost: '100',
  parallel_tuple_cost: '0.001',
}).map(([name, value]) => sql`set_config(${name}, ${value}, true)`);

/**
 * Runs `work` in a read-only transaction, in which an operator's command reads large parts of the
 * database. All its statements see the database at the same moment. It does not lock rows, and no
 * client deadline applies to it.
 */
export async function snapshot<T>(
  db: Database,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  try {
    return await db.drizzle.transaction(
      async (tx) => {
        await tx.execute(sql`select ${sql.join(WHOLE_TABLES, sql`, `)}`);
        return await work(tx);
      },
      { isolationLevel: 'repeatable read', accessMode: 'read only' },
    );
  } catch (error) {
    throw toDatabaseError(error);
  }
}

/** The part of a list to read: where to start, and how many items to return at most. */
export interface Page<Place = string> {
  /** The place of the last item on the previous page. Null for the first page. */
  readonly after: Place | null;
  readonly limit: number;
}

/**
 * Cuts rows to a page. The caller reads one row more than `limit`, to see whether another page
 * follows.
 * @returns `last`: the last item if another page follows, otherwise null
 */
export function cut<T>(
  rows: readonly T[],
  limit: number,
): { readonly items: readonly T[]; readonly last: T | null } {
  const items = rows.slice(0, limit);
  if (rows.length <= limit) return { items, last: null };
  return { items, last: items.at(-1) ?? null };
}

/** A part of a list, from `since` to before `until`. Null if there is no limit on that side. */
export interface Period {
  readonly since: Date | null;
  readonly until: Date | null;
}

/** Returns an SQL interval of `ms` milliseconds. */
export function span(ms: number): SQL {
  return sql`make_interval(secs => ${ms / 1000}::float8)`;
}

/** The tolerance for rounding when a stored time is compared with the clock. */
export const ROUNDING_MS = 1000;

/**
 * Tests whether a stored time, which was the current time when it was stored, is in the future. Then
 * PostgreSQL's clock was set back since, for example by a failover to a server whose clock is right,
 * and nothing may wait for the stored time. Null if the time is null.
 */
export function isAhead(stored: SQLWrapper): SQL {
  return sql`${stored} > clock_timestamp() + ${span(ROUNDING_MS)}`;
}

/**
 * Tests whether a wait lasts whose end is stored. An end that is further away than the longest wait
 * was stored before the clock was set back, so that wait is over. Null if the end is null.
 */
export function lasts(end: SQLWrapper, longestMs: number): SQL {
  return sql`(${end} > clock_timestamp()
    and ${end} < clock_timestamp() + ${span(longestMs + ROUNDING_MS)})`;
}

/**
 * Returns an SQL time from a time of a client. It is passed as a number of seconds, because
 * JavaScript and PostgreSQL write the earliest and latest possible dates differently.
 */
export function moment(at: Date | null): SQL {
  return sql`to_timestamp(${at && at.getTime() / 1000}::float8)`;
}

/** Returns the current time of PostgreSQL's clock, the only clock that all processes share. */
export async function clock(tx: Pick<Transaction, 'execute'>): Promise<Date> {
  const rows = await run<{ at: Date }>(tx)`select clock_timestamp() as at`;
  return only(rows).at;
}

/** Runs `work` within the client's deadline, and maps its errors to `DatabaseError`. */
async function bounded<T>(
  { deadlineMs, pool }: Database,
  work: (deadline: Deadline) => Promise<T>,
): Promise<T> {
  const deadline = new Deadline(deadlineMs);
  pool.asked += 1;
  try {
    return await Promise.race([work(deadline), deadline.passing]);
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    pool.asked -= 1;
    deadline.end();
  }
}

class Deadline {
  /** A promise that rejects when the deadline passes. */
  readonly passing: Promise<never>;
  readonly #ms: number;
  readonly #reject: (error: DatabaseError) => void;
  #timer: NodeJS.Timeout;
  #passed: DatabaseError | null = null;

  constructor(ms: number) {
    const { promise, reject } = Promise.withResolvers<never>();
    this.passing = promise;
    this.#ms = ms;
    this.#reject = reject;
    this.#timer = this.#start();
  }

  /** @throws {DatabaseError} `client_deadline` if the deadline has passed */
  check(): void {
    if (this.#passed) throw this.#passed;
  }

  /** Restarts the deadline. @throws {DatabaseError} like `check` */
  renew(): void {
    this.check();
    this.end();
    this.#timer = this.#start();
  }

  end(): void {
    clearTimeout(this.#timer);
  }

  #start(): NodeJS.Timeout {
    return setTimeout(() => {
      this.#passed = new DatabaseError('client_deadline');
      this.#reject(this.#passed);
    }, this.#ms);
  }
}
