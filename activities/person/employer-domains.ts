import type { EndpointFact } from '../../db/providers/subject.ts';
import { holdsDomain, readLines, registrableDomain } from '../verification/domains.ts';
import { isOpenToAnyone } from '../verification/email-type.ts';
import { classifyEndpoint, isDirect } from '../verification/looks.ts';
import { parseAddress } from '../verification/syntax.ts';

// Decides which domains may belong to an employer.

const NOT_EMPLOYERS = readLines(new URL('./not-employers.txt', import.meta.url));

/**
 * Returns true if a domain may belong to an employer. Three kinds of domains do not: free mail
 * services, services for Direct messages, and the domains in not-employers.txt. The last kind
 * belongs to companies that don't treat patients, such as makers of record systems.
 * @param domain registrable
 */
export function isEmployerDomain(domain: string): boolean {
  return (
    !isOpenToAnyone(domain) && !isDirect(domain) && !holdsDomain(NOT_EMPLOYERS, domain)
  );
}

/**
 * Returns the registrable domains of endpoints, but only those that may belong to an employer. A
 * domain that several endpoints have is returned several times.
 */
export function domainsOf(endpoints: readonly EndpointFact[]): string[] {
  return employerDomains(endpoints.map(hostOf));
}

/** Returns the registrable domains of hosts, but only those that may belong to an employer. */
export function employerDomains(hosts: readonly string[]): string[] {
  const known = hosts.filter((host) => !isOpenToAnyone(host));
  const domains = known.map(registrableDomain).filter((domain) => domain !== null);
  return domains.filter(isEmployerDomain);
}

/**
 * Returns the host of an endpoint, or empty text if the host does not reveal the employer. A host
 * for Direct messages may serve many organizations, so it only counts if its name starts with
 * `direct.`, as in `direct.clinic.org`.
 */
function hostOf({ kind, endpoint }: EndpointFact): string {
  const host = parseAddress(endpoint)?.domain ?? hostOfUrl(endpoint.trim());
  const found = classifyEndpoint(kind, endpoint);
  if (found === 'junk') return '';
  if (found === 'direct' && !host.startsWith('direct.')) return '';
  return host;
}

function hostOfUrl(text: string): string {
  const url = text.includes('://') ? text : `https://${text}`;
  return URL.parse(url)?.hostname ?? '';
}
