import { isIP } from 'node:net';
import ipaddr from 'ipaddr.js';

/** Which addresses webhook deliveries may reach (DECISIONS.md, Webhooks, target). */
export type AddressPolicy = ReturnType<typeof createAddressPolicy>;

type Address = ipaddr.IPv4 | ipaddr.IPv6;
type Range = [Address, number];

// RFC 4291, 2.4 and IANA's IPv6 address space: the only block global unicast addresses are given
// out from.
const GLOBAL_UNICAST: [ipaddr.IPv6, number] = ipaddr.IPv6.parseCIDR('2000::/3');
// Azure's platform address: public by number, yet it answers every virtual machine with that
// machine's own settings.
const AZURE_PLATFORM = '168.63.129.16';
/**
 * RFC 6761, RFC 6762 and ICANN's reservation: names that mean another host wherever they are asked
 * for.
 */
const INNER_NAME = /(?:^|\.)(?:localhost|local|internal)\.*$/;

/**
 * Allows by range instead of denying by list, so that a block nobody thought of stays closed: what
 * IANA's special-purpose registries name is refused whole, also the few blocks in it that are
 * marked globally reachable (anycast and transition services, none of which is a receiver), and so
 * is every IPv6 form that carries an IPv4 address (mapped, compatible, NAT64, 6to4, Teredo),
 * because a translator on the way could lead it inside.
 * @param openCidrs ranges that are allowed nevertheless, for development and tests; with any, inner
 * names are as well
 * @throws {Error} code `bad_cidr` for the first text that is no CIDR range
 */
export function createAddressPolicy({ openCidrs }: { readonly openCidrs: readonly string[] }) {
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
    /** An address as resolvers and sockets write it; any other text is not allowed. */
    allows,
    /** Returns whether an address is one of those that `openCidrs` names. */
    isOpened,
    /**
     * True when the URL's host is itself an address that may not be reached, or a name that can
     * only be an inner one. Any other name is judged once it is resolved.
     */
    forbids: (url: URL) => {
      const literal = literalOf(url);
      return literal === null
        ? opened.length === 0 && INNER_NAME.test(url.hostname)
        : !allows(literal);
    },
  };
}

/**
 * The address a URL names directly, null if its host is a name. The URL standard has by then turned
 * every spelling of an IPv4 address (decimal, octal, hex, short, full-width, percent-encoded, with
 * a final dot) into the dotted one, and refused zone ids.
 */
export function literalOf(url: URL): string | null {
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(host) === 0 ? null : host;
}

/**
 * What an operator names, in the form that `isBlocked` takes: a host, which stands for all names
 * below it, an address or a range of them.
 * @returns null for anything else
 */
export function blockOf(text: string): string | null {
  const ip = text.split('/')[0] ?? '';
  if (isIP(ip) !== 0) {
    const range = text === ip ? `${ip}/${isIP(ip) === 6 ? 128 : 32}` : text;
    return parseAddress(ip) !== null && ipaddr.isValidCIDR(range) ? range.toLowerCase() : null;
  }
  const url = URL.parse(`https://${text}`);
  return url !== null && url.href === `https://${url.hostname}/` && literalOf(url) === null
    ? url.hostname.replace(/\.$/, '')
    : null;
}

/**
 * Whether operators let nothing be sent to this host or address.
 * @param blocked what `blockOf` gave
 */
export function isBlocked(target: string, blocked: readonly string[]): boolean {
  const address = parseAddress(target);
  const name = `.${target.replace(/\.$/, '')}`;
  return blocked.some((one) =>
    address === null
      ? name.endsWith(`.${one}`)
      : one.includes('/') && isInside(address, parseRange(one)),
  );
}

/**
 * Returns whether an address is in one of the networks.
 * @param networks ranges as 192.0.2.7/32
 */
export function isInNetworks(ip: string, networks: readonly string[]): boolean {
  const address = parseAddress(ip);
  return address !== null && networks.some((network) => isInside(address, parseRange(network)));
}

/**
 * Null for what isn't an address and for addresses with a zone id: those name an interface of this
 * machine.
 */
function parseAddress(text: string): Address | null {
  // ipaddr.js also reads octal and hex, which resolvers and sockets never write.
  return isIP(text) === 0 || text.includes('%') ? null : ipaddr.parse(text);
}

function isGlobal(address: Address): boolean {
  if (address.range() !== 'unicast') return false;
  return (
    isInside(address, GLOBAL_UNICAST) ||
    (address.kind() === 'ipv4' && address.toString() !== AZURE_PLATFORM)
  );
}

function isInside(address: Address, [network, bits]: Range): boolean {
  // ipaddr.js throws when asked to match across families.
  return address.kind() === network.kind() && address.match(network, bits);
}

function parseRange(text: string): Range {
  if (parseAddress(text.split('/')[0] ?? '') !== null && ipaddr.isValidCIDR(text))
    return ipaddr.parseCIDR(text);
  const message = `"${text}" is no CIDR range: write the ranges that deliveries may reach as 127.0.0.0/8 or ::1/128`;
  throw Object.assign(new Error(message), { code: 'bad_cidr' });
}
