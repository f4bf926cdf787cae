import type { LookupAddress } from 'node:dns';
import { Resolver } from 'node:dns/promises';
import { existsSync, readFileSync } from 'node:fs';
import { isIP, type LookupFunction } from 'node:net';

// Names by c-ares and never by getaddrinfo: that holds one of few threads, which the whole process shares, until
// somebody's name servers answer. A question here holds a socket, and only until its time is over.

export type Names = ReturnType<typeof createNames>;

/** How long one name server is waited for at first. */
const SERVER_MS = 1000;
/** Of a whole question. Less than a delivery has to connect, so that the log can say whose fault it was. */
const QUESTION_MS = 4000;
/** A failure is remembered for as long, so that sixty deliveries to a silent domain are one question. */
const FAILURE_MS = 3000;
const LONGEST_MS = 300_000;
const NAMES_AT_MOST = 5000;
const HOSTS_FILE = '/etc/hosts';

/**
 * Who is behind a name, as the hosts file says (read once), else as name servers do: names are asked as they are
 * written, no search list is tried.
 * @param servers `address:port` of name servers; if empty, the system's
 */
export function createNames(servers: readonly string[]) {
  // A channel for each question: c-ares takes a server for slow if it does not answer, and whoever has a silent domain
  // would make it so for all; and only a whole channel can be cancelled.
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
  const remembered = remember((name) => ask((channel) => findAddresses(channel, name)), NAMES_AT_MOST);

  /** Every address of a name. Rejects with a code of node:dns if it has none, or if nobody says. */
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

/** An answer, and how long it holds. */
type Passing<T> = Readonly<{ value: T; forMs: number }>;

/**
 * Remembers answers for as long as each holds, and asks once for what many ask at the same time.
 * @param ask never rejects
 * @param atMost how many are remembered; beyond, the oldest is forgotten
 */
export function remember<T>(
  ask: (key: string) => Promise<Passing<T>>,
  atMost: number,
  now: () => number = Date.now,
): (key: string) => Promise<T> {
  const memory = new Map<string, { readonly value: Promise<T>; until: number }>();
  return (key) => {
    const known = memory.get(key);
    if (known && known.until > now()) return known.value;
    const asked = ask(key);
    const entry = { value: asked.then(({ value }) => value), until: Number.POSITIVE_INFINITY };
    void asked.then(({ forMs }) => {
      entry.until = now() + forMs;
    });
    memory.delete(key);
    memory.set(key, entry);
    const [oldest = key] = memory.keys();
    if (memory.size > atMost) memory.delete(oldest);
    return entry.value;
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
    const value = records.map(({ address }) => ({ address, family: isIP(address) }));
    return { value, forMs: Math.min(LONGEST_MS, ...records.map(({ ttl }) => ttl * 1000)) };
  }
  const errors = answers.flatMap((answer) => (answer.status === 'rejected' ? [answer.reason] : []));
  // That there is no address of one kind says nothing while nobody answers about the other.
  const unsure = errors.find(({ code }) => code !== 'ENOTFOUND' && code !== 'ENODATA');
  return { value: unsure ?? errors[0], forMs: FAILURE_MS };
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
