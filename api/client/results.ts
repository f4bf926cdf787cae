import { createWriteStream, type Stats } from 'node:fs';
import { access, constants, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { stringify } from 'csv-stringify';
import { type Arguments, STANDARD } from './arguments.ts';
import { ADDED, type Contact, type Contacts } from './contacts.ts';
import type { EnrichmentError, Result } from './index.ts';
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
 * Writes the rows with their results. The file appears only when it is complete. In a row without a
 * result, the `enriched_reason` column says why. The file is readable only by the user who runs the
 * command, because it contains people's addresses.
 * @param shortage the error if credits ran out
 */
export async function writeResults(
  { form, header, rows }: Contacts,
  out: string,
  results: ReadonlyMap<string, Result>,
  shortage: EnrichmentError | null,
): Promise<void> {
  const width = rows.reduce(
    (widest, { cells }) => Math.max(widest, cells.length),
    header.length,
  );
  // The input may be the output of an earlier run. Its `enriched_` columns are replaced.
  const kept = Array.from({ length: width }, (_, index) => index).filter(
    (i) => !ADDED.includes(header[i] ?? ''),
  );
  const cellsOf = (row: readonly string[]) => kept.map((column) => row[column] ?? '');
  const all = function* () {
    // Written as two cells, because one cell with the delimiter would get quotes.
    if (form.hasSeparatorLine) yield ['sep=', ''];
    yield [...cellsOf(header), ...ADDED];
    for (const contact of rows) {
      yield [...cellsOf(contact.cells), ...addedTo(contact, results, shortage)];
    }
  };
  const { delimiter, bom, recordDelimiter } = form;
  const csv = stringify({ delimiter, bom, record_delimiter: recordDelimiter });
  if (out === STANDARD) {
    return await pipeline(all, csv, process.stdout, { end: false });
  }
  // `mode` has an effect only when the file is created, so a file that a killed run left is deleted
  // first.
  await rm(`${out}.new`, { force: true });
  const file = createWriteStream(`${out}.new`, { flush: true, mode: 0o600 });
  await pipeline(all, csv, file);
  await rename(`${out}.new`, out);
}

function addedTo(
  { npi, problem, earlier }: Contact,
  results: ReadonlyMap<string, Result>,
  shortage: EnrichmentError | null,
): readonly string[] {
  if (earlier) return earlier;
  if (npi === null) {
    return ['', '', '', 'not_asked', problem];
  }
  const result = results.get(npi);
  if (!result) {
    const isMaximum = shortage?.code === 'max_credits';
    const reason = isMaximum ? 'above --max-credits' : 'not enough credits';
    return ['', '', '', 'not_asked', reason];
  }
  const { email, email_type, email_last_validated, status } = result;
  return [
    inert(email ?? ''),
    email_type ?? '',
    email_last_validated ?? '',
    status,
    reasonOf(result),
  ];
}

function reasonOf({ status, replayed }: Result): string {
  if (status === 'failed') {
    return 'look it up again (not finished in time)';
  }
  return replayed ? 'paid for before' : '';
}

/**
 * Escapes text that a spreadsheet would run as a formula. Only the added cells are escaped, so the
 * cells of the input stay as they are.
 */
function inert(cell: string): string {
  return cell.replace(/^(?=[=+\-@\t\r])/, "'");
}
