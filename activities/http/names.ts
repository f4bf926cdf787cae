import type { LookupAddress } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { existsSync, readFileSync } from 'node:fs';
import { isIP, type LookupFunction } from 'node:net';
import { createAddressPolicy } from '../webhooks/ip-policy.ts';

// Names by c-ares and never by getaddrinfo: that holds one of few threads, which the whole process
// shares, until somebody's name servers answer. A question here holds a socket, and only until its
// time is over.

export type Names = ReturnType<typeof createNames>;

/** How long one name server is waited for at first. */
const SERVER_MS = 1000;
/**
 * Of a whole question. Less than a delivery has to connect, so that the log can say whose fault it
 * was.
 */
const QUESTION_MS = 4000;
/**
 * A failure is remembered for as long, so that sixty deliveries to a silent domain are one
 * question.
 */
const FAILURE_MS = 3000;
const LONGEST_MS = 300_000;
const MEMORY: MemoryLimits = { entries: 5000, bytes: 4_000_000 };
/**
 * No honest name has more addresses. Customers choose names, so that their name servers must not
 * fill our memory.
 */
const MAX_ADDRESSES = 64;
/**
 * How many addresses of each family a connection tries. A name may have more, but we must not knock
 * at all of them.
 */
export const MAX_OF_FAMILY = 4;
/** What an address or an error takes in memory, rounded up, measured with Node.js 24. */
const ADDRESS_BYTES = 200;
const ERROR_BYTES = 2000;
const { allows: isPublicAddress } = createAddressPolicy({ openCidrs: [] });
const HOSTS_FILE = '/etc/hosts';

/**
 * Who is behind a name, as the hosts file says (read once), else as name servers do: names are
 * asked as they are written, no search list is tried.
 * @param servers `address:port` of name servers; if empty, the system's
 */
export function createNames(servers: readonly string[]) {
  // A channel for each question: c-ares takes a server for slow if it does not answer, and whoever
  // has a silent domain would make it so for all; and only a whole channel can be cancelled.
  const open = () => {
    const channel = new Resolver({ timeout: SERVER_MS, tries: 2 });
    if (servers.length > 0) channel.setServers(servers);
    return channel;
  };
  const ask = async <T>(question: (channel: Resolver) => Promise<T>): Promise<T> => {
    const channel = open();
    const end = setTimeout(() => channel.cancel(), QUESTION_MS);
    try {
      return await question(channel);
    } finally {
      clearTimeout(end);
    }
  };
  // A wrong address of a server is told at the start.
  open();
  const hosts = readHosts();
  const remembered = remember((name) => ask((channel) => findAddresses(channel, name)), MEMORY);

  /**
   * Finds the addresses of a name that a connection can use.
   * Rejects with a code of node:dns if it has none, too many, or if its servers do not answer.
   */
  const find = async (name: string): Promise<readonly LookupAddress[]> => {
    const found = hosts.get(name) ?? (await remembered(name));
    if (found instanceof Error) throw found;
    return found;
  };
  return {
    find,
    resolveMx: (domain: string) => ask((channel) => channel.resolveMx(domain)),
    resolve4: (domain: string) => ask((channel) => channel.resolve4(domain)),
    resolve6: (domain: string) => ask((channel) => channel.resolve6(domain)),
  };
}

/** What sockets take to find hosts by; they have to want all addresses. */
export function lookupBy(find: Names['find']): LookupFunction {
  return (name, _options, callback) => {
    find(name).then(
      (found) => callback(null, [...found]),
      (error) => callback(error, []),
    );
  };
}

/** An answer, how long it holds, and the memory that it takes. */
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

/** What an entry takes in memory with its promise and a key of 255 characters, rounded up. */
const ENTRY_BYTES = 800;
/** Looks for expired answers at most this often. */
const DROP_EVERY_MS = 1000;

/**
 * Remembers answers for as long as each holds, and asks once for what many ask at the same time.
 * @param ask never rejects
 * @param limits what is remembered at most. Beyond, expired answers are dropped, and then the
 * oldest ones
 */
export function remember<T>(
  ask: (key: string) => Promise<Passing<T>>,
  limits: MemoryLimits,
  now: () => number = Date.now,
): (key: string) => Promise<T> {
  const memory = new Map<string, Entry<T>>();
  let bytes = 0;
  let droppedAt = now();
  const isFull = () => memory.size > limits.entries || bytes > limits.bytes;
  const drop = (key: string) => {
    bytes -= memory.get(key)?.bytes ?? 0;
    memory.delete(key);
  };
  const makeRoom = () => {
    if (isFull() || now() >= droppedAt + DROP_EVERY_MS) {
      droppedAt = now();
      for (const [key, { until }] of memory) {
        if (until <= droppedAt) drop(key);
      }
    }
    for (const key of memory.keys()) {
      if (!isFull()) break;
      drop(key);
    }
  };
  return (key) => {
    const known = memory.get(key);
    if (known && known.until > now()) return known.value;
    drop(key);
    const asked = ask(key);
    const value = asked.then((answer) => answer.value);
    const entry: Entry<T> = { value, until: Number.POSITIVE_INFINITY, bytes: ENTRY_BYTES };
    memory.set(key, entry);
    bytes += entry.bytes;
    makeRoom();
    void asked.then((answer) => {
      entry.until = now() + answer.forMs;
      if (memory.get(key) !== entry) return;
      bytes += answer.bytes ?? 0;
      entry.bytes += answer.bytes ?? 0;
      makeRoom();
    });
    return value;
  };
}

async function findAddresses(
  channel: Resolver,
  name: string,
): Promise<Passing<readonly LookupAddress[] | Error>> {
  const answers = await Promise.allSettled([
    channel.resolve4(name, { ttl: true }),
    channel.resolve6(name, { ttl: true }),
  ]);
  const records = answers.flatMap((answer) => (answer.status === 'fulfilled' ? answer.value : []));
  if (records.length > 0) {
    if (records.length > MAX_ADDRESSES) {
      const value = Object.assign(new Error(`${name} has too many addresses`), {
        code: 'EBADRESP',
      });
      return { value, forMs: FAILURE_MS, bytes: ERROR_BYTES };
    }
    const value = usable(records.map(({ address }) => ({ address, family: isIP(address) })));
    const forMs = Math.min(LONGEST_MS, ...records.map(({ ttl }) => ttl * 1000));
    return { value, forMs, bytes: value.length * ADDRESS_BYTES };
  }
  const errors = answers.flatMap((answer) => (answer.status === 'rejected' ? [answer.reason] : []));
  // That there is no address of one kind says nothing while nobody answers about the other.
  const unsure = errors.find(({ code }) => code !== 'ENOTFOUND' && code !== 'ENODATA');
  return { value: unsure ?? errors[0], forMs: FAILURE_MS, bytes: ERROR_BYTES };
}

/**
 * Keeps as many addresses of each family as a connection tries. Public and inner ones are counted
 * apart, because a webhook may go only to public ones, however many inner ones the name has.
 */
function usable(addresses: readonly LookupAddress[]): LookupAddress[] {
  const kinds = Map.groupBy(
    addresses,
    ({ address, family }) => `${family} ${isPublicAddress(address)}`,
  );
  const few = new Set([...kinds.values()].flatMap((kind) => kind.slice(0, MAX_OF_FAMILY)));
  return addresses.filter((one) => few.has(one));
}

function readHosts(): ReadonlyMap<string, readonly LookupAddress[]> {
  const text = existsSync(HOSTS_FILE) ? readFileSync(HOSTS_FILE, 'utf8') : '';
  const entries = text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/);
    return names.map((name) => ({ name: name.toLowerCase(), address, family: isIP(address) }));
  });
  return Map.groupBy(
    entries.filter(({ family }) => family !== 0),
    ({ name }) => name,
  );
}
