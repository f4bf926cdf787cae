import { readdirSync, readFileSync } from 'node:fs';

/** A fenced block of a page in api/docs/. */
export interface Example {
  readonly page: string;
  /** The word after the fence: `sh` is run as pasted, and so is what names a file and its command in the first line. */
  readonly language: string;
  readonly text: string;
}

const FOLDER = new URL('../../../api/docs/', import.meta.url);
const CLIENT = '../client/README.md';

/** Every block of every page, in its order. */
export function examples(): Example[] {
  return [...readdirSync(FOLDER), CLIENT]
    .filter((file) => file.endsWith('.md'))
    .flatMap((page) =>
      [...readFileSync(new URL(page, FOLDER), 'utf8').matchAll(/^```(\w+)\n(.*?)^```$/gms)].map(
        ([, language = '', text = '']) => ({ page, language, text }),
      ),
    );
}

/** The program that names this file as the last word of its first line, after what has to be installed. */
export function program(file: string): string {
  const [found] = examples().filter(({ text }) => (text.split('\n')[0] ?? '').endsWith(` ${file}`));
  if (!found) throw new Error(`no page of api/docs/ has an example that names ${file}`);
  return found.text;
}
