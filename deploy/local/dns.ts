import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { type Answer, AUTHORITATIVE_ANSWER, decode, encode, type Packet, type Question } from 'dns-packet';
import { LOOPBACK } from './processes.ts';
import { CLOSED_DOMAIN, DIRECT_DOMAIN, FREE_MAIL_DOMAINS, PRACTICE_DOMAINS } from './sim/people.ts';

/** What the local name server says of one name, by type; a type without records is an empty answer. */
type DnsEntry = { readonly MX?: string; readonly A?: string; readonly AAAA?: string } | 'servfail';

/** Addresses set aside for documentation (RFC 5737): nothing that follows them reaches anyone. */
const NOWHERE = '192.0.2.25';
/** The same for mail exchangers, which have to be public: this is, by number, but its block was given back (RFC 3701). */
const NOBODY = '3ffe::25';
/** RFC 7505: the domain takes no mail. */
const NULL_MX = '.';

/** Everything the local name server knows; any other name does not exist. */
export const DNS_TABLE = new Map<string, DnsEntry>([
  ...[...PRACTICE_DOMAINS, ...FREE_MAIL_DOMAINS, DIRECT_DOMAIN].flatMap(takesMail),
  [CLOSED_DOMAIN, { MX: NULL_MX, A: NOWHERE }],
]);

function takesMail(domain: string): [string, DnsEntry][] {
  return [
    [domain, { MX: `mx.${domain}`, A: NOWHERE }],
    [`mx.${domain}`, { AAAA: NOBODY }],
  ];
}

export type DnsServer = Awaited<ReturnType<typeof startDns>>;

/** Codes of answers (RFC 1035, 4.1.1). */
const [NOERROR, SERVFAIL, NXDOMAIN, NOTIMP] = [0, 2, 3, 4];

/**
 * A name server over UDP on the loopback that answers from the table above, so that the production resolver works
 * with no network and no name leaves the machine.
 */
export async function startDns() {
  const socket = createSocket('udp4');
  socket.bind(0, LOOPBACK);
  await once(socket, 'listening');
  socket.on('message', (message, peer) => {
    const response = respond(message);
    if (response) socket.send(response, peer.port, peer.address);
  });
  // A reply that could not be sent is a lost packet, which every resolver expects.
  socket.on('error', () => {});
  return {
    /** For DNS_SERVERS: `127.0.0.1:PORT`. */
    address: `${LOOPBACK}:${socket.address().port}`,
    close: () => new Promise<void>((resolve) => socket.close(() => resolve())),
  };
}

/** Null for what isn't a question: it is dropped, as name servers do. */
function respond(message: Buffer): Buffer | null {
  const query = parse(message);
  const [question, ...more] = query?.questions ?? [];
  if (query?.type !== 'query' || question === undefined) return null;
  const reply: Packet = { type: 'response', id: query.id ?? 0, questions: [question] };
  if (more.length > 0 || query.opcode !== 'QUERY') return encode({ ...reply, flags: NOTIMP });
  const entry = DNS_TABLE.get(question.name.toLowerCase());
  const rcode = entry === undefined ? NXDOMAIN : entry === 'servfail' ? SERVFAIL : NOERROR;
  const answers = typeof entry === 'object' ? recordsOf(entry, question) : [];
  return encode({ ...reply, flags: AUTHORITATIVE_ANSWER | rcode, answers });
}

function parse(message: Buffer): (Packet & { readonly opcode?: string }) | null {
  try {
    return decode(message);
  } catch {
    return null;
  }
}

function recordsOf(entry: Exclude<DnsEntry, 'servfail'>, { name, type }: Question): Answer[] {
  const data = type === 'A' || type === 'AAAA' || type === 'MX' ? entry[type] : undefined;
  if (data === undefined) return [];
  if (type !== 'MX') return [{ name, ttl: 60, type: type as 'A' | 'AAAA', data }];
  // A null MX has preference 0 (RFC 7505 section 3).
  return [{ name, ttl: 60, type, data: { preference: data === NULL_MX ? 0 : 10, exchange: data } }];
}
