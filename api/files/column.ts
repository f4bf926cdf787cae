import { isNpi } from './cell.ts';
import { columnsWithNpis, isNpiName, simple } from './layout.ts';
import type { Table } from './table.ts';
import { UsageError } from './usage-error.ts';

export interface Column {
  /** Position of the column, from 0. */
  readonly index: number;
  /** True if the column is a guess, because its name is not exactly the requested one. */
  readonly isGuess: boolean;
}

/**
 * Finds the column with the NPIs.
 * @param wanted a name, or a number from 1. If undefined, the column is found by its name and cells
 * @throws {UsageError} if there is no such column, or more than one
 */
export function findColumn(
  { file, header, rows }: Pick<Table, 'file' | 'header' | 'rows'>,
  wanted: string | undefined,
): Column {
  const all = header.map((_, index) => index);
  const named = (name: string) =>
    all.filter((index) => simple(header[index]) === simple(name));
  if (wanted !== undefined) {
    const byName = named(wanted);
    const byNumber = all.filter((index) => String(index + 1) === wanted);
    const found = byName.length > 0 ? byName : byNumber;
    return { index: only(file, header, found, `"${wanted}"`), isGuess: false };
  }
  const withNpis = columnsWithNpis(rows).filter((index) => index < header.length);
  const exact = named('npi');
  const [index = -1, ...more] = exact;
  // Another column is used only if this one has no NPIs, such as one with `Y` and `N`.
  const isUsed = withNpis.includes(index) || withNpis.length === 0 || hasNpi(rows, index);
  if (index >= 0 && more.length === 0 && isUsed) {
    return { index, isGuess: false };
  }
  const hinted = all.filter((at) => isNpiName(header[at] ?? ''));
  const both = hinted.filter((at) => withNpis.includes(at));
  const [found] = [both, withNpis, hinted].filter(({ length }) => length > 0);
  return { index: only(file, header, found ?? []), isGuess: true };
}

function hasNpi(rows: Table['rows'], index: number): boolean {
  return rows.some(({ cells }) => isNpi(cells[index] ?? ''));
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
