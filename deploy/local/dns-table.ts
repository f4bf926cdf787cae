import { CLOSED_DOMAIN, DIRECT_DOMAIN } from './sim/magic.ts';
import { FREE_MAIL_DOMAINS, PRACTICE_DOMAINS } from './sim/people.ts';

/** What the local name server says of one name; a type without records is an empty answer. */
export type DnsEntry =
  | { readonly mx?: readonly string[]; readonly a?: readonly string[]; readonly aaaa?: readonly string[] }
  | 'servfail';

/** Addresses set aside for documentation (RFC 5737): nothing that follows them reaches anyone. */
const NOWHERE = '192.0.2.25';
/** RFC 7505: the domain takes no mail. */
const NULL_MX = '.';

/** Domains for tests of the checks' corners, beside those of simulated people. */
export const CORNERS = {
  addressOnly: 'addressonly-sim.com',
  noMail: 'nomail-sim.com',
  broken: 'broken-sim.com',
} as const;

/** Everything the local name server knows; any other name does not exist. */
export const DNS_TABLE: ReadonlyMap<string, DnsEntry> = new Map<string, DnsEntry>([
  ...[...PRACTICE_DOMAINS, ...FREE_MAIL_DOMAINS, DIRECT_DOMAIN].flatMap(takesMail),
  [CLOSED_DOMAIN, { mx: [NULL_MX], a: [NOWHERE] }],
  [CORNERS.addressOnly, { a: [NOWHERE] }],
  [CORNERS.noMail, {}],
  [CORNERS.broken, 'servfail'],
]);

function takesMail(domain: string): [string, DnsEntry][] {
  return [
    [domain, { mx: [`mx.${domain}`], a: [NOWHERE] }],
    [`mx.${domain}`, { a: [NOWHERE] }],
  ];
}
