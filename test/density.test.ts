import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';

// Dense code is hard to read. Biome limits the length of lines and functions and forbids nested
// ternaries. This test counts what Biome has no rule for, in the product's TypeScript. A single use
// can be right, so most figures have a limit per 1,000 lines of code. The limits only ever go down.

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const FOLDERS = ['workflows', 'activities', 'api', 'db', 'deploy'];

const LIMITS: readonly Limit[] = [
  { name: 'lines over 100 columns', pattern: /^.{101}/, per1000: 5 },
  { name: 'ternaries', pattern: /(?:^|\s)\?\s/, per1000: 14 },
  { name: '??', pattern: /\?\?/, per1000: 12.5 },
  { name: 'conditional spreads', pattern: /\.\.\.\(/, per1000: 1 },
  { name: 'spreads of object literals', pattern: /\.\.\.\{/, per1000: 0 },
  {
    name: 'constants by destructured arrays',
    pattern: /^(?:export )?const \[[A-Z_]+, /,
    per1000: 0,
  },
];

interface Limit {
  readonly name: string;
  readonly pattern: RegExp;
  readonly per1000: number;
}

const lines = (await Promise.all(productFiles().map(linesOf))).flat();

test('lines of code have at most 33 characters on average', (t) => {
  const total = lines.reduce((sum, line) => sum + line.trim().length, 0);
  const average = total / lines.length;
  t.log(`${average.toFixed(1)} characters per line`);
  t.true(lines.length > 10_000 && average <= 33);
});

for (const { name, pattern, per1000 } of LIMITS) {
  test(`code has few ${name}`, (t) => {
    const every = new RegExp(pattern, 'g');
    const hits = lines.reduce((sum, line) => sum + [...line.matchAll(every)].length, 0);
    const share = (1000 * hits) / lines.length;
    t.log(`${share.toFixed(1)} per 1,000 lines`);
    t.true(
      share <= per1000,
      `${share.toFixed(1)} ${name} per 1,000 lines, at most ${per1000}`,
    );
  });
}

function productFiles(): string[] {
  const files = execFileSync('git', ['ls-files', ...FOLDERS], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  return files.split('\n').filter((file) => file.endsWith('.ts'));
}

/** Returns the lines of a file without comments and empty lines. */
async function linesOf(file: string): Promise<string[]> {
  const text = await readFile(join(ROOT, file), 'utf8');
  return text
    .replaceAll(/^ *\/\*[\s\S]*?\*\/$/gm, '')
    .replaceAll(/^ *\/\/.*$/gm, '')
    .split('\n')
    .filter((line) => line.trim() !== '');
}
