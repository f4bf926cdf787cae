// What a value of NPPES's files means, and how COPY wants it.

const MASKED = /^(?:<unavail>|[$*=]{3,}|-{2,})$/i;
const CONTROL = /\p{Cc}/u;
const MONTH_DAYS = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/** A value as it is kept: null where it is empty or masked; on one line, without NUL, which PostgreSQL cannot hold. */
export function kept(text: string): string | null {
  if (text === '') return null;
  const line = CONTROL.test(text) ? text.replaceAll('\0', '').replace(/\p{Cc}+/gu, ' ') : text;
  const value = line.trim();
  return value === '' || MASKED.test(value) ? null : value;
}

/** Dates that were read before: a file has ten million of them, and a few thousand days. */
const KNOWN_DATES = new Map<string, string>();

/**
 * `MM/DD/YYYY` as `YYYY-MM-DD`.
 * @returns null for no date at all; undefined for one that does not exist
 */
export function dateOf(text: string): string | null | undefined {
  if (text === '') return null;
  const known = KNOWN_DATES.get(text);
  if (known !== undefined) return known;
  const value = kept(text);
  if (value === null) return null;
  const [, month = '', day = '', year = ''] =
    /^([0-9]{2})\/([0-9]{2})\/((?:19|20)[0-9]{2})$/.exec(value) ?? [];
  const days = month === '02' && !isLeap(Number(year)) ? 28 : (MONTH_DAYS[Number(month) - 1] ?? 0);
  if (day === '00' || Number(day) > days || day === '') return undefined;
  const date = `${year}-${month}-${day}`;
  KNOWN_DATES.set(text, date);
  return date;
}

/** One line of COPY's text format; `kept` has left only the backslash to escape. */
export function copyLine(values: readonly (string | null)[]): string {
  let line = '';
  for (const value of values) {
    if (line !== '') line += '\t';
    if (value === null) line += '\\N';
    else line += value.includes('\\') ? value.replaceAll('\\', '\\\\') : value;
  }
  return `${line}\n`;
}

function isLeap(year: number): boolean {
  return year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);
}
