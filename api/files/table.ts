import { readNpi } from './cell.ts';
import { type Form, parseCsv, type Row } from './csv.ts';
import { decode } from './decode.ts';
import { UsageError } from './usage-error.ts';

// Reads the rows of a CSV file and their NPIs. The command and the console of the service use it.

export interface Contact {
  /** The line of the file in which the row begins. */
  readonly line: number;
  readonly cells: readonly string[];
  /** The cell in the NPI column. */
  readonly cell: string;
  /** The NPI, or null if the cell does not contain one. */
  readonly npi: string | null;
  /** The reason why the row can't be used, or empty. */
  readonly problem: string;
  /** The added cells, if an earlier run found the email of this row. */
  readonly earlier: readonly string[] | null;
}

export interface Contacts {
  readonly form: Form;
  readonly header: readonly string[];
  readonly rows: readonly Contact[];
  /** The name of the NPI column. */
  readonly column: string;
  /** Sentences for the user about how the file was read. */
  readonly notes: readonly string[];
}

/** The columns that the command adds. */
export const ADDED = [
  'email',
  'email_type',
  'email_last_validated',
  'status',
  'reason',
].map((name) => `enriched_${name}`);

/** A CSV file, before its NPI column is known. */
export interface Table extends Pick<Contacts, 'form' | 'header' | 'notes'> {
  readonly rows: readonly Row[];
}

/**
 * Reads the bytes of a CSV file.
 * @param file the name of the file in errors
 * @throws {UsageError} if it is not a CSV file with at least one row
 */
export function readTable(file: string, bytes: Buffer): Table {
  const text = decode(file, bytes);
  const { form, rows } = parseCsv(file, text);
  const [first] = rows;
  if (!first) {
    throw new UsageError(`${file} has no rows.`);
  }
  const notes: string[] = [];
  if (text.encoding === 'windows-1252') {
    notes.push(`${file} is not UTF-8, so it was read as Windows-1252.`);
  }
  const hasHeader = first.cells.every((cell) => readNpi(cell).npi === null);
  const header = hasHeader ? first.cells : first.cells.map((_, at) => String(at + 1));
  const body = hasHeader ? rows.slice(1) : rows;
  if (!hasHeader) {
    notes.push(`${file} has no column names, so its columns are numbered.`);
  }
  if (body.length === 0) {
    throw new UsageError(`${file} has column names, but no rows below them.`);
  }
  return { form, header, rows: body, notes };
}

/**
 * Reads the NPI of each row.
 * @param index the position of the NPI column, from 0
 */
export function contactsIn(
  { form, header, rows, notes }: Table,
  index: number,
): Contacts {
  const contacts = rows.map(({ line, cells }) => {
    const cell = cells[index] ?? '';
    const earlier = earlierOf(header, cells);
    return { line, cells, cell, earlier, ...readNpi(cell) };
  });
  const all = [...notes];
  const kept = contacts.filter(({ earlier }) => earlier).length;
  if (kept > 0) {
    all.push(`Rows that keep an email from an earlier run: ${kept}.`);
  }
  const column = header[index]?.trim() ?? '';
  return { form, header, rows: contacts, column, notes: all };
}

/** Returns the added cells of a row whose email an earlier run found, or null. */
function earlierOf(
  header: readonly string[],
  cells: readonly string[],
): readonly string[] | null {
  const added = ADDED.map((name) => cells[header.indexOf(name)] ?? '');
  return added[ADDED.indexOf('enriched_status')] === 'completed' ? added : null;
}
