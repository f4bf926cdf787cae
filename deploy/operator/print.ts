import type { Database } from '../../db/client.ts';

/** What a command has to say: `data` for `--json`, `text` for people. */
export interface Report {
  readonly data: unknown;
  readonly text: string;
  /** Of a command that did its work, if what it found is not for 0. */
  readonly exitCode?: 0 | 1 | 3;
}

/** Runs a command's work on the database and prints its report. `subject` is the id that was asked for. */
export type Run = (subject: string | null, work: (db: Database) => Promise<Report>) => Promise<void>;

export type Cell = string | number | boolean | Date | null;

/** Lines of `name  value`, the values aligned. */
export function fields(cells: Readonly<Record<string, Cell>>): string {
  const width = Math.max(...Object.keys(cells).map((name) => name.length));
  return Object.entries(cells)
    .map(([name, cell]) => `${name.padEnd(width)}  ${textOf(cell)}`)
    .join('\n');
}

/** One line per row under a heading; numbers stand right, everything else left. */
export function table<T>(rows: readonly T[], columns: Readonly<Record<string, (row: T) => Cell>>): string {
  if (rows.length === 0) return '(none)';
  const aligned = Object.entries(columns).map(([heading, cellOf]) => {
    const cells = rows.map(cellOf);
    const texts = [heading, ...cells.map(textOf)];
    const width = Math.max(...texts.map((text) => text.length));
    const isNumber = cells.some((cell) => typeof cell === 'number');
    return texts.map((text) => (isNumber ? text.padStart(width) : text.padEnd(width)));
  });
  return Array.from({ length: rows.length + 1 }, (_, line) =>
    aligned
      .map((column) => column[line])
      .join('  ')
      .trimEnd(),
  ).join('\n');
}

/** `jane.roe@example.org` → `j***@example.org`: enough to tell that there is one and whose mail server it is at. */
export function maskedEmail(email: string): string {
  const at = email.lastIndexOf('@');
  return `${email.slice(0, 1)}***${email.slice(at)}`;
}

/** `https://example.com/***`: paths and queries of webhook URLs carry tokens. */
export function maskedUrl(url: string): string {
  return `${URL.parse(url)?.origin ?? '***'}/***`;
}

/** Parts of a report, one empty line between them; a heading in capitals stands right over its part. */
export function sections(parts: readonly string[]): string {
  return parts.join('\n\n').replaceAll(/\n\n([A-Z ]+)\n\n/g, '\n\n$1\n');
}

/** JSON with the API's spelling of names: `created_at`, times in UTC with milliseconds. */
export function json(data: unknown): string {
  return JSON.stringify(withSnakeCaseNames(data), null, 2);
}

/** Text from vendors, receivers and earlier operators must not move a terminal's cursor. */
function textOf(cell: Cell): string {
  if (cell === null) return '-';
  if (typeof cell === 'boolean') return cell ? 'yes' : 'no';
  if (cell instanceof Date) return cell.toISOString();
  return String(cell).replace(/[\p{Cc}\p{Cf}]/gu, '\u{fffd}');
}

function withSnakeCaseNames(data: unknown): unknown {
  if (Array.isArray(data)) return data.map(withSnakeCaseNames);
  if (typeof data !== 'object' || data === null || data instanceof Date) return data;
  return Object.fromEntries(
    Object.entries(data).map(([name, value]) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      withSnakeCaseNames(value),
    ]),
  );
}
