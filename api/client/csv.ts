import { isUtf8 } from 'node:buffer';
import { createWriteStream } from 'node:fs';
import { readFile, rename, rm } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { parse } from 'csv-parse/sync';
import { stringify } from 'csv-stringify';
import { isNpi, type Result } from './index.ts';

// Reads and writes CSV files as spreadsheets export them. They may have a byte order mark, CR LF
// line ends, semicolons or tabs between the cells, and rows with missing or extra cells.

/** Thrown if the arguments or the CSV file of the command are not usable. The message says why. */
export class UsageError extends Error {}

export interface Contacts {
  /** The format of the input file. The output file is written in the same format. */
  readonly form: {
    delimiter: string;
    bom: boolean;
    record_delimiter: 'windows' | 'unix';
  };
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
  if (!isUtf8(bytes))
    throw new UsageError(`${file} is not UTF-8. Save it as "CSV UTF-8".`);
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
  const index = header.findIndex(
    (name) => name.trim().toLowerCase() === column.toLowerCase(),
  );
  if (index === -1)
    throw new UsageError(
      `${file} has no column "${column}". It has: ${header.join(', ')}.`,
    );
  return { form, header, rows, npis: rows.map((row) => row[index]?.trim() ?? '') };
}

/**
 * Writes the rows with their results. The file appears only when it is complete. In a row without a
 * result, the `enriched_reason` column says why. The file is readable only by the user who runs the
 * command, because it contains people's addresses.
 */
export async function writeResults(
  { form, header, rows, npis }: Contacts,
  out: string,
  results: ReadonlyMap<string, Result>,
): Promise<void> {
  const width = rows.reduce(
    (widest, { length }) => Math.max(widest, length),
    header.length,
  );
  // The input may be the output of an earlier run. Its `enriched_` columns are replaced.
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
  // `mode` has an effect only when the file is created, so a file that a killed run left is deleted
  // first.
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
 * Escapes text that a spreadsheet would run as a formula. Only the added cells are escaped, so the
 * cells of the input stay as they are.
 */
function inert(cell: string): string {
  return cell.replace(/^(?=[=+\-@\t\r])/, "'");
}
