import { isUtf8 } from 'node:buffer';

// Splits NPPES's files into rows. Every value is quoted, a row has 330 columns and a kilobyte, and
// a file has ten million rows. The splitter reads each byte once and makes strings only of the
// values that are requested.

const LF = 10;
const CR = 13;
const QUOTE = 34;
const COMMA = 44;
const BYTE_ORDER_MARK = Buffer.from('\ufeff');

/**
 * More than four times the longest row of NPPES. A quote that is not closed by then will never be
 * closed.
 */
const MAX_RECORD_BYTES = 65_536;
/**
 * A row with more lines has a quote that is not closed. The limit also bounds how often a line is
 * read again.
 */
const MAX_ROW_LINES = 50;
/** The longest value that is accepted, in characters. NPPES's longest is 300. */
export const MAX_VALUE_LENGTH = 1_000;

/** A row. The next row overwrites it, so read what you need at once. */
export interface CsvRecord {
  /** The number of its first line, from 1. */
  readonly line: number;
  /** The number of all its columns. */
  readonly columns: number;
  /** False if the number of columns is wrong or a quote is never closed. */
  readonly whole: boolean;
  /** Returns the value of a column, from 0, empty if the row has no such column. */
  text(column: number): string;
  /** Returns whether the value of a column is longer than `MAX_VALUE_LENGTH`. */
  isTooLong(column: number): boolean;
}

/**
 * Returns a reader that splits the bytes of a CSV file into rows (RFC 4180). Lines end with LF or
 * CR LF, and a quote inside a quoted value need not be doubled. Text is UTF-8, or Latin-1 in a row
 * that is not valid UTF-8. A broken row is passed on as broken and does not affect other rows:
 * everything after its first line is read again.
 * @param columns the number of columns that every row must have; null to accept any number
 */
export function csvReader(columns: number | null) {
  const starts = new Int32Array(columns ?? 1024);
  const ends = new Int32Array(starts.length);
  let bytes: Buffer = Buffer.alloc(0);
  let hasBegun = false;
  // State of the row that was scanned last.
  let begin = 0;
  let nextBegin = 0;
  let bits = 0;
  let hasDoubledQuotes = false;
  let hasTooManyLines = false;
  const row = {
    line: 1,
    columns: 0,
    whole: true,
    text(column: number): string {
      if (column >= row.columns) return '';
      const start = starts[column] ?? 0;
      const end = ends[column] ?? 0;
      if (start === end) return '';
      const text = bytes.toString(encoding(), start, end);
      return hasDoubledQuotes ? text.replaceAll('""', '"') : text;
    },
    isTooLong(column: number): boolean {
      if (column >= row.columns) return false;
      const size = (ends[column] ?? 0) - (starts[column] ?? 0);
      // A value has at most as many characters as bytes.
      return size > MAX_VALUE_LENGTH && row.text(column).length > MAX_VALUE_LENGTH;
    },
  };

  return {
    /** Passes on every row that this piece of the file completes. */
    push(piece: Buffer, onRecord: (record: CsvRecord) => void): void {
      const rest = bytes.subarray(nextBegin);
      bytes = rest.length === 0 ? piece : Buffer.concat([rest, piece]);
      nextBegin = 0;
      if (!hasBegun && startsWithMark(bytes)) nextBegin = BYTE_ORDER_MARK.length;
      hasBegun = true;
      take(false, onRecord);
    },
    /** Passes on the last row, which may lack its line end. */
    end(onRecord: (record: CsvRecord) => void): void {
      take(true, onRecord);
    },
  };

  function take(isLast: boolean, onRecord: (record: CsvRecord) => void): void {
    while (nextBegin < bytes.length) {
      begin = nextBegin;
      let end = scan(isLast);
      const mayContinue = !isLast && !hasTooManyLines && bytes.length - begin <= MAX_RECORD_BYTES;
      if (end === -1 && mayContinue) return;
      row.whole = end !== -1 && (columns === null || row.columns === columns);
      const lineEnd = bytes.indexOf(LF, begin) + 1 || bytes.length;
      if (!row.whole) end = lineEnd;
      nextBegin = end;
      if (row.whole || !isBlank(begin, end)) onRecord(row);
      row.line += end === lineEnd ? 1 : linesIn(begin, end);
    }
  }

  /** Scans a row. @returns where the next row begins, or -1 if this one is not complete */
  function scan(isLastPiece: boolean): number {
    const length = Math.min(bytes.length, begin + MAX_RECORD_BYTES + 1);
    const isLast = isLastPiece && length === bytes.length;
    let lines = 0;
    let at = begin;
    let count = 0;
    row.columns = 0;
    bits = 0;
    hasDoubledQuotes = false;
    hasTooManyLines = false;
    for (;;) {
      let start = at;
      let end = -1;
      if (at < length && bytes[at] === QUOTE) {
        start += 1;
        at += 1;
        for (;;) {
          while (at < length) {
            const byte = bytes[at] ?? 0;
            if (byte === QUOTE) break;
            if (byte === LF) lines += 1;
            bits |= byte;
            at += 1;
          }
          if (lines > MAX_ROW_LINES) {
            hasTooManyLines = true;
            return -1;
          }
          // The next piece may contain the rest of what follows the quote, such as a CR LF.
          if (at >= length || (at + 2 >= length && !isLast)) return -1;
          const next = at + 1 < length ? bytes[at + 1] : LF;
          if (next === COMMA || next === LF || (next === CR && bytes[at + 2] === LF)) break;
          if (next === QUOTE) {
            hasDoubledQuotes = true;
            at += 1;
          }
          at += 1;
        }
        end = at;
        at += 1;
      } else {
        while (at < length) {
          const byte = bytes[at] ?? 0;
          if (byte === COMMA || byte === LF) break;
          bits |= byte;
          at += 1;
        }
        if (at >= length && !isLast) return -1;
        end = at > start && bytes[at] !== COMMA && bytes[at - 1] === CR ? at - 1 : at;
      }
      if (count < starts.length) {
        starts[count] = start;
        ends[count] = end;
      }
      count += 1;
      row.columns = count;
      if (at < length && bytes[at] === COMMA) {
        at += 1;
        continue;
      }
      if (at < length && bytes[at] === CR) at += 1;
      return Math.min(at + 1, length);
    }
  }

  function encoding(): 'latin1' | 'utf8' {
    // Plain ASCII is decoded fastest as Latin-1.
    if (bits < 0x80) return 'latin1';
    return isUtf8(bytes.subarray(begin, nextBegin)) ? 'utf8' : 'latin1';
  }

  function isBlank(from: number, to: number): boolean {
    return to - from <= 2 && bytes.toString('latin1', from, to).trim() === '';
  }

  function linesIn(from: number, to: number): number {
    let lines = 0;
    for (let at = bytes.indexOf(LF, from); at !== -1 && at < to; at = bytes.indexOf(LF, at + 1))
      lines += 1;
    return lines;
  }
}

function startsWithMark(bytes: Buffer): boolean {
  return bytes.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK);
}
