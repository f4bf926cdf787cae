/**
 * What keeps a program from its work. The message is one sentence for who runs it: what, where,
 * what to do.
 */
export class OperatorProblem extends Error {}

/**
 * A failure of PostgreSQL or of the way to it, stripped of everything that could hold a value:
 * drizzle puts all bound parameters into its message, PostgreSQL puts values into `detail`.
 * Whatever asks PostgreSQL may throw it; docstrings name it only with a code that says more.
 */
export class DatabaseError extends Error {
  override readonly name = 'DatabaseError';
  /** An SQLSTATE, a connection error's code of postgres.js or of Node.js, or `client_deadline`. */
  readonly code: string;
  /** The constraint that refused, if one did. */
  readonly constraint: string | null;

  constructor(code: string, constraint: string | null = null) {
    super(`database error ${code}${constraint ? ` (${constraint})` : ''}`);
    this.code = code;
    this.constraint = constraint;
  }

  /** True if the same call may succeed later. */
  get unavailable(): boolean {
    return this.isBusy || this.isAway;
  }

  /** True if PostgreSQL is away, starting or overloaded: it is no use to ask it anything else. */
  get isAway(): boolean {
    return UNAVAILABLE.has(this.code) || /^(08|53|57P)/.test(this.code);
  }

  /**
   * True if the call took too long, waited for a row or gave way to another: PostgreSQL may be
   * there for everybody else.
   */
  get isBusy(): boolean {
    return BUSY.has(this.code);
  }

  /**
   * True if the call itself is wrong, such as a missing id or a bug in its SQL. The same call never
   * succeeds.
   */
  get isPermanent(): boolean {
    return this.code.startsWith('22') || PERMANENT.has(this.code);
  }
}

/**
 * Bugs in our own statements, and values that are missing. A missing table, column, function, or
 * privilege (42P01, 42703, 42883, 42501) is not among them: a migration adds it, and what waits
 * goes on.
 */
const PERMANENT: ReadonlySet<string> = new Set([
  // A value is missing: null in a column that needs one, undefined as a parameter.
  '23502',
  'UNDEFINED_VALUE',
  // Syntax error.
  '42601',
  // Ambiguous column, ambiguous function.
  '42702',
  '42725',
  // A column that is neither grouped nor aggregated.
  '42803',
  // Types that do not match, or cannot be cast or inferred.
  '42804',
  '42846',
  '42P08',
  '42P18',
  // A parameter that is not there.
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

const BUSY: ReadonlySet<string> = new Set(['40001', '40P01', '55P03', '57014', 'client_deadline']);

/** Maps whatever drizzle or postgres.js threw; errors of our own pass unchanged. */
export function toDatabaseError(error: unknown): unknown {
  if (error instanceof DatabaseError || error instanceof Refusal || !(error instanceof Error))
    return error;
  const cause =
    error.name === 'PostgresError' || !(error.cause instanceof Error) ? error : error.cause;
  const { code, constraint_name: constraint } = cause as {
    code?: unknown;
    constraint_name?: unknown;
  };
  if (typeof code !== 'string') return isDriverError(error) ? new DatabaseError('unknown') : error;
  return new DatabaseError(code, typeof constraint === 'string' ? constraint : null);
}

function isDriverError(error: Error): boolean {
  return error.constructor.name === 'DrizzleQueryError' || error.name === 'PostgresError';
}

export type RefusalCode =
  | 'organization_missing'
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

/** Credits that were granted, and when. */
export type Granted = Readonly<{ amount: number; at: Date }>;

/** A rule of ours forbids what was asked for, so nothing was done. The database is well. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly code: RefusalCode;
  /** With `rotation_too_soon`: from then on a rotation ends nothing. */
  readonly until: Date | null;
  /** With `reference_used`: the grant that has the reference. */
  readonly granted: Granted | null;

  constructor(code: RefusalCode, until: Date | null = null, granted: Granted | null = null) {
    super(`refused: ${code}`);
    this.code = code;
    this.until = until;
    this.granted = granted;
  }
}
