import { isUtf8 } from 'node:buffer';
import { createWriteStream } from 'node:fs';
import { readFile, rename, rm } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { parse } from 'csv-parse/sync';
import { stringify } from 'csv-stringify';
import { isNpi, type Result } from './index.ts';

// Reads and writes CSV files as people have them: with a byte order mark, CR LF, semicolons, rows
// that are too short or too long.

/** The command cannot be run as given. The message says why. */
export class UsageError extends Error {}

export interface Contacts {
  /** The format of the file, which the result keeps. */
  readonly form: { delimiter: string; bom: boolean; record_delimiter: 'windows' | 'unix' };
  readonly header: readonly string[];
  readonly rows: readonly (readonly string[])[];
  /** The cell in the NPI column of each row, valid or not. */
  readonly npis: readonly string[];
}

const ADDED = ['email', 'email_type', 'email_last_validated', 'status', 'reason'].map(
  (name) => `enriched_${name}`,
);

/**
 * Reads a file of contacts.
 * @throws {UsageError} if it is not a CSV file in UTF-8 with this column
 */
export async function readContacts(file: string, column: string): Promise<Contacts> {
  const bytes = await readFile(file);
  if (!isUtf8(bytes)) throw new UsageError(`${file} is not UTF-8. Save it as "CSV UTF-8".`);
  const text = bytes.toString();
  const firstLine = (text.split('\n', 1)[0] ?? '').replace(/"[^"]*"/g, '');
  const times = (sign: string) => firstLine.split(sign).length;
  const [delimiter = ','] = [',', ';', '\t'].sort((a, b) => times(b) - times(a));
  const form = {
    delimiter,
    bom: text.startsWith('\ufeff'),
    record_delimiter: /\r\n/.test(text) ? 'windows' : 'unix',
  } as const;
  const [header = [], ...rows] = parse(text, {
    delimiter,
    bom: true,
    relax_column_count: true,
    skip_empty_lines: true,
  });
  const index = header.findIndex((name) => name.trim().toLowerCase() === column.toLowerCase());
  if (index === -1)
    throw new UsageError(`${file} has no column "${column}". It has: ${header.join(', ')}.`);
  return { form, header, rows, npis: rows.map((row) => row[index]?.trim() ?? '') };
}

/**
 * Writes the rows with their results, either the whole file or nothing. A row without a result says
 * why. Only the user who runs the command can read the file, because it contains people's
 * addresses.
 */
export async function writeResults(
  { form, header, rows, npis }: Contacts,
  out: string,
  results: ReadonlyMap<string, Result>,
): Promise<void> {
  const width = rows.reduce((widest, { length }) => Math.max(widest, length), header.length);
  // Columns of an earlier result are replaced.
  const kept = Array.from({ length: width }, (_, index) => index).filter(
    (i) => !ADDED.includes(header[i] ?? ''),
  );
  const cellsOf = (row: readonly string[]) => kept.map((column) => row[column] ?? '');
  const all = function* () {
    yield [...cellsOf(header), ...ADDED];
    for (const [index, row] of rows.entries()) {
      const npi = npis[index] ?? '';
      yield [...cellsOf(row), ...addedTo(npi, results)];
    }
  };
  // The mode applies only to a new file, so a leftover of a killed run is removed first.
  await rm(`${out}.new`, { force: true });
  const file = createWriteStream(`${out}.new`, { flush: true, mode: 0o600 });
  await pipeline(all, stringify(form), file);
  await rename(`${out}.new`, out);
}

function addedTo(npi: string, results: ReadonlyMap<string, Result>): string[] {
  const result = results.get(npi);
  if (!result) {
    return ['', '', '', 'not_asked', reasonWithoutResult(npi)];
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

function reasonWithoutResult(npi: string): string {
  if (npi === '') return 'no NPI';
  return isNpi(npi) ? 'not looked up yet' : 'an NPI has 10 digits';
}

function reasonOf({ status, replayed }: Result): string {
  if (status === 'failed') return 'look it up again (not finished in time)';
  return replayed ? 'paid for before' : '';
}

/**
 * Escapes a cell that a spreadsheet would run as a formula. Cells of the original file stay as they
 * were.
 */
function inert(cell: string): string {
  return cell.replace(/^(?=[=+\-@\t\r])/, "'");
}
