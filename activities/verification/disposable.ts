import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import { holdsDomain } from './domain.ts';

const DISPOSABLE = disposableEmailBlocklistSet();

/** Whether mailboxes of this domain, or of a parent of it, are meant to be thrown away. */
export function isDisposable(domain: string): boolean {
  return holdsDomain(DISPOSABLE, domain);
}
