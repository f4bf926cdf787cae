import { readFileSync, writeFileSync } from 'node:fs';

// Shortens the package.json of drizzle-orm after an install (patches/README.md). Node parses the
// whole list of exports again for each of the 200 modules that we load. The list has 447 entries in
// 178 kB, of which one pattern replaces 384. Every import still finds the same file.

const FILE = new URL('../node_modules/drizzle-orm/package.json', import.meta.url);
/** An entry that the pattern is made from. */
const EXAMPLE = './pg-core/table';

const { exports, ...rest } = JSON.parse(readFileSync(FILE, 'utf8')) as {
  exports: Record<string, unknown>;
};
const patternOf = (path: string) =>
  JSON.stringify(exports[path]).replaceAll(path.slice(1), '/*');
if ('./*' in exports === false) {
  const pattern = patternOf(EXAMPLE);
  const others = Object.keys(exports).filter((path) => patternOf(path) !== pattern);
  const shorter = Object.fromEntries(others.map((path) => [path, exports[path]]));
  shorter['./*'] = JSON.parse(pattern);
  writeFileSync(FILE, JSON.stringify({ ...rest, exports: shorter }));
}
