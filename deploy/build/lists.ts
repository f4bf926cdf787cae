import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { buildDisposable, buildPersonal } from './mail-domains.ts';
import { buildRoles } from './roles.ts';

// `npm run lists` generates the lists that come from npm packages. Run it after an update of these
// packages, and review the changes, because the lists decide which addresses we return as a
// person's own. Lists whose names end with `-more` add entries. They and all other lists are edited by
// hand, and each names its sources.

interface Source {
  readonly name: string;
  readonly version: string;
  /** The day on which we reviewed this version. Most packages don't say when they were published. */
  readonly reviewed: string;
  /** The file with the license, if every copy must contain its text. CC0 requires nothing. */
  readonly licenseFile: string | null;
}

const PROVIDERS: Source = {
  name: 'email-providers',
  version: '2.26.0',
  reviewed: '2026-11-28',
  licenseFile: 'license.md',
};
const FREE_MAIL: Source = {
  name: 'free-email-domains-typescript',
  version: '1.0.13',
  reviewed: '2026-11-28',
  licenseFile: 'LICENSE',
};
/** We use this package only to remove domains from a list, and copy no text of it. */
const UNIVERSITIES: Source = {
  name: 'academic-email-verifier',
  version: '3.1.0',
  reviewed: '2026-11-28',
  licenseFile: null,
};
const BLOCKLIST: Source = {
  name: 'disposable-email-domains-js',
  version: '1.26.0',
  reviewed: '2026-11-28',
  licenseFile: null,
};
const MAIL_CHECKER: Source = {
  name: 'mailchecker',
  version: '6.0.21',
  reviewed: '2026-11-28',
  licenseFile: 'LICENSE',
};
const ROLE_BASED: Source = {
  name: 'role-based-email-addresses',
  version: '3.1.0',
  reviewed: '2026-11-28',
  licenseFile: 'LICENSE',
};
const RESERVED: Source = {
  name: 'reserved-email-addresses-list',
  version: '2.0.16',
  reviewed: '2026-11-28',
  licenseFile: 'LICENSE',
};

/**
 * Returns the content of the lists in `activities/verification/lists/` that come from packages, by
 * file name.
 * @throws if an installed package is not the version that we reviewed, or if the name of a personal
 * domain says that it is something else
 */
export function buildLists(): Readonly<Record<string, string>> {
  const disposable = buildDisposable();
  return {
    'disposable.txt': file(
      'Domains of throwaway mailboxes, their subdomains included.',
      [BLOCKLIST, MAIL_CHECKER],
      disposable,
    ),
    'personal.txt': file(
      'Domains of mailboxes that people have for themselves, their subdomains included.',
      [PROVIDERS, FREE_MAIL, UNIVERSITIES],
      buildPersonal(disposable),
    ),
    'roles.txt': file(
      'Words that name a function, a department, a mail system, or several people.',
      [ROLE_BASED, RESERVED],
      buildRoles(),
    ),
  };
}

function file(
  about: string,
  sources: readonly Source[],
  entries: readonly string[],
): string {
  const header = [
    about,
    'Written by deploy/build/lists.ts: npm run lists',
    ...sources.flatMap(describe),
  ];
  const comments = header.map((line) => `# ${line}`);
  return [...comments, ...entries, ''].join('\n');
}

/**
 * Returns the lines about a source: its name, version, license, and date, and the license's text.
 * @throws if another version is installed
 */
export function describe({ name, version, reviewed, licenseFile }: Source): string[] {
  const installed = JSON.parse(readPackageFile(name, 'package.json'));
  if (installed.version !== version) {
    throw new Error(
      `${name} ${installed.version} is installed, but deploy/build/lists.ts names ${version}. ` +
        'Review what changed, then write the new version and today into its table of sources.',
    );
  }
  const line = `From ${name} ${version} (${installed.license}), reviewed on ${reviewed}`;
  if (licenseFile === null) return [line];
  const license = readPackageFile(name, licenseFile).split('\n');
  return [line, ...license.filter((text) => text.trim() !== '')];
}

function readPackageFile(name: string, fileName: string): string {
  const url = new URL(`../../node_modules/${name}/${fileName}`, import.meta.url);
  return readFileSync(url, 'utf8');
}

if (import.meta.main) {
  for (const [name, text] of Object.entries(buildLists())) {
    const path = new URL(`../../activities/verification/lists/${name}`, import.meta.url);
    await writeFile(path, text);
    const count = text.split('\n').length;
    console.log(`lists: wrote ${name}, ${count} lines`);
  }
}
