import { readFileSync } from 'node:fs';
import { getPublicSuffix, parse } from 'tldts';

/** Matches the domains that only institutions in the United States receive (RFC 1591). */
export const INSTITUTION = /\.(?:edu|gov|mil)$/;

/**
 * Returns the registrable part of a domain, such as `clinic.co.uk` for `mail.clinic.co.uk`. Only
 * suffixes that ICANN delegates count as suffixes.
 * @returns null if the suffix does not exist or the domain is only a suffix
 */
export function registrableDomain(domain: string): string | null {
  const { domain: registrable, isIcann } = parse(domain);
  if (!isIcann) return null;
  return registrable;
}

/**
 * Returns true if the names below this domain belong to many owners. These domains are public
 * suffixes such as `com` and `co.uk`, and domains such as `herokuapp.com`, below which each
 * customer of a hosting company has a name.
 */
export function isSharedSuffix(domain: string): boolean {
  return getPublicSuffix(domain, { allowPrivateDomains: true }) === domain;
}

/**
 * Returns true if a list contains the domain or one of its parents, down to the registrable domain:
 * `nyc.rr.com` matches a list with `rr.com`. Public suffixes are not compared, so that a stray
 * `co.uk` in a list cannot match a whole country.
 */
export function holdsDomain(list: ReadonlySet<string>, domain: string): boolean {
  const registrable = registrableDomain(domain) ?? domain;
  const labels = domain.split('.');
  const below = domain.slice(0, domain.length - registrable.length).split('.');
  return below.some((_, index) => list.has(labels.slice(index).join('.')));
}

/**
 * Reads one or more files of `lists/`. The lists are files of this repository and are not imported
 * from packages. So the classification of a domain changes only with a commit, never with an
 * install.
 * @param names names of files, without `.txt`
 * @throws if a file is missing, because without its lists the service would return bad addresses
 */
export function readList(...names: readonly string[]): ReadonlySet<string> {
  const files = names.map((name) => new URL(`./lists/${name}.txt`, import.meta.url));
  return new Set(files.flatMap((file) => [...readLines(file)]));
}

/**
 * Reads a file with one entry per line; a line that starts with `#` is a comment.
 * @throws if the file is missing
 */
export function readLines(file: URL): ReadonlySet<string> {
  const lines = readFileSync(file, 'utf8').split(/\r?\n/);
  return new Set(lines.filter((line) => line !== '' && !line.startsWith('#')));
}

const DISPOSABLE = readList('disposable');

/** Returns true if this domain, or a parent of it, offers disposable mailboxes. */
export function isDisposable(domain: string): boolean {
  return holdsDomain(DISPOSABLE, domain);
}

const PERSONAL = readList('personal', 'personal-more');

/**
 * Returns true if anyone can have a mailbox on this domain or a parent of it: free mail, internet
 * access, alumni.
 */
export function isFreeMail(domain: string): boolean {
  return holdsDomain(PERSONAL, domain);
}
