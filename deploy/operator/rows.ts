import { createHash } from 'node:crypto';
import { type FileHandle, open, readFile, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { bare } from '../../api/files/cell.ts';
import { readSheet } from '../../api/files/file.ts';
import { MAX_TITLES } from '../../api/files/layout.ts';
import type { Row } from '../../api/files/sheet.ts';
import { UsageError } from '../../api/files/usage-error.ts';
import { MAX_VALUE_LENGTH } from '../nppes/csv.ts';
import {
  cannotOpen,
  ImportProblem,
  orImportProblem,
  requireOther,
} from '../nppes/layout.ts';

// Imports a file, and gives each row a verdict, such as `stored`. The operator's files may have every
// form that customers' files may have (api/files/). Each kind of file has its own rules
// (email-rows.ts, suppression-rows.ts, domain-rows.ts).

/** A CSV file or a workbook of the operator. */
export interface RowFile {
  readonly path: string;
  /** The name of the file, without its folder. */
  readonly name: string;
  /** A hash of the file's content. */
  readonly fingerprint: string;
  readonly rows: readonly Row[];
  /** Sentences about how the file was read. */
  readonly notes: readonly string[];
}

/** A row with its verdict. */
interface Judged {
  readonly line: number;
  readonly verdict: string;
}

/** Returns the value of a column, or an empty text if the file does not have this column. */
export type CellOf = (column: string) => string;

/** How to check and store the rows of one kind of file. */
export interface RowImport<T extends object> {
  /** The columns in the order in which a file without a header has them. */
  readonly columns: readonly string[];
  /** Further columns, which only a file with a header can have. */
  readonly others?: readonly string[];
  /** Other names of columns, with our names for them. */
  readonly aliases?: Readonly<Record<string, string>>;
  /** A row that contains all of these names is a header. */
  readonly header: readonly string[];
  /** Returns an error message if the first row can be neither a header nor data, otherwise null. */
  refuses?(first: readonly string[]): string | null;
  /** The verdicts of rows that were stored, or were known already. Other rows were refused. */
  readonly accepted: readonly string[];
  /** The free-mail domains that were not stored because `--yes` is missing. `judge` adds them. */
  readonly unconfirmed?: ReadonlySet<string>;
  /** Checks a row. @returns the value to store, or a verdict if the row is not stored */
  judge(cell: CellOf): T | string;
  /** Stores rows. @returns a verdict for each row */
  store(rows: readonly T[]): Promise<readonly string[]>;
  /** Returns the verdicts of a dry run, if `store` also rejects rows. */
  rehearse?(rows: readonly T[]): Promise<readonly string[]>;
}

/** The verdict of a dry run for a row that passes all checks. */
export const ACCEPTABLE = 'acceptable';

/** The verdict of a row above the header. It is refused, because it could be data. */
const ABOVE_HEADER = 'above_header';
const MAX_BATCH_ROWS = 1000;
/** About a million rows. Larger files would not fit into memory. */
const MAX_BYTES = 100_000_000;

/** The verdicts of an import. An import that fails has those of the rows before the failure. */
export class Tally {
  /** The number of rows by verdict. */
  readonly counts: Record<string, number> = {};
  /** The rows that were refused. */
  readonly refused: Judged[] = [];

  get rows(): number {
    return Object.values(this.counts).reduce((sum, count) => sum + count, 0);
  }

  add({ line, verdict }: Judged, accepted: readonly string[]): void {
    this.counts[verdict] = (this.counts[verdict] ?? 0) + 1;
    const isAccepted = verdict === ACCEPTABLE || accepted.includes(verdict);
    if (!isAccepted) this.refused.push({ line, verdict });
  }
}

/** Reads a file. @throws {ImportProblem} if it cannot be read, or is neither CSV nor a workbook */
export async function readRows(path: string): Promise<RowFile> {
  const status = await orImportProblem(stat(path), cannotOpen(path));
  if (status.isDirectory()) {
    throw new ImportProblem(`${path} is a folder; give a csv or xlsx file`);
  }
  if (status.size > MAX_BYTES) {
    throw new ImportProblem(`${path} has more than 100 MB; split it into smaller files`);
  }
  const bytes = await orImportProblem(readFile(path), cannotOpen(path));
  const fingerprint = createHash('sha256').update(bytes).digest('hex');
  try {
    const { rows, notes } = await readSheet(path, bytes, { mustBeOne: true });
    return { path, name: basename(path), fingerprint, rows, notes };
  } catch (error) {
    if (error instanceof UsageError) {
      throw new ImportProblem(error.message);
    }
    throw error;
  }
}

/**
 * Imports the rows of a file.
 * @param verdictsPath path of the file to which the line number and verdict of each row are written
 * @param tally gets the verdicts during the import
 * @throws {ImportProblem} if the first row is neither a header nor data, or the verdicts cannot be
 * written
 */
export async function importRows<T extends object>(
  work: RowImport<T>,
  { path, rows }: RowFile,
  verdictsPath: string | undefined,
  tally: Tally,
): Promise<void> {
  const output =
    verdictsPath === undefined ? null : await openVerdicts(path, verdictsPath);
  try {
    const { titles, names, data } = divide(work, rows);
    const above = titles.map(({ line }) => ({ line, verdict: ABOVE_HEADER }));
    await report(above, work, tally, output);
    for (let at = 0; at < data.length; at += MAX_BATCH_ROWS) {
      const batch = data.slice(at, at + MAX_BATCH_ROWS);
      const judged = await judgeAndStore(work, names, batch);
      await report(judged, work, tally, output);
    }
  } finally {
    await output?.close();
  }
}

/**
 * Opens the file for the verdicts. @throws {ImportProblem} if it is the imported file, or cannot be
 * written
 */
async function openVerdicts(path: string, verdictsPath: string): Promise<FileHandle> {
  await requireOther(path, verdictsPath);
  const file = await orImportProblem(open(verdictsPath, 'w'), cannotOpen(verdictsPath));
  await file.write('line,verdict\n');
  return file;
}

/** Counts verdicts, and writes them to the file of verdicts. */
async function report(
  judged: readonly Judged[],
  { accepted }: Pick<RowImport<object>, 'accepted'>,
  tally: Tally,
  output: FileHandle | null,
): Promise<void> {
  for (const one of judged) tally.add(one, accepted);
  const lines = judged.map(({ line, verdict }) => `${line},${verdict}\n`);
  await output?.write(lines.join(''));
}

/** Finds the header, which may be below a title, and the data. */
function divide<T extends object>(
  work: RowImport<T>,
  rows: readonly Row[],
): {
  readonly titles: readonly Row[];
  readonly names: readonly string[];
  readonly data: readonly Row[];
} {
  const isHeader = (row: Row) => {
    const given = givenNames(row);
    return work.header.every((name) => given.includes(name));
  };
  const at = rows.slice(0, MAX_TITLES).findIndex(isHeader);
  const header = rows[at];
  if (header !== undefined) {
    const names = namesOf(work, header);
    return { titles: rows.slice(0, at), names, data: rows.slice(at + 1) };
  }
  const [first] = rows;
  const refusal = first && work.refuses?.(bareCells(first));
  if (refusal) {
    throw new ImportProblem(refusal);
  }
  return { titles: [], names: work.columns, data: rows };
}

function bareCells({ cells }: Row): string[] {
  return cells.map((cell) => bare(cell.slice(0, MAX_VALUE_LENGTH)));
}

function givenNames(row: Row): string[] {
  return bareCells(row).map((cell) => cell.toLowerCase().replaceAll(' ', '_'));
}

/**
 * Returns our names for the columns of a header.
 * @throws {ImportProblem} if the header has an unknown or a repeated name. We don't skip such a
 * column, because its values may matter: a date that we don't read makes an address look old
 */
function namesOf<T extends object>(
  { columns, others = [], aliases = {} }: RowImport<T>,
  header: Row,
): readonly string[] {
  const known = [...columns, ...others];
  const names = givenNames(header).map((name) => aliases[name] ?? name);
  const unknown = bareCells(header).filter(
    (_cell, n) => names[n] !== '' && !known.includes(names[n] ?? ''),
  );
  if (unknown.length > 0) {
    const all = [...known, ...Object.keys(aliases)].join(', ');
    throw new ImportProblem(
      `unknown columns: ${unknown.join(', ')}; remove or rename them (known here: ${all})`,
    );
  }
  const twice = names.find((name, n) => name !== '' && names.indexOf(name) < n);
  if (twice === undefined) {
    return names;
  }
  throw new ImportProblem(`two columns are ${twice}; remove or rename one of them`);
}

/** Checks rows and stores the valid ones. @returns a verdict for each row */
async function judgeAndStore<T extends object>(
  work: RowImport<T>,
  names: readonly string[],
  rows: readonly Row[],
): Promise<Judged[]> {
  const judged = rows.map(({ cells }) => judgeRow(work, names, cells));
  const valid = judged.filter((one) => typeof one !== 'string');
  const stored = (await work.store(valid)).values();
  return rows.map(({ line }, n) => {
    const one = judged[n];
    if (typeof one === 'string') {
      return { line, verdict: one };
    }
    return { line, verdict: stored.next().value ?? 'unchanged' };
  });
}

function judgeRow<T extends object>(
  { columns, judge }: RowImport<T>,
  names: readonly string[],
  cells: readonly string[],
): T | string {
  // Such a row has a comma in a value without quotes, so its values are in the wrong columns.
  if (cells.slice(names.length).some((cell) => cell.trim() !== '')) {
    return 'too_many_values';
  }
  const rawOf = (column: string) => cells[names.indexOf(column)] ?? '';
  const long = columns.find((column) => rawOf(column).length > MAX_VALUE_LENGTH);
  if (long !== undefined) {
    return `${long}_too_long`;
  }
  return judge((column) => bare(rawOf(column)));
}
