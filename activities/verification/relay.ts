import { holdsDomain } from './domain.ts';

// Aliases that forward until their owner ends them: Apple, DuckDuckGo, Firefox, SimpleLogin, Proton Pass, addy.io.
const RELAYS: ReadonlySet<string> = new Set([
  'privaterelay.appleid.com',
  'duck.com',
  'mozmail.com',
  'relay.firefox.com',
  'aleeas.com',
  'slmail.me',
  'slmails.com',
  '8alias.com',
  '8shield.net',
  'dralias.com',
  'passmail.net',
  'passmail.com',
  'passinbox.com',
  'passfwd.com',
  'addy.io',
  'anonaddy.com',
  'anonaddy.me',
]);

/** Whether this domain forwards aliases of mailboxes elsewhere. */
export function isRelay(domain: string): boolean {
  return holdsDomain(RELAYS, domain) || domain.split('.').includes('simplelogin');
}
