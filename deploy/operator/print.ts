import cliTruncate from 'cli-truncate';
import stringWidth from 'string-width';
import wrapAnsi from 'wrap-ansi';
import type { Database } from '../../db/connection/client.ts';
import type { ProgressOutput } from '../nppes/output.ts';
import { printable } from '../printable.ts';

/**
 * Returns the text of a table or a record for an output with this number of columns. A character has
 * one column, most Chinese, Japanese, and Korean ones have two, and a combining mark has none.
 */
type Layout = (width: number) => string;
export type Part = string | Layout;

/** The result of a command. */
export interface Report {
  readonly data: object;
  /**
   * The parts of the text to print without `--json`, with an empty line between them.
   * After a heading in capitals, there is no empty line. By default, a list is printed as a table,
   * and a record as one line per member.
   */
  readonly parts?: readonly Part[];
  /** The exit code of a command that did not throw an error. The default is 0. */
  readonly exitCode?: 0 | 1 | 3;
}

/** Calls `work` with the database and prints its result, which is a `Report` or plain data. */
export type Run = (work: (db: Database) => Promise<object>) => Promise<void>;

/** Dependencies that only a few commands need. */
export interface CommandSurroundings {
  /** For imports of files from CMS, which open their own connection. */
  readonly databaseUrl: () => string;
  readonly output: ProgressOutput;
}

/** The width of a pipe and of a file. The libraries that measure text want a finite number. */
const UNLIMITED = Number.MAX_SAFE_INTEGER;

/** Returns the columns of the terminal. */
export function outputWidth(): number {
  return process.stdout.columns || UNLIMITED;
}

/** Returns a report as lines of text, or as JSON. */
export function printed({ data, parts }: Report, isJson: boolean): string {
  if (isJson) return `${json(data)}\n`;
  const usual = Array.isArray(data) ? table(data) : fields(data);
  return `${sections(parts ?? [usual], outputWidth())}\n`;
}

const GAP = '  ';
/**
 * The smallest width at which text is wrapped. If the terminal leaves less space for the text,
 * lines are longer than the terminal is wide.
 */
const NARROWEST_TEXT = 30;

/**
 * Lays out a line for each member of a record, with its name and value. The values are aligned. A
 * member of a nested record has both names, such as `batch id`.
 */
export function fields(record: object): Layout {
  const cells = cellsOf(record);
  return labeled(cells.map(([name, cell]) => [spelled(name, ' '), textOf(cell)]));
}

/** Lays out a line for each pair of a label and a text. The texts are aligned. */
export function labeled(
  pairs: readonly (readonly [label: string, text: string])[],
): Layout {
  return (width) => {
    const labelWidth = widest(pairs.map(([label]) => label));
    const textWidth = Math.max(width - labelWidth - GAP.length, NARROWEST_TEXT);
    const nextLine = `\n${' '.repeat(labelWidth)}${GAP}`;
    const lines = pairs.map(([label, text]) => {
      const wrapped = wrapAnsi(printable(text), textWidth, { hard: true });
      return `${padded(label, labelWidth)}${GAP}${wrapped.replaceAll('\n', nextLine)}`;
    });
    return lines.join('\n');
  };
}

/**
 * Returns the names and values of a record. A member of a nested record has both names, separated
 * by a space.
 */
function cellsOf(record: object): readonly (readonly [name: string, cell: unknown])[] {
  const cells: [string, unknown][] = [];
  for (const [name, cell] of Object.entries(record)) {
    if (!isRecord(cell)) {
      cells.push([name, cell]);
      continue;
    }
    for (const [inner, value] of Object.entries(cell)) {
      cells.push([`${name} ${inner}`, value]);
    }
  }
  return cells;
}

/** The greatest width of a cell in a terminal. An id has 30 characters. */
const MAX_CELL = 40;

/**
 * Lays out a table. Columns with numbers are aligned right, and all others left. In a terminal, long
 * cells and lines are cut, with an ellipsis. In a pipe or a file, nothing is cut.
 * @param names the columns, the most useful first. The default is all members of the first row
 */
export function table<T extends object>(
  rows: readonly T[],
  names: readonly (keyof T & string)[] = Object.keys(rows[0] ?? {}) as (keyof T &
    string)[],
): Layout {
  return (width) => {
    if (rows.length === 0) return '(none)';
    const longestLine = Math.max(width, MAX_CELL);
    const longest = width === UNLIMITED ? UNLIMITED : MAX_CELL;
    const columns = names.map((name) => {
      const cells = rows.map((row) => row[name]);
      return columnOf(name, cells, longest);
    });
    const lines = ['', ...rows].map((_, n) => columns.map((texts) => texts[n]).join(GAP));
    return lines.map((line) => cliTruncate(line.trimEnd(), longestLine)).join('\n');
  };
}

/** Returns the heading and the cells of a column as texts, padded to the same width. */
function columnOf(
  name: string,
  cells: readonly unknown[],
  longest: number,
): readonly string[] {
  const heading = spelled(name, ' ').toUpperCase();
  const texts = [heading];
  for (const cell of cells) {
    texts.push(cliTruncate(printable(cellText(cell)), longest));
  }
  const width = widest(texts);
  if (cells.some((cell) => typeof cell === 'number')) {
    return texts.map((text) => text.padStart(width));
  }
  return texts.map((text) => padded(text, width));
}

function padded(text: string, width: number): string {
  return text + ' '.repeat(width - stringWidth(text));
}

/** Returns the text of a cell. A time has no milliseconds, which only JSON has. */
function cellText(cell: unknown): string {
  const text = textOf(cell);
  if (cell instanceof Date) return text.replace(/\.\d+Z$/, 'Z');
  return text;
}

function widest(texts: readonly string[]): number {
  return texts.reduce((most, text) => Math.max(most, stringWidth(text)), 0);
}

/** Returns a row with the most useful columns first, for `table`. */
export function leading<Row extends object>(
  row: Row,
  first: readonly (keyof Row)[],
): object {
  const columns = first.map((name) => [name, row[name]]);
  return Object.assign(Object.fromEntries(columns), row);
}

/** Returns a number with its noun, such as `1 credit` or `2 credits`. */
export function counted(n: number, one: string): string {
  if (n === 1) return `1 ${one}`;
  return `${n} ${one}s`;
}

/**
 * Masks personal data for display, unless `reveal` is set. `jane.roe@example.org` becomes
 * `j***@example.org`. If two different addresses have the same masked form, a number is added to
 * the second one. Only the origin of a URL is shown, because its path or query may contain a token.
 * The responses of webhook receivers are left out, because they may repeat what we sent.
 */
export function shown<T>(data: T, reveal = false): T {
  return shownValue(data, '', reveal ? null : new Masks()) as T;
}

/** @param masks null if nothing is masked */
function shownValue(value: unknown, name: string, masks: Masks | null): unknown {
  if (Buffer.isBuffer(value)) return value.toString();
  if (Array.isArray(value)) {
    return value.map((one) => shownValue(one, name, masks));
  }
  if (typeof value === 'string' && masks !== null) {
    return masks.mask(name, value);
  }
  if (!isRecord(value)) return value;
  const members: [string, unknown][] = [];
  for (const [member, its] of Object.entries(value)) {
    if (masks !== null && member === 'responseExcerpt') continue;
    members.push([member, shownValue(its, member, masks)]);
  }
  return Object.fromEntries(members);
}

/** Masks the values of one report. */
class Masks {
  /** The addresses with the same masked form, by that form. */
  readonly #alike = new Map<string, string[]>();

  /**
   * Returns the value of a member, masked if the member's name shows that it is an address or a
   * URL.
   */
  mask(name: string, text: string): string {
    if (name === 'email') return this.#email(text);
    if (name === 'url' || name === 'webhookUrl') {
      return `${URL.parse(text)?.origin ?? '***'}/***`;
    }
    return text;
  }

  #email(email: string): string {
    const short = `${email.slice(0, 1)}***${email.slice(email.lastIndexOf('@'))}`;
    const emails = this.#alike.get(short) ?? [];
    if (!emails.includes(email)) emails.push(email);
    this.#alike.set(short, emails);
    const n = emails.indexOf(email) + 1;
    if (n === 1) return short;
    return `${short} (${n})`;
  }
}

function sections(parts: readonly Part[], width: number): string {
  const texts = parts.map((part) => (typeof part === 'string' ? part : part(width)));
  return texts.join('\n\n').replaceAll(/(^|\n\n)([A-Z ]+)\n\n/g, '$1$2\n');
}

/**
 * Returns JSON with names in the spelling of the API, such as `created_at`. Times are in UTC with
 * milliseconds.
 */
export function json(data: unknown): string {
  return JSON.stringify(data, (_, value) => renamed(value), 2);
}

function renamed(value: unknown): unknown {
  if (!isRecord(value)) return value;
  const members = Object.entries(value);
  return Object.fromEntries(
    members.map(([name, member]) => [spelled(name, '_'), member]),
  );
}

function textOf(cell: unknown): string {
  if (cell === null || cell === undefined) return '-';
  // JSON has null for an infinite number, such as the age of a sweep before the first one.
  if (cell === Number.POSITIVE_INFINITY) return '-';
  if (typeof cell === 'boolean') return cell ? 'yes' : 'no';
  if (cell instanceof Date) return cell.toISOString();
  if (typeof cell === 'object') {
    return JSON.stringify(cell).replaceAll(',"', ', "');
  }
  return String(cell);
}

function isRecord(cell: unknown): cell is Readonly<Record<string, unknown>> {
  if (typeof cell !== 'object' || cell === null) return false;
  return !Array.isArray(cell) && !(cell instanceof Date);
}

/** Converts a name such as `createdAt` to `created_at` or `created at`. */
export function spelled(name: string, gap: '_' | ' '): string {
  return name.replace(/[A-Z]+/g, (letters) => `${gap}${letters.toLowerCase()}`);
}
