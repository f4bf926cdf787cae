import type { AttemptReason } from '../../db/words.ts';

/**
 * The reason why an attempt got no response. `network` stands for all errors without a more
 * specific reason.
 */
export type FailureReason = Exclude<
  AttemptReason,
  'redirect' | 'http_status' | 'body_timeout' | 'body_broken'
>;

/** Thrown to end a delivery attempt without a response. `post.ts` catches it. */
export class AttemptFailure extends Error {
  override readonly name = 'AttemptFailure';
  readonly reason: FailureReason;

  constructor(reason: FailureReason) {
    super(`the delivery attempt ended with ${reason}`);
    this.reason = reason;
  }
}

/**
 * Thrown if PostgreSQL counted the attempt only after the attempt's time limit had passed. Then no
 * attempt was made, and the error says nothing about the receiver.
 */
export class CountedTooLate extends Error {
  override readonly name = 'CountedTooLate';
}

const REASONS: Readonly<Record<string, FailureReason>> = {
  ECONNREFUSED: 'refused',
  EPIPE: 'reset',
  ETIMEDOUT: 'timeout_connect',
  EHOSTUNREACH: 'unreachable',
  ENETUNREACH: 'unreachable',
  EADDRNOTAVAIL: 'unreachable',
  EPROTO: 'tls_handshake',
  ERR_TLS_CERT_ALTNAME_INVALID: 'tls_name',
  HPE_HEADER_OVERFLOW: 'headers_too_large',
  ENOTFOUND: 'dns_not_found',
  ENODATA: 'dns_not_found',
};

/**
 * The failure reasons for groups of error codes: codes of OpenSSL, of OpenSSL's certificate check
 * (X509_V_ERR_…), and of Node's HTTP parser.
 */
const FAMILIES: readonly (readonly [RegExp, FailureReason])[] = [
  [/^ERR_SSL/, 'tls_handshake'],
  [/CERT|^UNABLE_TO_|^INVALID_(CA|PURPOSE)|^CRL_|^HOSTNAME_MISMATCH/, 'tls_certificate'],
  [/^HPE_/, 'not_http'],
];

/**
 * Waits for one step of an attempt.
 * @param otherwise the failure reason for errors whose code is in neither `REASONS` nor `FAMILIES`
 * @throws {AttemptFailure}
 */
export async function step<T>(work: Promise<T>, otherwise: FailureReason): Promise<T> {
  try {
    return await work;
  } catch (error) {
    throw new AttemptFailure(reasonOf(error, otherwise));
  }
}

function reasonOf(error: unknown, otherwise: FailureReason): FailureReason {
  if (!(error instanceof Error)) return otherwise;
  const { code, syscall } = error as NodeJS.ErrnoException;
  if (code === undefined) return otherwise;
  // Node also uses this code if the receiver closed the connection properly but too early. In that
  // case the error names no system call.
  if (code === 'ECONNRESET') {
    return syscall === undefined ? 'closed' : 'reset';
  }
  const known = REASONS[code];
  if (known !== undefined) return known;
  for (const [codes, reason] of FAMILIES) {
    if (codes.test(code)) return reason;
  }
  return otherwise;
}
