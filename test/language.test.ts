import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';

// Counts words and phrases that made our sentences hard to read. A good sentence may use one, so
// each has a limit per 1,000 blocks.

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const PRODUCT = /^(?:workflows|activities|api|db|deploy)\//;

const PATTERNS: Readonly<Record<string, RegExp>> = {
  'a clause with who or what but without a noun':
    /(?:^|[.:;,] )(?:[Ww]ho|[Ww]hoever|[Ww]hom|[Ww]hat) (?![^.;]*\?)|\b(?:for|by|to|of|than|from|but|and) (?:who|whoever|whom)\b/,
  'nobody as a subject': /\b[Nn]obody\b/,
  'tell or told': /\b[Tt](?:old|ells?)\b/,
  'anew, meanwhile, beside, but for':
    /\b(?:anew|meanwhile|beside|for ever|but for|whatever|wherever)\b/,
  'a sentence that begins with "Of"': /(?:^|[.:;] )Of /,
  'of its own': /\bof (?:its|their|his|one's|an) own\b|\bof (?:ours|theirs)\b/,
  'alone instead of only': /\balone\b/,
};

interface Block {
  readonly where: string;
  readonly text: string;
}

/** How many of 1,000 blocks may have a pattern. The limits only ever go down. */
const LIMITS = { comments: 5, pages: 5, titles: 2 };

for (const [kind, read] of [
  ['comments', commentsOf],
  ['pages', paragraphsOf],
  ['titles', titlesOf],
] as const) {
  test(`${kind} are written plainly`, async (t) => {
    const blocks = await blocksOf(read);
    t.true(blocks.length > 100);
    for (const [name, pattern] of Object.entries(PATTERNS)) {
      const hits = blocks.filter(({ text }) => pattern.test(text));
      const share = (1000 * hits.length) / blocks.length;
      const figure = `${name}: ${share.toFixed(1)} of 1,000 ${kind}`;
      const examples = hits.slice(0, 20).map(({ where, text }) => `  ${where}: ${text}`);
      t.log(figure);
      t.true(share <= LIMITS[kind], [figure, ...examples].join('\n'));
    }
  });
}

async function blocksOf(read: (file: string, text: string) => Block[]): Promise<Block[]> {
  const files = execFileSync('git', ['ls-files'], { cwd: ROOT, encoding: 'utf8' })
    .trim()
    .split('\n');
  const blocks = await Promise.all(
    files
      .filter((file) => /\.(?:ts|sql|md)$/.test(file))
      .map(async (file) => read(file, await readFile(join(ROOT, file), 'utf8'))),
  );
  return blocks.flat();
}

/** Runs of line comments, and block comments, of the product. */
function commentsOf(file: string, text: string): Block[] {
  if (!PRODUCT.test(file) || file.endsWith('.md')) return [];
  const comment = file.endsWith('.sql')
    ? /(?:^ *--.*\n)+/gm
    : /(?:^ *\/\/.*\n)+|\/\*[\s\S]*?\*\//gm;
  return [...text.matchAll(comment)].map(([block]) => ({
    where: file,
    text: block
      .replaceAll(/^ *(?:\/\*\*?|\*\/|\*|\/\/|--) ?|\*\/$/gm, '')
      .replaceAll(/\s+/g, ' ')
      .trim(),
  }));
}

/** Paragraphs, list items, and rows of tables, without code. */
function paragraphsOf(file: string, text: string): Block[] {
  if (!file.endsWith('.md')) return [];
  return text
    .replaceAll(/^```[\s\S]*?^```$/gm, '')
    .split(/\n(?=[-*|] )|\n\n+|\n(?=\|)/)
    .filter((block) => block.trim() !== '' && !block.startsWith('#'))
    .map((block) => ({ where: file, text: block.replaceAll(/\s+/g, ' ').trim() }));
}

function titlesOf(file: string, text: string): Block[] {
  if (!file.startsWith('test/')) return [];
  const title = /\btest(?:\.serial)?\(\s*(?:'((?:[^'\\]|\\.)*)'|"([^"]*)"|`([^`]*)`)/g;
  return [...text.matchAll(title)].map(([, ...titles]) => ({
    where: file,
    text: titles.join(''),
  }));
}
