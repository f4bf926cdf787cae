import { createHash } from 'node:crypto';
import { existsSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
/** Where builds are kept between runs. `npm ci` removes this folder. */
export const BUILT = join(ROOT, 'node_modules', '.cache', 'tests');

/** Files that tests read, and how they are made. Paths are relative to the project's folder. */
export interface Build {
  readonly name: string;
  /** Files and folders from which the build is made. Folders may contain outputs. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  run(): Promise<unknown>;
}

/** Builds the outputs, unless they exist and the inputs are those of the last build. */
export async function keepBuilt(build: Build): Promise<void> {
  const stamp = join(BUILT, `${build.name}.sha256`);
  const digest = digestOf(build);
  const isBuilt =
    build.outputs.every((file) => existsSync(join(ROOT, file))) &&
    existsSync(stamp) &&
    readFileSync(stamp, 'utf8') === digest;
  if (isBuilt) return;
  await build.run();
  await mkdir(dirname(stamp), { recursive: true });
  await writeFile(stamp, digest);
}

/** Returns a digest of the inputs' paths and contents. */
function digestOf({ inputs, outputs }: Build): string {
  const hash = createHash('sha256');
  for (const file of inputs.flatMap(listFiles)) {
    if (outputs.includes(file)) continue;
    const content = readFileSync(join(ROOT, file));
    hash.update(`${file}\0${content.length}\0`).update(content);
  }
  return hash.digest('hex');
}

function listFiles(path: string): string[] {
  const absolute = join(ROOT, path);
  if (statSync(absolute).isFile()) return [path];
  return readdirSync(absolute, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)))
    .sort();
}
