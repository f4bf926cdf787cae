import { Connection, isGrpcServiceError } from '@temporalio/client';
import { OperatorProblem } from '../../db/connection/errors.ts';
import { messageOf, type TemporalTarget } from './client.ts';

const CALL_TIMEOUT_MS = 3000;

/**
 * Checks that our namespace on the Temporal server can be used.
 * @returns null if it can be used. Otherwise an error whose message names the setting to check, and
 * has the code and details of the gRPC failure. Its `isAway` is true if the server may become available later. It is false if a setting must be
 * changed.
 */
export async function temporalTrouble({
  connectionOptions,
  namespace = 'default',
}: TemporalTarget) {
  // Without interceptors, the client does not retry. Retries would end in a time-out, which hides
  // the cause.
  const connection = Connection.lazy({ ...connectionOptions, interceptors: [] });
  try {
    await connection.withDeadline(Date.now() + CALL_TIMEOUT_MS, () =>
      connection.workflowService.describeNamespace({ namespace }),
    );
    return null;
  } catch (error) {
    if (!isGrpcServiceError(error)) throw error;
    const { address = 'localhost:7233' } = connectionOptions;
    const { wrong, isAway } = explain(error.code, error.details);
    const sentence = `Temporal at ${address} ${wrong.replace('{namespace}', () => namespace)}`;
    const problem = new OperatorProblem(`${sentence} (${messageOf(error)})`);
    return Object.assign(problem, { isAway });
  } finally {
    await connection.close();
  }
}

function explain(code: number, details: string): { wrong: string; isAway: boolean } {
  const found = TROUBLES.find(
    (trouble) => trouble[0] === code && trouble[1].test(details),
  );
  if (found) return { wrong: found[2], isAway: found[3] === 'away' };
  // Any other code means that the server itself has a problem.
  return { wrong: "responds with an error; see the server's log", isAway: true };
}

type Trouble = readonly [code: number, details: RegExp, wrong: string, away?: 'away'];

/**
 * Known errors. Each entry has a gRPC code, a pattern for the error's details, the message, and
 * `away` if the server may become available later. The first matching entry is used. For code 14
 * (unavailable), the details are messages of OpenSSL and of Node's sockets.
 */
const TROUBLES: readonly Trouble[] = [
  [
    14,
    /Name resolution/,
    'has a name that no name server knows; check TEMPORAL_ADDRESS',
    'away',
  ],
  [
    14,
    /alert/,
    'rejects our certificate; check TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH',
  ],
  [
    14,
    /certificate|altnames/,
    'has a certificate that is not trusted; check TEMPORAL_TLS_SERVER_CA_CERT_PATH and TEMPORAL_TLS_SERVER_NAME',
  ],
  [
    14,
    /SSL routines/,
    'does not speak TLS; unset TEMPORAL_TLS and the other settings for TLS',
  ],
  [
    14,
    /ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT/,
    'cannot be reached; check TEMPORAL_ADDRESS and that the cluster runs',
    'away',
  ],
  [14, /^/, 'closes the connection; if it expects TLS, set TEMPORAL_TLS=true', 'away'],
  [
    4,
    /^/,
    'does not respond within 3 s; check TEMPORAL_ADDRESS and that the cluster runs',
    'away',
  ],
  [16, /^/, 'rejects the key; check TEMPORAL_API_KEY'],
  [
    7,
    /^/,
    'gives us no rights in the namespace {namespace}; give them to the key or certificate, or check TEMPORAL_NAMESPACE',
  ],
  [5, /^/, 'has no namespace {namespace}; check TEMPORAL_NAMESPACE, or register it'],
];
