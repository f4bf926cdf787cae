import { Connection, isGrpcServiceError } from '@temporalio/client';
import type { TemporalTarget } from './client.ts';

/** Temporal cannot be used. The message is one sentence that names the setting to look at. */
export class TemporalTrouble extends Error {
  override readonly name = 'TemporalTrouble';
  /** Whether nobody is there, which waiting may help; a wrong setting stays wrong. */
  readonly isAway: boolean;

  constructor(sentence: string, isAway: boolean) {
    super(sentence);
    this.isAway = isAway;
  }
}

const ASK_MS = 3000;

/**
 * Asks Temporal for our namespace.
 * @returns why it cannot be used; null if it can
 */
export async function temporalTrouble({
  connectionOptions,
  namespace = 'default',
}: TemporalTarget): Promise<TemporalTrouble | null> {
  // Without the client's retries: they end in a time-out that hides what was wrong.
  const connection = Connection.lazy({ ...connectionOptions, interceptors: [] });
  try {
    await connection.withDeadline(Date.now() + ASK_MS, () =>
      connection.workflowService.describeNamespace({ namespace }),
    );
    return null;
  } catch (error) {
    if (!isGrpcServiceError(error)) throw error;
    const where = `Temporal at ${connectionOptions.address ?? 'localhost:7233'}`;
    const told = TROUBLES.find(({ code, details }) => code === error.code && details.test(error.details));
    const sentence = told?.sentence(where, namespace) ?? `${where} answers with the gRPC code ${error.code}`;
    return new TemporalTrouble(sentence, told?.isAway ?? false);
  } finally {
    await connection.close();
  }
}

interface Trouble {
  /** Of gRPC. */
  readonly code: number;
  readonly details: RegExp;
  readonly isAway?: true;
  readonly sentence: (where: string, namespace: string) => string;
}

const ANY = /^/;

/** The first that fits. The details of 14 are those of OpenSSL and of Node's sockets. */
const TROUBLES: readonly Trouble[] = [
  {
    code: 14,
    details: /Name resolution/,
    isAway: true,
    sentence: (where) => `${where} has a name that no name server knows; check TEMPORAL_ADDRESS`,
  },
  {
    code: 14,
    details: /alert/,
    sentence: (where) =>
      `${where} refuses our certificate; check TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH`,
  },
  {
    code: 14,
    details: /certificate|altnames/,
    sentence: (where) =>
      `${where} has a certificate that is not trusted; check TEMPORAL_TLS_SERVER_CA_CERT_PATH and TEMPORAL_TLS_SERVER_NAME`,
  },
  {
    code: 14,
    details: /SSL routines/,
    sentence: (where) => `${where} does not speak TLS; unset TEMPORAL_TLS and what else asks for TLS`,
  },
  {
    code: 14,
    details: /ECONNREFUSED|EHOSTUNREACH|ENETUNREACH|ETIMEDOUT/,
    isAway: true,
    sentence: (where) => `${where} cannot be reached; check TEMPORAL_ADDRESS and that the cluster runs`,
  },
  {
    code: 14,
    details: ANY,
    isAway: true,
    sentence: (where) => `${where} hangs up; if it wants TLS, set TEMPORAL_TLS=true`,
  },
  {
    code: 4,
    details: ANY,
    isAway: true,
    sentence: (where) =>
      `${where} does not answer within 3 s; check TEMPORAL_ADDRESS and that the cluster runs`,
  },
  {
    code: 16,
    details: ANY,
    sentence: (where) => `${where} refuses the key; check TEMPORAL_API_KEY`,
  },
  {
    code: 7,
    details: ANY,
    sentence: (where, namespace) =>
      `${where} gives us no rights in the namespace ${namespace}; give them to the key or certificate, or check TEMPORAL_NAMESPACE`,
  },
  {
    code: 5,
    details: ANY,
    sentence: (where, namespace) =>
      `${where} has no namespace ${namespace}; check TEMPORAL_NAMESPACE, or register it`,
  },
];
