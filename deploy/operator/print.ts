import type { Database } from '../../db/client.ts';

/** What a command has to say: `data` for `--json`, `text` for people. */
export interface Report {
  readonly data: unknown;
  readonly text: string;
  /** That of a command that did its work, if what it found isn't for 0. */
  readonly exitCode?: 0 | 1 | 3;
}

/** Does a command's work on the database, and prints what it comes to: a `Report`, or data as it is. */
export type Run = (work: (db: Database) => Promise<object>) => Promise<void>;

export function isReport(said: object): said is Report {
  return 'data' in said && 'text' in said;
}

/** A report that is the data itself: a list as a table, a record as lines, under the names that `--json` has. */
export function plain(data: object): Report {
  return { data, text: Array.isArray(data) ? table(data) : fields(data) };
}

/** No line is longer: that of the terminal from 80 to 120, and 120 for pipes. */
const LINE = Math.min(Math.max(process.stdout.columns || 120, 80), 120);
const WIDEST_TEXT = 40;
const GAP = '  ';

/** Lines of `name  value`, the values aligned; members of a member stand under both names. */
export function fields(record: object): string {
  const cells = Object.entries(record).flatMap(([name, cell]) =>
    isRecord(cell)
      ? Object.entries(cell).map(([inner, innerCell]) => [`${name} ${inner}`, innerCell] as const)
      : [[name, cell] as const],
  );
  const width = longest(cells.map(([name]) => spelled(name, ' ')));
  return cells
    .map(([name, cell]) => {
      const lines = wrapped(textOf(cell), LINE - width - GAP.length);
      return `${spelled(name, ' ').padEnd(width)}${GAP}${lines.join(`\n${' '.repeat(width)}${GAP}`)}`;
    })
    .join('\n');
}

/**
 * The rows under the names of their members, or of those that are given; numbers stand right, everything else left.
 * Long cells are wrapped, and the columns that find no room in a line go on in the next, indented.
 */
export function table<T extends object>(rows: readonly T[], names?: readonly (keyof T & string)[]): string {
  const [first] = rows;
  if (first === undefined) return '(none)';
  const groups: Column[][] = [];
  let room = 0;
  for (const name of names ?? (Object.keys(first) as (keyof T & string)[])) {
    const cells = rows.map((row) => row[name]);
    const column = columnOf(spelled(name, ' ').toUpperCase(), cells);
    room -= GAP.length + column.width;
    if (room < 0) {
      groups.push([]);
      room = LINE - GAP.length - column.width;
    }
    groups.at(-1)?.push(column);
  }
  return Array.from({ length: rows.length + 1 }, (_, row) =>
    groups.flatMap((group, n) => linesOf(group, row, n === 0 ? '' : GAP)),
  )
    .flat()
    .join('\n');
}

type Column = ReturnType<typeof columnOf>;

/** A heading and its cells, each as the lines it takes. */
function columnOf(heading: string, cells: readonly unknown[]) {
  const texts = [heading, ...cells.map(textOf)];
  // What is copied (ids, addresses, URLs) stays in one piece if a line can hold it.
  const words = longest(texts.flatMap((text) => text.split(' ')));
  const blocks = texts.map((text) =>
    wrapped(text, Math.min(Math.max(words, WIDEST_TEXT), LINE - GAP.length)),
  );
  const width = longest(blocks.flat());
  return { width, isNumber: cells.some((cell) => typeof cell === 'number'), blocks };
}

function longest(texts: readonly string[]): number {
  return texts.reduce((most, { length }) => Math.max(most, length), 0);
}

function linesOf(columns: readonly Column[], row: number, indent: string): string[] {
  const height = Math.max(...columns.map(({ blocks }) => blocks[row]?.length ?? 0));
  return Array.from({ length: height }, (_, n) => {
    const cells = columns.map(({ width, isNumber, blocks }) => {
      const line = blocks[row]?.[n] ?? '';
      return isNumber ? line.padStart(width) : line.padEnd(width);
    });
    return `${indent}${cells.join(GAP)}`.trimEnd();
  });
}

/** Between words, or within one that is too long. */
function wrapped(text: string, width: number): readonly string[] {
  return printable(text).match(new RegExp(`\\S(?:.{0,${width - 1}}(?=\\s|$)|.{${width - 1}})`, 'gu')) ?? [''];
}

/** Text from vendors, receivers and earlier operators must not move a terminal's cursor. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}]/gu, '\u{fffd}');
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

function textOf(cell: unknown): string {
  if (cell === null || cell === undefined) return '-';
  if (typeof cell === 'boolean') return cell ? 'yes' : 'no';
  if (cell instanceof Date) return cell.toISOString();
  return typeof cell === 'object' ? JSON.stringify(cell).replaceAll(',"', ', "') : String(cell);
}

function isRecord(cell: unknown): cell is Readonly<Record<string, unknown>> {
  return typeof cell === 'object' && cell !== null && !Array.isArray(cell) && !(cell instanceof Date);
}

/** `createdAt` as `created_at` or `created at`. */
function spelled(name: string, gap: '_' | ' '): string {
  return name.replace(/[A-Z]/g, (letter) => `${gap}${letter.toLowerCase()}`);
}

function withSnakeCaseNames(data: unknown): unknown {
  if (Array.isArray(data)) return data.map(withSnakeCaseNames);
  if (!isRecord(data)) return data;
  return Object.fromEntries(
    Object.entries(data).map(([name, value]) => [spelled(name, '_'), withSnakeCaseNames(value)]),
  );
}
