import { createSocket } from 'node:dgram';
import { once } from 'node:events';
import { type Answer, decode, encode } from 'dns-packet';
import { CONTROL_DOMAINS } from '../../activities/verification/dns-control.ts';

const CODES = { SERVFAIL: 2, NXDOMAIN: 3 } as const;

/**
 * A response about a name: addresses of one kind, mail exchangers (`.` for a domain without mail:
 * RFC 7505), an error, or silence.
 */
export type Said = readonly string[] | keyof typeof CODES | 'silence';

/** Resolves every name to this machine, with a mail exchanger that could be public. */
export function sayThisMachine(name: string, type: string): Said {
  if (type === 'MX') return [`mx.${name}`];
  return name.startsWith('mx.') ? ['198.41.0.4'] : ['127.0.0.1'];
}

/**
 * Starts a name server for one test.
 * @param say returns the response for a name. A query for addresses gets only those of its kind.
 * Mail exchangers are preferred in the given order
 * @param ttl seconds
 */
export async function startNameServer(
  say: (name: string, type: string) => Said,
  ttl = 60,
) {
  return await startNameServerOf(
    (name, type) => sayControls(name, type) ?? say(name, type),
    ttl,
  );
}

/**
 * Returns correct responses about the domains by which we check name servers, and null for other
 * names.
 */
function sayControls(name: string, type: string): Said | null {
  const isControl = CONTROL_DOMAINS.some(
    (domain) => name === domain || name === `mx.${domain}`,
  );
  return isControl ? sayThisMachine(name, type) : null;
}

/** Like `startNameServer`, but the name server may also lie about these domains. */
export async function startNameServerOf(
  say: (name: string, type: string) => Said,
  ttl = 60,
) {
  const questions: string[] = [];
  const socket = createSocket('udp4');
  socket.on('error', () => {});
  socket.on('message', (message, peer) => {
    const { id = 0, questions: [question] = [] } = decode(message);
    if (!question) return;
    const { name, type } = question;
    questions.push(`${type} ${name}`);
    const said = say(name, type);
    if (said === 'silence') return;
    const records = typeof said === 'string' ? [] : said;
    const addresses = records.filter((ip) => ip.includes(':') === (type === 'AAAA'));
    const answers: Answer[] =
      type === 'MX'
        ? records.map((exchange, preference) => ({
            name,
            ttl,
            type,
            data: { preference, exchange },
          }))
        : addresses.map((data) => ({
            name,
            ttl,
            type: type === 'AAAA' ? 'AAAA' : 'A',
            data,
          }));
    const packet = encode({
      ...{ type: 'response', id, questions: [question] },
      flags: typeof said === 'string' ? CODES[said] : 0,
      answers,
    });
    socket.send(packet, peer.port, peer.address);
  });
  socket.bind(0, '127.0.0.1');
  await once(socket, 'listening');
  return {
    /** The value for DNS_SERVERS. */
    address: `127.0.0.1:${socket.address().port}`,
    /** Queries in order of arrival, such as `A example.com`. */
    questions,
    close: () => void socket.close(),
  };
}
