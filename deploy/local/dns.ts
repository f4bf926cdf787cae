import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import {
  type Answer,
  AUTHORITATIVE_ANSWER,
  decode,
  encode,
  type Packet,
  type Question,
} from 'dns-packet';
import { LOOPBACK } from '../ports.ts';
import {
  CLOSED_DOMAIN,
  DIRECT_DOMAIN,
  FREE_MAIL_DOMAINS,
  PRACTICE_DOMAINS,
} from './sim/people.ts';

/**
 * The address to which all simulated domains resolve. It is reserved for documentation (RFC 5737),
 * so no machine uses it.
 */
const NOWHERE = '192.0.2.25';
/**
 * The address to which the mail exchangers of all simulated domains resolve. The service only
 * accepts a public address, and this one counts as public. Its block is no longer used (RFC 3701),
 * so no machine uses it.
 */
const NOBODY = '3ffe::25';
/** The MX record of a domain that accepts no mail (RFC 7505). */
const NULL_MX = '.';

/** The records of the local name server, by name and type. */
export const DNS_TABLE: ReadonlyMap<string, Readonly<Record<string, string>>> = new Map([
  ...PRACTICE_DOMAINS.flatMap(mailRecords),
  ...FREE_MAIL_DOMAINS.flatMap(mailRecords),
  ...mailRecords(DIRECT_DOMAIN),
  [CLOSED_DOMAIN, { MX: NULL_MX, A: NOWHERE }],
]);

/** Returns the records of a domain that accepts mail, and of its mail exchanger. */
function mailRecords(domain: string): [string, Record<string, string>][] {
  const exchanger = `mx.${domain}`;
  return [
    [domain, { MX: exchanger, A: NOWHERE }],
    [exchanger, { AAAA: NOBODY }],
  ];
}

/** The response code for a name that does not exist (RFC 1035, 4.1.1). */
const NXDOMAIN = 3;

export type DnsServer = Awaited<ReturnType<typeof startDns>>;

/**
 * Starts a name server over UDP on loopback that responds with the records of `DNS_TABLE`. With
 * this server, the resolver of the service works without a network, and no query leaves the
 * machine.
 */
export async function startDns() {
  const socket = createSocket('udp4');
  socket.bind(0, LOOPBACK);
  await once(socket, 'listening');
  socket.on('message', (message, peer) => {
    const response = respond(message);
    if (response) socket.send(response, peer.port, peer.address);
  });
  // Ignores the error if a response could not be sent. The resolver repeats its query, as after a
  // lost packet.
  socket.on('error', () => {});
  return {
    /** The value for DNS_SERVERS: `127.0.0.1:PORT`. */
    address: `${LOOPBACK}:${socket.address().port}`,
    close: () => new Promise<void>((resolve) => socket.close(() => resolve())),
  };
}

/**
 * Returns the response to a query, or null for a message that is not a query and must be ignored.
 */
function respond(message: Buffer): Buffer | null {
  const query = parse(message);
  const [question] = query?.questions ?? [];
  if (query?.type !== 'query' || question === undefined) return null;
  const records = DNS_TABLE.get(question.name.toLowerCase());
  const code = records ? 0 : NXDOMAIN;
  return encode({
    type: 'response',
    id: query.id ?? 0,
    flags: AUTHORITATIVE_ANSWER | code,
    questions: [question],
    answers: answersOf(question, records?.[question.type]),
  });
}

function parse(message: Buffer): Packet | null {
  try {
    return decode(message);
  } catch {
    return null;
  }
}

function answersOf({ name, type }: Question, data: string | undefined): Answer[] {
  if (data === undefined) return [];
  if (type !== 'MX') {
    return [{ name, ttl: 60, type: type as 'A' | 'AAAA', data }];
  }
  // A null MX has preference 0 (RFC 7505 section 3).
  const preference = data === NULL_MX ? 0 : 10;
  return [{ name, ttl: 60, type, data: { preference, exchange: data } }];
}
