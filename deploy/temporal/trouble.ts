import { Connection, isGrpcServiceError } from '@temporalio/client';
import { OperatorProblem } from '../../db/errors.ts';
import type { TemporalTarget } from './client.ts';

const CALL_TIMEOUT_MS = 3000;

/**
 * Checks that our namespace of Temporal can be used.
 * @returns null if it can; otherwise an error whose sentence names the setting to check. `isAway`
 * is true if Temporal doesn't respond, so that waiting may help. Waiting does not help against a
 * wrong setting
 */
export async function temporalTrouble({
  connectionOptions,
  namespace = 'default',
}: TemporalTarget) {
  // Turns the client's retries off, because they end in a time-out that hides the cause.
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
    return Object.assign(new OperatorProblem(sentence), { isAway });
  } finally {
    await connection.close();
  }
}

function explain(code: number, details: string): { wrong: string; isAway: boolean } {
  const found = TROUBLES.find((trouble) => trouble[0] === code && trouble[1].test(details));
  if (found) return { wrong: found[2], isAway: found[3] === 'away' };
  // Any other code means that the server itself is in trouble.
  return { wrong: `responds with the gRPC code ${code}`, isAway: true };
}

type Trouble = readonly [code: number, details: RegExp, wrong: string, away?: 'away'];

/**
 * gRPC codes, patterns for their details, the sentence for each, and whether waiting may help. The
 * first match counts. The details of code 14 come from OpenSSL and from Node's sockets.
 */
const TROUBLES: readonly Trouble[] = [
  [14, /Name resolution/, 'has a name that no name server knows; check TEMPORAL_ADDRESS', 'away'],
  [
    14,
    /alert/,
    'refuses our certificate; check TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH',
  ],
  [
    14,
    /certificate|altnames/,
    'has a certificate that is not trusted; check TEMPORAL_TLS_SERVER_CA_CERT_PATH and TEMPORAL_TLS_SERVER_NAME',
  ],
  [14, /SSL routines/, 'does not speak TLS; unset TEMPORAL_TLS and the other settings for TLS'],
  [
    14,
    /ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT/,
    'cannot be reached; check TEMPORAL_ADDRESS and that the cluster runs',
    'away',
  ],
  [14, /^/, 'closes the connection; if it expects TLS, set TEMPORAL_TLS=true', 'away'],
  [4, /^/, 'does not respond within 3 s; check TEMPORAL_ADDRESS and that the cluster runs', 'away'],
  [16, /^/, 'refuses the key; check TEMPORAL_API_KEY'],
  [
    7,
    /^/,
    'gives us no rights in the namespace {namespace}; give them to the key or certificate, or check TEMPORAL_NAMESPACE',
  ],
  [5, /^/, 'has no namespace {namespace}; check TEMPORAL_NAMESPACE, or register it'],
];
