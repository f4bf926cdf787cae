import { readNpi } from './cell.ts';
import { UsageError } from './usage-error.ts';

export interface Column {
  /** Position of the column, from 0. */
  readonly index: number;
  /** True if the column is a guess, because its name is not exactly the requested one. */
  readonly isGuess: boolean;
}

/** Number of rows that are read to recognize a column by its cells. */
const SAMPLE = 1000;

/**
 * Finds the column with the NPIs.
 * @param names the names of the columns
 * @param rows the cells of each row
 * @param wanted a name, or a number from 1. If undefined, the column is found by its name and cells
 * @throws {UsageError} if there is no such column, or more than one
 */
export function findColumn(
  file: string,
  names: readonly string[],
  rows: readonly (readonly string[])[],
  wanted: string | undefined,
): Column {
  const all = names.map((_, index) => index);
  const named = (name: string) =>
    all.filter((index) => simple(names[index]) === simple(name));
  if (wanted !== undefined) {
    const byName = named(wanted);
    const byNumber = all.filter((index) => String(index + 1) === wanted);
    const found = byName.length > 0 ? byName : byNumber;
    return { index: only(file, names, found, `"${wanted}"`), isGuess: false };
  }
  const [index, ...more] = named('npi');
  if (index !== undefined && more.length === 0) {
    return { index, isGuess: false };
  }
  const hinted = all.filter((at) => /npi|national ?provider ?id/.test(simple(names[at])));
  if (hinted.length === 1) {
    return { index: only(file, names, hinted), isGuess: true };
  }
  const sample = rows.slice(0, SAMPLE);
  const some = hinted.length > 0 ? hinted : all;
  const found = some.filter((at) => hasMostlyNpis(sample, at));
  return { index: only(file, names, found), isGuess: true };
}

function only(
  file: string,
  names: readonly string[],
  found: readonly number[],
  what = 'with NPIs',
): number {
  const [index, ...more] = found;
  if (index === undefined) {
    const has = names.map((name) => name.trim()).join(', ');
    throw new UsageError(
      `${file} has no column ${what}. It has: ${has}. Choose one with --column.`,
    );
  }
  if (more.length > 0) {
    const choices = found.map((at) => `--column ${at + 1} (${names[at]?.trim()})`);
    throw new UsageError(
      `${file} has several columns ${what}. Choose ${choices.join(' or ')}.`,
    );
  }
  return index;
}

/** Returns a name without upper case, punctuation, and invisible characters. */
function simple(name = ''): string {
  return name
    .normalize('NFKC')
    .replace(/\p{Cf}/gu, '')
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, ' ')
    .trim();
}

function hasMostlyNpis(rows: readonly (readonly string[])[], index: number): boolean {
  const cells = rows.map((row) => row[index] ?? '').filter((cell) => cell.trim() !== '');
  const usable = cells.filter((cell) => readNpi(cell).npi !== null);
  return usable.length * 2 > cells.length;
}
