import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/** Decides which addresses webhook deliveries may reach (DECISIONS.md, Webhooks, target). */
export type AddressPolicy = ReturnType<typeof createAddressPolicy>;

type Address = ipaddr.IPv4 | ipaddr.IPv6;
type Range = [Address, number];

// All global unicast addresses of IPv6 are in this block (RFC 4291, 2.4 and IANA's IPv6 address
// space).
const GLOBAL_UNICAST: [ipaddr.IPv6, number] = ipaddr.IPv6.parseCIDR('2000::/3');
// Azure's platform address. It is in a public range, but inside Azure it returns the virtual
// machine's own settings.
const AZURE_PLATFORM = '168.63.129.16';
/**
 * Names that mean a different host on each network (RFC 6761, RFC 6762, and ICANN's reservation).
 */
const INNER_NAME = /(?:^|\.)(?:localhost|local|internal)\.*$/;

/**
 * Creates the policy. It lists the ranges that are allowed and not those that are denied, so that a
 * block that we overlooked is denied. All blocks in IANA's special-purpose registries are refused.
 * This includes the few that are globally reachable, because they are anycast and transition
 * services, where no webhook receiver runs. All IPv6 forms of an IPv4 address (mapped, compatible,
 * NAT64, 6to4, Teredo) are refused too, because a translator on the way could lead them to an
 * internal host.
 * @param openCidrs ranges that are allowed anyway, for development and tests; if there are any,
 * internal names are allowed too
 * @throws {Error} code `bad_cidr` for the first text that isn't a CIDR range
 */
export function createAddressPolicy({
  openCidrs,
}: {
  readonly openCidrs: readonly string[];
}) {
  const opened = openCidrs.map(parseRange);
  const isOpened = (ip: string) => {
    const address = parseAddress(ip);
    return address !== null && opened.some((range) => isInside(address, range));
  };
  const allows = (ip: string) => {
    const address = parseAddress(ip);
    return address !== null && (isOpened(ip) || isGlobal(address));
  };
  return {
    /**
     * Returns true if an address may be reached. `ip` is written as resolvers and sockets write
     * addresses. Any other text is not allowed.
     */
    allows,
    /** Returns true if an address is in one of `openCidrs`. */
    isOpened,
    /**
     * Returns true if the URL's host is an address that may not be reached, or an internal name.
     * Any other name is checked after it is resolved.
     */
    forbids(url: URL) {
      const literal = literalOf(url);
      if (literal !== null) return !allows(literal);
      return opened.length === 0 && INNER_NAME.test(url.hostname);
    },
  };
}

/**
 * Returns the IP address in a URL, or null if its host is a name. The URL standard has already
 * converted every spelling of an IPv4 address (decimal, octal, hex, short, full-width,
 * percent-encoded, with a final dot) to the dotted form, and rejected zone IDs.
 */
export function literalOf(url: URL): string | null {
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  if (isIP(host) === 0) return null;
  return host;
}

/**
 * Converts an operator's input to the form for `isBlocked`: a host including all names below it, an
 * address, or a range of addresses.
 * @returns null for any other input
 */
export function blockOf(text: string): string | null {
  const [ip = ''] = text.split('/');
  if (isIP(ip) !== 0) return blockOfRange(ip, text);
  const url = URL.parse(`https://${text}`);
  if (url === null || url.href !== `https://${url.hostname}/`) {
    return null;
  }
  if (literalOf(url) !== null) return null;
  return url.hostname.replace(/\.$/, '');
}

function blockOfRange(ip: string, text: string): string | null {
  const bits = isIP(ip) === 6 ? 128 : 32;
  const range = text === ip ? `${ip}/${bits}` : text;
  if (parseAddress(ip) === null || !ipaddr.isValidCIDR(range)) {
    return null;
  }
  return range.toLowerCase();
}

/**
 * Returns true if operators blocked this host or address.
 * @param blocked results of `blockOf`
 */
export function isBlocked(target: string, blocked: readonly string[]): boolean {
  const address = parseAddress(target);
  if (address === null) {
    const name = `.${target.replace(/\.$/, '')}`;
    return blocked.some((one) => name.endsWith(`.${one}`));
  }
  const ranges = blocked.filter((one) => one.includes('/'));
  return ranges.some((range) => isInside(address, parseRange(range)));
}

/**
 * Returns whether an address is in one of the networks.
 * @param networks CIDR ranges, such as 192.0.2.7/32
 */
export function isInNetworks(ip: string, networks: readonly string[]): boolean {
  const address = parseAddress(ip);
  if (address === null) return false;
  return networks.some((network) => isInside(address, parseRange(network)));
}

/**
 * Parses an IP address. Returns null for any other text. Also returns null for an address with a
 * zone ID, because it refers to an interface of this machine.
 */
function parseAddress(text: string): Address | null {
  // ipaddr.js also reads octal and hex, but resolvers and sockets never write them.
  if (isIP(text) === 0 || text.includes('%')) return null;
  return ipaddr.parse(text);
}

function isGlobal(address: Address): boolean {
  if (address.range() !== 'unicast') return false;
  if (address.kind() === 'ipv6') {
    return isInside(address, GLOBAL_UNICAST);
  }
  return address.toString() !== AZURE_PLATFORM;
}

function isInside(address: Address, [network, bits]: Range): boolean {
  // ipaddr.js throws if one address is IPv4 and the other is IPv6.
  return address.kind() === network.kind() && address.match(network, bits);
}

function parseRange(text: string): Range {
  const [ip = ''] = text.split('/');
  if (parseAddress(ip) !== null && ipaddr.isValidCIDR(text)) {
    return ipaddr.parseCIDR(text);
  }
  const message = `"${text}" isn't a CIDR range. Write the ranges that deliveries may reach as 127.0.0.0/8 or ::1/128.`;
  throw Object.assign(new Error(message), { code: 'bad_cidr' });
}
