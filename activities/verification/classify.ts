import type { EmailType } from '../../db/words.ts';
import { holdsDomain } from './domain.ts';
import { readList } from './list.ts';

const PERSONAL = readList('personal');

/**
 * Personal or professional, by the domain. On a listed free-mail or access domain the list wins, whatever the
 * vendor calls the address; elsewhere the vendor's word decides, and without one an organization's own domain
 * is professional. Universities' alumni hosts are free mail for life.
 * @param domain as `parseAddress` gives it
 */
export function classify(domain: string, vendorType: EmailType | null): EmailType {
  if (isFreeMail(domain) || isAlumniHost(domain)) return 'personal';
  return vendorType ?? 'professional';
}

/** Whether anyone can have a mailbox on this domain, or on a parent of it: free mail, internet access providers. */
export function isFreeMail(domain: string): boolean {
  return holdsDomain(PERSONAL, domain);
}

function isAlumniHost(domain: string): boolean {
  const labels = domain.split('.');
  return labels.includes('alumni') || labels.includes('alum') || domain === 'post.harvard.edu';
}
