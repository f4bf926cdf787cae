import { isUtf8 } from 'node:buffer';
import { UsageError } from './usage-error.ts';

type Format = readonly [start: RegExp, name: string];

/** The client's command doesn't read workbooks, because the library would double its size. */
const WORKBOOK: Format = [/^PK\p{Cc}\p{Cc}/u, 'an Excel workbook or another ZIP file'];
/** How files begin that are often mistaken for CSV. */
const OTHER_FORMATS: readonly Format[] = [
  WORKBOOK,
  [/^\u00d0\u00cf\p{Cc}\u00e0/u, 'an old Excel workbook, or one with a password'],
  [/^\p{Cc}\u008b/u, 'a compressed file'],
  [/^%PDF/, 'a PDF'],
  [/^(?:\u0089PNG|\u00ff\u00d8\u00ff|GIF8)/, 'a picture'],
  [/^\{\\rtf/, 'a text document'],
  [/^\s*<(?:!doctype|html|table|\?xml)/i, 'a web page or XML'],
  [/^\s*(?:\[\s*[[{"\d]|\{\s*")/, 'JSON'],
];

export interface Text {
  readonly text: string;
  readonly encoding: 'utf-8' | 'utf-16le' | 'utf-16be' | 'windows-1252';
  /** True if the file began with a byte order mark. */
  readonly bom: boolean;
}

/**
 * Decodes the bytes of a CSV file.
 * @param file the name of the file in errors
 * @throws {UsageError} if the file is empty or not CSV
 */
export function decode(file: string, bytes: Buffer): Text {
  const start = bytes.toString('latin1', 0, 200).replaceAll('\0', '');
  const bom = /^(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)/.exec(start);
  const visible = start.slice(bom?.[0].length);
  const other = OTHER_FORMATS.find(([pattern]) => pattern.test(visible));
  if (other) {
    const advice = other === WORKBOOK ? ', or upload it in the console' : '';
    throw new UsageError(
      `${file} is not CSV but ${other[1]}. Save it as "CSV UTF-8"${advice}.`,
    );
  }
  const encoding = encodingOf(bytes);
  const text = new TextDecoder(encoding).decode(bytes);
  if (text.includes('\0')) {
    throw new UsageError(
      `${file} contains NUL bytes, so it is damaged or not CSV. Save it as "CSV UTF-8".`,
    );
  }
  if (text.trim() === '') {
    throw new UsageError(`${file} is empty.`);
  }
  return { text, encoding, bom: bom !== null };
}

/**
 * Guesses the encoding. Without a byte order mark, UTF-16 shows by the zero byte of its first
 * character, which is ASCII in nearly every CSV file.
 */
function encodingOf(bytes: Buffer): Text['encoding'] {
  const [first, second] = bytes;
  if (first === 0xff && second === 0xfe) {
    return 'utf-16le';
  }
  if (first === 0xfe && second === 0xff) {
    return 'utf-16be';
  }
  if (first !== 0 && second === 0) {
    return 'utf-16le';
  }
  if (first === 0 && second !== 0) {
    return 'utf-16be';
  }
  return isUtf8(bytes) ? 'utf-8' : 'windows-1252';
}
