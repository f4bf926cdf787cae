import { createWriteStream } from 'node:fs';
import { rename, rm } from 'node:fs/promises';
import { pipeline } from 'node:stream/promises';
import { stringify } from 'csv-stringify';
import type { Contact, Contacts } from './contacts.ts';
import type { Result } from './index.ts';

const ADDED = ['email', 'email_type', 'email_last_validated', 'status', 'reason'].map(
  (name) => `enriched_${name}`,
);

/**
 * Writes the rows with their results. The file appears only when it is complete. In a row without a
 * result, the `enriched_reason` column says why. The file is readable only by the user who runs the
 * command, because it contains people's addresses.
 */
export async function writeResults(
  { form, header, rows }: Contacts,
  out: string,
  results: ReadonlyMap<string, Result>,
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
    if (form.hasSeparatorLine) yield [`sep=${form.delimiter}`];
    yield [...cellsOf(header), ...ADDED];
    for (const contact of rows) {
      yield [...cellsOf(contact.cells), ...addedTo(contact, results)];
    }
  };
  // `mode` has an effect only when the file is created, so a file that a killed run left is deleted
  // first.
  await rm(`${out}.new`, { force: true });
  const file = createWriteStream(`${out}.new`, { flush: true, mode: 0o600 });
  const { delimiter, bom, recordDelimiter } = form;
  const csv = stringify({ delimiter, bom, record_delimiter: recordDelimiter });
  await pipeline(all, csv, file);
  await rename(`${out}.new`, out);
}

function addedTo(contact: Contact, results: ReadonlyMap<string, Result>): string[] {
  const { npi, problem } = contact;
  if (npi === null) return ['', '', '', 'not_asked', problem];
  const result = results.get(npi);
  if (!result) return ['', '', '', 'not_asked', 'not looked up yet'];
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
