import { readFile, stat } from 'node:fs/promises';
import { buffer } from 'node:stream/consumers';
import { STANDARD } from './arguments.ts';
import { readNpi } from './cell.ts';
import { findColumn } from './column.ts';
import { type Form, parseCsv } from './csv.ts';
import { decode } from './decode.ts';
import { UsageError } from './usage-error.ts';

export interface Contact {
  /** The line of the file in which the row begins. */
  readonly line: number;
  readonly cells: readonly string[];
  /** The cell in the NPI column. */
  readonly cell: string;
  /** The NPI, or null if the cell has none. */
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

/** About a million rows. Larger files would not fit into memory. */
const MAX_BYTES = 100_000_000;

/**
 * Reads a file of contacts.
 * @param column the name or the number of the NPI column. If undefined, the column is found
 * @throws {UsageError} if it is not a CSV file with such a column and at least one row
 */
export async function readContacts(
  path: string,
  column: string | undefined,
): Promise<Contacts> {
  const file = path === STANDARD ? 'standard input' : path;
  const text = decode(file, await readBytes(path, file));
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
  const cells = body.map((row) => row.cells);
  const { index, isGuess } = findColumn(file, header, cells, column);
  const name = header[index]?.trim() ?? '';
  if (isGuess) {
    notes.push(`The NPIs are in column "${name}".`);
  }
  const contacts = body.map(({ line, cells }) => {
    const cell = cells[index] ?? '';
    const earlier = earlierOf(header, cells);
    return { line, cells, cell, earlier, ...readNpi(cell) };
  });
  const kept = contacts.filter(({ earlier }) => earlier).length;
  if (kept > 0) {
    notes.push(`Rows that have an email of an earlier run and keep it: ${kept}.`);
  }
  return { form, header, rows: contacts, column: name, notes };
}

/** Returns the added cells of a row whose email an earlier run found, or null. */
function earlierOf(
  header: readonly string[],
  cells: readonly string[],
): readonly string[] | null {
  const added = ADDED.map((name) => cells[header.indexOf(name)] ?? '');
  return added[ADDED.indexOf('enriched_status')] === 'completed' ? added : null;
}

/** @throws {UsageError} if the file can't be read */
async function readBytes(path: string, file: string): Promise<Buffer> {
  if (path === STANDARD) {
    return await buffer(process.stdin);
  }
  try {
    const { size } = await stat(path);
    if (size > MAX_BYTES) {
      throw new UsageError(
        `${file} has more than 100 MB. Split it into files of fewer rows.`,
      );
    }
    return await readFile(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') {
      throw new UsageError(`${file} does not exist.`);
    }
    if (code === 'EISDIR') {
      throw new UsageError(`${file} is a folder. Name a CSV file.`);
    }
    if (code === 'EACCES' || code === 'EPERM') {
      throw new UsageError(`${file} can't be read: permission denied.`);
    }
    throw error;
  }
}
