import type { LookupAddress } from 'node:dns';
import { once } from 'node:events';
import { request } from 'node:http';
import { isIP, connect as openTcp, type Socket } from 'node:net';
import { addAbortSignal } from 'node:stream';
import {
  createSecureContext,
  getCACertificates,
  type SecureContext,
  connect as startTls,
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

/** The target of an attempt, and the limits for it. */
export interface Destination {
  readonly target: URL;
  /** The hosts and addresses that operators blocked, in the form for `isBlocked`. */
  readonly blocked: readonly string[];
  /**
   * Counts an attempt for the addresses that it may connect to, and returns the admitted addresses.
   * Addresses within WEBHOOK_OPEN_CIDRS belong to the operator and are not counted. Without this
   * function all addresses are admitted.
   */
  readonly admit?:
    | ((addresses: readonly string[]) => Promise<readonly string[]>)
    | undefined;
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
export function createConnect(settings: ConnectionSettings) {
  const { policy, ca, lookup, proxy = null } = settings;
  // The root certificates are read only once, because reading a hundred of them takes longer than
  // the rest of an attempt.
  const trusted = ca === undefined ? undefined : [...getCACertificates('default'), ca];
  const secureContext = createSecureContext({ ca: trusted });

  return async (
    destination: Destination,
    connectMs: number,
    signal: AbortSignal,
  ): Promise<Connection> => {
    const { target } = destination;
    const addresses = await findAddresses(settings, destination, signal);
    const port = Number(target.port || 443);
    let opened: Opened;
    if (proxy === null) {
      const receiver = { host: hostOf(target), port, addresses };
      opened = await openDirectly(policy, receiver, connectMs, signal);
    } else {
      opened = await openThrough(proxy, lookup, addresses, port, signal);
    }
    const socket = await openTls(opened.socket, target, secureContext, signal);
    return { socket, address: opened.address };
  };
}

function hostOf(target: URL): string {
  return literalOf(target) ?? target.hostname;
}

/** Returns the addresses that this attempt may connect to, at least one. */
async function findAddresses(
  { policy, lookup }: ConnectionSettings,
  { target, blocked, admit }: Destination,
  signal: AbortSignal,
): Promise<readonly LookupAddress[]> {
  if (isBlocked(target.hostname, blocked)) {
    throw new AttemptFailure('blocked_by_operator');
  }
  const found = await resolve(target, lookup, signal);
  const allowed = found.filter(({ address }) => policy.allows(address));
  if (allowed.length === 0) throw new AttemptFailure('blocked_address');
  const open = allowed.filter(({ address }) => !isBlocked(address, blocked));
  if (open.length === 0) throw new AttemptFailure('blocked_by_operator');
  const addresses = await admitted(limitPerFamily(open), policy, admit, signal);
  if (addresses.length === 0) throw new AttemptFailure('unproven_host');
  return addresses;
}

/** Returns at most `MAX_OF_FAMILY` addresses per IP version, in their original order. */
function limitPerFamily(addresses: readonly LookupAddress[]): readonly LookupAddress[] {
  const ipv4 = addresses.filter(({ family }) => family === 4).slice(0, MAX_OF_FAMILY);
  const ipv6 = addresses.filter(({ family }) => family === 6).slice(0, MAX_OF_FAMILY);
  return addresses.filter((one) => ipv4.includes(one) || ipv6.includes(one));
}

interface Opened {
  readonly socket: Socket;
  /** The receiver's IP address. */
  readonly address: string;
}

async function openDirectly(
  policy: AddressPolicy,
  receiver: {
    readonly host: string;
    readonly port: number;
    readonly addresses: readonly LookupAddress[];
  },
  connectMs: number,
  signal: AbortSignal,
): Promise<Opened> {
  const { host, port, addresses } = receiver;
  const socket = openTcp({
    host,
    port,
    // Connects only to the addresses that were just checked. A second lookup could return others.
    lookup: (_name, _options, callback) => callback(null, [...addresses]),
    autoSelectFamily: true,
    autoSelectFamilyAttemptTimeout: Math.max(
      10,
      Math.floor(connectMs / addresses.length),
    ),
  });
  addAbortSignal(signal, socket).on('error', ignore);
  await step(once(socket, 'connect', { signal }), 'network');
  const { remoteAddress: address = '' } = socket;
  if (!policy.allows(address)) throw new AttemptFailure('blocked_address');
  return { socket, address };
}

/** Tries one address after another until the proxy connects to one. */
async function openThrough(
  proxy: URL,
  lookup: Names['find'],
  addresses: readonly LookupAddress[],
  port: number,
  signal: AbortSignal,
): Promise<Opened> {
  let failure: unknown;
  for (const { address, family } of addresses) {
    const host = family === 6 ? `[${address}]` : address;
    try {
      const socket = await openTunnel(proxy, lookup, `${host}:${port}`, signal);
      addAbortSignal(signal, socket).on('error', ignore);
      return { socket, address };
    } catch (error) {
      if (!(error instanceof AttemptFailure)) throw error;
      failure = error;
    }
  }
  throw failure;
}

async function openTls(
  tcp: Socket,
  target: URL,
  secureContext: SecureContext,
  signal: AbortSignal,
): Promise<TLSSocket> {
  const isLiteral = literalOf(target) !== null;
  const tls = startTls({
    socket: tcp,
    host: hostOf(target),
    // RFC 6066, 3: the server name is neither an IP address nor ends in a dot.
    servername: isLiteral ? '' : target.hostname.replace(/\.$/, ''),
    secureContext,
    rejectUnauthorized: true,
  });
  addAbortSignal(signal, tls).on('error', ignore);
  await step(once(tls, 'secureConnect', { signal }), 'tls_handshake');
  return tls;
}

async function admitted(
  addresses: readonly LookupAddress[],
  policy: AddressPolicy,
  admit: Destination['admit'],
  signal: AbortSignal,
): Promise<readonly LookupAddress[]> {
  if (admit === undefined) return addresses;
  const all = addresses.map(({ address }) => address);
  const counted = all.filter((address) => !policy.isOpened(address));
  if (counted.length === 0) return addresses;
  const allowed = await admit(counted).finally(() => {
    if (signal.aborted) {
      throw new CountedTooLate('PostgreSQL took too long to count a webhook attempt');
    }
  });
  return addresses.filter(
    ({ address }) => policy.isOpened(address) || allowed.includes(address),
  );
}

async function resolve(
  target: URL,
  lookup: Names['find'],
  signal: AbortSignal,
): Promise<readonly LookupAddress[]> {
  const literal = literalOf(target);
  if (literal !== null) return [{ address: literal, family: isIP(literal) }];
  // Other callers may wait for the same lookup, and it has its own timeout. So an abort by the
  // signal ends only our wait, not the lookup.
  const aborted = new Promise<never>((_resolve, reject) => {
    signal.addEventListener('abort', reject, { once: true });
  });
  const found = await step(
    Promise.race([lookup(target.hostname), aborted]),
    'dns_failed',
  );
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
  let connected: unknown[];
  try {
    connected = await once(outgoing, 'connect', { signal });
  } catch {
    if (!reached) {
      throw new ProxyUnavailable(
        'the webhook proxy cannot be reached. Check WEBHOOK_PROXY.',
      );
    }
    // If the attempt's time limit has passed, `createPost` reports `timeout_connect` or
    // `timeout_total` instead of this reason.
    throw new AttemptFailure('proxy');
  }
  const [response, socket, head] = connected as [{ statusCode?: number }, Socket, Buffer];
  const { statusCode: status = 0 } = response;
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
  const encoded = Buffer.from(credentials).toString('base64');
  return { 'proxy-authorization': `Basic ${encoded}` };
}
