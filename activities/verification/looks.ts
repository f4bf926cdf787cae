import type { EndpointKind } from '../../db/words.ts';
import type { Verdict } from '../vendors/vendor.ts';
import { holdsDomain, isDisposable, isFreeMail, registrableDomain } from './domains.ts';
import type { Reason } from './policy.ts';
import { type Address, parseAddress } from './syntax.ts';

/** What a candidate's text is: an address that nothing speaks against, or why it isn't a person's own. */
export type Looked =
  | { readonly kind: 'address'; readonly address: Address }
  | {
      readonly kind: 'refused';
      /** Normalized as far as it goes. */
      readonly email: string;
      readonly verdict: Verdict;
      readonly reason: Reason;
    };

/** Judges an address by its looks. No question to anyone: what is refused here costs nothing. */
export function look(text: string): Looked {
  const address = parseAddress(text);
  if (address === null) {
    return { kind: 'refused', email: text.trim().toLowerCase(), verdict: 'invalid', reason: 'syntax' };
  }
  const refusal = refuse(address);
  return refusal ? { kind: 'refused', email: address.email, ...refusal } : { kind: 'address', address };
}

/** Addresses that are not a person's own mailbox, in the order in which one reason hides another. */
function refuse({ domain }: Address): { readonly verdict: Verdict; readonly reason: Reason } | null {
  if (registrableDomain(domain) === null) return { verdict: 'invalid', reason: 'no_suffix' };
  if (isDisposable(domain)) return { verdict: 'invalid', reason: 'disposable' };
  if (isRelay(domain)) return { verdict: 'risky', reason: 'relay' };
  if (isDirect(domain)) return { verdict: 'invalid', reason: 'direct' };
  return null;
}

// Aliases that forward until their owner ends them: Apple, DuckDuckGo, Firefox, SimpleLogin, Proton Pass, addy.io.
const RELAYS: ReadonlySet<string> = new Set(
  `privaterelay.appleid.com duck.com mozmail.com relay.firefox.com aleeas.com slmail.me slmails.com
  8alias.com 8shield.net dralias.com passmail.net passmail.com passinbox.com passfwd.com addy.io
  anonaddy.com anonaddy.me`.split(/\s+/),
);

/** Whether this domain forwards aliases of mailboxes elsewhere. */
export function isRelay(domain: string): boolean {
  return holdsDomain(RELAYS, domain) || domain.split('.').includes('simplelogin');
}

// Health information service providers and record systems whose mail domains serve Direct messaging.
const HISPS: ReadonlySet<string> = new Set(
  `eclinicaldirectplus.com direct-address.net direct-ci.net direct-ci.com hcadirect.net surescripts.net
  updox.com medallies.com intelichart.com phimail.com directnppes.com medicasoft.us maxmd.net
  secure-health.net iqhealth.com officeally.io officeally.com`.split(/\s+/),
);

/**
 * Whether addresses of this domain are Direct addresses (Direct Standard): they look like email but exchange with
 * other Direct addresses only, so ordinary mail to one never arrives. A label `direct` is the convention of hosts
 * that also have ordinary mail, such as `29651.direct.athenahealth.com`. `direct` inside a longer label counts
 * only if it ends it or stands before a hyphen (`uprisedirect`, `direct-ci`): physicians in direct primary care
 * have ordinary mail at `directcareclinic`.
 */
export function isDirect(domain: string): boolean {
  return holdsDomain(HISPS, domain) || domain.split('.').slice(0, -1).some(namesDirect);
}

function namesDirect(label: string): boolean {
  return label === 'direct' || label.endsWith('direct') || label.startsWith('direct-');
}

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
