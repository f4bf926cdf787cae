import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Ledger } from './model-client.ts';

/** One change to the text of one file of db/, which must occur there. */
export interface Mutation {
  readonly file: string;
  readonly from: string;
  readonly to: string;
}

const DB = new URL('../../db/', import.meta.url);

/**
 * The real `submit` and `settle` with guards taken out: db/ is copied, changed and imported from the copy, so that
 * the service itself needs no way to be made faulty.
 */
export async function mutantLedger(mutations: readonly Mutation[]): Promise<Ledger> {
  const folder = await mkdtemp(join(tmpdir(), 'mutant-'));
  try {
    await writeFile(join(folder, 'package.json'), '{"type":"module"}');
    const names = await readdir(DB, { recursive: true });
    const nowhere = mutations.find(({ file }) => !names.includes(file));
    if (nowhere) throw new Error(`there is no db/${nowhere.file}`);
    for (const name of names) {
      if (!name.endsWith('.ts')) continue;
      const text = await readFile(new URL(name, DB), 'utf8');
      const mutated = mutations.filter(({ file }) => file === name).reduce(mutate, text);
      await mkdir(dirname(join(folder, name)), { recursive: true });
      await writeFile(join(folder, name), mutated.replaceAll(/ from '([a-z@][\w@/.:-]*)';$/gm, absolute));
    }
    const load = async (name: string) => await import(pathToFileURL(join(folder, name)).href);
    const [{ submit }, { settle }] = await Promise.all([
      load('requests/submit.ts'),
      load('requests/settle.ts'),
    ]);
    return { submit, settle };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function mutate(text: string, { file, from, to }: Mutation): string {
  if (!text.includes(from)) throw new Error(`db/${file} no longer contains: ${from}`);
  return text.replace(from, () => to);
}

/** A copy elsewhere finds no packages by name. */
function absolute(_match: string, specifier: string): string {
  return ` from '${import.meta.resolve(specifier)}';`;
}
