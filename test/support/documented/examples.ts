import { readdirSync, readFileSync } from 'node:fs';

/** A fenced block of a page in api/docs/. */
export interface Example {
  readonly page: string;
  /**
   * The word after the fence. `sh` blocks run as pasted. Blocks with a file and its command in the
   * first line run too.
   */
  readonly language: string;
  readonly text: string;
}

const FOLDER = new URL('../../../api/docs/', import.meta.url);
const CLIENT = '../clients/typescript/README.md';

/** Returns the Markdown of a page. */
export function page(name: string): string {
  return readFileSync(new URL(name, FOLDER), 'utf8');
}

/** Returns every block of every page, in order. */
export function examples(): Example[] {
  return [...readdirSync(FOLDER), CLIENT]
    .filter((file) => file.endsWith('.md'))
    .flatMap((name) =>
      [...page(name).matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(
        ([, language = '', text = '']) => ({ page: name, language, text }),
      ),
    );
}

/** Returns the program whose first line ends with this file name, after the packages to install. */
export function program(file: string): string {
  const [found] = examples().filter(({ text }) =>
    (text.split('\n')[0] ?? '').endsWith(` ${file}`),
  );
  if (!found) throw new Error(`no page of api/docs/ has an example that names ${file}`);
  return found.text;
}
