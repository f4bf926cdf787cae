import { inflateRawSync } from 'node:zlib';
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

/** A sheet with this many NPIs is read, whatever is on the sheets behind it. */
const ENOUGH = 50;

/** The result is CSV that Excel reads: UTF-8 with a mark, and lines that end with CR LF. */
const FORM: Form = {
  delimiter: ',',
  hasSeparatorLine: false,
  bom: true,
  // In a workbook, such a text does nothing. In CSV, it would be run.
  escapesFormulas: true,
  recordDelimiter: 'windows',
};

/** Options of `readWorkbook`. */
export interface WorkbookOptions {
  /** The name of the sheet to read. */
  readonly sheet?: string | undefined;
  /** The number of rows with text after which reading stops. */
  readonly maxRows?: number | undefined;
  /** True if several visible sheets with text are an error. */
  readonly mustBeOne?: boolean | undefined;
}

interface Named {
  readonly name: string;
  readonly isHidden: boolean;
}

/**
 * Reads a sheet of an .xlsx workbook. Without a name, it is the first visible sheet with 50 NPIs, or
 * else the visible sheet with most NPIs. Formulas have their last values.
 * @param file the name of the file in errors
 * @throws {UsageError} if the workbook can't be read, is too large, or has no such sheet
 */
export async function readWorkbook(
  file: string,
  bytes: Buffer,
  { sheet: wanted, maxRows = Number.POSITIVE_INFINITY, mustBeOne }: WorkbookOptions = {},
): Promise<Sheet> {
  checkParts(file, bytes);
  const sheets = await readable(file, sheetsIn(bytes));
  const names = sheets.map(({ name }) => name);
  if (names.length > MAX_SHEETS) {
    throw new UsageError(
      `${file} has ${names.length} sheets. Copy the one with the NPIs into a new workbook.`,
    );
  }
  if (names.some((name) => name.length > MAX_NAME)) {
    throw unreadable(file);
  }
  const candidates = candidatesOf(file, sheets, wanted);
  const found = await readable(file, bestOf(bytes, candidates, maxRows, mustBeOne));
  const { name, rows, withText } = found;
  if (mustBeOne && withText.length > 1) {
    throw new UsageError(
      `${file} has several sheets with text: ${withText.join(', ')}. Keep one of them, or save it as "CSV UTF-8".`,
    );
  }
  if (rows.length === 0) {
    throw new UsageError(`${file} has no rows.`);
  }
  const notes = notesAbout(name, sheets);
  return { form: FORM, rows, place: 'Row', name, names, notes };
}

interface Found {
  readonly name: string;
  readonly rows: readonly Row[];
  /** The names of the sheets with text that were looked at. */
  readonly withText: readonly string[];
}

/**
 * Reads the sheet with most NPIs.
 * @param isThorough false to stop at a sheet with enough NPIs, because each sheet takes time
 * @throws {Error} if no sheet can be read
 */
async function bestOf(
  bytes: Buffer,
  candidates: readonly string[],
  maxRows: number,
  isThorough = false,
): Promise<Found> {
  let best = { name: '', rows: [] as Row[], count: -1 };
  const withText: string[] = [];
  let charts = 0;
  for (const name of candidates) {
    const rows = await tableIn(bytes, name, maxRows);
    if (rows === null) charts += 1;
    if (!rows?.length) continue;
    withText.push(name);
    const count = rows.filter(({ cells }) => cells.some(isNpi)).length;
    if (count > best.count) best = { name, rows, count };
    if (count >= ENOUGH && !isThorough) break;
  }
  if (charts > 0 && charts === candidates.length) {
    throw new Error('no sheet can be read');
  }
  return { name: best.name, rows: best.rows, withText };
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

/**
 * @throws {UsageError} if the file is not a ZIP file, unpacks to too many bytes, has a sheet that is
 * cut off, or a formula without a value
 */
function checkParts(file: string, bytes: Buffer): void {
  try {
    const parts = partsIn(bytes);
    const total = parts.reduce((sum, { unpacked }) => sum + unpacked, 0);
    if (total > MAX_UNPACKED_BYTES) {
      throw new UsageError(
        `${file} unpacks to more than ${MAX_UNPACKED_BYTES / 1e6} MB. Remove rows, sheets, and pictures that are not needed, or save the sheet as "CSV UTF-8".`,
      );
    }
    for (const part of parts.filter(isSheet)) {
      const xml = unpack(bytes, part);
      if (isCutOff(xml)) throw unreadable(file);
      if (EMPTY_FORMULA.test(xml)) {
        throw new UsageError(
          `${file} has formulas without their values. Open it in Excel, and save it again.`,
        );
      }
    }
  } catch (error) {
    throw error instanceof UsageError ? error : unreadable(file);
  }
}

/** A part of a workbook in its ZIP file. */
interface Part {
  readonly name: string;
  readonly packed: number;
  readonly unpacked: number;
  readonly isDeflated: boolean;
  /** The position of the part in the file. */
  readonly start: number;
}

function isSheet({ name }: Part): boolean {
  return /worksheets\/[^/]+\.xml$/i.test(name);
}

/**
 * Matches a formula without a value, as programs write it that don't calculate. A library reads such
 * a cell as empty. Excel gives the type `str` to a formula whose value is an empty text.
 */
const EMPTY_FORMULA =
  /<(?:\w+:)?c(?=[\s>])(?![^<>]*\st=["']str)[^<>]*>\s*<(?:\w+:)?f(?:\s[^<>]*)?(?:\/>|>[^<]*<\/(?:\w+:)?f>)\s*(?:<(?:\w+:)?v\s*\/>\s*|<(?:\w+:)?v>\s*<\/(?:\w+:)?v>\s*)?<\/(?:\w+:)?c>/;

/** Matches the start or the end of a row, or of all rows. */
const ROW_TAG = /<\/?(?:\w+:)?(?:sheetData|row)(?=[\s>])(?![^<>]*\/>)/g;

/** Returns true if an end is missing. The library would leave rows out and say nothing. */
function isCutOff(xml: string): boolean {
  let open = 0;
  for (const [tag] of xml.matchAll(ROW_TAG)) open += tag.startsWith('</') ? -1 : 1;
  return open !== 0;
}

/** Returns the XML of a part, with one character per byte. The tags are ASCII. */
function unpack(bytes: Buffer, part: Part): string {
  const { start, packed, unpacked, isDeflated } = part;
  const lengths = bytes.readUInt16LE(start + 26) + bytes.readUInt16LE(start + 28);
  const from = start + HEADER_LENGTH + lengths;
  const content = bytes.subarray(from, from + packed);
  const xml = isDeflated
    ? inflateRawSync(content, { maxOutputLength: Math.max(1, unpacked) })
    : content;
  return xml.toString('latin1');
}

// The fields of a ZIP file (APPNOTE.TXT, sections 4.3.7, 4.3.12, and 4.3.16).
const END_SIGNATURE = 0x06054b50;
const END_LENGTH = 22;
const MAX_COMMENT = 0xffff;
const ENTRY_SIGNATURE = 0x02014b50;
const ENTRY_LENGTH = 46;
const HEADER_LENGTH = 30;
/** The compression method that workbooks have. */
const DEFLATE = 8;
/** The sizes of an entry with this flag are behind its data. The list of entries has them, too. */
const HAS_LATE_SIZES = 8;
/** The values that mean that the real value is in a field for huge files. */
const HUGE_COUNT = 0xffff;
const HUGE_SIZE = 0xffffffff;

/**
 * Returns the parts of a ZIP file, with the sizes that it declares. The library stops at the
 * declared size of an entry, but only if there is one. So we look at the same bytes as the library,
 * and throw if a size is missing.
 */
function partsIn(bytes: Buffer): readonly Part[] {
  let end = bytes.length - END_LENGTH;
  const first = Math.max(0, end - MAX_COMMENT);
  while (end > first && bytes.readUInt32LE(end) !== END_SIGNATURE) {
    end -= 1;
  }
  const count = bytes.readUInt16LE(end + 10);
  const listSize = bytes.readUInt32LE(end + 12);
  let at = bytes.readUInt32LE(end + 16);
  if (count === HUGE_COUNT || listSize === HUGE_SIZE || at === HUGE_SIZE) {
    throw new RangeError('a huge ZIP file');
  }
  const parts: Part[] = [];
  for (let n = 0; n < count; n += 1) {
    const packed = bytes.readUInt32LE(at + 20);
    const unpacked = bytes.readUInt32LE(at + 24);
    const isLate = (bytes.readUInt16LE(at + 8) & HAS_LATE_SIZES) !== 0;
    const isMissing = (unpacked === 0 && packed > 0) || (isLate && packed === 0);
    const isHuge = unpacked === HUGE_SIZE || packed === HUGE_SIZE;
    if (bytes.readUInt32LE(at) !== ENTRY_SIGNATURE || isMissing || isHuge) {
      throw new RangeError('an entry without sizes');
    }
    const lengths = [28, 30, 32].map((field) => bytes.readUInt16LE(at + field));
    const name = at + ENTRY_LENGTH;
    parts.push({
      name: bytes.toString('latin1', name, name + (lengths[0] ?? 0)),
      packed,
      unpacked,
      isDeflated: bytes.readUInt16LE(at + 10) === DEFLATE,
      start: bytes.readUInt32LE(at + 42),
    });
    at += lengths.reduce((sum, length) => sum + length, ENTRY_LENGTH);
  }
  return parts;
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

/** Returns the first rows with text of a sheet, or null if it is not a table, such as a chart. */
async function tableIn(bytes: Buffer, sheet: string, maxRows: number) {
  try {
    return await rowsOf(bytes, sheet, maxRows);
  } catch (error) {
    const { message } = error as Error;
    if (message.includes('missing worksheet file')) return null;
    throw error;
  }
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

/**
 * Returns the text of a cell. Numbers have all digits, whatever their format shows. The outline of a
 * result (api/console/outline.ts) needs texts without NUL.
 */
function textOf(value: string | number | boolean | Date | null): string {
  if (value === null) return '';
  if (typeof value === 'boolean') {
    return String(value).toUpperCase();
  }
  if (!(value instanceof Date)) {
    return String(value).replaceAll('\0', '');
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
