import { parse } from 'tldts';
import type { EndpointKind } from '../../db/words.ts';
import { nameWords } from '../person/names.ts';
import type { PersonName, Verdict } from '../vendors/vendor.ts';
import {
  holdsDomain,
  isDisposable,
  isFreeMail,
  readList,
  registrableDomain,
} from './domains.ts';
import { NOBODY_KNOWN, type Whose } from './local-part.ts';
import { isLookalike } from './lookalikes.ts';
import type { Reason } from './policy.ts';
import { type Address, parseAddress } from './syntax.ts';

type Refusal = { readonly verdict: Verdict; readonly reason: Reason };

/**
 * Checks an address by its text, without any request, so this check is free.
 * @param isTypedDirect true if NPPES lists the address as an endpoint of type DIRECT
 * @param whose the person that we look for; if their name equals a placeholder, such as Jane Doe, it
 * is allowed. A domain that resembles their employer's domain is refused
 * @returns the address if it passes; otherwise the most important reason against it, and the text,
 * normalized as far as possible
 */
export function look(
  text: string,
  isTypedDirect = false,
  { person, organization }: Whose = NOBODY_KNOWN,
) {
  const address = parseAddress(text);
  if (address === null) {
    return refused(text.trim().toLowerCase(), invalid('syntax'));
  }
  const { domain, email } = address;
  const refusal = refuseDomain(domain, organization?.domain ?? null);
  if (refusal !== null) return refused(email, refusal);
  if (isPlaceholder(address, person)) {
    return refused(email, invalid('placeholder'));
  }
  const isDirectAddress = isDirect(domain) || (isTypedDirect && !isFreeMail(domain));
  if (isDirectAddress) return refused(email, invalid('direct'));
  return { kind: 'address', address } as const;
}

function refused(email: string, { verdict, reason }: Refusal) {
  return { kind: 'refused', email, verdict, reason } as const;
}

/** Refuses domains where people have no ordinary mailbox. */
function refuseDomain(domain: string, employerDomain: string | null): Refusal | null {
  if (registrableDomain(domain) === null) return invalid('no_suffix');
  if (isLookalike(domain, employerDomain)) return invalid('lookalike');
  if (isDisposable(domain)) return invalid('disposable');
  if (isRelay(domain)) return { verdict: 'risky', reason: 'relay' };
  if (holdsDomain(PLACEHOLDERS, domain)) return invalid('placeholder');
  return null;
}

function invalid(reason: Reason): Refusal {
  return { verdict: 'invalid', reason };
}

const RELAYS = readList('relays');
/**
 * Matches hosts where a website forwards mail between its users: `reply.craigslist.org`,
 * `marketplace.amazon.com`.
 */
const RELAY_HOST = /^(?:reply|relay|bounces?|marketplace|notifications?)\./;
const PLACEHOLDERS = readList('placeholders');

function isRelay(domain: string): boolean {
  if (holdsDomain(RELAYS, domain)) return true;
  return RELAY_HOST.test(domain) && registrableDomain(domain) !== domain;
}

/** The longest text that people type on both sides of the @ to satisfy a form: `abc@abc.com`. */
const MAX_TYPED = 3;

/**
 * Returns true if a local part only stands in for a missing address: `no-email`, `first.last`,
 * `test2`, `xxx`, `x@x.com`.
 */
function isPlaceholder({ local, domain }: Address, person: PersonName | null): boolean {
  if (local.length <= MAX_TYPED && domain.startsWith(`${local}.`)) {
    return true;
  }
  const [name = ''] = local.split('+');
  const word = name.replace(/[0-9]+$/, '').replace(/[._-]/g, '');
  if (word === joinedName(person)) return false;
  return PLACEHOLDERS.has(`${word}@`) || /^(.)\1\1+$/.test(word);
}

function joinedName(person: PersonName | null): string {
  if (person === null) return '';
  return [...nameWords(person.first), ...nameWords(person.last)].join('');
}

const HISPS = readList('hisps');

/**
 * Returns true if the addresses of this domain are Direct addresses (Direct Standard). They look
 * like email but exchange mail only with other Direct addresses, so ordinary mail never arrives.
 * Matches the listed services, hosts with a label such as `direct`
 * (`29651.direct.athenahealth.com`), and all hosts below a domain that ends in `direct`, where a
 * service has one host per practice (`resmed.kareodirect.com`). The domain itself does not match,
 * because physicians in direct primary care have ordinary mail at `carolinafamilydirect.com` and
 * `directcareclinic.com`.
 */
export function isDirect(domain: string): boolean {
  if (holdsDomain(HISPS, domain)) return true;
  const { subdomain, domainWithoutSuffix: owner } = parse(domain);
  if (!subdomain) return false;
  const labels = subdomain.split('.');
  if (labels.some((label) => /^direct(?!or)|direct$|^hisp$/.test(label))) {
    return true;
  }
  return owner !== null && /direct$|^direct-/.test(owner);
}

/**
 * Classifies an NPPES endpoint by its text, because the types in the NPPES files are often wrong.
 *
 * An endpoint of type DIRECT is a Direct address, except on a free-mail domain. Direct services do
 * not use free-mail domains, so such an endpoint is a personal address with the wrong type. A
 * result of `email` means only a candidate with low confidence. An address on a domain without
 * ordinary mailboxes is junk. Direct certificates of the domain (DNS `CERT`, LDAP) are not looked
 * up. So a Direct address on an unlisted host passes as email if NPPES gives it another type, and
 * then a verifier has to check it.
 * @param endpoint the text of the endpoint in the NPPES files
 */
export function classifyEndpoint(
  kind: EndpointKind,
  endpoint: string,
): 'direct' | 'email' | 'url' | 'junk' {
  const text = endpoint.trim();
  const address = parseAddress(text);
  if (address === null && isUrl(text)) return 'url';
  if (address === null) return 'junk';
  if (refuseDomain(address.domain, null) !== null) return 'junk';
  if (isDirect(address.domain)) return 'direct';
  if (kind === 'DIRECT' && !isFreeMail(address.domain)) return 'direct';
  return 'email';
}

/** Accepts a URL with a scheme or without one: `fhir.clinic.com/r4`. */
function isUrl(text: string): boolean {
  const hasScheme = /^[a-z][a-z0-9+.-]*:\/\//i.test(text);
  const url = URL.parse(hasScheme ? text : `https://${text}`);
  if (url === null || !/^https?:$/.test(url.protocol) || url.username !== '') {
    return false;
  }
  return registrableDomain(url.hostname) !== null;
}
