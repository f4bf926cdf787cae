import type { LookupAddress } from 'node:dns';
import { once } from 'node:events';
import { isIP, connect as openTcp, type Socket } from 'node:net';
import { addAbortSignal } from 'node:stream';
import {
  createSecureContext,
  getCACertificates,
  type SecureContext,
  connect as startTls,
  type TLSSocket,
} from 'node:tls';
import { MAX_OF_FAMILY, type Names } from '../http/names.ts';
import { AttemptFailure, CountedTooLate, step } from './attempt.ts';
import { type AddressPolicy, isBlocked, literalOf } from './ip-policy.ts';

export interface ConnectionSettings {
  readonly policy: AddressPolicy;
  /** Certificates in PEM that are trusted in addition to the public ones. */
  readonly ca?: string | undefined;
  readonly lookup: Names['find'];
}

/** A connection that is ready for the request. */
export interface Connection {
  readonly socket: TLSSocket;
  /** The receiver's IP address. */
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
 * address is checked again before any byte is sent. Aborting the signal at any time destroys the
 * connection.
 * @throws {CountedTooLate} from the created function
 * @throws {AttemptFailure} from the created function
 */
export function createConnect(settings: ConnectionSettings) {
  const { policy, ca } = settings;
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
    const receiver = { host: hostOf(target), port, addresses };
    const opened = await openReceiver(policy, receiver, connectMs, signal);
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
  if (open.length === 0) {
    throw new AttemptFailure('blocked_by_operator');
  }
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

/** Connects to one of the addresses, and returns which one. */
async function openReceiver(
  policy: AddressPolicy,
  receiver: {
    readonly host: string;
    readonly port: number;
    readonly addresses: readonly LookupAddress[];
  },
  connectMs: number,
  signal: AbortSignal,
): Promise<{ readonly socket: Socket; readonly address: string }> {
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
  if (!policy.allows(address)) {
    throw new AttemptFailure('blocked_address');
  }
  return { socket, address };
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
  if (literal !== null) {
    return [{ address: literal, family: isIP(literal) }];
  }
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
