import type { SheetFilter } from 'hucre';
import { readXlsx, streamXlsxRows } from 'hucre/xlsx';
import { isNpi } from './cell.ts';
import type { Form, Row, Sheet } from './sheet.ts';
import { UsageError } from './usage-error.ts';

// Reads .xlsx workbooks. A small workbook can unpack to gigabytes, or claim a cell in the last row and
// column of a sheet. So we check the unpacked size before we read anything, and read rows one by one.

/**
 * The most bytes that a workbook may unpack to. 10,000 rows of 50 columns have 20 MB. The reader
 * stops at the size that the ZIP file declares for each part.
 */
const MAX_UNPACKED_BYTES = 50_000_000;
/** The most sheets, and characters of a name, because a page lists them. Excel allows 31 characters. */
const MAX_SHEETS = 200;
const MAX_NAME = 255;

/** The result is CSV that Excel reads: UTF-8 with a mark, and lines that end with CR LF. */
const FORM: Form = {
  delimiter: ',',
  hasSeparatorLine: false,
  bom: true,
  recordDelimiter: 'windows',
};

/** Options of `readWorkbook`. */
export interface WorkbookOptions {
  /** The name of the sheet to read. */
  readonly sheet?: string | undefined;
  /** The number of rows with text after which reading stops. */
  readonly maxRows?: number | undefined;
}

interface Named {
  readonly name: string;
  readonly isHidden: boolean;
}

/**
 * Reads a sheet of an .xlsx workbook. Without a name, it is the first visible sheet with an NPI, or
 * else the first visible sheet with text. Formulas have their last values.
 * @param file the name of the file in errors
 * @throws {UsageError} if the workbook can't be read, is too large, or has no such sheet
 */
export async function readWorkbook(
  file: string,
  bytes: Buffer,
  { sheet: wanted, maxRows = Number.POSITIVE_INFINITY }: WorkbookOptions = {},
): Promise<Sheet> {
  checkSize(file, bytes);
  const sheets = await readable(file, sheetsIn(bytes));
  const names = sheets.map(({ name }) => name);
  if (names.length > MAX_SHEETS) {
    throw new UsageError(
      `${file} has ${names.length} sheets. Copy the one with the NPIs into a new workbook.`,
    );
  }
  if (names.some((name) => name.length > MAX_NAME)) throw unreadable(file);
  let found: Read | null = null;
  for (const name of candidatesOf(file, sheets, wanted)) {
    const rows = await readable(file, rowsOf(bytes, name, maxRows));
    if (rows.length > 0) found ??= { name, rows };
    if (!rows.some(({ cells }) => cells.some(isNpi))) {
      continue;
    }
    found = { name, rows };
    break;
  }
  if (!found) {
    throw new UsageError(`${file} has no rows.`);
  }
  const { name, rows } = found;
  const notes = notesAbout(name, sheets);
  return { form: FORM, rows, place: 'Row', name, names, notes };
}

interface Read {
  readonly name: string;
  readonly rows: readonly Row[];
}

function unreadable(file: string): UsageError {
  return new UsageError(
    `${file} is not an Excel workbook that can be read. Open it in Excel, and save it again as .xlsx or "CSV UTF-8".`,
  );
}

/** Waits for the library. A damaged or hostile file can lead to any error there. */
async function readable<T>(file: string, reading: Promise<T>): Promise<T> {
  try {
    return await reading;
  } catch {
    throw unreadable(file);
  }
}

/** @throws {UsageError} if the file is not a ZIP file, or unpacks to too many bytes */
function checkSize(file: string, bytes: Buffer): void {
  let total: number;
  try {
    total = unpackedSize(bytes);
  } catch {
    throw unreadable(file);
  }
  if (total > MAX_UNPACKED_BYTES) {
    throw new UsageError(
      `${file} unpacks to more than ${MAX_UNPACKED_BYTES / 1e6} MB. Remove rows, sheets, and pictures that are not needed, or save the sheet as "CSV UTF-8".`,
    );
  }
}

// The fields of a ZIP file (APPNOTE.TXT, sections 4.3.12 and 4.3.16).
const END_SIGNATURE = 0x06054b50;
const END_LENGTH = 22;
const MAX_COMMENT = 0xffff;
const ENTRY_SIGNATURE = 0x02014b50;
const ENTRY_LENGTH = 46;
/** The sizes of an entry with this flag are behind its data. The list of entries has them, too. */
const HAS_LATE_SIZES = 8;
/** The values that mean that the real value is in a field for huge files. */
const HUGE_COUNT = 0xffff;
const HUGE_SIZE = 0xffffffff;

/**
 * Returns the sum of the sizes that a ZIP file declares. The library stops at the declared size of
 * an entry, but only if there is one. So we look at the same bytes as the library, and throw if a
 * size is missing.
 */
function unpackedSize(bytes: Buffer): number {
  let end = bytes.length - END_LENGTH;
  const first = Math.max(0, end - MAX_COMMENT);
  while (end > first && bytes.readUInt32LE(end) !== END_SIGNATURE) end -= 1;
  const count = bytes.readUInt16LE(end + 10);
  const listSize = bytes.readUInt32LE(end + 12);
  let at = bytes.readUInt32LE(end + 16);
  if (count === HUGE_COUNT || listSize === HUGE_SIZE || at === HUGE_SIZE) {
    throw new RangeError('a huge ZIP file');
  }
  let total = 0;
  for (let n = 0; n < count; n += 1) {
    const packed = bytes.readUInt32LE(at + 20);
    const unpacked = bytes.readUInt32LE(at + 24);
    const isLate = (bytes.readUInt16LE(at + 8) & HAS_LATE_SIZES) !== 0;
    const isMissing = (unpacked === 0 && packed > 0) || (isLate && packed === 0);
    const isHuge = unpacked === HUGE_SIZE || packed === HUGE_SIZE;
    if (bytes.readUInt32LE(at) !== ENTRY_SIGNATURE || isMissing || isHuge) {
      throw new RangeError('an entry without sizes');
    }
    total += unpacked;
    const lengths = [28, 30, 32].map((field) => bytes.readUInt16LE(at + field));
    at += lengths.reduce((sum, length) => sum + length, ENTRY_LENGTH);
  }
  return total;
}

async function sheetsIn(bytes: Buffer): Promise<readonly Named[]> {
  const sheets: Named[] = [];
  // Reads the list of sheets, and none of them.
  const list: SheetFilter = ({ name, hidden, veryHidden }) => {
    sheets.push({ name, isHidden: hidden === true || veryHidden === true });
    return false;
  };
  await readXlsx(bytes, { sheets: list });
  return sheets;
}

/** Returns the names of the sheets to try. */
function candidatesOf(
  file: string,
  sheets: readonly Named[],
  wanted: string | undefined,
): readonly string[] {
  const names = sheets.map(({ name }) => name);
  if (wanted === undefined) {
    const visible = sheets.filter(({ isHidden }) => !isHidden);
    return visible.map(({ name }) => name);
  }
  if (names.includes(wanted)) {
    return [wanted];
  }
  throw new UsageError(`${file} has no sheet "${wanted}". It has: ${names.join(', ')}.`);
}

/** Returns the first rows with text. */
async function rowsOf(bytes: Buffer, sheet: string, maxRows: number): Promise<Row[]> {
  const rows: Row[] = [];
  for await (const { index, values } of streamXlsxRows(bytes, { sheet })) {
    const cells = values.map(textOf);
    const length = cells.findLastIndex((cell) => cell.trim() !== '') + 1;
    if (length === 0) continue;
    rows.push({ line: index + 1, cells: cells.slice(0, length) });
    if (rows.length >= maxRows) break;
  }
  return rows;
}

/** Returns the text of a cell. Numbers have all digits, whatever their format shows. */
function textOf(value: string | number | boolean | Date | null): string {
  if (value === null) return '';
  if (typeof value === 'boolean') {
    return String(value).toUpperCase();
  }
  if (!(value instanceof Date)) {
    return String(value);
  }
  // Excel shows this if a number is too large for its date format.
  if (Number.isNaN(value.getTime())) {
    return '########';
  }
  const [day, time] = value.toISOString().split('T');
  const seconds = time?.slice(0, 8);
  return seconds === '00:00:00' ? String(day) : `${day} ${seconds}`;
}

function notesAbout(read: string, sheets: readonly Named[]): readonly string[] {
  const others = sheets.filter(({ name }) => name !== read);
  if (others.length === 0) return [];
  const names = others.map(
    ({ name, isHidden }) => `"${name}"${isHidden ? ' (hidden)' : ''}`,
  );
  return [`Only the sheet "${read}" is read, and not ${names.join(', ')}.`];
}
