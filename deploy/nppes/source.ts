import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pipeline, type Readable } from 'node:stream';
import { crc32, createInflateRaw } from 'node:zlib';
import { type Entry, openPromise, type ZipFile } from 'yauzl';
import type { Dataset } from '../../db/lookups/imports.ts';
import { cannotOpen, type FileKind, ImportProblem, MEMBER_KINDS, orImportProblem } from './layout.ts';

/** One file of a set. */
export interface Member {
  /** Without its folder. */
  readonly name: string;
  readonly kind: FileKind;
  /** The last day it tells of, `YYYY-MM-DD`; `infinity` for one that does not say it. */
  readonly asOf: string;
  /** In bytes, unpacked. */
  readonly size: number;
  /** Its bytes. @throws {ImportProblem} if they cannot be read */
  open(): AsyncIterable<Buffer>;
}

/** What a download holds, packed or not. */
export type Source = Awaited<ReturnType<typeof openSource>>;

/** A file as it lies there, in a folder or a zip. */
type RawFile = Pick<Member, 'name' | 'size' | 'open'>;

const SUPPORTED = MEMBER_KINDS.map((kind) => `${kind}_pfile_….csv`).join(', ');
const MEMBER_NAME = /^(npidata|othername|pl|endpoint)_pfile_[0-9]{8}-([0-9]{4})([0-9]{2})([0-9]{2}).*\.csv$/i;
const READ_BYTES = 262_144;
const SAMPLES = 32;
const SAMPLE_BYTES = 65_536;

/**
 * Opens a zip as CMS publishes it, the folder it was unpacked to, or a single csv file of it.
 * @returns its files in the order in which they are imported, never none, and what tells the same content again,
 *   wherever it lies
 * @throws {ImportProblem} if there is nothing to import, or more than one file of a kind
 */
export async function openSource(path: string, dataset: Dataset = 'nppes') {
  const membersOf = dataset === 'nppes' ? nppesMembers : clinicianMember;
  const status = await orImportProblem(stat(path), cannotOpen(path));
  const name = basename(path);
  if (/\.zip$/i.test(name)) {
    const zip = await openZip(path);
    try {
      const members = membersOf(path, zip.files);
      return { name, members, fingerprint: await fingerprint([path]), close: zip.close };
    } catch (error) {
      await zip.close();
      throw error;
    }
  }
  const paths = status.isDirectory() ? (await readdir(path)).sort().map((file) => join(path, file)) : [path];
  const files = await Promise.all(paths.filter((file) => /\.csv$/i.test(file)).map(plainFile));
  const members = membersOf(path, files);
  const used = paths.filter((file) => members.some((member) => member.name === basename(file)));
  return { name, members, fingerprint: await fingerprint(used), close: async () => {} };
}

/** CMS names it DAC_NationalDownloadableFile.csv, in archives otherwise: what it is, its columns say. */
function clinicianMember(path: string, files: readonly RawFile[]): Member[] {
  const [file] = files;
  if (file === undefined || files.length > 1) {
    throw new ImportProblem(
      `${path} holds ${files.length} csv files; name the one of them that is the national file`,
    );
  }
  return [{ ...file, kind: 'clinicians', asOf: 'infinity' }];
}

function nppesMembers(path: string, files: readonly RawFile[]): Member[] {
  const members = files.flatMap((file) => memberOf(file) ?? []);
  if (members.length === 0) {
    throw new ImportProblem(
      `${path} holds no file of NPPES by its name: ${SUPPORTED} with YYYYMMDD-YYYYMMDD in it`,
    );
  }
  for (const kind of MEMBER_KINDS) {
    const same = members.filter((member) => member.kind === kind);
    if (same.length > 1) {
      throw new ImportProblem(
        `${path} holds ${same.length} ${kind} files; import each download by itself, the oldest first`,
      );
    }
  }
  const kinds: readonly FileKind[] = MEMBER_KINDS;
  return members.sort((a, b) => kinds.indexOf(a.kind) - kinds.indexOf(b.kind));
}

/** Null for what is not imported: descriptions of the columns, PDFs, and what other programs leave beside them. */
function memberOf(file: RawFile): Member | null {
  const [, kind, year, month, day] = MEMBER_NAME.exec(file.name) ?? [];
  if (/_fileheader\.csv$/i.test(file.name)) return null;
  const known = MEMBER_KINDS.find((one) => one === kind?.toLowerCase());
  return known ? { ...file, kind: known, asOf: `${year}-${month}-${day}` } : null;
}

async function plainFile(path: string): Promise<RawFile> {
  const { size } = await stat(path);
  return {
    name: basename(path),
    size,
    open: () => createReadStream(path, { highWaterMark: READ_BYTES }),
  };
}

/** A hash of size and samples from head to tail: eleven gigabytes are not read for it. */
async function fingerprint(paths: readonly string[]): Promise<string> {
  const hash = createHash('sha256');
  for (const path of paths) {
    const file = await open(path);
    try {
      const { size } = await file.stat();
      // The days it tells of are in the name; of a zip, in its directory.
      hash.update(`${MEMBER_NAME.test(basename(path)) ? basename(path).toLowerCase() : ''}\n${size}\n`);
      const step = Math.max(SAMPLE_BYTES, Math.floor((size - SAMPLE_BYTES) / (SAMPLES - 1)));
      for (let sample = 0; sample < SAMPLES && sample * step < size; sample += 1) {
        const position = sample === SAMPLES - 1 ? Math.max(0, size - SAMPLE_BYTES) : sample * step;
        const { buffer, bytesRead } = await file.read(Buffer.alloc(SAMPLE_BYTES), 0, SAMPLE_BYTES, position);
        hash.update(buffer.subarray(0, bytesRead));
      }
    } finally {
      await file.close();
    }
  }
  return hash.digest('hex');
}

const STORED = 0;
const DEFLATED = 8;
const DEFLATE64 = 9;
/** yauzl's own inflater gives pieces of 16 KB, for each of which the importer would be woken up. */
const PIECE_BYTES = 262_144;

/**
 * Opens a zip, files beyond 4 GB included.
 * @throws {ImportProblem} if it is damaged, encrypted, or packed in a way that cannot be read
 */
async function openZip(path: string): Promise<{ files: RawFile[]; close(): Promise<void> }> {
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
    async *open() {
      requireReadable(zipName, entry);
      let length = 0;
      let checksum = 0;
      try {
        for await (const piece of unpacked(zip, entry)) {
          checksum = crc32(piece, checksum);
          length += piece.length;
          yield piece;
        }
      } catch {
        throw damaged(zipName);
      }
      if (length !== entry.uncompressedSize || checksum !== entry.crc32) throw damaged(zipName);
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
  const { compressionMethod: method } = entry;
  if (!entry.isEncrypted() && (method === STORED || method === DEFLATED)) return;
  const packing = method === DEFLATE64 ? 'Deflate64' : `method ${method}`;
  const how = entry.isEncrypted() ? 'is encrypted' : `is packed by ${packing}`;
  throw new ImportProblem(
    `${basename(entry.fileName)} in ${zipName} ${how}, which cannot be read here; unpack it first ("unzip ${zipName} -d FOLDER"), then import the folder`,
  );
}

function damaged(zipName: string): ImportProblem {
  return new ImportProblem(
    `${zipName} is not a zip file, or damaged, or was not downloaded wholly; download it again`,
  );
}
