import { isMeantAsNpi, isNpi } from './cell.ts';
import { usualWidth } from './csv.ts';
import type { Row, Sheet } from './sheet.ts';

// Finds where the table of a file begins. Line 1 does not decide this, because it can be a title or a
// row of data. In a row of column names, no cell is an NPI, and the cells above the NPIs are texts.

export interface Layout {
  /** The rows above the column names, such as a title. */
  readonly titles: readonly Row[];
  /** The row with the column names, or null if the file has none. */
  readonly header: Row | null;
  readonly body: readonly Row[];
  /** True if no name of a column says that it has NPIs, so the header is a guess. */
  readonly isGuess: boolean;
}

/** The number of rows that are read to recognize the columns. */
const SAMPLE = 1000;
/** The column names are searched in this many rows. So at most this many can be above the table. */
export const MAX_TITLES = 30;
/** The number of characters that are compared of a name. */
const MAX_NAME = 200;

/** Divides the rows of a sheet into titles, column names, and data. */
export function layoutOf({ rows }: Pick<Sheet, 'rows'>): Layout {
  const sample = rows.slice(0, SAMPLE);
  const first = sample.findIndex(({ cells }) => cells.some(isNpi));
  const tops = sample.slice(0, first === -1 ? MAX_TITLES : Math.min(first, MAX_TITLES));
  const data = first === -1 ? [] : sample.slice(first);
  const filled = usualFilled(data);
  const exact = tops.findIndex(({ cells }) => namesNpis(cells, filled));
  const named = exact === -1 ? tops.findIndex((row) => hintsAtNpis(row, filled)) : exact;
  if (named !== -1) {
    return divided(rows, named, false);
  }
  if (first === -1) {
    return divided(rows, 0, true);
  }
  const guess = guessHeader(tops, columnsWithNpis(data), filled);
  if (guess !== null) {
    return divided(rows, guess, true);
  }
  const end = tops.findIndex((row) => !isTitle(row, filled));
  const begin = end === -1 ? tops.length : end;
  return {
    titles: rows.slice(0, begin),
    header: null,
    body: rows.slice(begin),
    isGuess: false,
  };
}

/** Returns true for a row with one text. A row with only an NPI, even a mistyped one, is data. */
function isTitle(row: Row, filled: number): boolean {
  return filled > 1 && countFilled(row) === 1 && !row.cells.some(isMeantAsNpi);
}

function divided(rows: readonly Row[], at: number, isGuess: boolean): Layout {
  const header = rows[at] ?? null;
  return { titles: rows.slice(0, at), header, body: rows.slice(at + 1), isGuess };
}

/** Returns true if one of the cells is `NPI`, or the name of a column that an earlier run added. */
function namesNpis(cells: readonly string[], filled: number): boolean {
  const names = cells.map(simple);
  const count = names.filter((name) => name !== '').length;
  return (
    names.includes('enriched status') || (names.includes('npi') && count * 2 >= filled)
  );
}

/** Returns true if a cell has a name such as `Provider NPI`. A title has only one cell. */
function hintsAtNpis(row: Row, filled: number): boolean {
  const { cells } = row;
  const isTitle = countFilled(row) < Math.min(2, filled);
  return !isTitle && cells.some(isNpiName) && !cells.some(isMeantAsNpi);
}

/** Returns the position of the first row that can be column names, or null. */
function guessHeader(
  tops: readonly Row[],
  columns: readonly number[],
  filled: number,
): number | null {
  for (const [at, row] of tops.entries()) {
    const above = columns.map((column) => row.cells[column] ?? '');
    // This is data with a mistyped NPI.
    if (above.some(isMeantAsNpi)) {
      return null;
    }
    const areTexts = above.some((cell) => cell.trim() !== '');
    if (areTexts && countFilled(row) * 2 >= filled) {
      return at;
    }
  }
  return null;
}

/** Returns the positions of the columns in which at least half of the texts are NPIs. */
export function columnsWithNpis(rows: readonly Row[]): number[] {
  const texts: number[] = [];
  const npis: number[] = [];
  for (const { cells } of rows.slice(0, SAMPLE)) {
    for (const [at, cell] of cells.entries()) {
      if (cell.trim() === '') continue;
      texts[at] = (texts[at] ?? 0) + 1;
      if (isNpi(cell)) npis[at] = (npis[at] ?? 0) + 1;
    }
  }
  const columns = npis.map((count, at) => (count * 2 >= (texts[at] ?? 0) ? at : -1));
  return columns.filter((at) => at >= 0);
}

/** Matches names such as `Provider NPI` and `NPINumber`, but not texts such as `NPI pending`. */
const NPI_NAME =
  /npis?(?: ?(?:numbers?|num|no|nbr|ids?|code|digits?|\d))*$|\bnational ?provider ?id/;

/** Returns true if a column with this name probably has NPIs. */
export function isNpiName(name: string): boolean {
  return NPI_NAME.test(simple(name));
}

/** Returns a name without upper case, punctuation, and invisible characters. */
export function simple(name = ''): string {
  return name
    .slice(0, MAX_NAME)
    .normalize('NFKC')
    .replace(/\p{Cf}/gu, '')
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim();
}

function countFilled({ cells }: Row): number {
  return cells.filter((cell) => cell.trim() !== '').length;
}

/** Returns the most frequent number of cells with text. */
function usualFilled(rows: readonly Row[]): number {
  const filled = rows.map(({ line, cells }) => ({
    line,
    cells: cells.filter((cell) => cell.trim() !== ''),
  }));
  return usualWidth(filled);
}
