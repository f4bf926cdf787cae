import type { EndpointKind } from '../../db/words.ts';
import { isFreeMail, registrableDomain } from './domains.ts';
import { isDirect } from './looks.ts';
import { parseAddress } from './syntax.ts';

/** What an NPPES endpoint is, whatever its type says: the file is known to be filled in carelessly. */
export type EndpointClass = 'direct' | 'email' | 'url' | 'junk';

/**
 * Tells Direct addresses from ordinary email and both from the rest. An endpoint typed DIRECT is a Direct address,
 * except on a free-mail domain, where no Direct service exists: that is somebody's own address, entered by mistake.
 * `email` is a candidate of low confidence and nothing more. Whether a domain publishes Direct certificates (DNS
 * `CERT`, LDAP) is not asked: a Direct address under an unlisted host that is typed as a URL passes as email, and
 * then has to pass a verifier.
 * @param endpoint as the file has it
 */
export function classifyEndpoint(kind: EndpointKind, endpoint: string): EndpointClass {
  const text = endpoint.trim().replace(/^mailto:/i, '');
  const address = parseAddress(text);
  if (address === null) return isUrl(text) ? 'url' : 'junk';
  if (registrableDomain(address.domain) === null) return 'junk';
  if (isDirect(address.domain)) return 'direct';
  return kind === 'DIRECT' && !isFreeMail(address.domain) ? 'direct' : 'email';
}

/** With a scheme, or as people type one: `fhir.clinic.com/r4`. */
function isUrl(text: string): boolean {
  const typed = /^[a-z][a-z0-9+.-]*:\/\//i.test(text) ? text : `https://${text}`;
  const url = URL.parse(typed);
  if (url === null || !/^https?:$/.test(url.protocol) || url.username !== '') return false;
  return registrableDomain(url.hostname) !== null;
}
