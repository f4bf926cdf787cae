import { readCsv } from './csv.ts';
import type { Sheet } from './sheet.ts';
import type { WorkbookOptions } from './workbook.ts';

/** How a workbook begins, as every ZIP file. */
export const ZIP = Buffer.from('PK\x03\x04');

/**
 * Reads the rows of a CSV file, or of a sheet of an .xlsx workbook.
 * @param file the name of the file in errors
 * @throws {UsageError} if it is neither, or has no rows
 */
export async function readSheet(
  file: string,
  bytes: Buffer,
  options?: WorkbookOptions,
): Promise<Sheet> {
  if (!bytes.subarray(0, ZIP.length).equals(ZIP)) {
    return readCsv(file, bytes);
  }
  // Loading the library takes 100 ms, which most commands of the operator don't need.
  const { readWorkbook } = await import('./workbook.ts');
  return await readWorkbook(file, bytes, options);
}
