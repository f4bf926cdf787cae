// The types that the readers of CSV files and of workbooks return.

/** The format of the result, which is CSV. A CSV file gets its result in its own format. */
export interface Form {
  readonly delimiter: string;
  /** True if the first line is `sep=` with the delimiter, as Excel reads and writes it. */
  readonly hasSeparatorLine: boolean;
  readonly bom: boolean;
  /** True if texts that a spreadsheet would run as formulas are escaped. */
  readonly escapesFormulas: boolean;
  readonly recordDelimiter: 'windows' | 'unix';
}

export interface Row {
  /** The line of the file in which the row begins, or the row of the workbook, from 1. */
  readonly line: number;
  readonly cells: readonly string[];
}

/** The rows with text of a file. */
export interface Sheet {
  readonly form: Form;
  readonly rows: readonly Row[];
  /** The word for the number of a row. */
  readonly place: 'Line' | 'Row';
  /** The name of the sheet, or null for a CSV file. */
  readonly name: string | null;
  /** The names of all sheets of the workbook, also of those that are not read. */
  readonly names: readonly string[];
  /** Sentences for the user about how the file was read. */
  readonly notes: readonly string[];
}

/** The number of rows that a note names. */
const MAX_LISTED = 5;

/** Returns a text such as `line 3, line 8, and 2 more rows`. */
export function listed(place: string, numbers: readonly number[]): string {
  const named = numbers.slice(0, MAX_LISTED).map((number) => `${place} ${number}`);
  const more = numbers.length - named.length;
  return more === 0 ? named.join(', ') : `${named.join(', ')}, and ${more} more rows`;
}
