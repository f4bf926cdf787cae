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
  /** Certificates in PEM that are trusted beside the public ones. */
  readonly ca?: string | undefined;
  readonly lookup: Names['find'];
  /** Everything goes through this HTTP proxy; null or left out: directly. */
  readonly proxy?: URL | null;
}

/** A connection that is ready for the request. */
export interface Connection {
  readonly socket: TLSSocket;
  /** The receiver's address, behind a proxy as well. */
  readonly address: string;
}

/** Where an attempt goes. */
export interface Destination {
  readonly target: URL;
  /** Where operators let nothing be sent, as `isBlocked` has it. */
  readonly blocked: readonly string[];
  /**
   * Counts an attempt at the addresses that it may connect to, and returns those that may have it.
   * Addresses that WEBHOOK_OPEN_CIDRS opens are the operator's own, and are not counted. Without it
   * every address may.
   */
  readonly admit?: ((addresses: readonly string[]) => Promise<readonly string[]>) | undefined;
}

/**
 * Makes the function that connects to hosts which strangers chose. A name is resolved once, and of
 * its addresses only those the policy allows are tried: an answer that mixes public and inner
 * addresses reaches the public ones, one without a public address is `blocked_address`. The address
 * that was connected to is checked again before a byte is sent; a proxy is told the checked address
 * and never the name. Aborting the signal at any time destroys the connection.
 * @throws {NotAttempted} from the function it makes
 * @throws {AttemptFailure} from the function it makes
 */
export function createConnect({ policy, ca, lookup, proxy = null }: ConnectionSettings) {
  // Made once: to read a hundred root certificates takes longer than the rest of an attempt.
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
            // The addresses just checked, so that there is no second look-up that could answer
            // otherwise.
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
      // RFC 6066, 3: no address, and no final dot.
      servername: literal === null ? target.hostname.replace(/\.$/, '') : '',
      secureContext,
      rejectUnauthorized: true,
    });
    addAbortSignal(signal, tls).on('error', ignore);
    await step(once(tls, 'secureConnect', { signal }), 'tls_handshake');
    return { socket: tls, address };
  };
}

/** One address after the other, until the proxy reaches one. */
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
  // Others may wait for the same look-up, which has a limit of its own: it is left behind if the
  // signal comes first.
  const aborted = new Promise<never>((_resolve, reject) => {
    signal.addEventListener('abort', reject, { once: true });
  });
  const found = await step(Promise.race([lookup(name), aborted]), 'dns_failed');
  if (found.length === 0) throw new AttemptFailure('dns_not_found');
  return found;
}

/** Errors between two steps, which nobody waits for, would otherwise end the process. */
export function ignore(): void {}

/**
 * Opens a tunnel through an HTTP proxy (RFC 9110, 9.3.6) to an address, never to a name: the proxy
 * would resolve it anew, and might reach what nobody has checked.
 * @param proxy `http://[user:password@]host:port`; it is the operator's own and is not judged
 * @param authority the address with its port
 * @throws {ProxyUnavailable} if the proxy itself cannot be reached
 * @throws {AttemptFailure} `proxy` if it does not let us through to the address
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
    // A time limit that has passed is the signal's reason, and wins.
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
