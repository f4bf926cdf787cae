import { domainToASCII } from 'node:url';

/** An address that mail on the internet could be sent to, normalized. */
export interface Address {
  /** Lower case, dot-atom. */
  readonly local: string;
  /** Lower case, A-labels, at least two of them, no trailing dot. */
  readonly domain: string;
  /** `local@domain`, the form that is stored and compared. */
  readonly email: string;
}

const MAX_LOCAL = 64;
/** Which keeps the domain within DNS's 253 as well. */
const MAX_EMAIL = 254;

// RFC 5321's Dot-string without `*`: vendors mask addresses they have not been paid for with it.
const LOCAL = /^[a-z0-9!#$%&'+/=?^_`{|}~-]+(?:\.[a-z0-9!#$%&'+/=?^_`{|}~-]+)*$/;
const LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;
// domainToASCII parses as a URL's host: it would decode `%61` and turn `127.1` into an address.
const RAW_DOMAIN = /^[\p{L}\p{M}\p{N}.\u3002-]+$/u;

/**
 * A practical subset of RFC 5321: no quoted local parts, no address literals, no comments, no UTF-8
 * local parts. Upper case in a local part is folded: no mail system in use tells `Jo@` from `jo@`,
 * and two spellings of one mailbox must not be stored as two.
 * @returns null if the text isn't such an address
 */
export function parseAddress(text: string): Address | null {
  const trimmed = text.trim();
  const at = trimmed.lastIndexOf('@');
  if (at < 1) return null;
  const local = trimmed.slice(0, at).toLowerCase();
  const domain = parseDomain(trimmed.slice(at + 1));
  if (domain === null || local.length > MAX_LOCAL || !LOCAL.test(local)) return null;
  const email = `${local}@${domain}`;
  return email.length > MAX_EMAIL ? null : { local, domain, email };
}

function parseDomain(text: string): string | null {
  if (!RAW_DOMAIN.test(text)) return null;
  // Fully qualified, as DNS writes it and as sentences end (RFC 1034, 3.1): the same domain.
  const domain = domainToASCII(text).replace(/\.$/, '');
  const labels = domain.split('.');
  const last = labels.at(-1) ?? '';
  if (labels.length < 2 || /^[0-9]+$/.test(last)) return null;
  return labels.every((label) => LABEL.test(label)) ? domain : null;
}
