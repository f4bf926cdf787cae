import { ADDED, type Contact, type Contacts } from './table.ts';

// The rows of a result file. The command and the console of the service use it.

/** The fields of a result that say why it has no email. */
export interface Outcome {
  readonly email: string | null;
  /** Empty for a place of an outline. */
  readonly status: 'completed' | 'not_found' | 'failed' | 'in-progress' | 'accepted' | '';
  /** The public reason why nothing was looked up. The API does not return it. */
  readonly refusal?: 'check_digit' | 'organization_npi' | 'deactivated' | null;
  /** The day of the deactivation in NPPES, such as `2026-01-05`, or null. */
  readonly deactivated_on?: string | null;
}

/** The fields of a result that become cells. A request that is not final has its status. */
export interface Cells extends Outcome {
  readonly email_type: string | null;
  readonly email_last_validated: string | null;
  readonly replayed: boolean;
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
    whyNoEmail(result) || (result.replayed ? 'paid for before' : ''),
  ];
}

/**
 * Returns in plain words why a result has no email, or an empty text if it has one. Pages and files
 * use only these words. A suppressed person reads like one for whom no email was found.
 */
export function whyNoEmail({ email, status, refusal, deactivated_on }: Outcome): string {
  if (email !== null) return '';
  switch (status) {
    case 'not_found':
      return refusal ? refusalText(refusal, deactivated_on) : 'no email found';
    case 'failed':
      return 'not finished in time and not charged: look it up again';
    case 'completed':
      // It was deleted after its time, or the person objected. Both read the same.
      return 'no longer available';
    case 'accepted':
    case 'in-progress':
      return 'not finished yet';
    case '':
      return '';
    default:
      return status satisfies never;
  }
}

function refusalText(
  refusal: NonNullable<Outcome['refusal']>,
  deactivatedOn: string | null = null,
): string {
  switch (refusal) {
    case 'check_digit':
      return 'not an NPI (wrong check digit)';
    case 'organization_npi':
      return 'NPI of an organization';
    case 'deactivated':
      return deactivatedOn === null
        ? 'deactivated NPI'
        : `NPI deactivated on ${deactivatedOn}`;
    default:
      return refusal satisfies never;
  }
}

/**
 * Escapes text that a spreadsheet would run as a formula. The cells of a customer's CSV file stay as
 * they are, because it has the same text already.
 */
export function inert(cell: string): string {
  return cell.replace(/^(?=[=+\-@\t\r])/, "'");
}
