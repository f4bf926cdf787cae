import { isUtf8 } from 'node:buffer';

// A splitter for NPPES's files: every value quoted, 330 columns, a kilobyte a row, ten million rows. It looks at each
// byte once and makes strings of what is asked for alone.

const LF = 10;
const CR = 13;
const QUOTE = 34;
const COMMA = 44;
const BYTE_ORDER_MARK = Buffer.from('\ufeff');

/** No row of NPPES is a quarter of this long: a quote that is not closed by then never will be. */
const RECORD_AT_MOST = 65_536;
/** More lines than this in one row mean a quote that is not closed. So no line is read more often than this. */
const MAX_ROW_LINES = 50;
/** The longest value that is taken, in characters. NPPES's longest is 300. */
export const MAX_VALUE_LENGTH = 1_000;

/** One row. It is overwritten by the next: take what you need at once. */
export interface CsvRecord {
  /** Its first line's number, from 1. */
  readonly line: number;
  /** How many columns it has, wanted or not. */
  readonly columns: number;
  /** False for a row with another number of columns than asked for, or with a quote that is never closed. */
  readonly whole: boolean;
  /** The value of a column, from 0; empty if there is none. */
  text(column: number): string;
  /** Returns whether the value of a column is longer than `MAX_VALUE_LENGTH`. */
  isTooLong(column: number): boolean;
}

/**
 * Splits the bytes of a CSV file into rows (RFC 4180; LF or CR LF, a quote within a quoted value may stand alone).
 * Bytes are UTF-8, or Latin-1 in a row that is not valid UTF-8. A broken row is given as such and costs no other one:
 * what it seems to hold beyond its first line is read again.
 * @param columns how many every row must have; null to take any number
 */
export function csvReader(columns: number | null) {
  const starts = new Int32Array(columns ?? 1024);
  const ends = new Int32Array(starts.length);
  let bytes: Buffer = Buffer.alloc(0);
  let hasBegun = false;
  // Of the row that was scanned last.
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
      const size = (ends[column] ?? 0) - (starts[column] ?? 0);
      return column < row.columns && size > MAX_VALUE_LENGTH && row.text(column).length > MAX_VALUE_LENGTH;
    },
  };

  return {
    /** Gives every row that is complete with this piece of the file. */
    push(piece: Buffer, onRecord: (record: CsvRecord) => void): void {
      bytes = nextBegin === bytes.length ? piece : Buffer.concat([bytes.subarray(nextBegin), piece]);
      nextBegin =
        !hasBegun && bytes.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK)
          ? BYTE_ORDER_MARK.length
          : 0;
      hasBegun = true;
      take(false, onRecord);
    },
    /** Gives the last row, which may lack its line end. */
    end(onRecord: (record: CsvRecord) => void): void {
      take(true, onRecord);
    },
  };

  function take(isLast: boolean, onRecord: (record: CsvRecord) => void): void {
    while (nextBegin < bytes.length) {
      begin = nextBegin;
      let end = scan(isLast);
      const mayContinue = !isLast && !hasTooManyLines && bytes.length - begin <= RECORD_AT_MOST;
      if (end === -1 && mayContinue) return;
      row.whole = end !== -1 && (columns === null || row.columns === columns);
      const lineEnd = bytes.indexOf(LF, begin) + 1 || bytes.length;
      if (!row.whole) end = lineEnd;
      nextBegin = end;
      const isBlank = !row.whole && end - begin <= 2 && bytes.toString('latin1', begin, end).trim() === '';
      if (!isBlank) onRecord(row);
      row.line += end === lineEnd ? 1 : linesIn(begin, end);
    }
  }

  /** @returns where the next row begins; -1 if this one is not complete */
  function scan(isLastPiece: boolean): number {
    const length = Math.min(bytes.length, begin + RECORD_AT_MOST + 1);
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
          // What follows the quote may be in the next piece, a CR LF wholly.
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
    // Plain ASCII is read fastest as Latin-1.
    if (bits < 0x80) return 'latin1';
    return isUtf8(bytes.subarray(begin, nextBegin)) ? 'utf8' : 'latin1';
  }

  function linesIn(from: number, to: number): number {
    let lines = 0;
    for (let at = bytes.indexOf(LF, from); at !== -1 && at < to; at = bytes.indexOf(LF, at + 1)) lines += 1;
    return lines;
  }
}
