import { createSocket, type Socket } from 'node:dgram';
import { type Answer, AUTHORITATIVE_ANSWER, decode, encode, type Packet, type Question } from 'dns-packet';
import { DNS_TABLE, type DnsEntry } from './dns-table.ts';
import { LOOPBACK, portTaken } from './ports.ts';

export interface DnsServer {
  /** For DNS_SERVERS: `127.0.0.1:PORT`. */
  readonly address: string;
  close(): Promise<void>;
}

const NOERROR = 0;
const SERVFAIL = 2;
const NXDOMAIN = 3;
const NOTIMP = 4;

/**
 * A name server over UDP on the loopback that answers from dns-table.ts, so that the production resolver works
 * with no network and no name leaves the machine.
 * @param port 0, or nothing, for any free one
 * @throws {LocalProblem} `port_taken`
 */
export async function startDns({ port = 0 }: { readonly port?: number } = {}): Promise<DnsServer> {
  const socket = createSocket('udp4');
  await bind(socket, port);
  socket.on('message', (message, peer) => {
    const response = respond(message);
    if (response) socket.send(response, peer.port, peer.address);
  });
  // A reply that could not be sent is a lost packet, which every resolver expects.
  socket.on('error', () => {});
  return {
    address: `${LOOPBACK}:${socket.address().port}`,
    close: () => new Promise((resolve) => socket.close(() => resolve())),
  };
}

function bind(socket: Socket, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (error: NodeJS.ErrnoException) =>
      reject(error.code === 'EADDRINUSE' ? portTaken(port, 'the local name server') : error);
    socket.once('error', fail);
    socket.bind(port, LOOPBACK, () => {
      socket.off('error', fail);
      resolve();
    });
  });
}

/** Null for what is no question: it is dropped, as name servers do. */
function respond(message: Buffer): Buffer | null {
  const query = parse(message);
  const [question, ...more] = query?.questions ?? [];
  if (query?.type !== 'query' || question === undefined) return null;
  const reply: Packet = { type: 'response', id: query.id ?? 0, questions: [question] };
  if (more.length > 0 || query.opcode !== 'QUERY') return encode({ ...reply, flags: NOTIMP });
  const { rcode, answers } = lookUp(question);
  return encode({ ...reply, flags: AUTHORITATIVE_ANSWER | rcode, answers });
}

function parse(message: Buffer): (Packet & { readonly opcode?: string }) | null {
  try {
    return decode(message);
  } catch {
    return null;
  }
}

function lookUp({ name, type }: Question): { readonly rcode: number; readonly answers: Answer[] } {
  const entry = DNS_TABLE.get(name.toLowerCase());
  if (entry === undefined) return { rcode: NXDOMAIN, answers: [] };
  if (entry === 'servfail') return { rcode: SERVFAIL, answers: [] };
  return { rcode: NOERROR, answers: recordsOf(entry, name, type) };
}

function recordsOf(entry: Exclude<DnsEntry, 'servfail'>, name: string, type: string): Answer[] {
  const common = { name, ttl: 60 };
  switch (type) {
    case 'MX':
      return (entry.mx ?? []).map((exchange, index) => {
        // A null MX has preference 0 (RFC 7505 section 3).
        const preference = exchange === '.' ? 0 : (index + 1) * 10;
        return { ...common, type: 'MX', data: { preference, exchange } };
      });
    case 'A':
      return (entry.a ?? []).map((data) => ({ ...common, type: 'A', data }));
    case 'AAAA':
      return (entry.aaaa ?? []).map((data) => ({ ...common, type: 'AAAA', data }));
    default:
      return [];
  }
}
