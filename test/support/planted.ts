import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { testSetting } from './database.ts';

/** The bug: a TypeError, as from reading a property of undefined. */
const BUG = 'undefined.planted;';
/** The message of the error. */
export const PLANTED = /Cannot read properties of undefined \(reading 'planted'\)/;

/** Plants a bug at the top of the named workflow function or method of a bundle. */
export function plantBug(code: string, name: string): string {
  const head = new RegExp(`(async (?:function )?${name}\\(.*\\) \\{)$`, 'gm');
  if (code.match(head)?.length !== 1)
    throw new Error(`the bundle has no single function ${name}`);
  return code.replace(head, (start) => `${start} ${BUG}`);
}

/** Writes the workflow bundle of this build with a bug in the named function. Returns its path. */
export async function bundleWithBug(folder: string, name: string): Promise<string> {
  const code = await readFile(testSetting('TEST_WORKFLOW_BUNDLE'), 'utf8');
  const file = join(folder, `bug-in-${name}.js`);
  await writeFile(file, plantBug(code, name));
  return file;
}
