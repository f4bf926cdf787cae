import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, readdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { pipeline, type Readable } from 'node:stream';
import { crc32, createInflateRaw } from 'node:zlib';
import { type Entry, openPromise, type ZipFile } from 'yauzl';
import type { Dataset } from '../../db/lookups/imports.ts';
import { isDay } from '../config/values.ts';
import {
  cannotOpen,
  type FileKind,
  ImportProblem,
  MEMBER_KINDS,
  orImportProblem,
} from './layout.ts';

/** A file of a download. */
export interface Member {
  /** The file name without its folder. */
  readonly name: string;
  readonly kind: FileKind;
  /**
   * The last day that the file covers, as `YYYY-MM-DD`, or `infinity` if the file name does not
   * contain it.
   */
  readonly asOf: string;
  /** The path of the file, or of the zip that contains it. */
  readonly path: string;
  /** The unpacked size in bytes. */
  readonly size: number;
  /** Opens the file. @throws {ImportProblem} if it cannot be read */
  open(): AsyncIterable<Buffer>;
}

/** A file in a folder or a zip, before its kind is known. */
type RawFile = Omit<Member, 'kind' | 'asOf'>;

/**
 * Matches the names of NPPES's data files. Does not match column descriptions, PDFs, and files that
 * other programs leave in the folder.
 */
const MEMBER_NAME =
  /^(npidata|othername|pl|endpoint)_pfile_[0-9]{8}-([0-9]{4})([0-9]{2})([0-9]{2})(?!.*_fileheader\.csv$).*\.csv$/i;
/**
 * Number of bytes that are read or unpacked at a time. We don't let yauzl unpack the files, because
 * it returns only 16 KB at a time. The importer would have to handle many more pieces.
 */
const PIECE_BYTES = 262_144;
const DAY_MS = 86_400_000;
const SAMPLES = 32;
const SAMPLE_BYTES = 65_536;

/**
 * Opens a download: a zip from CMS, a folder with its unpacked files, or one of its CSV files.
 * @returns the files in the order in which they are imported, at least one, and a fingerprint of
 * their content. The fingerprint does not depend on the folder
 * @throws {ImportProblem} if there is no file to import, or more than one file of the same kind
 */
export async function openSource(path: string, dataset: Dataset) {
  const status = await orImportProblem(stat(path), cannotOpen(path));
  const name = basename(path);
  const isZip = /\.zip$/i.test(name);
  const opened = isZip
    ? await openZip(path)
    : await openPlain(path, status.isDirectory());
  const { files, close } = opened;
  try {
    const members =
      dataset === 'nppes' ? nppesMembers(path, files) : clinicianMember(path, files);
    const paths = new Set(members.map((member) => member.path));
    return { name, members, fingerprint: await fingerprint([...paths]), close };
  } catch (error) {
    close();
    throw error;
  }
}

/**
 * Returns the file of "Doctors and Clinicians". The file may have any name, because CMS uses other
 * names in its archives than DAC_NationalDownloadableFile.csv. A wrong file is detected later by
 * its columns.
 */
function clinicianMember(path: string, files: readonly RawFile[]): Member[] {
  const [file] = files;
  if (file === undefined || files.length > 1) {
    throw new ImportProblem(
      `${path} has ${files.length} csv files; give the path of the national file`,
    );
  }
  return [{ ...file, kind: 'clinicians', asOf: 'infinity' }];
}

function nppesMembers(path: string, files: readonly RawFile[]): Member[] {
  const named = files.flatMap((file) => memberOf(file) ?? []);
  const members = MEMBER_KINDS.flatMap((kind) => {
    const same = named.filter((member) => member.kind === kind);
    if (same.length <= 1) return same;
    throw new ImportProblem(
      `${path} has ${same.length} ${kind} files; import each download separately, the oldest first`,
    );
  });
  // If we imported a file with a date in the future, all correct files would count as older until
  // that day.
  const wrong = members.find(
    ({ asOf }) => !isDay(asOf) || Date.parse(asOf) > Date.now() + DAY_MS,
  );
  if (wrong) {
    throw new ImportProblem(
      `${wrong.name} has the date ${wrong.asOf} in its name, which is invalid or ` +
        'in the future; give it the name from CMS',
    );
  }
  if (members.length > 0) return members;
  const names = MEMBER_KINDS.map((kind) => `${kind}_pfile_….csv`).join(', ');
  throw new ImportProblem(
    `${path} has no NPPES file: their names are ${names} with YYYYMMDD-YYYYMMDD ` +
      'in them; keep the names from CMS',
  );
}

/**
 * Returns the kind and the last day of a file from its name, or null if it is not an NPPES data
 * file.
 */
function memberOf(file: RawFile): Member | null {
  const match = MEMBER_NAME.exec(file.name);
  if (match === null) return null;
  const [, name, year, month, day] = match;
  const kind = MEMBER_KINDS.find((one) => one === name?.toLowerCase());
  if (kind === undefined) return null;
  return { ...file, kind, asOf: `${year}-${month}-${day}` };
}

/** The files of a download, and a function that closes the zip. */
interface RawSource {
  readonly files: RawFile[];
  close(): void;
}

async function openPlain(path: string, isFolder: boolean): Promise<RawSource> {
  const paths = isFolder ? await pathsIn(path) : [path];
  const files: RawFile[] = [];
  for (const file of paths) {
    if (!/\.csv$/i.test(file)) continue;
    const { size } = await stat(file);
    const open = () => createReadStream(file, { highWaterMark: PIECE_BYTES });
    files.push({ name: basename(file), path: file, size, open });
  }
  return { files, close: () => {} };
}

async function pathsIn(folder: string): Promise<string[]> {
  const names = await readdir(folder);
  return names.sort().map((name) => join(folder, name));
}

/**
 * Returns a hash of the size of each file and of samples that are spread over the file. Hashing all
 * eleven gigabytes would take too long.
 */
async function fingerprint(paths: readonly string[]): Promise<string> {
  const hash = createHash('sha256');
  for (const path of paths) {
    const file = await open(path);
    try {
      const { size } = await file.stat();
      const name = basename(path).toLowerCase();
      // The name of a CSV file contains the days that the file covers, so the name is hashed too.
      // In a zip, these names are part of the hashed content.
      const days = MEMBER_NAME.test(name) ? name : '';
      hash.update(`${days}\n${size}\n`);
      const last = Math.max(0, size - SAMPLE_BYTES);
      for (let sample = 0; sample < SAMPLES; sample += 1) {
        const position = Math.floor((last * sample) / (SAMPLES - 1));
        const buffer = Buffer.alloc(SAMPLE_BYTES);
        const { bytesRead } = await file.read(buffer, 0, SAMPLE_BYTES, position);
        hash.update(buffer.subarray(0, bytesRead));
      }
    } finally {
      await file.close();
    }
  }
  return hash.digest('hex');
}

/**
 * Numbers of compression methods in zip files. We can unpack stored and deflated files, but not
 * Deflate64.
 */
const STORED = 0;
const DEFLATE64 = 9;
/**
 * Maximum number of files in a zip. The zips of CMS have a dozen files, and its archives of
 * "Doctors and Clinicians" have a few more.
 */
const MAX_ENTRIES = 1_000;
/**
 * Maximum size of a file's entry in the directory of a zip: its name, comment, and extra fields.
 */
const MAX_ENTRY_BYTES = 4_096;

/**
 * Opens a zip. Its files may be larger than 4 GB.
 * @throws {ImportProblem} if the zip is damaged, or has a larger directory than any zip of CMS
 */
async function openZip(path: string): Promise<RawSource> {
  const options = { autoClose: false, lazyEntries: true, decodeStrings: false };
  const zip = await openPromise(path, options).catch(() => {
    throw damaged(path);
  });
  try {
    const files: RawFile[] = [];
    requireSmallDirectory(path, zip.entryCount <= MAX_ENTRIES);
    for await (const entry of zip.eachEntry()) {
      const { fileNameLength, extraFieldLength, fileCommentLength } = entry;
      const size = fileNameLength + extraFieldLength + fileCommentLength;
      requireSmallDirectory(path, size <= MAX_ENTRY_BYTES);
      const name = nameOf(entry);
      const open = () => unpacked(path, zip, entry);
      if (/\.csv$/i.test(name)) {
        files.push({ name, path, size: entry.uncompressedSize, open });
      }
    }
    return { files, close: () => zip.close() };
  } catch (error) {
    zip.close();
    if (error instanceof ImportProblem) throw error;
    throw damaged(path);
  }
}

/** Returns the file name of a zip entry without its folder. */
function nameOf(entry: Entry): string {
  return basename(entry.fileNameRaw.toString());
}

function requireSmallDirectory(path: string, isSmall: boolean): void {
  if (isSmall) return;
  throw new ImportProblem(
    `${basename(path)} has more than ${MAX_ENTRIES} files, or names of more than ` +
      `${MAX_ENTRY_BYTES} bytes, which no zip of CMS has; download it again`,
  );
}

/**
 * Unpacks a file.
 * @throws {ImportProblem} if it is damaged, encrypted, or packed in a way that cannot be read
 */
async function* unpacked(
  path: string,
  zip: ZipFile,
  entry: Entry,
): AsyncIterable<Buffer> {
  if (!entry.canDecodeFileData()) throw unreadable(path, entry);
  let checksum = 0;
  try {
    const packed = await zip.openReadStreamPromise(entry, { decodeFileData: false });
    const pieces = entry.compressionMethod === STORED ? packed : inflated(packed);
    for await (const piece of pieces) {
      checksum = crc32(piece, checksum);
      yield piece;
    }
  } catch {
    throw damaged(path);
  }
  if (checksum !== entry.crc32) throw damaged(path);
}

function inflated(packed: Readable): Readable {
  // Errors are thrown to the reader of the returned stream, so this callback can ignore them.
  return pipeline(packed, createInflateRaw({ chunkSize: PIECE_BYTES }), () => {});
}

function unreadable(path: string, entry: Entry): ImportProblem {
  const zipName = basename(path);
  const problem = entry.isEncrypted()
    ? 'is encrypted'
    : `is packed by ${methodOf(entry)}`;
  return new ImportProblem(
    `${nameOf(entry)} in ${zipName} ${problem}, which cannot be read here; unpack ` +
      `it first ("unzip ${zipName} -d FOLDER"), then import the folder`,
  );
}

function methodOf({ compressionMethod }: Entry): string {
  if (compressionMethod === DEFLATE64) return 'Deflate64';
  return `method ${compressionMethod}`;
}

function damaged(path: string): ImportProblem {
  return new ImportProblem(
    `${basename(path)} is not a zip file, or is damaged or incomplete; download it again`,
  );
}
