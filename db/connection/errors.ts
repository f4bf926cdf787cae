/**
 * A problem that stops a program until an operator acts. The message is one sentence for the
 * operator: what is wrong, where, and what to do.
 */
export class OperatorProblem extends Error {}

/**
 * Error codes that a retry cannot fix, because a value is missing or our statement has a bug. A
 * missing table, column, function, or privilege (42P01, 42703, 42883, 42501) is not in this list,
 * because the next migration may add it, and then a retried call succeeds.
 */
const PERMANENT: ReadonlySet<string> = new Set([
  // A missing value: null in a column that must not be null, or undefined as a parameter.
  '23502',
  'UNDEFINED_VALUE',
  // A syntax error.
  '42601',
  // An ambiguous column or function.
  '42702',
  '42725',
  // A selected column that is neither grouped nor aggregated.
  '42803',
  // Types that do not match, or that cannot be cast or inferred.
  '42804',
  '42846',
  '42P08',
  '42P18',
  // A parameter that does not exist, such as $3 in a statement with two.
  '42P02',
]);

const UNAVAILABLE: ReadonlySet<string> = new Set([
  'CONNECTION_CLOSED',
  'CONNECTION_DESTROYED',
  'CONNECTION_ENDED',
  'CONNECT_TIMEOUT',
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'ENOENT',
]);

const BUSY: ReadonlySet<string> = new Set([
  '40001',
  '40P01',
  '55P03',
  '57014',
  'client_deadline',
]);

/**
 * A failure of PostgreSQL or of the connection to it. It contains no message of drizzle or
 * PostgreSQL, because these may contain personal data: drizzle puts all bound parameters into its
 * message, and PostgreSQL puts values into `detail`. Any function that queries PostgreSQL may throw
 * this error, so doc comments mention it only where a specific code matters.
 */
export class DatabaseError extends Error {
  override readonly name = 'DatabaseError';
  /** An SQLSTATE, a connection error code of postgres.js or Node.js, or `client_deadline`. */
  readonly code: string;
  /** The violated constraint, or null. */
  readonly constraint: string | null;

  constructor(code: string, constraint: string | null = null) {
    const where = constraint === null ? '' : ` (${constraint})`;
    super(`database error ${code}${where}`);
    this.code = code;
    this.constraint = constraint;
  }

  /** True if the same call may succeed later. */
  get unavailable(): boolean {
    return this.isBusy || this.isAway;
  }

  /**
   * True if PostgreSQL is unavailable, starting, overloaded, or read-only, so that other calls would
   * fail too.
   */
  get isAway(): boolean {
    return UNAVAILABLE.has(this.code) || /^(08|53|57P|25006)/.test(this.code);
  }

  /**
   * True if the call took too long, waited too long for a row lock, or was aborted to resolve a
   * deadlock. Other calls may still succeed.
   */
  get isBusy(): boolean {
    return BUSY.has(this.code);
  }

  /**
   * True if the call itself is wrong, for example because a value is missing or its SQL has a bug.
   * The same call never succeeds.
   */
  get isPermanent(): boolean {
    return this.code.startsWith('22') || PERMANENT.has(this.code);
  }
}

/** Returns true if the error is the violation of this constraint. */
export function violates(error: unknown, constraint: string): boolean {
  return error instanceof DatabaseError && error.constraint === constraint;
}

/**
 * Maps an error of drizzle or postgres.js to a `DatabaseError`. Other errors are returned
 * unchanged.
 */
export function toDatabaseError(error: unknown): unknown {
  if (!(error instanceof Error)) return error;
  if (error instanceof DatabaseError || error instanceof Refusal) {
    return error;
  }
  const { code, constraint_name: constraint } = driverErrorOf(error) as {
    code?: unknown;
    constraint_name?: unknown;
  };
  if (typeof code === 'string') {
    return new DatabaseError(code, typeof constraint === 'string' ? constraint : null);
  }
  if (isDriverError(error)) return new DatabaseError('unknown');
  return error;
}

/**
 * Returns the driver's error, which has the code: the given error, or its cause if drizzle wrapped
 * it.
 */
function driverErrorOf(error: Error): Error {
  if (error.name !== 'PostgresError' && error.cause instanceof Error) {
    return error.cause;
  }
  return error;
}

function isDriverError(error: Error): boolean {
  return error.constructor.name === 'DrizzleQueryError' || error.name === 'PostgresError';
}

export type RefusalCode =
  | 'organization_missing'
  | 'organization_open'
  | 'organization_closed'
  | 'organization_erased'
  | 'name_differs'
  | 'key_missing'
  | 'key_not_active'
  | 'key_rotated'
  | 'key_leaked'
  | 'rotation_too_soon'
  | 'credits_below_zero'
  | 'reference_used'
  | 'batch_missing'
  | 'request_missing'
  | 'delivery_missing'
  | 'webhooks_suspended';

/** An earlier grant of credits: how many and when. */
export type Granted = Readonly<{ amount: number; at: Date }>;

/**
 * The call failed because a business rule forbids it. Nothing was changed, and the database is
 * fine.
 */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly code: RefusalCode;
  /** Only with `rotation_too_soon`: the time from which the secret can be rotated again. */
  readonly until: Date | null;
  /** Only with `reference_used`: the earlier grant that has the same reference. */
  readonly granted: Granted | null;

  constructor(
    code: RefusalCode,
    until: Date | null = null,
    granted: Granted | null = null,
  ) {
    super(`refused: ${code}`);
    this.code = code;
    this.until = until;
    this.granted = granted;
  }
}
