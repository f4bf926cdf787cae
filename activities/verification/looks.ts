import { parse } from 'tldts';
import type { EndpointKind } from '../../db/words.ts';
import { nameWords } from '../person/names.ts';
import type { PersonName, Verdict } from '../vendors/vendor.ts';
import { holdsDomain, isDisposable, isFreeMail, readList, registrableDomain } from './domains.ts';
import { isLookalike } from './lookalikes.ts';
import type { Reason } from './policy.ts';
import { parseAddress } from './syntax.ts';

type Refusal = { readonly verdict: Verdict; readonly reason: Reason };

/**
 * Judges an address by its looks. No question to anyone: what is refused here costs nothing.
 * @param isTypedDirect whether NPPES lists the address as an endpoint of type DIRECT
 * @param person who is looked for, and may be called Jane Doe
 * @returns the address, if nothing speaks against it; else why it is not a person's own mailbox, in
 * the order in which one reason hides another, and the text, normalized as far as it goes
 */
export function look(text: string, isTypedDirect = false, person: PersonName | null = null) {
  const address = parseAddress(text);
  const refused = (email: string, refusal: Refusal) =>
    ({ kind: 'refused', email, ...refusal }) as const;
  if (address === null)
    return refused(text.trim().toLowerCase(), { verdict: 'invalid', reason: 'syntax' });
  const { local, domain, email } = address;
  const refusal = refuseDomain(domain);
  if (refusal !== null) return refused(email, refusal);
  if (isPlaceholder(local, person))
    return refused(email, { verdict: 'invalid', reason: 'placeholder' });
  const isDirectAddress = isDirect(domain) || (isTypedDirect && !isFreeMail(domain));
  if (isDirectAddress) return refused(email, { verdict: 'invalid', reason: 'direct' });
  return { kind: 'address', address } as const;
}

/** Domains where nobody has a mailbox of their own for ordinary mail. */
function refuseDomain(domain: string): Refusal | null {
  if (registrableDomain(domain) === null) return { verdict: 'invalid', reason: 'no_suffix' };
  if (isLookalike(domain)) return { verdict: 'invalid', reason: 'lookalike' };
  if (isDisposable(domain)) return { verdict: 'invalid', reason: 'disposable' };
  if (holdsDomain(RELAYS, domain)) return { verdict: 'risky', reason: 'relay' };
  if (holdsDomain(PLACEHOLDERS, domain)) return { verdict: 'invalid', reason: 'placeholder' };
  return null;
}

const RELAYS = readList('relays');
const PLACEHOLDERS = readList('placeholders');

/**
 * Whether a local part stands where an address is missing: `no-email`, `first.last`, `test2`,
 * `xxx`.
 */
function isPlaceholder(local: string, person: PersonName | null): boolean {
  const [name = ''] = local.split('+');
  const word = name.replace(/[0-9]+$/, '').replace(/[._-]/g, '');
  if (word === [person?.first, person?.last].flatMap((one) => nameWords(one ?? '')).join(''))
    return false;
  return PLACEHOLDERS.has(`${word}@`) || /^(.)\1\1+$/.test(word);
}

const HISPS = readList('hisps');

/**
 * Whether addresses of this domain are Direct addresses (Direct Standard): they look like email but
 * exchange with other Direct addresses only, so ordinary mail to one never arrives. Beside listed
 * services, a host below another domain that is named so: `29651.direct.athenahealth.com`, and any
 * below a domain that ends in `direct`, where a service has a host for each practice
 * (`resmed.kareodirect.com`). Such a domain itself says nothing: physicians in direct primary care
 * have ordinary mail at `carolinafamilydirect.com` and `directcareclinic.com`.
 */
export function isDirect(domain: string): boolean {
  if (holdsDomain(HISPS, domain)) return true;
  const { subdomain, domainWithoutSuffix: owner } = parse(domain);
  if (!subdomain) return false;
  const isHost = subdomain.split('.').some((label) => /^direct(?!or)|direct$|^hisp$/.test(label));
  return isHost || /direct$|^direct-/.test(owner ?? '');
}

/**
 * What an NPPES endpoint is, whatever its type says: the file is known to be filled in carelessly.
 *
 * Tells Direct addresses from ordinary email and both from the rest. An endpoint typed DIRECT is a
 * Direct address, except on a free-mail domain, where no Direct service exists: that is somebody's
 * own address, entered by mistake. `email` is a candidate of low confidence and nothing more; one
 * at a domain where nobody has a mailbox is junk. Whether a domain publishes Direct certificates
 * (DNS `CERT`, LDAP) is not asked: a Direct address under an unlisted host that is typed as a URL
 * passes as email, and then has to pass a verifier.
 * @param endpoint as the file has it
 */
export function classifyEndpoint(
  kind: EndpointKind,
  endpoint: string,
): 'direct' | 'email' | 'url' | 'junk' {
  const text = endpoint.trim().replace(/^mailto:/i, '');
  const address = parseAddress(text);
  if (address === null) return isUrl(text) ? 'url' : 'junk';
  if (refuseDomain(address.domain) !== null) return 'junk';
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
