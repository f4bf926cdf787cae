import { isMeantAsNpi, isNpi, readNpi } from './cell.ts';
import { usualWidth } from './csv.ts';
import { layoutOf } from './layout.ts';
import { type Form, listed, type Row, type Sheet } from './sheet.ts';
import { UsageError } from './usage-error.ts';

// Reads the NPIs of a sheet. The command and the console of the service use it.

export interface Contact {
  /** The line of the file in which the row begins, or the row of the workbook. */
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
  readonly place: Sheet['place'];
  /** The rows above the column names, such as a title. */
  readonly titles: readonly Row[];
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

/** A file, before its NPI column is known. */
export interface Table extends Omit<Contacts, 'rows' | 'column'> {
  readonly file: string;
  readonly rows: readonly Row[];
}

/** The number of characters that a note shows of a title. */
const MAX_TITLE = 60;

/**
 * Finds the column names and the data of a sheet.
 * @param file the name of the file in errors
 * @throws {UsageError} if the sheet has no data
 */
export function tableOf(file: string, sheet: Sheet): Table {
  const { form, place } = sheet;
  const { titles, header: first, body, isGuess } = layoutOf(sheet);
  if (body.length === 0) {
    throw new UsageError(`${file} has column names, but no rows below them.`);
  }
  const notes = [...sheet.notes];
  const widest = sheet.rows.reduce((most, row) => Math.max(most, filledWidth(row)), 0);
  const usual = usualWidth(body);
  if (usual > widest) {
    notes.push(`Empty columns on the right that are left out: ${usual - widest}.`);
  }
  const width = isGuess || !first ? Math.min(usual, widest) : 0;
  const length = Math.max(first ? filledWidth(first) : 0, width);
  const header = Array.from({ length }, (_, at) =>
    first ? (first.cells[at] ?? '') : String(at + 1),
  );
  if (titles.length > 0) {
    notes.push(noteAbout(titles, place));
  }
  if (!first) {
    notes.push(`${file} has no column names, so its columns are numbered.`);
  } else if (isGuess) {
    notes.push(`${place} ${first.line} is read as column names, because it has no NPI.`);
  }
  const rows = body.map((row) => cut(row, widest));
  const above = titles.map((row) => cut(row, widest));
  return { file, form, place, titles: above, header, rows, notes };
}

/** Returns the number of cells up to the last one with text. */
function filledWidth({ cells }: Row): number {
  return cells.findLastIndex((cell) => cell.trim() !== '') + 1;
}

function cut({ line, cells }: Row, width: number): Row {
  return { line, cells: cells.length > width ? cells.slice(0, width) : cells };
}

function noteAbout(titles: readonly Row[], place: string): string {
  const texts = titles.map(({ line, cells }) => {
    const text = cells.filter((cell) => cell.trim() !== '').join(' ');
    return `${place} ${line}: "${text.slice(0, MAX_TITLE)}"`;
  });
  return `Above the table, and not looked up: ${texts.join(', ')}.`;
}

/**
 * Reads the NPI of each row.
 * @param index the position of the NPI column, from 0
 */
export function contactsIn(table: Table, index: number): Contacts {
  const { form, place, titles, header, rows, notes } = table;
  const moved: number[] = [];
  const contacts = rows.map((row) => {
    const { line, cells } = row;
    const at = positionOf(row, header.length, index);
    const cell = cells[at ?? index] ?? '';
    const earlier = earlierOf(header, cells);
    if (at === null) {
      return { line, cells, cell, earlier, npi: null, problem: UNCLEAR };
    }
    if (at !== index) moved.push(line);
    return { line, cells, cell, earlier, ...readNpi(cell) };
  });
  const all = [...notes];
  const kept = contacts.filter(({ earlier }) => earlier).length;
  if (kept > 0) {
    all.push(`Rows that keep an email from an earlier run: ${kept}.`);
  }
  if (moved.length > 0) {
    all.push(
      `These rows have more cells than the column names, and their NPI is further right: ${listed(place.toLowerCase(), moved)}.`,
    );
  }
  const column = header[index]?.trim() ?? '';
  return { form, place, titles, header, rows: contacts, column, notes: all };
}

const UNCLEAR =
  'is in a row with more cells than the column names, in which several cells could be the NPI';

/**
 * Returns the position of a row's NPI, or null if several cells could be it. It is further right than
 * its column if a name has a comma without quotes. Then a phone number can be in its column.
 */
function positionOf(row: Row, width: number, index: number): number | null {
  const { cells } = row;
  const cell = cells[index] ?? '';
  const isName = cell.trim() !== '' && !isMeantAsNpi(cell);
  // Nothing is left of the first column, so its cells are never moved to the right.
  const isClear = isNpi(cell) ? index === 0 : !isName;
  if (cells.length <= width || isClear) {
    return index;
  }
  const last = index + filledWidth(row) - width;
  const found = [...cells.keys()].filter(
    (at) => at >= index && at <= last && isAssignable(cells[at] ?? ''),
  );
  const [only = index, ...more] = found;
  return more.length === 0 ? only : null;
}

/** Returns true for an NPI that begins with 1 or 2, as every assigned NPI does. */
function isAssignable(cell: string): boolean {
  return isNpi(cell) && /^[12]/.test(readNpi(cell).npi ?? '');
}

/** Returns the added cells of a row whose email an earlier run found, or null. */
function earlierOf(
  header: readonly string[],
  cells: readonly string[],
): readonly string[] | null {
  const added = ADDED.map((name) => cells[header.indexOf(name)] ?? '');
  return added[ADDED.indexOf('enriched_status')] === 'completed' ? added : null;
}
