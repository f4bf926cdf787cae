import { printable } from '../../api/client/printable.ts';
import type { Database } from '../../db/client.ts';
import type { ProgressOutput } from '../nppes/output.ts';

/** The result of a command. */
export interface Report {
  readonly data: object;
  /**
   * The text to print without `--json` or `--csv`. By default, a list is printed as a table, and a
   * record as one line per member.
   */
  readonly text?: string;
  /**
   * The rows that `--csv` prints. By default, these are the items of a list, or a record as one
   * row.
   */
  readonly rows?: readonly object[];
  /** The exit code of a command that did not throw an error. The default is 0. */
  readonly exitCode?: 0 | 1 | 3;
}

/** Calls `work` with the database and prints its result, which is a `Report` or plain data. */
export type Run = (work: (db: Database) => Promise<object>) => Promise<void>;

/** Dependencies that only a few commands need. */
export interface CommandSurroundings {
  /** For imports of files from CMS, which open their own connection. */
  readonly databaseUrl: () => string;
  /** For checks of webhook URLs: ranges that deliveries may reach although they are not public. */
  readonly webhookOpenCidrs: () => readonly string[];
  readonly output: ProgressOutput;
}

/** Returns a report as text, JSON, or CSV. */
export function printed(
  { data, text, rows }: Report,
  as: { readonly json?: true; readonly csv?: true },
): string {
  if (as.csv) return csv(rows ?? [data].flat());
  if (as.json) return json(data);
  if (text !== undefined) return text;
  return Array.isArray(data) ? table(data) : fields(data);
}

/**
 * Returns the width of the terminal. If the output is a pipe or a file, lines have no maximum
 * width.
 */
const lineWidth = () => process.stdout.columns || Number.POSITIVE_INFINITY;
const GAP = '  ';
/**
 * The smallest width at which text is wrapped. If the terminal leaves less space for the text,
 * lines are longer than the terminal is wide.
 */
const NARROWEST_TEXT = 30;

/**
 * Returns a line for each member of a record, with its name and value. The values are aligned. A
 * member of a nested record has both names, such as `batch id`.
 */
export function fields(record: object): string {
  const cells = cellsOf(record);
  const width = longest(cells.map(([name]) => spelled(name, ' ')));
  const textWidth = Math.max(lineWidth() - width - GAP.length, NARROWEST_TEXT);
  const nextLine = `\n${' '.repeat(width)}${GAP}`;
  const lines = cells.map(([name, cell]) => {
    const text = wrapped(printable(textOf(cell)), textWidth).join(nextLine);
    return `${spelled(name, ' ').padEnd(width)}${GAP}${text}`;
  });
  return lines.join('\n');
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

/**
 * Returns a table with the given columns, by default all members of the first row. Columns with
 * numbers are aligned right, and all others left. If the table is wider than the terminal, each row
 * is printed as a record, as psql does with `\x auto`.
 */
export function table<T extends object>(
  rows: readonly T[],
  names: readonly (keyof T & string)[] = Object.keys(rows[0] ?? {}) as (keyof T &
    string)[],
): string {
  if (rows.length === 0) return '(none)';
  const columns = names.map((name) => {
    const cells = rows.map((row) => row[name]);
    return columnOf(name, cells);
  });
  const heading = columns.map((texts) => texts[0]).join(GAP);
  if (heading.length > lineWidth()) {
    const records = rows.map((row) =>
      Object.fromEntries(names.map((name) => [name, row[name]])),
    );
    return records.map(fields).join('\n\n');
  }
  const body = rows.map((_, n) => columns.map((texts) => texts[n + 1]).join(GAP));
  return [heading, ...body].map((line) => line.trimEnd()).join('\n');
}

/** Returns the heading and the cells of a column as texts, padded to the same length. */
function columnOf(name: string, cells: readonly unknown[]): readonly string[] {
  const heading = spelled(name, ' ').toUpperCase();
  const texts = [heading, ...cells.map((cell) => printable(textOf(cell)))];
  const width = longest(texts);
  if (cells.some((cell) => typeof cell === 'number')) {
    return texts.map((text) => text.padStart(width));
  }
  return texts.map((text) => text.padEnd(width));
}

function longest(texts: readonly string[]): number {
  return texts.reduce((most, { length }) => Math.max(most, length), 0);
}

/**
 * Returns CSV (RFC 4180) with the same names as `--json`. Customers choose some of the texts, and a
 * spreadsheet would run a text that begins like a formula. Such a text gets an apostrophe in front
 * (OWASP, CSV Injection).
 */
function csv(rows: readonly object[]): string {
  const records = rows.map((row) => new Map(cellsOf(row)));
  const names = [...new Set(records.flatMap((cells) => [...cells.keys()]))];
  const heading = names.map((name) => spelled(name, '_').replaceAll(' ', '_'));
  const lines = records.map((cells) => names.map((name) => csvCell(cells.get(name))));
  return [heading, ...lines].map((cells) => cells.join(',')).join('\n');
}

function csvCell(cell: unknown): string {
  if (cell === null || cell === undefined) return '';
  if (typeof cell === 'boolean') return String(cell);
  const isFormula = typeof cell === 'string' && /^[=+\-@\t\r]/.test(cell);
  const text = isFormula ? `'${cell}` : textOf(cell);
  if (!/[",\r\n]/.test(text)) return text;
  return `"${text.replaceAll('"', '""')}"`;
}

/** Breaks a text into lines, between words or within a word that is longer than a line. */
function wrapped(text: string, width: number): readonly string[] {
  if (text.length <= width) return [text];
  const rest = width - 1;
  const lines = text.match(new RegExp(`\\S(?:.{0,${rest}}(?=\\s|$)|.{${rest}})`, 'gu'));
  return lines ?? [''];
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
  if (Array.isArray(value)) return value.map((one) => shownValue(one, name, masks));
  if (typeof value === 'string' && masks !== null) return masks.mask(name, value);
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

/**
 * Joins the parts of a report with empty lines between them. After a heading in capitals, there is
 * no empty line.
 */
export function sections(parts: readonly string[]): string {
  return parts.join('\n\n').replaceAll(/\n\n([A-Z ]+)\n\n/g, '\n\n$1\n');
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
  if (typeof cell === 'boolean') return cell ? 'yes' : 'no';
  if (cell instanceof Date) return cell.toISOString();
  if (typeof cell === 'object') return JSON.stringify(cell).replaceAll(',"', ', "');
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
