import { DrizzleQueryError, fillPlaceholders, getTableColumns, type SQL, sql } from 'drizzle-orm';
import { type PgColumn, PgDialect, type PgTable } from 'drizzle-orm/pg-core';
import { drizzle, type PostgresJsDatabase } from 'drizzle-orm/postgres-js';
import postgres, { type ISql, type Sql, type TransactionSql } from 'postgres';
import { DatabaseError, OperatorProblem, toDatabaseError } from './errors.ts';
import type { SecretKey } from './secrets.ts';

export type Transaction = Parameters<Parameters<PostgresJsDatabase['transaction']>[0]>[0];

/** A pool of connections to PostgreSQL. All queries go through it. */
export interface Database {
  /** Statements outside a transaction. Use through `query`, so that errors are mapped. */
  readonly drizzle: PostgresJsDatabase & { readonly $client: Sql };
  /** Time until a call fails with `client_deadline`, in milliseconds. */
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
   * @param onGap called whenever listening starts or restarts: earlier notifications may be lost
   * @returns stops listening
   */
  listen(
    channel: string,
    onNotify: (payload: string) => void,
    onGap: () => void,
  ): Promise<() => Promise<void>>;
  /** Closes the pool. Running statements have up to 5 s to finish. */
  close(): Promise<void>;
}

export interface DatabaseOptions {
  /** `postgres://…`. Overrides all PG* environment variables. */
  readonly url: string;
  /** The maximum number of connections. */
  readonly poolSize: number;
  /** Shown by PostgreSQL in `pg_stat_activity`. */
  readonly applicationName: string;
  readonly secretKeys?: readonly SecretKey[];
  /** Milliseconds; 12 s by default. Tests set a shorter deadline. */
  readonly deadlineMs?: number;
}

/**
 * The server cancels a slow statement before the client's deadline passes. So `client_deadline`
 * means several slow statements, or a dead connection.
 */
const STATEMENT_TIMEOUT_MS = 10_000;
const CLIENT_DEADLINE_MS = 12_000;

/**
 * Checks that postgres.js has our patch (see patches/README.md). Programs that run for long or
 * write call this first.
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
  const client = postgres(url, {
    max: poolSize,
    connect_timeout: 5,
    // At most 2 s, so that the pool reconnects soon after PostgreSQL is back.
    backoff: (retries: number) => Math.min(2, 0.1 * 2 ** retries),
    onnotice: () => {},
    connection: {
      application_name: options.applicationName,
      statement_timeout: STATEMENT_TIMEOUT_MS,
      idle_in_transaction_session_timeout: STATEMENT_TIMEOUT_MS,
    },
  });
  const database = drizzle(preparing(client));
  // drizzle converts times and bigints by column. Raw SQL statements have no columns, so the driver
  // converts their values.
  const { parsers, serializers } = client.options;
  parsers[1184] = (text: string) => new Date(text);
  serializers[1184] = (time: Date | string) => (time instanceof Date ? time.toISOString() : time);
  parsers[20] = Number;
  return {
    drizzle: database,
    deadlineMs,
    secretKeys,
    pool: { size: poolSize, asked: 0 },
    async listen(channel, onNotify, onGap) {
      try {
        const { unlisten } = await client.listen(channel, onNotify, onGap);
        return unlisten;
      } catch (error) {
        throw toDatabaseError(error);
      }
    },
    close: () => client.end({ timeout: 5 }),
  };
}

/**
 * Makes the driver prepare all statements. Without this, drizzle needs two round trips per
 * statement, one for the types of the parameters, and PostgreSQL plans the statement every time. A
 * connection keeps the plan of each prepared text. So the number of texts must be small: pass a
 * list as one array, not as one placeholder per item.
 */
function preparing(client: Sql): Sql {
  const { begin } = client;
  const preparingBegin = (work: (tx: TransactionSql) => unknown) =>
    begin(async (tx) => {
      try {
        return await work(prepareUnsafe(tx));
      } catch (error) {
        throw withoutWrapper(error);
      }
    });
  return Object.assign(prepareUnsafe(client), { begin: preparingBegin as Sql['begin'] });
}

/** Makes `unsafe`, which drizzle calls for its statements, prepare them. */
function prepareUnsafe<T extends ISql>(client: T): T {
  const { unsafe } = client;
  const prepared: ISql['unsafe'] = (text, values, options) =>
    unsafe(text, values, { ...options, prepare: true });
  return Object.assign(client, { unsafe: prepared });
}

/**
 * Returns the driver's error instead of drizzle's wrapper. A statement in a transaction that has
 * already failed gets error 25P02. The driver then throws the first failure in its place, but only
 * if it receives an instance of its error class.
 */
function withoutWrapper(error: unknown): unknown {
  if (error instanceof DrizzleQueryError && error.cause) return error.cause;
  return error;
}

/**
 * Runs statements outside an explicit transaction.
 * @throws {DatabaseError} with `code` and `constraint` only, because the driver's message contains
 * bound values
 */
export function query<T>(db: Database, work: (tx: PostgresJsDatabase) => Promise<T>): Promise<T> {
  return bounded(db, () => work(db.drizzle));
}

/**
 * Runs one statement, in a transaction or on its own: run(db)`select …`. Throws like `query`.
 * @returns its rows
 */
export function run<Row = unknown>(by: Database | Pick<Transaction, 'execute'>) {
  return async (text: TemplateStringsArray, ...values: readonly unknown[]) => {
    const statement = sql(text, ...values);
    if ('execute' in by) return [...(await by.execute(statement))] as Row[];
    const rows = await query(by, (tx) => tx.execute(statement));
    return [...rows] as Row[];
  };
}

/** Returns the first row of a statement that always returns one. */
export function only<Row>([row]: readonly Row[]): Row {
  if (!row) throw new Error('no row');
  return row;
}

/**
 * Prepares a statement for a hot path. Its text is built only once.
 * @param template contains a `sql.placeholder` for each value
 * @returns a function that runs the statement with named values and returns its rows. It throws
 * like `query`.
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
 * Runs `work` in one READ COMMITTED transaction. Credit rules rely on row locks and constraints and
 * never on SERIALIZABLE, so only the victim of a deadlock is retried.
 *
 * After `client_deadline`, the caller can rely on a rollback, because a late transaction rolls
 * back. The outcome is unknown only if COMMIT was sent and got no response.
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
          // The wait for a connection counts too.
          deadline.check();
          const result = await work(tx);
          // COMMIT follows in the same turn of the event loop, so no timer fires in between. It
          // gets a new deadline. Otherwise, after slow work, a transaction that commits could be
          // reported as failed.
          deadline.renew();
          return result;
        }),
      );
    } catch (error) {
      if (!(error instanceof DatabaseError && error.code === '40P01' && attempt < 3)) throw error;
    }
  }
}

/**
 * Settings for reading whole tables, which need more memory and time than a service's statements.
 */
const WHOLE_TABLES = Object.entries({
  statement_timeout: '15min',
  work_mem: '256MB',
  jit: 'off',
  parallel_setup_cost: '100',
  parallel_tuple_cost: '0.001',
}).map(([name, value]) => sql`set_config(${name}, ${value}, true)`);

/**
 * Reads large parts of the database for an operator, as of one moment and without locks. It has no
 * client deadline.
 */
export async function snapshot<T>(db: Database, work: (tx: Transaction) => Promise<T>): Promise<T> {
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

/**
 * Builds an insert of rows that all have the same members. The text of the statement does not
 * depend on the number of rows.
 * @param common members that all rows share; they are sent once
 */
export function insertAll<T extends PgTable, Common extends keyof T['$inferInsert'] = never>(
  table: T,
  rows: readonly Omit<T['$inferInsert'], Common>[],
  common: Pick<T['$inferInsert'], Common> | null = null,
): SQL {
  const ofRows = membersIn(table, rows[0] ?? {});
  const ofCommon = membersIn(table, common ?? {});
  const inserted = [...ofRows, ...ofCommon];
  const names = inserted.map(([, column]) => `"${column.name}"`).join(', ');
  const members = inserted.map(([member]) => `"${member}"`).join(', ');
  const source = sql`json_to_recordset(${JSON.stringify(rows)}::json) r (${definitions(ofRows)})`;
  if (common !== null) {
    const record = sql`json_to_record(${JSON.stringify(common)}::json)`;
    source.append(sql` cross join ${record} c (${definitions(ofCommon)})`);
  }
  return sql`insert into ${table} (${sql.raw(names)}) select ${sql.raw(members)} from ${source}`;
}

type Member = readonly [member: string, column: PgColumn];

/** Returns the columns of a table whose members are in a row. */
function membersIn(table: PgTable, row: object): Member[] {
  return Object.entries(getTableColumns(table)).filter(([member]) => member in row);
}

/** Returns the column definitions of a JSON record. */
function definitions(members: readonly Member[]): SQL {
  return sql.raw(
    members.map(([member, column]) => `"${member}" ${column.getSQLType()}`).join(', '),
  );
}

/** A page of a list: its start and its maximum length. */
export interface Page<Place = string> {
  /** Null for the first page. */
  readonly after: Place | null;
  readonly limit: number;
}

/**
 * Cuts rows to a page. The caller reads one row more than `limit`.
 * @returns the items, and the last of them if more follow, else null
 */
export function cut<T>(
  rows: readonly T[],
  limit: number,
): { readonly items: readonly T[]; readonly last: T | null } {
  const items = rows.slice(0, limit);
  if (rows.length <= limit) return { items, last: null };
  return { items, last: items.at(-1) ?? null };
}

/** Returns an SQL interval of `ms` milliseconds. */
export function span(ms: number): SQL {
  return sql`make_interval(secs => ${ms / 1000}::float8)`;
}

/** Returns the current time of PostgreSQL's clock, the only clock that all processes share. */
export async function clock(tx: Pick<Transaction, 'execute'>): Promise<Date> {
  const rows = await run<{ at: Date }>(tx)`select clock_timestamp() as at`;
  return only(rows).at;
}

/** Runs `work` within the client's deadline, and maps its errors. */
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
  /** Rejects when the deadline passes. */
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
