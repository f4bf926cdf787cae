import type { Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { inert } from '../files/result-rows.ts';
import { sendFile } from './file.ts';

type Value = string | number | boolean | Date | null;
type Rows<Column extends string> = readonly Readonly<Record<Column, Value>>[];

/**
 * Returns a response with a short CSV file (RFC 4180), which browsers download.
 * @param columns the names of the columns, which are also those of the members of the rows
 */
export function csvFile<Column extends string>(
  h: ResponseToolkit,
  name: string,
  columns: readonly Column[],
  rows: Rows<Column>,
): ResponseObject {
  return h
    .response(headerOf(columns) + linesOf(columns, rows))
    .type('text/csv')
    .header('content-disposition', `attachment; filename="${name}"`);
}

/**
 * Sends a long CSV file, as `csvFile` does with a short one.
 * @param read reads all rows, and waits for `use` after some of them
 * @throws {ApiError} as `sendFile`
 */
export async function sendCsv<Column extends string>(
  { request, h }: { readonly request: Request; readonly h: ResponseToolkit },
  name: string,
  columns: readonly Column[],
  read: (use: (rows: Rows<Column>) => Promise<void>) => Promise<void>,
): Promise<ResponseObject> {
  return await sendFile(request, h, `filename="${name}"`, async (send) => {
    let header = headerOf(columns);
    await read(async (rows) => {
      await send(header + linesOf(columns, rows));
      header = '';
    });
  });
}

function headerOf(columns: readonly string[]): string {
  return `${columns.join(',')}\r\n`;
}

function linesOf<Column extends string>(
  columns: readonly Column[],
  rows: Rows<Column>,
): string {
  return rows
    .map((row) => `${columns.map((column) => cellOf(row[column])).join(',')}\r\n`)
    .join('');
}

function cellOf(value: Value): string {
  if (value === null) return '';
  if (value instanceof Date) return value.toISOString();
  if (typeof value !== 'string') return String(value);
  return quoted(inert(value), ',');
}

/** Returns a cell in quotes if it needs them. */
export function quoted(cell: string, delimiter: string): string {
  if (!cell.includes(delimiter) && !/["\r\n]/.test(cell)) return cell;
  return `"${cell.replaceAll('"', '""')}"`;
}
