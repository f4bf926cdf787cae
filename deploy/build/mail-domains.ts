import { readdirSync } from 'node:fs';
import { sep } from 'node:path';
import { domainToASCII, domainToUnicode } from 'node:url';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import providers from 'email-providers/all.json' with { type: 'json' };
import { freeEmailDomains } from 'free-email-domains-typescript';
import mailChecker from 'mailchecker';
import {
  holdsDomain,
  readList,
  registrableDomain,
} from '../../activities/verification/domains.ts';
import { isLookalike } from '../../activities/verification/lookalikes.ts';

// Our own lists decide if the packages contradict each other: people keep mailboxes at `dr.com`,
// which a package calls throwaway mail, and physicians register at medscape.com with their work
// addresses. Otherwise a domain in two packages counts as throwaway mail.
const KEPT = readList('personal-more', 'relays');
const ORGANIZATIONS = readList('organizations');

/** Matches names of services that say that their mailboxes are thrown away. */
const SAYS_DISPOSABLE =
  /spam|trash|junk|garbage|muell|müll|fake|false|dispos|burner|discard|dump|anonym|wegwerf|jetable|throwaway|temp-?e?mail|temporar|\d\d-?min|yop(?:mail|web)|mailinator|guerrilla/;

/** Returns the domains of throwaway mailboxes. */
export function buildDisposable(): readonly string[] {
  // `mailchecker` also lists practices, such as `coastalorthopaedics.com`. So it only decides about
  // domains that `email-providers` lists.
  const throwaway = mailChecker.blacklist();
  const misplaced = providers.filter((domain) => throwaway.has(domain));
  const named = [...providers, ...freeEmailDomains].filter((domain) =>
    SAYS_DISPOSABLE.test(domainToUnicode(domain)),
  );
  const all = [...disposableEmailBlocklistSet(), ...misplaced, ...named];
  return normalize(all).filter(
    (domain) => !holdsDomain(KEPT, domain) && !holdsDomain(ORGANIZATIONS, domain),
  );
}

/**
 * Returns the domains of personal mailboxes.
 * @throws if a domain's name says that it is an organization's
 */
export function buildPersonal(disposable: readonly string[]): readonly string[] {
  const allDisposable = new Set(disposable);
  const universities = readUniversities();
  // Subdomains in the second package are machines of companies, such as `bounces.amazon.com`.
  const others = freeEmailDomains.filter(
    (domain) => registrableDomain(domain) === domain,
  );
  const personal = normalize([...providers, ...others]).filter((domain) => {
    if (holdsDomain(ORGANIZATIONS, domain) || holdsDomain(universities, domain)) {
      return false;
    }
    if (UNIVERSITY.test(domain) || KEPT.has(domain)) return false;
    return !holdsDomain(allDisposable, domain) && !isLookalike(domain, null);
  });
  checkNames(personal);
  return personal;
}

/** Matches the domains of universities, such as `nus.edu.sg`, whose staff have addresses there. */
const UNIVERSITY = /\.(?:edu|ac)(?:\.[a-z]{2})?$/;

/**
 * Returns the domains of universities that have no such suffix. The package has a file for each, and
 * the file's path is the domain from its end: `es`, `unican`.
 */
function readUniversities(): ReadonlySet<string> {
  const folder = new URL(
    '../../node_modules/academic-email-verifier/domains/',
    import.meta.url,
  );
  const names = readdirSync(folder, { recursive: true, encoding: 'utf8' });
  const files = names.filter((name) => name.endsWith('.txt'));
  return new Set(files.map((name) => name.slice(0, -4).split(sep).reverse().join('.')));
}

/** Matches names of organizations whose staff have addresses there. */
const SAYS_ORGANIZATION = /universi[td]|hospital|clinic|medicalcenter|\.gov\b|\.mil\b/;

/**
 * Checks that no name of a personal domain says that it is an organization. Such names are decided on
 * by hand.
 */
export function checkNames(personal: readonly string[]): void {
  const named = personal.filter((domain) => {
    const name = domainToUnicode(domain);
    return SAYS_ORGANIZATION.test(name);
  });
  if (named.length === 0) return;
  throw new Error(
    `These domains are not personal by their names: ${named.join(', ')}. Add each to ` +
      'organizations.txt or, if people have their own mailboxes there, to personal-more.txt.',
  );
}

/**
 * Normalizes domains as `parseAddress` does, and sorts them. Removes duplicates, and entries that
 * are not domains, such as email addresses.
 */
function normalize(entries: readonly string[]): string[] {
  const domains = entries
    .filter((entry) => !entry.includes('@'))
    .map((entry) => domainToASCII(entry.trim()));
  return [...new Set(domains.filter((domain) => domain.includes('.')))].sort();
}
