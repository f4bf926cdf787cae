import { holdsDomain } from './domain.ts';

// Health information service providers and record systems whose mail domains serve Direct messaging.
const HISPS: ReadonlySet<string> = new Set([
  'eclinicaldirectplus.com',
  'direct-address.net',
  'direct-ci.net',
  'direct-ci.com',
  'hcadirect.net',
  'surescripts.net',
  'updox.com',
  'medallies.com',
  'intelichart.com',
  'phimail.com',
  'directnppes.com',
  'medicasoft.us',
  'maxmd.net',
  'secure-health.net',
  'iqhealth.com',
  'officeally.io',
  'officeally.com',
]);

/**
 * Whether addresses of this domain are Direct addresses (Direct Standard): they look like email but exchange with
 * other Direct addresses only, so ordinary mail to one never arrives. A label `direct` is the convention of hosts
 * that also have ordinary mail, such as `29651.direct.athenahealth.com`. `direct` inside a longer label counts
 * only where it ends it or stands before a hyphen (`uprisedirect`, `direct-ci`): physicians in direct primary care
 * have ordinary mail at `directcareclinic`.
 */
export function isDirect(domain: string): boolean {
  return holdsDomain(HISPS, domain) || domain.split('.').slice(0, -1).some(namesDirect);
}

function namesDirect(label: string): boolean {
  return label === 'direct' || label.endsWith('direct') || label.startsWith('direct-');
}
