import { type Info, type Options, parse } from 'csv-parse/sync';
import type { Text } from './decode.ts';
import { UsageError } from './usage-error.ts';

// Parses CSV as spreadsheets export it: commas, semicolons, tabs, or bars between the cells, any line
// ends, a first line such as `sep=;`, rows with missing or extra cells, and quotes inside cells.

/** The format of the input file. The output file is written in the same format. */
export interface Form {
  readonly delimiter: string;
  /** True if the first line is `sep=` with the delimiter, as Excel reads and writes it. */
  readonly hasSeparatorLine: boolean;
  readonly bom: boolean;
  readonly recordDelimiter: 'windows' | 'unix';
}

export interface Row {
  /** The line of the file in which the row begins, from 1. */
  readonly line: number;
  readonly cells: readonly string[];
}

const DELIMITERS = [',', ';', '\t', '|'];
/** The delimiter is searched only in this many characters, because a file can be large. */
const MAX_SEARCHED = 100_000;
const SEPARATOR_LINE = /^"?sep=([^"\r\n])[^\r\n]*(?:\r\n|\n|\r)/i;

/**
 * Parses a file. Rows without any text are left out.
 * @throws {UsageError} if a quote is not closed
 */
export function parseCsv(
  file: string,
  { text, encoding, bom }: Text,
): { readonly form: Form; readonly rows: readonly Row[] } {
  const separator = SEPARATOR_LINE.exec(text);
  const delimiter = separator?.[1] ?? delimiterOf(text);
  const form: Form = {
    delimiter,
    hasSeparatorLine: separator !== null,
    // The output is UTF-8, which Excel recognizes only by the mark.
    bom: bom || encoding !== 'utf-8',
    recordDelimiter: text.includes('\r\n') ? 'windows' : 'unix',
  };
  const rows = parseRows(file, text, delimiter).filter(({ cells }) =>
    cells.some((cell) => cell.trim() !== ''),
  );
  return { form, rows: separator ? rows.slice(1) : rows };
}

/**
 * Returns the most frequent delimiter of the first line with text. Column names in quotes may have
 * line breaks.
 */
function delimiterOf(text: string): string {
  const start = text.trimStart().slice(0, MAX_SEARCHED);
  const firstLine = start.replace(/"[^"]*"/g, '').split(/[\r\n]/, 1)[0] ?? '';
  const times = (sign: string) => firstLine.split(sign).length;
  const [most = ','] = DELIMITERS.toSorted((a, b) => times(b) - times(a));
  return most;
}

/**
 * Parses all rows, with quotes as CSV defines them. If the file has other quotes, such as in
 * `Jo "Doc" Smith`, they are parsed as text.
 */
function parseRows(file: string, text: string, delimiter: string): readonly Row[] {
  const strict = attempt(text, { delimiter });
  if (!strict.isBroken) return strict.rows;
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
    return { rows, isBroken: false, nextLine };
  } catch {
    return { rows, isBroken: true, nextLine };
  }
}
