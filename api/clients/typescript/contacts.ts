import { readFile, stat } from 'node:fs/promises';
import { buffer } from 'node:stream/consumers';
import { STANDARD } from './arguments.ts';
import { findColumn } from './column.ts';
import { readCsv } from './csv.ts';
import { type Contacts, contactsIn, tableOf } from './table.ts';
import { UsageError } from './usage-error.ts';

/** About a million rows. Larger files would not fit into memory. */
const MAX_BYTES = 100_000_000;

/**
 * Reads a file of contacts.
 * @param column the name or the number of the NPI column. If undefined, the column is found
 * @throws {UsageError} if it is not a CSV file with such a column and at least one row
 */
export async function readContacts(
  path: string,
  column: string | undefined,
): Promise<Contacts> {
  const file = path === STANDARD ? 'standard input' : path;
  const table = tableOf(file, readCsv(file, await readBytes(path, file)));
  const { index, isGuess } = findColumn(table, column);
  const contacts = contactsIn(table, index);
  if (!isGuess) return contacts;
  const note = `The NPIs are in column "${contacts.column}".`;
  return { ...contacts, notes: [...contacts.notes, note] };
}

/** @throws {UsageError} if the file can't be read */
async function readBytes(path: string, file: string): Promise<Buffer> {
  if (path === STANDARD) {
    return await buffer(process.stdin);
  }
  try {
    const { size } = await stat(path);
    if (size > MAX_BYTES) {
      throw new UsageError(
        `${file} has more than 100 MB. Split it into files of fewer rows.`,
      );
    }
    return await readFile(path);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT') {
      throw new UsageError(`${file} does not exist.`);
    }
    if (code === 'EISDIR') {
      throw new UsageError(`${file} is a folder. Name a CSV file.`);
    }
    if (code === 'EACCES' || code === 'EPERM') {
      throw new UsageError(`${file} can't be read: permission denied.`);
    }
    throw error;
  }
}
