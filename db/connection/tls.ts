import { readFileSync } from 'node:fs';
import postgres, { type Options, type Sql } from 'postgres';

// Connections to PostgreSQL: TLS, with the settings of PostgreSQL's own programs in DATABASE_URL,
// and no compilation of queries.

type NoTypes = Record<string, never>;

/** The values of `sslmode` that check the server's certificate. */
const VERIFYING: readonly string[] = ['verify-ca', 'verify-full'];

/**
 * A PostgreSQL with LLVM compiles the queries that it thinks are expensive. That takes up to
 * seconds of CPU, saves milliseconds, and ignores `statement_timeout`.
 */
const NO_COMPILATION = { jit: 'off' };

/**
 * Connects with postgres.js. We read `sslmode` and `sslrootcert` ourselves, so that a URL means the
 * same here and in `psql`: postgres.js would send `sslrootcert` to the server, and would not check
 * an IP address. `sslrootcert=system` stands for the CAs that Node.js trusts, as does no file.
 */
export function connect(url: string, given: Options<NoTypes>): Sql {
  const options = { ...given, connection: { ...given.connection, ...NO_COMPILATION } };
  const parsed = URL.parse(url);
  if (!parsed || !isVerified(parsed)) return postgres(url, options);
  const file = parsed.searchParams.get('sslrootcert') ?? 'system';
  parsed.searchParams.delete('sslrootcert');
  const ca = file === 'system' ? undefined : readFileSync(file);
  const host = parsed.hostname.replace(/^\[|\]$/g, '');
  return postgres(parsed.href, { ...options, ssl: { ca, host } });
}

function isVerified({ searchParams }: URL): boolean {
  const mode = searchParams.get('sslmode') ?? '';
  return VERIFYING.includes(mode) || searchParams.has('sslrootcert');
}

/** Hosts on this machine. An empty one is a Unix socket. */
const LOCAL_HOST = /^(|localhost|127\.[\d.]+|\[::1\]|%2F.*)$/i;

const UNVERIFIED =
  'the connection to PostgreSQL is not protected by TLS with a checked certificate; add ' +
  '?sslmode=verify-full&sslrootcert=FILE to DATABASE_URL, or ?sslmode=disable if the connection ' +
  'does not leave this machine (deploy/operations.md, TLS to PostgreSQL)';

/**
 * Returns a warning if a connection may leave this machine without TLS, or with TLS that does not
 * check the server's certificate. `sslmode=disable` means that the operator wants no TLS, so it
 * causes no warning.
 */
export function tlsWarning(url: string): string | null {
  const parsed = URL.parse(url);
  if (!parsed || LOCAL_HOST.test(parsed.hostname)) return null;
  if (isVerified(parsed)) return null;
  if (parsed.searchParams.get('sslmode') === 'disable') return null;
  return UNVERIFIED;
}
