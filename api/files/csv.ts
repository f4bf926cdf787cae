import { type Info, type Options, parse } from 'csv-parse/sync';
import { hasSeveral, isNpi } from './cell.ts';
import { decode, type Text } from './decode.ts';
import { type Form, listed, type Row, type Sheet } from './sheet.ts';
import { UsageError } from './usage-error.ts';

// Parses CSV as spreadsheets export it: commas, semicolons, tabs, or bars between the cells, any line
// ends, a first line such as `sep=;`, rows with missing or extra cells, and quotes inside cells.

const DELIMITERS = [',', ';', '\t', '|'];
/** The delimiter is searched only in this many characters, because a file can be large. */
const MAX_SEARCHED = 30_000;
const SEPARATOR_LINE = /^"?sep=([^"\r\n])[^\r\n]*(?:\r\n|\n|\r)/i;

/**
 * Reads the bytes of a CSV file. Rows without any text are left out.
 * @param file the name of the file in errors
 * @throws {UsageError} if the file is not CSV, has no rows, or has a quote that is not closed
 */
export function readCsv(file: string, bytes: Buffer): Sheet {
  const decoded = decode(file, bytes);
  const { text } = decoded;
  const separator = SEPARATOR_LINE.exec(text);
  const delimiter = delimiterOf(text, separator?.[1]);
  const form: Form = {
    delimiter,
    hasSeparatorLine: separator !== null,
    // The output is UTF-8, which Excel recognizes only by the mark.
    bom: decoded.bom || decoded.encoding !== 'utf-8',
    escapesFormulas: false,
    recordDelimiter: text.includes('\r\n') ? 'windows' : 'unix',
  };
  const all = parseRows(file, text, delimiter).filter(hasText);
  const notes = [...notesAbout(file, decoded)];
  const quoted = all.filter((row) => hidesRows(row, delimiter));
  if (quoted.length > 0) {
    const lines = quoted.map(({ line }) => line);
    notes.push(
      `A cell in quotes has several lines, and an NPI that is not looked up: ${listed('line', lines)}. If these lines are rows, remove the quotes.`,
    );
  }
  const rows = splitOthers(separator ? all.slice(1) : all, delimiter, notes);
  if (rows.length === 0) {
    throw new UsageError(`${file} has no rows.`);
  }
  return { form, rows, place: 'Line', name: null, names: [], notes };
}

function hasText({ cells }: Row): boolean {
  return cells.some((cell) => cell.trim() !== '');
}

/** Returns true if a cell has a line that looks like a row, as between two stray quotes. */
function hidesRows({ cells }: Row, delimiter: string): boolean {
  const lines = cells.flatMap((cell) => cell.split(/[\r\n]+/).slice(1));
  return lines.some(
    (line) => line.includes(delimiter) && line.split(delimiter).some(isNpi),
  );
}

function* notesAbout(file: string, { encoding }: Text): Generator<string> {
  if (encoding === 'windows-1252') {
    yield `${file} is not UTF-8, so it was read as Windows-1252.`;
  } else if (encoding !== 'utf-8') {
    yield `${file} is UTF-16. The result is UTF-8.`;
  }
}

/**
 * Returns the delimiter with which most rows have an NPI, or several in one cell. If two have as
 * many, it is the one with which the quotes are right for longest, then the one that splits most
 * rows into the same number of cells, and then the one with most single NPIs. One line is not enough
 * for this choice: it can be a title, or can have column names such as `name, first`.
 * @param named the delimiter that the first line of the file names
 */
function delimiterOf(text: string, named: string | undefined): string {
  const start = text.slice(0, MAX_SEARCHED);
  const candidates = named === undefined ? DELIMITERS : [named, ...DELIMITERS];
  const scores = candidates.map((delimiter) => {
    const { length } = attempt(start, { delimiter });
    const { rows } = attempt(start, { delimiter, relax_quotes: true });
    const single = rows.filter(({ cells }) => cells.some(isNpi));
    const any = rows.filter(({ cells }) => cells.some(isNpi) || cells.some(hasSeveral));
    const ranks = [any.length, length, countRegular(rows), single.length];
    return { delimiter, ranks };
  });
  scores.sort((a, b) => {
    const differences = b.ranks.map((rank, n) => rank - (a.ranks[n] ?? 0));
    return differences.find((difference) => difference !== 0) ?? 0;
  });
  return scores[0]?.delimiter ?? ',';
}

/** Counts the rows with the most frequent number of cells, if this is more than one. */
function countRegular(rows: readonly Row[]): number {
  const width = usualWidth(rows);
  return width > 1 ? rows.filter(({ cells }) => cells.length === width).length : 0;
}

/**
 * Returns the most frequent number of cells in a row, or 0 if there are no rows. If two are as
 * frequent, it is the smaller one.
 */
export function usualWidth(rows: readonly Row[]): number {
  const counts = new Map<number, number>();
  for (const { cells } of rows) {
    counts.set(cells.length, (counts.get(cells.length) ?? 0) + 1);
  }
  const [usual] = [...counts].sort(([a, times], [b, others]) => others - times || a - b);
  return usual?.[0] ?? 0;
}

/**
 * Splits the rows that have another delimiter than most rows, as in a file that was pasted together
 * from two. Only a row that then has an NPI is split.
 */
function splitOthers(
  rows: readonly Row[],
  delimiter: string,
  notes: string[],
): readonly Row[] {
  if (usualWidth(rows) < 2) {
    return rows;
  }
  const lines: number[] = [];
  const split = rows.map((row) => {
    const cells = splitOtherwise(row.cells, delimiter);
    if (cells === null) return row;
    lines.push(row.line);
    return { line: row.line, cells };
  });
  if (lines.length > 0) {
    notes.push(
      `Most rows have ${nameOf(delimiter)} between their cells, but not ${listed('line', lines)}.`,
    );
  }
  return split;
}

/** Returns the cells of a row that has another delimiter, or null if it has not. */
function splitOtherwise(
  [only = '', ...more]: readonly string[],
  delimiter: string,
): readonly string[] | null {
  if (more.length > 0) return null;
  for (const other of DELIMITERS) {
    if (other === delimiter || !only.includes(other)) {
      continue;
    }
    const { rows } = attempt(only, { delimiter: other, relax_quotes: true });
    const [row] = rows;
    if (rows.length === 1 && row?.cells.some(isNpi)) {
      return row.cells;
    }
  }
  return null;
}

function nameOf(delimiter: string): string {
  return delimiter === '\t' ? 'a tab' : `"${delimiter}"`;
}

/**
 * Parses all rows, with quotes as CSV defines them. If the file has other quotes, such as in
 * `Jo "Doc" Smith`, they are parsed as text.
 */
function parseRows(file: string, text: string, delimiter: string): readonly Row[] {
  const strict = attempt(text, { delimiter });
  if (!strict.isBroken) {
    return strict.rows;
  }
  const relaxed = attempt(text, { delimiter, relax_quotes: true });
  // A stray quote at the beginning of a cell stays there, but it may have swallowed line ends.
  const swallowed = relaxed.rows.find(({ cells }) =>
    cells.some((cell) => /^".*[\r\n]/s.test(cell)),
  );
  if (!swallowed && !relaxed.isBroken) {
    return relaxed.rows;
  }
  const line = swallowed?.line ?? relaxed.nextLine;
  throw new UsageError(
    `${file} has a quote (") in the row of line ${line} that is not closed. Close or remove it.`,
  );
}

interface Attempt {
  readonly rows: readonly Row[];
  /** True if the parser stopped at an error in the row that begins in `nextLine`. */
  readonly isBroken: boolean;
  readonly nextLine: number;
  /** The number of bytes of all rows. */
  readonly length: number;
}

/** Parses once. We count lines, because the parser counts CR LF inside quotes as two. */
function attempt(text: string, options: Options): Attempt {
  const bytes = Buffer.from(text);
  const rows: Row[] = [];
  let start = 0;
  let nextLine = 1;
  const add = (cells: string[], { bytes: end }: Pick<Info, 'bytes'>) => {
    rows.push({ line: nextLine, cells });
    const lineEnds = bytes.toString('latin1', start, end).match(/\r\n|\n|\r/g);
    nextLine += lineEnds?.length ?? 0;
    start = end;
    return null;
  };
  try {
    parse(text, {
      ...options,
      record_delimiter: ['\r\n', '\n', '\r'],
      relax_column_count: true,
      on_record: add,
    });
    return { rows, isBroken: false, nextLine, length: start };
  } catch {
    return { rows, isBroken: true, nextLine, length: start };
  }
}
