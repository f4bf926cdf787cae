import { readFileSync } from 'node:fs';

/**
 * Reads one of `lists/`: a domain a line, `#` before a comment. deploy/build/lists.ts writes them. Read at start, not
 * imported from packages, so that what a domain counts as changes with a commit and never with an install.
 * @throws where the file is missing: a service without its lists would hand out what it must refuse
 */
export function readList(name: 'disposable' | 'personal'): ReadonlySet<string> {
  const text = readFileSync(new URL(`./lists/${name}.txt`, import.meta.url), 'utf8');
  return new Set(text.split(/\r?\n/).filter((line) => line !== '' && !line.startsWith('#')));
}
