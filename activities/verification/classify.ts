import providers from 'email-providers/all.json' with { type: 'json' };
import type { EmailType } from '../../db/words.ts';
import { isDisposable } from './disposable.ts';
import { holdsDomain } from './domain.ts';

// Free-mail and US access providers, and vanity mail for physicians, that `email-providers` lacks.
const SUPPLEMENT =
  `fastmail.com fastmail.us tuta.com tuta.io tutanota.com tutamail.com physician.com spectrum.net
  suddenlink.net twc.com roadrunner.com brighthouse.com bresnan.net cableone.net sparklight.net tds.net
  hughes.net consolidated.net ziplyfiber.com metrocast.net wowway.com zoominternet.net atlanticbb.net
  mchsi.com mediacombb.net prodigy.net swbell.net ameritech.net snet.net pacbell.net nvbell.net
  embarqmail.com gci.net pm.me protonmail.ch hotmail.co.uk`.split(/\s+/);

// Physicians register on it with addresses of their employers, so its presence in the list says nothing.
const NOT_PERSONAL: ReadonlySet<string> = new Set(['medscape.com']);

const PERSONAL: ReadonlySet<string> = new Set(
  [...providers, ...SUPPLEMENT].filter((domain) => !NOT_PERSONAL.has(domain) && !isDisposable(domain)),
);

/**
 * Personal or professional, by the domain. On a listed free-mail or access domain the list wins, whatever the
 * vendor calls the address; elsewhere the vendor's word decides, and without one an organization's own domain
 * is professional. Universities' alumni hosts are free mail for life.
 * @param domain as `parseAddress` gives it
 */
export function classify(domain: string, vendorType: EmailType | null): EmailType {
  if (holdsDomain(PERSONAL, domain) || isAlumniHost(domain)) return 'personal';
  return vendorType ?? 'professional';
}

function isAlumniHost(domain: string): boolean {
  const labels = domain.split('.');
  return labels.includes('alumni') || labels.includes('alum') || domain === 'post.harvard.edu';
}
