import { readFileSync } from 'node:fs';
import { parse } from 'tldts';
import type { EmailType } from '../../db/words.ts';

/**
 * The registrable part of a domain (`clinic.co.uk` of `mail.clinic.co.uk`) under a suffix that ICANN delegates.
 * @returns null if the suffix does not exist or the domain is nothing but a suffix
 */
export function registrableDomain(domain: string): string | null {
  const { domain: registrable, isIcann } = parse(domain);
  return isIcann ? registrable : null;
}

/**
 * Whether a list holds the domain or one of its parents, down to the registrable one: `nyc.rr.com` is in a list
 * that has `rr.com`. It stops there, so that a list's stray `co.uk` cannot match a whole country.
 */
export function holdsDomain(list: ReadonlySet<string>, domain: string): boolean {
  const registrable = registrableDomain(domain) ?? domain;
  const extra = domain.slice(0, domain.length - registrable.length).split('.');
  return extra.some((_, index) => list.has(domain.split('.').slice(index).join('.')));
}

/**
 * Reads one of `lists/`, which deploy/build/lists.ts writes. Read at start, not imported from packages, so that what a
 * domain counts as changes with a commit and never with an install.
 * @throws if the file is missing: a service without its lists would hand out what it must refuse
 */
export function readList(name: 'disposable' | 'personal'): ReadonlySet<string> {
  return readLines(new URL(`./lists/${name}.txt`, import.meta.url));
}

/** Reads a file with a domain or a word a line, `#` before a comment. @throws if it is missing */
export function readLines(file: URL): ReadonlySet<string> {
  const text = readFileSync(file, 'utf8');
  return new Set(text.split(/\r?\n/).filter((line) => line !== '' && !line.startsWith('#')));
}

const DISPOSABLE = readList('disposable');

/** Whether mailboxes of this domain, or of a parent of it, are meant to be thrown away. */
export function isDisposable(domain: string): boolean {
  return holdsDomain(DISPOSABLE, domain);
}

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
