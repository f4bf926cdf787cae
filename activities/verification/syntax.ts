import { domainToASCII } from 'node:url';

/** A normalized address that mail on the internet can reach. */
export interface Address {
  /** The part before the @, in lowercase: words of allowed characters, separated by dots. */
  readonly local: string;
  /** The domain in lowercase, with at least two A-labels and no dot at the end. */
  readonly domain: string;
  /** `local@domain`, the form that is stored and compared. */
  readonly email: string;
}

const MAX_LOCAL = 64;
/** This limit also keeps the domain within the 253 characters that DNS allows. */
const MAX_EMAIL = 254;

// RFC 5321 allows more characters. Mail systems do not give them to people, so an address with one
// of them is damaged: `{first}.{last}`, `%20kusher`, `j***@`.
const LOCAL = /^[a-z0-9_+'&-]+(?:\.[a-z0-9_+'&-]+)*$/;
/**
 * Text that programs which collect addresses from web pages leave in front of a name: `mailto`, the
 * rest of an escape for `>` or a space (`u003e`, `20`), or a phone number.
 */
const DEBRIS =
  /^(?:(?:e?mailto|email|nbsp|u003[ce]|x3[ce]|x22|20)[._-]?(?=[a-z]{3})|(?:1[.-]?)?(?:[0-9]{3}[.-]?)?[0-9]{3}[.-]?[0-9]{4}[._-]?(?=[a-z]))/;
const LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;
// We check a domain with this pattern before we pass it to domainToASCII. That function parses its
// input as the host of a URL, so it would decode `%61` and turn `127.1` into an IP address.
const RAW_DOMAIN = /^[\p{L}\p{M}\p{N}.\u3002-]+$/u;

/**
 * Parses a practical subset of RFC 5321: no quoted local parts, no address literals, no comments,
 * no UTF-8 local parts. The local part becomes lowercase. Mail systems in use treat `Jo@` and `jo@`
 * as one mailbox, and one mailbox must not be stored twice. Removes the text that often surrounds a
 * copied address, as in `Jo Hart <jo@clinic.org>`, `mailto:jo@clinic.org?subject=Hi`, and
 * `jo@clinic.org,`.
 * @returns null if the text isn't such an address
 */
export function parseAddress(text: string): Address | null {
  const bare = unwrap(text);
  const at = bare.lastIndexOf('@');
  if (at < 1) return null;
  const local = bare.slice(0, at).toLowerCase();
  const domain = parseDomain(bare.slice(at + 1));
  if (domain === null || local.length > MAX_LOCAL) return null;
  if (!LOCAL.test(local) || DEBRIS.test(local)) return null;
  const email = `${local}@${domain}`;
  if (email.length > MAX_EMAIL) return null;
  return { local, domain, email };
}

function unwrap(text: string): string {
  const inBrackets = /<([^<>]*)>\s*$/.exec(text);
  const address = inBrackets?.[1] ?? text;
  return address
    .replace(/^[\s\p{Cf}"'(<]+/u, '')
    .replace(/^mailto:\s*/i, '')
    .replace(/\?.*$/, '')
    .replace(/[\s\p{Cf}.,;:!)>\]"']+$/u, '');
}

function parseDomain(text: string): string | null {
  if (!RAW_DOMAIN.test(text)) return null;
  // Removes a final dot, which is valid in DNS (RFC 1034, 3.1) and does not change the domain.
  const domain = domainToASCII(text).replace(/\.$/, '');
  const labels = domain.split('.');
  if (labels.length < 2 || /(?:^|\.)[0-9]+$/.test(domain)) return null;
  if (!labels.every((label) => LABEL.test(label))) return null;
  return domain;
}
