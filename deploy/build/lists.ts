import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { domainToASCII } from 'node:url';
import { disposableEmailBlocklistSet } from 'disposable-email-domains-js';
import disposablePackage from 'disposable-email-domains-js/package.json' with { type: 'json' };
import providers from 'email-providers/all.json' with { type: 'json' };
import providersPackage from 'email-providers/package.json' with { type: 'json' };
import { holdsDomain } from '../../activities/verification/domains.ts';

// `npm run lists`: writes the lists of domains that the checks read, from packages that only a build needs. Run it
// after those packages were updated and look through the difference: an entry decides what is sold as a person's.

// Throwaway mail that `disposable-email-domains-js` lacks.
const MORE_DISPOSABLE = words(
  'tempmail.com temp-mail.io minutemailbox.com spamgourmet.com burnermail.io 33mail.com',
);

// Free-mail and US access providers, and vanity mail for physicians, that `email-providers` lacks.
const MORE_PERSONAL = words(
  `fastmail.com fastmail.us tuta.com tuta.io tutanota.com tutamail.com physician.com spectrum.net
  suddenlink.net twc.com roadrunner.com brighthouse.com bresnan.net cableone.net sparklight.net tds.net
  hughes.net consolidated.net ziplyfiber.com metrocast.net wowway.com zoominternet.net atlanticbb.net
  mchsi.com mediacombb.net prodigy.net swbell.net ameritech.net snet.net pacbell.net nvbell.net
  embarqmail.com gci.net pm.me protonmail.ch hotmail.co.uk`,
);

// Physicians register on it with addresses of their employers, so its presence in the list says nothing.
const NOT_PERSONAL: ReadonlySet<string> = new Set(['medscape.com']);

// The ISC license goes with every copy; CC0 asks for nothing.
const PROVIDERS_LICENSE = new URL('license.md', import.meta.resolve('email-providers/package.json'));

/** What `activities/verification/lists/` must hold: file names with their text. */
export function buildLists(): ReadonlyMap<string, string> {
  const disposable = new Set(normalized([...disposableEmailBlocklistSet(), ...MORE_DISPOSABLE]));
  const personal = normalized([...providers, ...MORE_PERSONAL]).filter(
    (domain) => !NOT_PERSONAL.has(domain) && !holdsDomain(disposable, domain),
  );
  return new Map([
    ['disposable.txt', file('Domains of throwaway mailboxes', disposablePackage, '', [...disposable])],
    [
      'personal.txt',
      file(
        'Domains of mailboxes that people have for themselves',
        providersPackage,
        readFileSync(PROVIDERS_LICENSE, 'utf8'),
        personal,
      ),
    ],
  ]);
}

function words(text: string): string[] {
  return text.split(/\s+/);
}

/** As `parseAddress` spells domains, each once, in order; an entry that is none, such as an address, is left out. */
function normalized(entries: readonly string[]): string[] {
  const domains = entries.filter((entry) => !entry.includes('@')).map((entry) => domainToASCII(entry.trim()));
  return [...new Set(domains.filter((domain) => domain.includes('.')))].sort();
}

function file(
  about: string,
  { name, version, license }: { readonly name: string; readonly version: string; readonly license: string },
  licenseText: string,
  domains: readonly string[],
): string {
  const header = [
    `${about}, their subdomains included.`,
    `From ${name} ${version} (${license}) and deploy/build/lists.ts, which wrote this file: npm run lists`,
    ...licenseText.split('\n').filter((line) => line.trim() !== ''),
  ];
  return [...header.map((line) => `# ${line}`), ...domains, ''].join('\n');
}

if (import.meta.main) {
  for (const [name, text] of buildLists()) {
    await writeFile(new URL(`../../activities/verification/lists/${name}`, import.meta.url), text);
    console.log(`lists: wrote ${name}, ${text.split('\n').length} lines`);
  }
}
