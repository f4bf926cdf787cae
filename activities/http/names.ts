import type { LookupAddress, RecordWithTtl } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { existsSync, readFileSync } from 'node:fs';
import { isIP, type LookupFunction } from 'node:net';
import { createAddressPolicy } from '../webhooks/ip-policy.ts';

// This file resolves host names with the c-ares resolver of Node.js instead of getaddrinfo.
// getaddrinfo blocks one of the few threads that the process shares until a name server responds. A
// c-ares query only uses a socket, and we cancel it after `QUERY_MS`.

export type Names = ReturnType<typeof createNames>;

/** Timeout of the first try at one name server. */
const SERVER_MS = 1000;
/**
 * Timeout of a whole query. It is shorter than the connection timeout of a webhook delivery, so the
 * log can distinguish a silent name server from a silent receiver.
 */
const QUERY_MS = 4000;
/**
 * The time for which a failed query is cached, so that 60 deliveries to an unresponsive domain need
 * only one query.
 */
const FAILURE_MS = 3000;
const LONGEST_MS = 300_000;
const MEMORY: MemoryLimits = { entries: 5000, bytes: 4_000_000 };
/**
 * The most addresses that a name may have. Legitimate names have fewer. Customers choose the host
 * names of webhooks, so a malicious name server could otherwise fill our memory.
 */
const MAX_ADDRESSES = 64;
/** A connection tries at most this many IPv4 addresses of a name, and as many IPv6 addresses. */
export const MAX_OF_FAMILY = 4;
/**
 * The memory that a cached address or a cached error takes, in bytes. Measured with Node.js 24 and
 * rounded up.
 */
const ADDRESS_BYTES = 200;
const ERROR_BYTES = 2000;
const { allows: isPublicAddress } = createAddressPolicy({ openCidrs: [] });
const HOSTS_FILE = '/etc/hosts';

/**
 * Returns functions that resolve host names. Addresses come from the hosts file, which is read
 * once, or from name servers. The search domains of the system are not used.
 * @param servers name servers as `address:port`; if empty, the name servers of the system
 */
export function createNames(servers: readonly string[]) {
  // This validates the addresses of the name servers, so a wrong address fails at startup.
  openChannel(servers);
  const hosts = readHosts();
  const remembered = remember(
    (name) => query(servers, (channel) => findAddresses(channel, name)),
    MEMORY,
  );

  /**
   * Finds the addresses of a name that a connection can use. Rejects with an error code of node:dns
   * if the name has no address or too many, or if its name servers do not respond.
   */
  const find = async (name: string): Promise<readonly LookupAddress[]> => {
    const found = hosts.get(name) ?? (await remembered(name));
    if (found instanceof Error) throw found;
    return found;
  };
  return {
    find,
    resolveMx: (domain: string) => query(servers, (channel) => channel.resolveMx(domain)),
    resolve4: (domain: string) => query(servers, (channel) => channel.resolve4(domain)),
    resolve6: (domain: string) => query(servers, (channel) => channel.resolve6(domain)),
  };
}

/**
 * Opens a c-ares channel. Each query needs its own channel, for two reasons. On a shared channel,
 * c-ares would treat our name server as slow after a query for an unresponsive domain, which would
 * delay queries for other domains. Also, c-ares can only cancel all queries of a channel together.
 */
function openChannel(servers: readonly string[]): Resolver {
  const channel = new Resolver({ timeout: SERVER_MS, tries: 2 });
  if (servers.length > 0) channel.setServers(servers);
  return channel;
}

async function query<T>(
  servers: readonly string[],
  ask: (channel: Resolver) => Promise<T>,
): Promise<T> {
  const channel = openChannel(servers);
  const end = setTimeout(() => channel.cancel(), QUERY_MS);
  try {
    return await ask(channel);
  } finally {
    clearTimeout(end);
  }
}

/**
 * Returns a lookup function for sockets. It always returns all addresses, so the socket must use
 * the option `all`.
 */
export function lookupBy(find: Names['find']): LookupFunction {
  return (name, _options, callback) => {
    find(name).then(
      (found) => callback(null, [...found]),
      (error) => callback(error, []),
    );
  };
}

/** A value, the time for which it stays valid, and its size in memory. */
type Passing<T> = Readonly<{ value: T; forMs: number; bytes?: number }>;

export interface MemoryLimits {
  readonly entries: number;
  readonly bytes: number;
}

interface Entry<T> {
  readonly value: Promise<T>;
  until: number;
  bytes: number;
}

/**
 * The memory that a cache entry takes in bytes, rounded up. It includes the promise and a key of
 * 255 characters.
 */
const ENTRY_BYTES = 800;
/** The shortest time between two searches for expired values, unless the cache is full. */
const DROP_EVERY_MS = 1000;

/**
 * Returns a function that caches the values of `ask`, each for as long as it is valid. Concurrent
 * calls for the same key share one call of `ask`.
 * @param ask must never reject
 * @param limits the size of the cache. If it is full, expired values are dropped first, and then
 * the oldest ones.
 */
export function remember<T>(
  ask: (key: string) => Promise<Passing<T>>,
  limits: MemoryLimits,
  now: () => number = Date.now,
): (key: string) => Promise<T> {
  const memory = new Memory(ask, limits, now);
  return (key) => memory.get(key);
}

class Memory<T> {
  readonly #ask: (key: string) => Promise<Passing<T>>;
  readonly #limits: MemoryLimits;
  readonly #now: () => number;
  readonly #entries = new Map<string, Entry<T>>();
  #bytes = 0;
  #droppedAt: number;

  constructor(
    ask: (key: string) => Promise<Passing<T>>,
    limits: MemoryLimits,
    now: () => number,
  ) {
    this.#ask = ask;
    this.#limits = limits;
    this.#now = now;
    this.#droppedAt = now();
  }

  get(key: string): Promise<T> {
    const known = this.#entries.get(key);
    if (known && known.until > this.#now()) return known.value;
    this.#drop(key);
    const asked = this.#ask(key);
    const value = asked.then((passing) => passing.value);
    const entry: Entry<T> = {
      value,
      until: Number.POSITIVE_INFINITY,
      bytes: ENTRY_BYTES,
    };
    this.#entries.set(key, entry);
    this.#bytes += entry.bytes;
    this.#makeRoom();
    void asked.then((passing) => this.#complete(key, entry, passing));
    return value;
  }

  /** Adds the size and the expiry of a value to its entry, once the value has arrived. */
  #complete(key: string, entry: Entry<T>, { forMs, bytes = 0 }: Passing<T>): void {
    entry.until = this.#now() + forMs;
    if (this.#entries.get(key) !== entry) return;
    this.#bytes += bytes;
    entry.bytes += bytes;
    this.#makeRoom();
  }

  get #isFull(): boolean {
    return this.#entries.size > this.#limits.entries || this.#bytes > this.#limits.bytes;
  }

  #drop(key: string): void {
    this.#bytes -= this.#entries.get(key)?.bytes ?? 0;
    this.#entries.delete(key);
  }

  #makeRoom(): void {
    if (this.#isFull || this.#now() >= this.#droppedAt + DROP_EVERY_MS)
      this.#dropExpired();
    for (const key of this.#entries.keys()) {
      if (!this.#isFull) break;
      this.#drop(key);
    }
  }

  #dropExpired(): void {
    this.#droppedAt = this.#now();
    for (const [key, { until }] of this.#entries) {
      if (until <= this.#droppedAt) this.#drop(key);
    }
  }
}

async function findAddresses(
  channel: Resolver,
  name: string,
): Promise<Passing<readonly LookupAddress[] | Error>> {
  const both = await Promise.allSettled([
    channel.resolve4(name, { ttl: true }),
    channel.resolve6(name, { ttl: true }),
  ]);
  const records: RecordWithTtl[] = [];
  const errors: NodeJS.ErrnoException[] = [];
  for (const one of both) {
    if (one.status === 'fulfilled') records.push(...one.value);
    else errors.push(one.reason);
  }
  if (records.length > MAX_ADDRESSES) {
    const error = new Error(`${name} has too many addresses`);
    return failure(Object.assign(error, { code: 'EBADRESP' }));
  }
  if (records.length > 0) {
    const value = usable(
      records.map(({ address }) => ({ address, family: isIP(address) })),
    );
    const forMs = Math.min(LONGEST_MS, ...records.map(({ ttl }) => ttl * 1000));
    return { value, forMs, bytes: value.length * ADDRESS_BYTES };
  }
  // If one query found no address and the other one failed, the name may still have addresses, so
  // the failure is reported.
  const unsure = errors.find(({ code }) => code !== 'ENOTFOUND' && code !== 'ENODATA');
  const [first = new Error(`${name} has no addresses`)] = errors;
  return failure(unsure ?? first);
}

function failure(error: Error): Passing<Error> {
  return { value: error, forMs: FAILURE_MS, bytes: ERROR_BYTES };
}

/**
 * Keeps as many addresses as a connection tries, for IPv4 and IPv6 separately. Public and private
 * addresses are also counted separately: a webhook may only go to public addresses, and many
 * private ones must not displace them.
 */
function usable(addresses: readonly LookupAddress[]): LookupAddress[] {
  const kindOf = ({ address, family }: LookupAddress) =>
    `${family} ${isPublicAddress(address)}`;
  const kinds = [...Map.groupBy(addresses, kindOf).values()];
  const few = new Set(kinds.flatMap((kind) => kind.slice(0, MAX_OF_FAMILY)));
  return addresses.filter((one) => few.has(one));
}

function readHosts(): ReadonlyMap<string, readonly LookupAddress[]> {
  const text = existsSync(HOSTS_FILE) ? readFileSync(HOSTS_FILE, 'utf8') : '';
  const entries = text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/);
    return names.map((name) => ({
      name: name.toLowerCase(),
      address,
      family: isIP(address),
    }));
  });
  const addresses = entries.filter(({ family }) => family !== 0);
  return Map.groupBy(addresses, ({ name }) => name);
}
