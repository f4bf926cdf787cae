import { isUtf8 } from 'node:buffer';

// A CSV reader for the files of NPPES, in which every value is quoted. A monthly file has nine
// million rows, and each row has 330 columns and about a kilobyte. So the reader scans each byte
// once, and creates strings only for the values that are requested.
//
// csv-parse reads the files of customers and operators (api/files/csv.ts), but it creates a string
// for every value. It took 13.0 s of CPU for 200,000 rows of 330 columns, and this reader took
// 1.1 s. A monthly import reads the main file twice, so csv-parse would take 20 minutes before
// PostgreSQL stores the first row. It would also need other code to read a row as Latin-1, and to
// continue after a row with a broken quote.

const LF = 10;
const CR = 13;
const QUOTE = 34;
const COMMA = 44;
const BYTE_ORDER_MARK = Buffer.from('\ufeff');

/**
 * Maximum size of a row, which is more than four times the longest row of NPPES. A longer row
 * counts as broken, because it probably has a quote that is not closed.
 */
const MAX_RECORD_BYTES = 65_536;
/**
 * Maximum number of lines in a row. A row with more lines counts as broken, because it probably has
 * a quote that is not closed. After a broken row, all lines except its first one are read again.
 * This limit also bounds how often a line is read.
 */
const MAX_ROW_LINES = 50;
/** Maximum length of a value in characters. The longest value of NPPES has 300. */
export const MAX_VALUE_LENGTH = 1_000;

/**
 * The current row. The next row overwrites it, so read all values that you need before the callback
 * returns.
 */
export interface CsvRecord {
  /** The number of the row's first line in the file, from 1. */
  readonly line: number;
  /** The number of columns in the row. */
  readonly columns: number;
  /**
   * False if the row is broken, because it has a wrong number of columns or a quote that is not
   * closed.
   */
  readonly whole: boolean;
  /**
   * Returns the value of a column, counted from 0. Returns an empty text if the row has no such
   * column.
   */
  text(column: number): string;
  /** Returns true if the value of a column is longer than `MAX_VALUE_LENGTH`. */
  isTooLong(column: number): boolean;
}

/**
 * Splits the bytes of a CSV file into rows (RFC 4180). Lines end with LF or CR LF, and a quote
 * inside a quoted value need not be doubled. A row is decoded as UTF-8, or as Latin-1 if it is not
 * valid UTF-8. If a row is broken, only its first line is passed on, with `whole` set to false.
 * Everything after that line is read again, so the broken row does not affect other rows.
 */
export class CsvReader implements CsvRecord {
  line = 1;
  columns = 0;
  whole = true;
  /** True if the file ended inside a row, so the rest of the file is missing. */
  isCut = false;
  private readonly requiredColumns: number | null;
  // The positions of the values in the row that was scanned last.
  private readonly starts: Int32Array;
  private readonly ends: Int32Array;
  private bytes: Buffer = Buffer.alloc(0);
  private hasBegun = false;
  private begin = 0;
  private nextBegin = 0;
  /** All bytes of the row, combined by OR. If the result is below 0x80, the row is plain ASCII. */
  private bits = 0;
  private hasDoubledQuotes = false;
  private hasTooManyLines = false;
  // The state of the scan.
  private at = 0;
  private limit = 0;
  private isLast = false;
  private lines = 0;

  /**
   * @param columns the number of columns that every row must have, or null if any number is allowed
   */
  constructor(columns: number | null) {
    this.requiredColumns = columns;
    this.starts = new Int32Array(columns ?? 1024);
    this.ends = new Int32Array(this.starts.length);
  }

  /** Adds a piece of the file, and calls `onRecord` for every row that is now complete. */
  push(piece: Buffer, onRecord: (record: CsvRecord) => void): void {
    const rest = this.bytes.subarray(this.nextBegin);
    this.bytes = rest.length === 0 ? piece : Buffer.concat([rest, piece]);
    this.nextBegin = 0;
    if (!this.hasBegun && startsWithMark(this.bytes)) {
      this.nextBegin = BYTE_ORDER_MARK.length;
    }
    this.hasBegun = true;
    this.passOn(false, onRecord);
  }

  /** Ends the file. Calls `onRecord` for the last row, which may have no line end. */
  end(onRecord: (record: CsvRecord) => void): void {
    this.passOn(true, onRecord);
  }

  text(column: number): string {
    if (column >= this.columns) return '';
    const start = this.starts[column] ?? 0;
    const end = this.ends[column] ?? 0;
    if (start === end) return '';
    const text = this.bytes.toString(this.encoding(), start, end);
    if (!this.hasDoubledQuotes) return text;
    return text.replaceAll('""', '"');
  }

  isTooLong(column: number): boolean {
    if (column >= this.columns) return false;
    const size = (this.ends[column] ?? 0) - (this.starts[column] ?? 0);
    // A value has at most as many characters as bytes.
    return size > MAX_VALUE_LENGTH && this.text(column).length > MAX_VALUE_LENGTH;
  }

  private passOn(isLast: boolean, onRecord: (record: CsvRecord) => void): void {
    while (this.nextBegin < this.bytes.length) {
      this.begin = this.nextBegin;
      let end = this.scan(isLast);
      const isShort = this.bytes.length - this.begin <= MAX_RECORD_BYTES;
      if (end === -1 && !isLast && !this.hasTooManyLines && isShort) return;
      const hasColumns =
        this.requiredColumns === null || this.columns === this.requiredColumns;
      this.whole = end !== -1 && hasColumns;
      const lineEnd = this.bytes.indexOf(LF, this.begin) + 1 || this.bytes.length;
      if (!this.whole) {
        // A row that the end of the file cuts has no line end, or an open quote.
        const isOpen = end === -1 && this.isLast && !this.hasTooManyLines;
        const isAtEnd = isLast && lineEnd === this.bytes.length;
        this.isCut ||= isOpen || (isAtEnd && this.bytes.at(-1) !== LF);
        end = lineEnd;
      }
      this.nextBegin = end;
      if (this.whole || !this.isBlank(end)) onRecord(this);
      this.line += end === lineEnd ? 1 : this.linesUntil(end);
    }
  }

  /**
   * Scans a row. @returns the position at which the next row begins, or -1 if this row is not
   * complete
   */
  private scan(isLastPiece: boolean): number {
    this.limit = Math.min(this.bytes.length, this.begin + MAX_RECORD_BYTES + 1);
    this.isLast = isLastPiece && this.limit === this.bytes.length;
    this.at = this.begin;
    this.lines = 0;
    this.columns = 0;
    this.bits = 0;
    this.hasDoubledQuotes = false;
    this.hasTooManyLines = false;
    for (;;) {
      const isQuoted = this.at < this.limit && this.bytes[this.at] === QUOTE;
      const isComplete = isQuoted ? this.scanQuoted() : this.scanPlain();
      if (!isComplete) return -1;
      const next = this.at < this.limit ? this.bytes[this.at] : LF;
      this.at += 1;
      if (next === COMMA) continue;
      if (next === CR) this.at += 1;
      return Math.min(this.at, this.limit);
    }
  }

  /** Scans a value in quotes. @returns false if the value is not complete */
  private scanQuoted(): boolean {
    const { bytes, limit } = this;
    const start = this.at + 1;
    let at = start;
    let bits = 0;
    for (;;) {
      while (at < limit) {
        const byte = bytes[at] ?? 0;
        if (byte === QUOTE) break;
        if (byte === LF) this.lines += 1;
        bits |= byte;
        at += 1;
      }
      if (this.lines > MAX_ROW_LINES) {
        this.hasTooManyLines = true;
        return false;
      }
      // The two bytes after the quote decide whether it ends the value. They may be in the next
      // piece.
      if (at >= limit || (at + 2 >= limit && !this.isLast)) return false;
      const next = at + 1 < limit ? bytes[at + 1] : LF;
      if (next === COMMA || next === LF || (next === CR && bytes[at + 2] === LF)) {
        break;
      }
      if (next === QUOTE) {
        this.hasDoubledQuotes = true;
        at += 1;
      }
      at += 1;
    }
    this.addValue(start, at, bits);
    this.at = at + 1;
    return true;
  }

  /** Scans a value without quotes. @returns false if the value is not complete */
  private scanPlain(): boolean {
    const { bytes, limit } = this;
    const start = this.at;
    let at = start;
    let bits = 0;
    while (at < limit) {
      const byte = bytes[at] ?? 0;
      if (byte === COMMA || byte === LF) break;
      bits |= byte;
      at += 1;
    }
    if (at >= limit && !this.isLast) return false;
    const hasCr = at > start && bytes[at] !== COMMA && bytes[at - 1] === CR;
    this.addValue(start, hasCr ? at - 1 : at, bits);
    this.at = at;
    return true;
  }

  private addValue(start: number, end: number, bits: number): void {
    if (this.columns < this.starts.length) {
      this.starts[this.columns] = start;
      this.ends[this.columns] = end;
    }
    this.columns += 1;
    this.bits |= bits;
  }

  private encoding(): 'latin1' | 'utf8' {
    // Decoding plain ASCII as Latin-1 is the fastest way.
    if (this.bits < 0x80) return 'latin1';
    if (isUtf8(this.bytes.subarray(this.begin, this.nextBegin))) {
      return 'utf8';
    }
    return 'latin1';
  }

  private isBlank(end: number): boolean {
    return (
      end - this.begin <= 2 &&
      this.bytes.toString('latin1', this.begin, end).trim() === ''
    );
  }

  private linesUntil(end: number): number {
    let lines = 0;
    let at = this.bytes.indexOf(LF, this.begin);
    while (at !== -1 && at < end) {
      lines += 1;
      at = this.bytes.indexOf(LF, at + 1);
    }
    return lines;
  }
}

function startsWithMark(bytes: Buffer): boolean {
  return bytes.subarray(0, BYTE_ORDER_MARK.length).equals(BYTE_ORDER_MARK);
}
