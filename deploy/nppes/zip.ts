import { basename } from 'node:path';
import { pipeline, type Readable } from 'node:stream';
import { crc32, createInflateRaw } from 'node:zlib';
import { type Entry, openPromise, type ZipFile } from 'yauzl';
import { ImportProblem } from './problem.ts';
import type { RawFile } from './source.ts';

const STORED = 0;
const DEFLATED = 8;
const DEFLATE64 = 9;
/** yauzl's own inflater gives pieces of 16 KB, for each of which the importer would be woken up. */
const PIECE_BYTES = 262_144;

/**
 * Opens a zip, files beyond 4 GB included.
 * @throws {ImportProblem} where it is damaged, encrypted, or packed in a way that cannot be read
 */
export async function openZip(path: string): Promise<{ files: RawFile[]; close(): Promise<void> }> {
  const name = basename(path);
  const zip = await openPromise(path, { autoClose: false, lazyEntries: true }).catch(() => {
    throw damaged(name);
  });
  const close = async () => zip.close();
  try {
    const files: RawFile[] = [];
    for await (const entry of zip.eachEntry()) {
      if (/\.csv$/i.test(entry.fileName)) files.push(packedFile(name, zip, entry));
    }
    return { files, close };
  } catch {
    await close();
    throw damaged(name);
  }
}

function packedFile(zipName: string, zip: ZipFile, entry: Entry): RawFile {
  return {
    name: basename(entry.fileName),
    size: entry.uncompressedSize,
    async *open(offset) {
      requireReadable(zipName, entry);
      let position = 0;
      let checksum = 0;
      try {
        for await (const piece of unpacked(zip, entry)) {
          checksum = crc32(piece, checksum);
          position += piece.length;
          // What was imported before has to be unpacked again, which takes a small part of its import.
          const wanted = piece.subarray(Math.max(0, piece.length - Math.max(0, position - offset)));
          if (wanted.length > 0) yield wanted;
        }
      } catch {
        throw damaged(zipName);
      }
      if (position !== entry.uncompressedSize || checksum !== entry.crc32) throw damaged(zipName);
    },
  };
}

async function* unpacked(zip: ZipFile, entry: Entry): AsyncIterable<Buffer> {
  const packed = await zip.openReadStreamPromise(entry, { decodeFileData: false });
  // What goes wrong reaches the reader by the last stream.
  const stream: Readable =
    entry.compressionMethod === STORED
      ? packed
      : pipeline(packed, createInflateRaw({ chunkSize: PIECE_BYTES }), () => {});
  yield* stream;
}

function requireReadable(zipName: string, entry: Entry): void {
  const how = entry.isEncrypted() ? 'is encrypted' : packing(entry.compressionMethod);
  if (how === null) return;
  throw new ImportProblem(
    `${basename(entry.fileName)} in ${zipName} ${how}, which cannot be read here; unpack it first ("unzip ${zipName} -d FOLDER"), then import the folder`,
  );
}

function packing(method: number): string | null {
  if (method === STORED || method === DEFLATED) return null;
  return `is packed by ${method === DEFLATE64 ? 'Deflate64' : `method ${method}`}`;
}

function damaged(zipName: string): ImportProblem {
  return new ImportProblem(
    `${zipName} is not a zip file, or damaged, or was not downloaded wholly; download it again`,
  );
}
