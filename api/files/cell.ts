// This is a link to db/providers/npi.ts. The npm package has links to this folder's files, which
// must also find the check digit next to them.
import { hasNpiCheckDigit } from './npi.ts';

/** The NPI of a cell, or the problem of the cell, which continues a sentence that begins with it. */
export type Reading =
  | { readonly npi: string; readonly problem: '' }
  | { readonly npi: null; readonly problem: string };

/** A whole number of ten digits, perhaps with separators of thousands or with decimals of zero. */
const WHOLE = /^(\d{10}|\d([,.' ])\d{3}\2\d{3}\2\d{3})(?:[.,]0*)?$/;
/** A number in scientific notation. */
const SCIENTIFIC = /^(\d)(?:[.,](\d+))?e\+?0*(\d+)$/i;
const MAX_CELL = 200;
/** The problem of a cell without any number. */
export const NO_NPI = 'no NPI';
const SHORTENED =
  'was shortened by Excel. In the workbook, format the column as a number without decimals, and save it as CSV again';

/**
 * Reads the NPI of a cell in the forms that spreadsheets and other programs write. It repairs only
 * what has one meaning: the repaired NPI has ten digits and a correct check digit.
 */
export function readNpi(cell: string): Reading {
  // The expressions below could take hours for a long cell.
  if (cell.length > MAX_CELL) {
    return { npi: null, problem: 'is too long for an NPI' };
  }
  const text = plain(cell);
  const [, whole] = WHOLE.exec(text) ?? [];
  const npi = whole?.replace(/\D/g, '') ?? expanded(text);
  if (!npi) {
    return { npi: null, problem: problemOf(text) };
  }
  if (hasNpiCheckDigit(npi)) {
    return { npi, problem: '' };
  }
  return {
    npi: null,
    problem: 'has a wrong check digit, so it is mistyped or not an NPI',
  };
}

/** No text of fewer characters is read as an NPI. */
const MIN_CELL = 10;

/** Returns true if a cell has an NPI. It is much faster than `readNpi` for other cells. */
export function isNpi(cell: string): boolean {
  const isShort = cell.length < MIN_CELL || cell.length > MAX_CELL;
  return !isShort && /\p{Nd}/u.test(cell) && readNpi(cell).npi !== null;
}

const SEVERAL = /\d{10}\D+\d{10}/;

/** Returns true if a cell has several numbers that could be NPIs. */
export function hasSeveral(cell: string): boolean {
  return cell.length <= MAX_CELL && SEVERAL.test(cell);
}

/** A text that is only a number, or an NPI in which letters were typed instead of digits. */
const NUMBER = /^(?:\d{1,14}|(?=(?:\D*\d){6})[\p{L}\d]{8,12})$/u;

/** Returns true if a cell was probably meant to be an NPI, even if it is mistyped. */
export function isMeantAsNpi(cell: string): boolean {
  if (cell.length > MAX_CELL) return false;
  const text = plain(cell);
  return SCIENTIFIC.test(text) || NUMBER.test(text.replace(/[,.' ]/g, ''));
}

/**
 * Removes everything around the text of a cell that is not visible, or that a spreadsheet added:
 * spaces, marks, quotes, and the `=` before a quoted text.
 */
export function bare(cell: string): string {
  return cell
    .normalize('NFKC')
    .replace(/\p{Cf}/gu, '')
    .trim()
    .replace(/^=(?=["\d])/, '')
    .replace(/^['"\u2018-\u201f]+|(?<!['"\u2018-\u201f])['"\u2018-\u201f]+$/g, '')
    .trim();
}

/** Removes the word before an NPI, as in `NPI: 2000000010`. */
function plain(cell: string): string {
  return bare(cell)
    .replace(/^npi\b(?:\s*(?:number|no\.?))?\s*[:#]?\s*/i, '')
    .trim();
}

/**
 * Returns the digits of a number such as 2.00000001E9, or null if it isn't one with ten digits.
 * Programs leave out zeros at the end, so 8 decimals are enough. With fewer, the number is one that
 * a spreadsheet has rounded.
 */
function expanded(text: string): string | null {
  const [, first = '', decimals = '', exponent] = SCIENTIFIC.exec(text) ?? [];
  const significant = decimals.replace(/0+$/, '');
  if (exponent !== '9' || decimals.length < 8 || significant.length > 9) {
    return null;
  }
  return `${first}${significant.padEnd(9, '0')}`;
}

function problemOf(text: string): string {
  if (text === '') return NO_NPI;
  if (SCIENTIFIC.test(text)) return SHORTENED;
  if (/^\d+$/.test(text)) {
    return `has ${text.length} instead of 10 digits`;
  }
  if (/^\d+[.,]\d+$/.test(text)) {
    return 'is not a whole number';
  }
  if (SEVERAL.test(text)) {
    return 'has several numbers. Put each NPI into its own row';
  }
  if (/^[=#]/.test(text)) {
    return 'is a formula, or the error of one. Replace it with its value';
  }
  return 'is not a number of 10 digits';
}
