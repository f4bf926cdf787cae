import { type CsvRecord, csvReader } from './csv.ts';
import { findColumns, type Header } from './headers.ts';
import { NEEDED, npiOf, type Reject, rowParser } from './rows.ts';
import type { Member } from './source.ts';

/** Rows of a file that are imported together, wholly or not at all. */
export interface Chunk {
  /** In COPY's text format. */
  readonly copy: readonly Buffer[];
  /** Rows read, rejected ones among them. */
  readonly read: number;
  readonly rejects: readonly Reject[];
  /** Where the next chunk begins. */
  readonly next: Position;
}

/** A place between two rows of a file. */
export interface Position {
  /** In bytes, of the file as it is outside the zip. */
  readonly offset: number;
  /** Number of the line that begins there, from 1. */
  readonly line: number;
}

export const BEGINNING: Position = { offset: 0, line: 1 };

const BUFFER_BYTES = 524_288;

/**
 * Reads a file of the set from a place on.
 * @throws {ImportProblem} for another layout, and where the file cannot be read
 */
export async function* readChunks(
  member: Member,
  options: { readonly from: Position; readonly acceptsDrift: boolean; readonly chunkRows: number },
): AsyncGenerator<Chunk> {
  const { header, rows } = await readHeader(member, options.acceptsDrift);
  const from = options.from.offset === 0 ? rows : options.from;
  const reader = csvReader(header.columns, from);
  const chunk = openChunk(member, header);
  for await (const piece of member.open(from.offset)) {
    reader.push(piece, chunk.add);
    if (chunk.read() >= options.chunkRows) yield chunk.close();
  }
  reader.end(chunk.add);
  yield chunk.close();
}

/**
 * Finds the columns, and where the rows begin.
 * @throws {ImportProblem} for another layout, and where the file cannot be read
 */
export async function readHeader(
  member: Member,
  acceptsDrift: boolean,
): Promise<{ header: Header; rows: Position }> {
  const reader = csvReader(null, BEGINNING);
  let names: string[] | undefined;
  let rows = BEGINNING;
  const onRecord = (record: CsvRecord) => {
    if (names) return;
    names = Array.from({ length: record.columns }, (_, column) => record.text(column));
    rows = { offset: record.end, line: record.line + 1 };
  };
  for await (const piece of member.open(0)) {
    reader.push(piece, onRecord);
    if (names) break;
  }
  reader.end(onRecord);
  const header = findColumns(member.name, member.kind, names ?? [], NEEDED[member.kind], acceptsDrift);
  return { header, rows };
}

function openChunk(member: Member, header: Header) {
  const parse = rowParser(member.kind, member.asOf, header);
  let copy: Buffer[] = [];
  let buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  let used = 0;
  let read = 0;
  let rejects: Reject[] = [];
  let next = BEGINNING;
  return {
    read: () => read,
    add(record: CsvRecord): void {
      read += 1;
      const row = parse(record);
      if (typeof row === 'string') {
        // A character takes three bytes at most.
        if (row.length * 3 > buffer.length - used) flush(Math.max(BUFFER_BYTES, row.length * 3));
        // Written at once: rows kept as strings until the end of a chunk would outlive the young generation.
        used += buffer.write(row, used);
      } else {
        rejects.push({ line: record.line, npi: npiOf(record, header), reason: row.reason });
      }
      next = { offset: record.end, line: record.line + 1 };
    },
    close(): Chunk {
      flush(BUFFER_BYTES);
      const closed = { copy, read, rejects, next };
      copy = [];
      rejects = [];
      read = 0;
      return closed;
    },
  };

  function flush(size: number): void {
    if (used > 0) copy.push(buffer.subarray(0, used));
    buffer = Buffer.allocUnsafeSlow(size);
    used = 0;
  }
}
