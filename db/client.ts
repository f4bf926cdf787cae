import { DrizzleQueryError, fillPlaceholders, getTableColumns, type SQL, sql } from 'drizzle-orm';
import { type PgColumn, PgDialect, type PgTable } from 'drizzle-orm/pg-core';
import { drizzle, type PostgresJsDatabase } from 'drizzle-orm/postgres-js';
import postgres, { type ISql, type Sql, type TransactionSql } from 'postgres';
import { DatabaseError, OperatorProblem, toDatabaseError } from './errors.ts';
import type { SecretKey } from './secrets.ts';

export type Transaction = Parameters<Parameters<PostgresJsDatabase['transaction']>[0]>[0];

/** A pool of connections to PostgreSQL and the one way to use it. */
export interface Database {
  /** Statements outside a transaction. Use through `query`, so that errors are mapped. */
  readonly drizzle: PostgresJsDatabase & { readonly $client: Sql };
  /** How long a caller waits before it is told that there is no answer. */
  readonly deadlineMs: number;
  /**
   * What webhook secrets are encrypted with; empty in processes that have nothing to do with them.
   */
  readonly secretKeys: readonly SecretKey[];
  /** Connections at most, and how much is being asked: what is more than these waits for one. */
  readonly pool: { readonly size: number; asked: number };
  /**
   * Hears every NOTIFY on a channel, over one connection of its own. A connection that is lost may
   * stay so without a word: postgres.js tries to listen again only once.
   * @param onGap called whenever listening begins, again too: what was sent before is lost
   * @returns ends the listening
   */
  listen(
    channel: string,
    onNotify: (payload: string) => void,
    onGap: () => void,
  ): Promise<() => Promise<void>>;
  /** Closes the pool, giving running statements up to 5 s. */
  close(): Promise<void>;
}

export interface DatabaseOptions {
  /** `postgres://…`; wins over every PG* variable. */
  readonly url: string;
  /** Connections at most. */
  readonly poolSize: number;
  /** Shown by PostgreSQL in `pg_stat_activity`. */
  readonly applicationName: string;
  readonly secretKeys?: readonly SecretKey[];
  /** Tests cannot wait for the usual 12 s. */
  readonly deadlineMs?: number;
}

/**
 * The server gives up on a statement first, so that the client's own deadline means several slow
 * ones, or a dead connection.
 */
const STATEMENT_TIMEOUT_MS = 10_000;
const CLIENT_DEADLINE_MS = 12_000;

/**
 * Everything that runs for long or writes asks this first: see patches/README.md.
 * @throws {OperatorProblem} if postgres.js is as published
 */
export function requirePatchedDriver(): void {
  if ('survivesLoss' in postgres) return;
  throw new OperatorProblem(
    'postgres.js was installed without its patch, and would end this process when PostgreSQL is lost; run "npm run postinstall" in the folder that has package.json and patches/',
  );
}

/** @throws {OperatorProblem} as `requirePatchedDriver` */
export function openDatabase(options: DatabaseOptions): Database {
  requirePatchedDriver();
  const client = postgres(options.url, {
    max: options.poolSize,
    connect_timeout: 5,
    // Bounded, so that the pool is ready within seconds of PostgreSQL's return.
    backoff: (retries: number) => Math.min(2, 0.1 * 2 ** retries),
    onnotice: () => {},
    connection: {
      application_name: options.applicationName,
      statement_timeout: STATEMENT_TIMEOUT_MS,
      idle_in_transaction_session_timeout: STATEMENT_TIMEOUT_MS,
    },
  });
  const database = drizzle(preparing(client));
  // drizzle reads and writes times column by column. Statements that are SQL have no columns:
  // theirs are dates too, and their bigints numbers.
  const { parsers, serializers } = client.options;
  parsers[1184] = (text: string) => new Date(text);
  serializers[1184] = (time: Date | string) => (time instanceof Date ? time.toISOString() : time);
  parsers[20] = Number;
  return {
    drizzle: database,
    deadlineMs: options.deadlineMs ?? CLIENT_DEADLINE_MS,
    secretKeys: options.secretKeys ?? [],
    pool: { size: options.poolSize, asked: 0 },
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
 * drizzle has every statement planned anew, and asks for the types of its parameters first: two
 * round trips. Prepared, a connection plans each text once and keeps it. So texts must be few: a
 * list is one array, not a placeholder for each.
 */
function preparing(client: Sql): Sql {
  const prepare = <T extends ISql>(sql: T): T => {
    const { unsafe } = sql;
    const prepared: ISql['unsafe'] = (text, values, options) =>
      unsafe(text, values, { ...options, prepare: true });
    return Object.assign(sql, { unsafe: prepared });
  };
  const { begin } = client;
  const begun = (work: (tx: TransactionSql) => unknown) =>
    begin(async (tx) => {
      try {
        return await work(prepare(tx));
      } catch (error) {
        throw withoutWrapper(error);
      }
    });
  return Object.assign(prepare(client), { begin: begun as Sql['begin'] });
}

/**
 * Returns the driver's own error instead of the one that drizzle puts around it. When the error
 * says only that the transaction has failed before (25P02), the driver then throws the first
 * failure in its place. It does so only for errors of its own class.
 */
function withoutWrapper(error: unknown): unknown {
  return error instanceof DrizzleQueryError ? (error.cause ?? error) : error;
}

/**
 * Runs statements outside a transaction, each in its own.
 * @throws {DatabaseError} with `code` and `constraint` only: a driver's message holds bound values
 */
export function query<T>(db: Database, work: (tx: PostgresJsDatabase) => Promise<T>): Promise<T> {
  return bounded(db, () => work(db.drizzle));
}

/**
 * Runs one statement, in a transaction or by itself, as `query` does: run(db)`select …`.
 * @returns its rows
 */
export function run<Row = unknown>(by: Database | Pick<Transaction, 'execute'>) {
  return async (text: TemplateStringsArray, ...values: readonly unknown[]) => {
    const statement = sql(text, ...values);
    const rows = 'execute' in by ? by.execute(statement) : query(by, (tx) => tx.execute(statement));
    return [...(await rows)] as Row[];
  };
}

/** The first row of a statement that always has one. */
export function only<Row>([row]: readonly Row[]): Row {
  if (!row) throw new Error('no row');
  return row;
}

/**
 * A statement of a hot path: its text is built once and not at every use.
 * @param template with a `sql.placeholder` for each value
 * @returns runs it with values by their names, and returns its rows; it throws as `query`
 */
export function statement<Row>(template: SQL) {
  const { sql: text, params } = new PgDialect().sqlToQuery(template);
  return async (db: Database, values: Readonly<Record<string, string>>) => {
    const filled = fillPlaceholders(params, values) as string[];
    return [
      ...(await bounded(db, () => db.drizzle.$client.unsafe(text, filled))),
    ] as unknown as Row[];
  };
}

/**
 * Runs `work` in one READ COMMITTED transaction. Rules about money rest on row locks and
 * constraints, never on SERIALIZABLE, so nothing here is retried but a deadlock's victim.
 *
 * Whoever is told `client_deadline` may rely on it that nothing was done: the transaction that
 * comes too late rolls back. Nobody knows only if COMMIT was sent and isn't answered.
 * @throws {DatabaseError} as `query`, and whatever `work` throws of its own
 */
export async function transaction<T>(
  db: Database,
  work: (tx: Transaction) => Promise<T>,
): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await bounded(db, (deadline) =>
        db.drizzle.transaction(async (tx) => {
          // The wait for a connection counts as well.
          deadline.check();
          const result = await work(tx);
          // COMMIT follows in the same turn of the event loop, so that no timer comes between. Its
          // answer has a deadline of its own, or else what is as good as done would be told as
          // failed if the work took long.
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
 * Whole tables are read: hashes that spill and the time-out of a service's statement are not for
 * this.
 */
const WHOLE_TABLES = Object.entries({
  statement_timeout: '15min',
  work_mem: '256MB',
  jit: 'off',
  parallel_setup_cost: '100',
  parallel_tuple_cost: '0.001',
}).map(([name, value]) => sql`set_config(${name}, ${value}, true)`);

/**
 * Reads much of the database for an operator: as it is at one moment, without locks, for as long as
 * that takes.
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
 * Inserts rows that all have the same members, by a statement whose text does not depend on how
 * many there are.
 * @param common what all of them have besides: it is sent once
 */
export function insertAll<T extends PgTable, Common extends keyof T['$inferInsert'] = never>(
  table: T,
  rows: readonly Omit<T['$inferInsert'], Common>[],
  common: Pick<T['$inferInsert'], Common> | null = null,
): SQL {
  const columns = Object.entries(getTableColumns<PgTable>(table));
  const list = (row: object, part: (member: string, column: PgColumn) => string) =>
    sql.raw(
      columns.flatMap(([member, column]) => (member in row ? part(member, column) : [])).join(', '),
    );
  const read = (how: string, value: unknown, row: object = {}) =>
    sql`${sql.raw(how)}(${JSON.stringify(value)}::json) ${sql.raw(how)} (${list(row, (member, column) => `"${member}" ${column.getSQLType()}`)})`;
  const all = { ...rows[0], ...common };
  return sql`insert into ${table} (${list(all, (_, { name }) => `"${name}"`)}) select ${list(all, (member) => `"${member}"`)}
    from ${read('json_to_recordset', rows, rows[0])} ${common ? sql`cross join ${read('json_to_record', common, common)}` : sql``}`;
}

/** Which page of a list: what comes after an item, and how much of it at most. */
export interface Page<Place = string> {
  /** Null for the first page. */
  readonly after: Place | null;
  readonly limit: number;
}

/** The items of a page, of which one more was read, and the last of them if more are to come. */
export function cut<T>(
  rows: readonly T[],
  limit: number,
): { readonly items: readonly T[]; readonly last: T | null } {
  const items = rows.slice(0, limit);
  return { items, last: rows.length > limit ? (items.at(-1) ?? null) : null };
}

/** A time in milliseconds, as SQL has it. */
export function span(ms: number): SQL {
  return sql`make_interval(secs => ${ms / 1000}::float8)`;
}

/** The moment, as PostgreSQL's clock has it: the only clock that all processes share. */
export async function clock(tx: Pick<Transaction, 'execute'>): Promise<Date> {
  return only(await run<{ at: Date }>(tx)`select clock_timestamp() as at`).at;
}

interface Deadline {
  /** @throws {DatabaseError} `client_deadline`, once the caller was told so */
  check(): void;
  /** Begins again. @throws {DatabaseError} as `check` */
  renew(): void;
}

async function bounded<T>(
  { deadlineMs, pool }: Database,
  work: (_: Deadline) => Promise<T>,
): Promise<T> {
  const { promise: passing, reject } = Promise.withResolvers<never>();
  let passed: DatabaseError | null = null;
  const pass = () => {
    passed = new DatabaseError('client_deadline');
    reject(passed);
  };
  let timer = setTimeout(pass, deadlineMs);
  const check = () => {
    if (passed) throw passed;
  };
  const renew = () => {
    check();
    clearTimeout(timer);
    timer = setTimeout(pass, deadlineMs);
  };
  pool.asked += 1;
  try {
    return await Promise.race([work({ check, renew }), passing]);
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    pool.asked -= 1;
    clearTimeout(timer);
  }
}
