import type { ResponseObject, ResponseToolkit } from '@hapi/hapi';

type Value = string | number | boolean | Date | null;

/**
 * Returns a response with a CSV file (RFC 4180), which browsers download.
 * @param columns the names of the columns, which are also those of the members of the rows
 */
export function csvFile<Column extends string>(
  h: ResponseToolkit,
  name: string,
  columns: readonly Column[],
  rows: readonly Readonly<Record<Column, Value>>[],
): ResponseObject {
  const lines = rows.map((row) => columns.map((column) => cellOf(row[column])).join(','));
  const text = [columns.join(','), ...lines, ''].join('\r\n');
  return h
    .response(text)
    .type('text/csv')
    .header('content-disposition', `attachment; filename="${name}"`);
}

function cellOf(value: Value): string {
  if (value === null) return '';
  if (value instanceof Date) return value.toISOString();
  if (typeof value !== 'string') return String(value);
  // Spreadsheets execute a text that begins with one of these characters.
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
