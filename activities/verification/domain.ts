import { parse } from 'tldts';

/**
 * The registrable part of a domain (`clinic.co.uk` of `mail.clinic.co.uk`) under a suffix that ICANN delegates.
 * @returns null where the suffix does not exist or the domain is nothing but a suffix
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
