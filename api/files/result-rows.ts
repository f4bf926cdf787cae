import { ADDED, type Contact, type Contacts } from './table.ts';

// The rows of a result file. The command and the console of the service use it.

/** The fields of a result that become cells. A request that is not final has its status. */
export interface Cells {
  readonly email: string | null;
  readonly email_type: string | null;
  readonly email_last_validated: string | null;
  readonly replayed: boolean;
  readonly status: string;
}

/** Returns the options of csv-stringify that write the result in the format of the input. */
export function formatOf({ form }: Contacts) {
  const { delimiter, bom, recordDelimiter } = form;
  return {
    delimiter,
    bom,
    record_delimiter: recordDelimiter,
    // Otherwise, only a cell with this record delimiter gets quotes. Excel ends rows with CR LF, and
    // lines within a cell with LF.
    quoted_match: /[\r\n]/,
  };
}

/**
 * Yields the rows of the result: the input with the added columns. In a row without a result, the
 * `enriched_reason` column says why.
 * @param missing the reason why an NPI of the input is not in `results`
 */
export function* resultRows(
  contacts: Contacts,
  results: ReadonlyMap<string, Cells>,
  missing: string,
): Generator<readonly string[]> {
  const { form, titles, header, rows } = contacts;
  const written = (cell: string) =>
    form.escapesFormulas && Number.isNaN(Number(cell)) ? inert(cell) : cell;
  // The input may be the output of an earlier run. Its `enriched_` columns are replaced.
  const kept = otherCells(contacts, ADDED);
  const keptOf = (row: readonly string[]) => kept(row).map(written);
  const nothing = ADDED.map(() => '');
  // Written as two cells, because one cell with the delimiter would get quotes.
  if (form.hasSeparatorLine) yield ['sep=', ''];
  for (const { cells } of titles) yield [...keptOf(cells), ...nothing];
  yield [...keptOf(header), ...ADDED];
  for (const contact of rows) {
    yield [...keptOf(contact.cells), ...addedTo(contact, results, missing)];
  }
}

/**
 * Returns a function that leaves out the cells of a row in these columns. Its results all have the
 * same length.
 */
export function otherCells(
  { titles, header, rows }: Pick<Contacts, 'titles' | 'header' | 'rows'>,
  names: readonly string[],
) {
  const width = [...titles, ...rows].reduce(
    (widest, { cells }) => Math.max(widest, cells.length),
    header.length,
  );
  const kept = Array.from({ length: width }, (_, index) => index).filter(
    (i) => !names.includes(header[i] ?? ''),
  );
  return (row: readonly string[]) => kept.map((column) => row[column] ?? '');
}

function addedTo(
  { npi, problem, earlier }: Contact,
  results: ReadonlyMap<string, Cells>,
  missing: string,
): readonly string[] {
  if (earlier) return earlier;
  if (npi === null) {
    return ['', '', '', 'not_asked', problem];
  }
  return cellsOf(results.get(npi), missing);
}

/** Returns the added cells of a result, or of an NPI without one. */
export function cellsOf(result: Cells | undefined, missing: string): readonly string[] {
  if (!result) {
    return ['', '', '', 'not_asked', missing];
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

function reasonOf({ status, replayed }: Cells): string {
  if (status === 'failed') {
    return 'look it up again (not finished in time)';
  }
  return replayed ? 'paid for before' : '';
}

/**
 * Escapes text that a spreadsheet would run as a formula. The cells of a customer's CSV file stay as
 * they are, because it has the same text already.
 */
export function inert(cell: string): string {
  return cell.replace(/^(?=[=+\-@\t\r])/, "'");
}
