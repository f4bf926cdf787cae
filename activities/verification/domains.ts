import { readFileSync } from 'node:fs';
import { getPublicSuffix, parse } from 'tldts';
import type { EmailType } from '../../db/words.ts';

/**
 * The registrable part of a domain (`clinic.co.uk` of `mail.clinic.co.uk`) under a suffix that
 * ICANN delegates.
 * @returns null if the suffix does not exist or the domain is nothing but a suffix
 */
export function registrableDomain(domain: string): string | null {
  const { domain: registrable, isIcann } = parse(domain);
  return isIcann ? registrable : null;
}

/**
 * Whether names below this one belong to many owners: a public suffix such as `com`, `co.uk`, or
 * `herokuapp.com`, where each customer of a hosting company has a name.
 */
export function isSharedSuffix(domain: string): boolean {
  return getPublicSuffix(domain, { allowPrivateDomains: true }) === domain;
}

/**
 * Whether a list holds the domain or one of its parents, down to the registrable one: `nyc.rr.com`
 * is in a list that has `rr.com`. It stops there, so that a list's stray `co.uk` cannot match a
 * whole country.
 */
export function holdsDomain(list: ReadonlySet<string>, domain: string): boolean {
  const registrable = registrableDomain(domain) ?? domain;
  const extra = domain.slice(0, domain.length - registrable.length).split('.');
  return extra.some((_, index) => list.has(domain.split('.').slice(index).join('.')));
}

/**
 * Reads one or more of `lists/`. Read at start, not imported from packages, so that what a domain
 * counts as changes with a commit and never with an install.
 * @param names of files, without `.txt`
 * @throws if a file is missing: a service without its lists would hand out what it must refuse
 */
export function readList(...names: readonly string[]): ReadonlySet<string> {
  const files = names.map((name) => new URL(`./lists/${name}.txt`, import.meta.url));
  return new Set(files.flatMap((file) => [...readLines(file)]));
}

/** Reads a file with an entry a line, `#` before a comment. @throws if it is missing */
export function readLines(file: URL): ReadonlySet<string> {
  const lines = readFileSync(file, 'utf8').split(/\r?\n/);
  return new Set(lines.filter((line) => line !== '' && !line.startsWith('#')));
}

const DISPOSABLE = readList('disposable', 'disposable-more');

/** Whether mailboxes of this domain, or of a parent of it, are meant to be thrown away. */
export function isDisposable(domain: string): boolean {
  return holdsDomain(DISPOSABLE, domain);
}

const PERSONAL = readList('personal', 'personal-more');

/**
 * Personal or professional, by the domain. On a listed free-mail or access domain the list wins,
 * whatever the vendor calls the address, and so does a host of alumni, which is free mail for life.
 * What only staff has is professional: the employer's own domain, and `.edu`, `.gov` and `.mil`,
 * which only institutions of the United States are given (RFC 1591). Elsewhere the vendor's word
 * decides, and without one it is professional.
 * @param domain as `parseAddress` gives it
 * @param employerDomain of whom the address is said to be; null if it isn't known
 */
export function classify(
  domain: string,
  vendorType: EmailType | null,
  employerDomain: string | null = null,
): EmailType {
  if (isFreeMail(domain) || /(?:^|\.)(?:alum|[^.]*alumni)(?:\.|$)/.test(domain)) return 'personal';
  const isEmployers =
    employerDomain !== null && registrableDomain(domain) === registrableDomain(employerDomain);
  if (isEmployers || /\.(?:edu|gov|mil)$/.test(domain)) return 'professional';
  return vendorType ?? 'professional';
}

/**
 * Whether anyone can have a mailbox on this domain, or on a parent of it: free mail, internet
 * access, alumni.
 */
export function isFreeMail(domain: string): boolean {
  return holdsDomain(PERSONAL, domain);
}
