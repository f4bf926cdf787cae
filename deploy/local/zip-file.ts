import { createWriteStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { ZipFile } from 'yazl';

/** A file to pack. */
export interface ZipEntry {
  readonly name: string;
  readonly content: Buffer;
}

/** The first day that the format knows: the same content gives the same file. */
const PACKED_AT = { mtime: new Date(1980, 0, 1), forceDosTimestamp: true };

/** Writes a zip of files that fit into memory. */
export async function writeZip(path: string, entries: readonly ZipEntry[]): Promise<void> {
  const zip = new ZipFile();
  for (const { name, content } of entries) zip.addBuffer(content, name, PACKED_AT);
  zip.end();
  await pipeline(zip.outputStream, createWriteStream(path));
}
