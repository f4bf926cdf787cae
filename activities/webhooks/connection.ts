import type { LookupAddress } from 'node:dns';
import { once } from 'node:events';
import { request } from 'node:http';
import { isIP, connect as openTcp, type Socket } from 'node:net';
import { addAbortSignal } from 'node:stream';
import {
  createSecureContext,
  getCACertificates,
  connect as openTls,
  type TLSSocket,
} from 'node:tls';
import { lookupBy, MAX_OF_FAMILY, type Names } from '../http/names.ts';
import { AttemptFailure, CountedTooLate, ProxyUnavailable, step } from './attempt.ts';
import { type AddressPolicy, isBlocked, literalOf } from './ip-policy.ts';

export interface ConnectionSettings {
  readonly policy: AddressPolicy;
  /** Certificates in PEM that are trusted in addition to the public ones. */
  readonly ca?: string | undefined;
  readonly lookup: Names['find'];
  /** All requests go through this HTTP proxy; null or undefined for direct connections. */
  readonly proxy?: URL | null;
}

/** A connection that is ready for the request. */
export interface Connection {
  readonly socket: TLSSocket;
  /** The receiver's IP address, even behind a proxy. */
  readonly address: string;
}

/** The target of an attempt. */
export interface Destination {
  readonly target: URL;
  /** The hosts and addresses that operators blocked, in the form for `isBlocked`. */
  readonly blocked: readonly string[];
  /**
   * Counts an attempt for the addresses that it may connect to, and returns the admitted addresses.
   * Addresses within WEBHOOK_OPEN_CIDRS belong to the operator and are not counted. Without this
   * function all addresses are admitted.
   */
  readonly admit?: ((addresses: readonly string[]) => Promise<readonly string[]>) | undefined;
}

/**
 * Creates the function that connects to hosts chosen by customers. It resolves a name once, and
 * tries only the addresses that the policy allows. If a name has public and private addresses, the
 * public ones are tried; without a public address the failure is `blocked_address`. The connected
 * address is checked again before any byte is sent. A proxy receives the checked address and never
 * the name. Aborting the signal at any time destroys the connection.
 * @throws {NotAttempted} from the created function
 * @throws {AttemptFailure} from the created function
 */
export function createConnect({ policy, ca, lookup, proxy = null }: ConnectionSettings) {
  // Created once, because reading a hundred root certificates takes longer than the rest of an
  // attempt.
  const trusted = ca === undefined ? {} : { ca: [...getCACertificates('default'), ca] };
  const secureContext = createSecureContext(trusted);

  return async (
    { target, blocked, admit }: Destination,
    connectMs: number,
    signal: AbortSignal,
  ): Promise<Connection> => {
    if (isBlocked(target.hostname, blocked)) throw new AttemptFailure('blocked_by_operator');
    const literal = literalOf(target);
    const found =
      literal === null
        ? await resolve(target.hostname, lookup, signal)
        : [{ address: literal, family: isIP(literal) }];
    const allowed = found.filter(({ address }) => policy.allows(address));
    if (allowed.length === 0) throw new AttemptFailure('blocked_address');
    const open = allowed.filter(({ address }) => !isBlocked(address, blocked));
    if (open.length === 0) throw new AttemptFailure('blocked_by_operator');
    const few = [4, 6].flatMap((ip) =>
      open.filter(({ family }) => family === ip).slice(0, MAX_OF_FAMILY),
    );
    const addresses = await admitted(
      open.filter((one) => few.includes(one)),
      policy,
      admit,
      signal,
    );
    if (addresses.length === 0) throw new AttemptFailure('unproven_host');

    const host = literal ?? target.hostname;
    const port = Number(target.port || 443);
    const tunnel = proxy && (await openThrough(proxy, lookup, addresses, port, signal));
    const tcp =
      tunnel === null
        ? openTcp({
            host,
            port,
            // These addresses were just checked. A second lookup could return others.
            lookup: (_name, _options, callback) => callback(null, [...addresses]),
            autoSelectFamily: true,
            autoSelectFamilyAttemptTimeout: Math.max(10, Math.floor(connectMs / addresses.length)),
          })
        : tunnel.socket;
    addAbortSignal(signal, tcp).on('error', ignore);
    let address = tunnel?.address;
    if (address === undefined) {
      await step(once(tcp, 'connect', { signal }), 'network');
      address = tcp.remoteAddress ?? '';
      if (!policy.allows(address)) throw new AttemptFailure('blocked_address');
    }
    const tls = openTls({
      socket: tcp,
      host,
      // RFC 6066, 3: the server name is neither an IP address nor ends in a dot.
      servername: literal === null ? target.hostname.replace(/\.$/, '') : '',
      secureContext,
      rejectUnauthorized: true,
    });
    addAbortSignal(signal, tls).on('error', ignore);
    await step(once(tls, 'secureConnect', { signal }), 'tls_handshake');
    return { socket: tls, address };
  };
}

/** Tries one address after another until the proxy connects to one. */
async function openThrough(
  proxy: URL,
  lookup: Names['find'],
  addresses: readonly LookupAddress[],
  port: number,
  signal: AbortSignal,
): Promise<{ readonly socket: Socket; readonly address: string }> {
  let failure: unknown;
  for (const { address, family } of addresses) {
    try {
      const authority = `${family === 6 ? `[${address}]` : address}:${port}`;
      return { socket: await openTunnel(proxy, lookup, authority, signal), address };
    } catch (error) {
      if (!(error instanceof AttemptFailure)) throw error;
      failure = error;
    }
  }
  throw failure;
}

async function admitted(
  addresses: readonly LookupAddress[],
  policy: AddressPolicy,
  admit: Destination['admit'],
  signal: AbortSignal,
): Promise<readonly LookupAddress[]> {
  const counted = addresses
    .map(({ address }) => address)
    .filter((address) => !policy.isOpened(address));
  if (admit === undefined || counted.length === 0) return addresses;
  const allowed = await admit(counted).finally(() => {
    if (signal.aborted)
      throw new CountedTooLate('PostgreSQL took too long to count a webhook attempt');
  });
  return addresses.filter(({ address }) => policy.isOpened(address) || allowed.includes(address));
}

async function resolve(
  name: string,
  lookup: Names['find'],
  signal: AbortSignal,
): Promise<readonly LookupAddress[]> {
  // Other callers may wait for the same lookup, and it has its own timeout. If the signal comes
  // first, the lookup goes on without us.
  const aborted = new Promise<never>((_resolve, reject) => {
    signal.addEventListener('abort', reject, { once: true });
  });
  const found = await step(Promise.race([lookup(name), aborted]), 'dns_failed');
  if (found.length === 0) throw new AttemptFailure('dns_not_found');
  return found;
}

/** Handles errors between two steps. Without a listener they would end the process. */
export function ignore(): void {}

/**
 * Opens a tunnel through an HTTP proxy (RFC 9110, 9.3.6) to an address, never to a name. The proxy
 * would resolve a name again, and might connect to an unchecked address.
 * @param proxy `http://[user:password@]host:port`; belongs to the operator, so it is not checked
 * @param authority the address with its port
 * @throws {ProxyUnavailable} if the proxy itself cannot be reached
 * @throws {AttemptFailure} `proxy` if the proxy does not connect us to the address
 */
async function openTunnel(
  proxy: URL,
  lookup: Names['find'],
  authority: string,
  signal: AbortSignal,
): Promise<Socket> {
  const outgoing = request({
    host: proxy.hostname.replace(/^\[(.*)\]$/, '$1'),
    port: Number(proxy.port || 80),
    lookup: lookupBy(lookup),
    method: 'CONNECT',
    path: authority,
    headers: { host: authority, ...authorizationOf(proxy) },
    agent: false,
    signal,
  });
  let reached = false;
  outgoing.once('socket', (socket) =>
    socket.once('connect', () => {
      reached = true;
    }),
  );
  outgoing.on('error', ignore);
  outgoing.end();
  let answer: unknown[];
  try {
    answer = await once(outgoing, 'connect', { signal });
  } catch {
    if (!reached)
      throw new ProxyUnavailable('the webhook proxy cannot be reached: check WEBHOOK_PROXY');
    // If a time limit is over, the caller uses the signal's reason instead.
    throw new AttemptFailure('proxy');
  }
  const [response, socket, head] = answer as [{ statusCode?: number }, Socket, Buffer];
  const status = response.statusCode ?? 0;
  if (status < 200 || status > 299) {
    socket.destroy();
    throw new AttemptFailure('proxy');
  }
  if (head.length > 0) socket.unshift(head);
  return socket;
}

function authorizationOf({ username, password }: URL): Readonly<Record<string, string>> {
  if (username === '' && password === '') return {};
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  return { 'proxy-authorization': `Basic ${Buffer.from(credentials).toString('base64')}` };
}
