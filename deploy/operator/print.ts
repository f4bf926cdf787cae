import { printable } from '../../api/client/printable.ts';
import type { Database } from '../../db/client.ts';
import type { ProgressOutput } from '../nppes/output.ts';

/** The result of a command. */
export interface Report {
  readonly data: object;
  /**
   * Text for people. By default, a list is printed as a table and a record as lines, with the names
   * that `--json` has.
   */
  readonly text?: string;
  /** Rows for `--csv`, if the data is neither a list nor a record that makes a row. */
  readonly rows?: readonly object[];
  /** The exit code of a command that ran to its end. Default 0. */
  readonly exitCode?: 0 | 1 | 3;
}

/** Does a command's work on the database and prints the result: a `Report`, or plain data. */
export type Run = (work: (db: Database) => Promise<object>) => Promise<void>;

/** Needed by few commands. */
export interface CommandSurroundings {
  /** An import of CMS's files opens its own connection. */
  readonly databaseUrl: () => string;
  readonly output: ProgressOutput;
}

/** Returns a report in the requested format. */
export function printed(
  { data, text, rows }: Report,
  as: { readonly json?: true; readonly csv?: true },
): string {
  if (as.csv) return csv(rows ?? (Array.isArray(data) ? data : [data]));
  if (as.json) return json(data);
  return text ?? (Array.isArray(data) ? table(data) : fields(data));
}

/** Maximum width of a line on a terminal. In a pipe, a row is always one line. */
const lineWidth = () => process.stdout.columns || Number.POSITIVE_INFINITY;
const GAP = '  ';
/** Wide enough that an id stays in one piece and can be copied. */
const NARROWEST_TEXT = 30;

/**
 * Returns lines of `name  value` with the values aligned. Members of a nested record get both
 * names.
 */
export function fields(record: object): string {
  const cells = cellsOf(record);
  const width = longest(cells.map(([name]) => spelled(name, ' ')));
  const room = Math.max(lineWidth() - width - GAP.length, NARROWEST_TEXT);
  return cells
    .map(([name, cell]) => {
      const lines = wrapped(printable(textOf(cell)), room);
      return `${spelled(name, ' ').padEnd(width)}${GAP}${lines.join(`\n${' '.repeat(width)}${GAP}`)}`;
    })
    .join('\n');
}

/** Returns the names and values of a record. The members of a nested record get both names. */
function cellsOf(record: object): readonly (readonly [name: string, cell: unknown])[] {
  return Object.entries(record).flatMap(([name, cell]) =>
    isRecord(cell)
      ? Object.entries(cell).map(([inner, innerCell]) => [`${name} ${inner}`, innerCell] as const)
      : [[name, cell] as const],
  );
}

/**
 * Returns a table with the given columns, by default all members. Numbers are aligned right,
 * everything else left. If the rows are wider than the terminal, they are printed as records, like
 * psql does with `\x auto`.
 */
export function table<T extends object>(
  rows: readonly T[],
  names: readonly (keyof T & string)[] = Object.keys(rows[0] ?? {}) as (keyof T & string)[],
): string {
  if (rows.length === 0) return '(none)';
  const columns = names.map((name) => {
    const cells = rows.map((row) => row[name]);
    const texts = [
      spelled(name, ' ').toUpperCase(),
      ...cells.map((cell) => printable(textOf(cell))),
    ];
    const width = longest(texts);
    const isNumber = cells.some((cell) => typeof cell === 'number');
    return texts.map((text) => (isNumber ? text.padStart(width) : text.padEnd(width)));
  });
  const lines = Array.from({ length: rows.length + 1 }, (_, n) =>
    columns.map((texts) => texts[n]).join(GAP),
  );
  if ((lines[0] ?? '').length <= lineWidth()) return lines.map((line) => line.trimEnd()).join('\n');
  const records = rows.map((row) => Object.fromEntries(names.map((name) => [name, row[name]])));
  return records.map(fields).join('\n\n');
}

function longest(texts: readonly string[]): number {
  return texts.reduce((most, { length }) => Math.max(most, length), 0);
}

/**
 * Returns CSV (RFC 4180) with the names that `--json` has. A text that a spreadsheet would read as
 * a formula gets an apostrophe in front (OWASP, CSV Injection), because customers choose some of
 * the names.
 */
function csv(rows: readonly object[]): string {
  const lines = rows.map((row) => new Map(cellsOf(row)));
  const names = [...new Set(lines.flatMap((cells) => [...cells.keys()]))];
  const quoted = (text: string) =>
    /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const textIn = (cell: unknown) => {
    if (cell === null || cell === undefined) return '';
    if (typeof cell === 'boolean') return String(cell);
    return quoted(
      typeof cell === 'string' && /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : textOf(cell),
    );
  };
  const heading = names.map((name) => spelled(name, '_').replaceAll(' ', '_'));
  return [heading, ...lines.map((cells) => names.map((name) => textIn(cells.get(name))))]
    .map((cells) => cells.join(','))
    .join('\n');
}

/** Breaks a text between words, or within a word that is too long. */
function wrapped(text: string, width: number): readonly string[] {
  if (text.length <= width) return [text];
  return text.match(new RegExp(`\\S(?:.{0,${width - 1}}(?=\\s|$)|.{${width - 1}})`, 'gu')) ?? [''];
}

/** Returns `1 credit`, `2 credits`. */
export function counted(n: number, one: string): string {
  return `${n} ${one}${n === 1 ? '' : 's'}`;
}

/**
 * Masks data for display. Unless `reveal` is set, `jane.roe@example.org` becomes
 * `j***@example.org`, with a number if two addresses would look alike. URLs keep only their origin,
 * because their paths and queries contain tokens. The responses of receivers are left out, because
 * they may repeat what we sent.
 */
export function shown<T>(data: T, reveal = false): T {
  const alike = new Map<string, Set<string>>();
  const masks: Readonly<Record<string, (text: string) => string>> = {
    email: (email) => {
      const short = `${email.slice(0, 1)}***${email.slice(email.lastIndexOf('@'))}`;
      const emails = (alike.get(short) ?? new Set()).add(email);
      alike.set(short, emails);
      const n = [...emails].indexOf(email) + 1;
      return n === 1 ? short : `${short} (${n})`;
    },
    url: (url) => `${URL.parse(url)?.origin ?? '***'}/***`,
  };
  const of = (value: unknown, name: string): unknown => {
    if (Buffer.isBuffer(value)) return value.toString();
    if (Array.isArray(value)) return value.map((one) => of(one, name));
    if (isRecord(value)) {
      const members = Object.entries(value).filter(
        ([member]) => reveal || member !== 'responseExcerpt',
      );
      return Object.fromEntries(members.map(([member, its]) => [member, of(its, member)]));
    }
    const mask = reveal ? undefined : masks[name === 'webhookUrl' ? 'url' : name];
    return mask && typeof value === 'string' ? mask(value) : value;
  };
  return of(data, '') as T;
}

/**
 * Joins the parts of a report with an empty line between them. A heading in capitals stands right
 * above its part.
 */
export function sections(parts: readonly string[]): string {
  return parts.join('\n\n').replaceAll(/\n\n([A-Z ]+)\n\n/g, '\n\n$1\n');
}

/**
 * Returns JSON with the API's spelling of names, such as `created_at`. Times are in UTC with
 * milliseconds.
 */
export function json(data: unknown): string {
  const renamed = (_: string, value: unknown) =>
    isRecord(value)
      ? Object.fromEntries(
          Object.entries(value).map(([name, member]) => [spelled(name, '_'), member]),
        )
      : value;
  return JSON.stringify(data, renamed, 2);
}

function textOf(cell: unknown): string {
  if (cell === null || cell === undefined) return '-';
  if (typeof cell === 'boolean') return cell ? 'yes' : 'no';
  if (cell instanceof Date) return cell.toISOString();
  return typeof cell === 'object' ? JSON.stringify(cell).replaceAll(',"', ', "') : String(cell);
}

function isRecord(cell: unknown): cell is Readonly<Record<string, unknown>> {
  return (
    typeof cell === 'object' && cell !== null && !Array.isArray(cell) && !(cell instanceof Date)
  );
}

/** Spells `createdAt` as `created_at` or `created at`. */
export function spelled(name: string, gap: '_' | ' '): string {
  return name.replace(/[A-Z]+/g, (letters) => `${gap}${letters.toLowerCase()}`);
}
