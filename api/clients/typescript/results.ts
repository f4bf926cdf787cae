import { createWriteStream, type Stats } from 'node:fs';
import { access, constants, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { stringify } from 'csv-stringify';
import { type Arguments, STANDARD } from './arguments.ts';
import type { EnrichmentError, Result } from './index.ts';
import { formatOf, resultRows } from './result-rows.ts';
import type { Contacts } from './table.ts';
import { UsageError } from './usage-error.ts';

/**
 * Checks that the result can be written, before anything is paid.
 * @throws {UsageError} if it can't, or would overwrite a file that is not of this run
 */
export async function checkOutput({
  file,
  out,
  force,
}: Pick<Arguments, 'file' | 'out' | 'force'>): Promise<void> {
  if (out === STANDARD) return;
  const folder = dirname(out);
  const old = await statOf(out);
  if (old && !old.isFile()) {
    throw new UsageError(`${out} is not a file. Name a file with --out.`);
  }
  const input = await statOf(file);
  if (old && old.dev === input?.dev && old.ino === input.ino) {
    throw new UsageError(`${out} is the input. Name another file with --out.`);
  }
  try {
    await access(folder, constants.W_OK);
  } catch {
    throw new UsageError(
      `The folder ${folder} does not exist or can't be written to. Name another file with --out.`,
    );
  }
  if (old && !force && !(await statOf(`${out}.state.json`))) {
    throw new UsageError(
      `${out} exists. Replace it with --force, or name another file with --out.`,
    );
  }
}

async function statOf(file: string): Promise<Stats | null> {
  return await stat(file).catch(() => null);
}

/**
 * Writes the rows with their results. The file appears only when it is complete. The file is
 * readable only by the user who runs the command, because it contains people's addresses.
 * @param shortage the error if credits ran out
 */
export async function writeResults(
  contacts: Contacts,
  out: string,
  results: ReadonlyMap<string, Result>,
  shortage: EnrichmentError | null,
): Promise<void> {
  const isMaximum = shortage?.code === 'max_credits';
  const missing = isMaximum ? 'above --max-credits' : 'not enough credits';
  const rows = () => resultRows(contacts, results, missing);
  const csv = stringify(formatOf(contacts));
  if (out === STANDARD) {
    return await pipeline(rows, csv, process.stdout, { end: false });
  }
  // `mode` has an effect only when the file is created, so a file that a killed run left is deleted
  // first.
  await rm(`${out}.new`, { force: true });
  const file = createWriteStream(`${out}.new`, { flush: true, mode: 0o600 });
  await pipeline(rows, csv, file);
  await rename(`${out}.new`, out);
}
