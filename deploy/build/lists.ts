import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { domainToASCII } from 'node:url';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import disposablePackage from 'disposable-email-domains-js/package.json' with {
  type: 'json',
};
import providers from 'email-providers/all.json' with { type: 'json' };
import providersPackage from 'email-providers/package.json' with { type: 'json' };
import mailChecker from 'mailchecker';
import mailCheckerPackage from 'mailchecker/package.json' with { type: 'json' };
import { holdsDomain, readList } from '../../activities/verification/domains.ts';
import { isLookalike } from '../../activities/verification/lookalikes.ts';

// `npm run lists` generates the domain lists that come from npm packages. Run it after an update of
// these packages, and review the changes, because the lists decide which addresses we return as a
// person's own. A second file, whose name ends with `-more`, has additional domains that the
// package lacks. The `-more` files and all other lists are edited by hand, and each names its
// sources.

// Domains that the package `email-providers` lists, although they give people no mailboxes. For
// example, physicians register at medscape.com with their work addresses.
const NOT_PERSONAL: ReadonlySet<string> = new Set(['medscape.com']);
/** Matches the domains of universities, such as `nus.edu.sg`, whose staff have addresses there. */
const UNIVERSITY = /\.(?:edu|ac)(?:\.[a-z]{2})?$/;
/** Matches names of services that say that their mailboxes are thrown away. */
const SAYS_DISPOSABLE =
  /10-?min|temp[e-]?mail|trash-?mail|throwaway|yopmail|mailinator|disposable|guerrilla/;

/**
 * Returns the content of the lists in `activities/verification/lists/` that come from packages, by
 * file name.
 */
export function buildLists(): Readonly<Record<string, string>> {
  // If the packages contradict each other, the domain counts as disposable, unless one of our own
  // lists names it. Mailboxes at `dr.com` and similar domains of mail.com are real ones.
  const keptByHand = readList('personal-more', 'relays');
  // `mailchecker` also lists practices, such as `coastalorthopaedics.com`. So it only decides about
  // domains that `email-providers` lists.
  const throwaway = mailChecker.blacklist();
  const misplaced = providers.filter((domain) => throwaway.has(domain));
  const listed = normalized([...disposableEmailBlocklistSet(), ...misplaced]);
  const disposable = listed.filter((domain) => !holdsDomain(keptByHand, domain));
  const allDisposable = new Set([...disposable, ...readList('disposable-more')]);
  const personal = normalized(providers).filter((domain) => {
    if (NOT_PERSONAL.has(domain) || UNIVERSITY.test(domain)) return false;
    if (SAYS_DISPOSABLE.test(domain) || keptByHand.has(domain)) return false;
    return !holdsDomain(allDisposable, domain) && !isLookalike(domain, null);
  });
  // The licenses ISC and MIT require their text in every copy. The license CC0 requires nothing.
  return {
    'disposable.txt': file(
      'Domains of throwaway mailboxes',
      [disposablePackage, mailCheckerPackage],
      licenseText('mailchecker', 'LICENSE'),
      disposable,
    ),
    'personal.txt': file(
      'Domains of mailboxes that people have for themselves',
      [providersPackage],
      licenseText('email-providers', 'license.md'),
      personal,
    ),
  };
}

function licenseText(packageName: string, fileName: string): string {
  const url = new URL(fileName, import.meta.resolve(`${packageName}/package.json`));
  return readFileSync(url, 'utf8');
}

/**
 * Normalizes domains as `parseAddress` does, and sorts them. Removes duplicates, and entries that
 * are not domains, such as email addresses.
 */
function normalized(entries: readonly string[]): string[] {
  const domains = entries
    .filter((entry) => !entry.includes('@'))
    .map((entry) => domainToASCII(entry.trim()));
  return [...new Set(domains.filter((domain) => domain.includes('.')))].sort();
}

function file(
  about: string,
  packages: readonly Readonly<Record<'name' | 'version' | 'license', string>>[],
  licenseText: string,
  domains: readonly string[],
): string {
  const sources = packages.map(
    ({ name, version, license }) => `${name} ${version} (${license})`,
  );
  const header = [
    `${about}, their subdomains included.`,
    `From ${sources.join(' and ')}, written by deploy/build/lists.ts: npm run lists`,
    ...licenseText.split('\n').filter((line) => line.trim() !== ''),
  ];
  const comments = header.map((line) => `# ${line}`);
  return [...comments, ...domains, ''].join('\n');
}

if (import.meta.main) {
  for (const [name, text] of Object.entries(buildLists())) {
    const path = new URL(`../../activities/verification/lists/${name}`, import.meta.url);
    await writeFile(path, text);
    const count = text.split('\n').length;
    console.log(`lists: wrote ${name}, ${count} lines`);
  }
}
