import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { domainToASCII } from 'node:url';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import disposablePackage from 'disposable-email-domains-js/package.json' with {
  type: 'json',
};
import providers from 'email-providers/all.json' with { type: 'json' };
import providersPackage from 'email-providers/package.json' with { type: 'json' };
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

/**
 * Returns the content of the lists in `activities/verification/lists/` that come from packages, by
 * file name.
 */
export function buildLists(): Readonly<Record<string, string>> {
  const disposable = normalized([...disposableEmailBlocklistSet()]);
  const allDisposable = new Set([...disposable, ...readList('disposable-more')]);
  const personal = normalized(providers).filter((domain) => {
    if (NOT_PERSONAL.has(domain)) return false;
    return !holdsDomain(allDisposable, domain) && !isLookalike(domain, null);
  });
  // The package `email-providers` has the ISC license, whose text must be in every copy. The other
  // package has the license CC0, which requires nothing.
  const license = new URL(
    'license.md',
    import.meta.resolve('email-providers/package.json'),
  );
  return {
    'disposable.txt': file(
      'Domains of throwaway mailboxes',
      disposablePackage,
      '',
      disposable,
    ),
    'personal.txt': file(
      'Domains of mailboxes that people have for themselves',
      providersPackage,
      readFileSync(license, 'utf8'),
      personal,
    ),
  };
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
  { name, version, license }: Readonly<Record<'name' | 'version' | 'license', string>>,
  licenseText: string,
  domains: readonly string[],
): string {
  const header = [
    `${about}, their subdomains included.`,
    `From ${name} ${version} (${license}), written by deploy/build/lists.ts: npm run lists`,
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
