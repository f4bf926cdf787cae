import { CsvReader, type CsvRecord } from './csv.ts';
import { findColumns, type Header, ImportProblem } from './layout.ts';
import { type Reject, rowParser } from './rows.ts';
import type { Member } from './source.ts';

/** A part of a file, which is imported in one transaction. */
export type Chunk = Readonly<ReturnType<typeof emptyChunk>>;

const emptyChunk = () => ({
  /** The accepted rows in the text format of COPY. */
  copy: [] as Buffer[],
  /** Number of rows that were read, including rejected rows. */
  read: 0,
  rejected: [] as Reject[],
  /** Number of bytes that were read from the unpacked file. */
  bytes: 0,
});

/**
 * Number of rows in a chunk. It is large enough that the cost of a transaction hardly matters, and
 * small enough that the chunks in memory fit.
 */
export const CHUNK_ROWS = 20_000;
const BUFFER_BYTES = 524_288;

/**
 * Reads the first row of a file and finds the columns in it.
 * @throws {ImportProblem} if required columns are missing, or the file cannot be read
 */
export async function readHeader({ name, kind, open }: Member): Promise<Header> {
  const reader = new CsvReader(null);
  const rows: string[][] = [];
  const onRecord = (record: CsvRecord) => {
    if (rows.length > 0) return;
    rows.push(Array.from({ length: record.columns }, (_, column) => record.text(column)));
  };
  for await (const piece of open()) {
    reader.push(piece, onRecord);
    if (rows.length > 0) break;
  }
  reader.end(onRecord);
  const [names = []] = rows;
  return findColumns(name, kind, names);
}

/** Collects the parsed rows of a file in chunks. */
class ChunkWriter {
  private readonly parse: ReturnType<typeof rowParser>;
  private chunk = emptyChunk();
  private buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  private used = 0;
  private isHeader = true;

  constructor(parse: ReturnType<typeof rowParser>) {
    this.parse = parse;
  }

  get isFull(): boolean {
    return this.chunk.read >= CHUNK_ROWS;
  }

  countBytes(bytes: number): void {
    this.chunk.bytes += bytes;
  }

  /** Adds a row to the chunk. Skips the first row of the file, which is the header. */
  add(record: CsvRecord): void {
    if (this.isHeader) {
      this.isHeader = false;
      return;
    }
    this.chunk.read += 1;
    const row = this.parse(record);
    if (typeof row !== 'string') {
      this.chunk.rejected.push(row);
      return;
    }
    // A UTF-16 unit takes at most three bytes in UTF-8.
    const size = row.length * 3;
    if (size > this.buffer.length - this.used) {
      this.startBuffer(Math.max(BUFFER_BYTES, size));
    }
    // The row is written to the buffer immediately. Strings that are kept until the end of the
    // chunk would move to V8's old generation and use more memory.
    this.used += this.buffer.write(row, this.used);
  }

  /** Ends the chunk and begins the next one. */
  close(): Chunk {
    this.startBuffer(BUFFER_BYTES);
    const closed = this.chunk;
    this.chunk = emptyChunk();
    return closed;
  }

  private startBuffer(size: number): void {
    if (this.used > 0) {
      this.chunk.copy.push(this.buffer.subarray(0, this.used));
    }
    this.buffer = Buffer.allocUnsafeSlow(size);
    this.used = 0;
  }
}

/**
 * Yields the rows of a file in chunks.
 * @param importNumber number to store in the rows of providers. Null if no rows are written
 * @throws {ImportProblem} if the file cannot be read, or ends in the middle of a row
 */
export async function* readChunks(
  member: Member,
  header: Header,
  importNumber: number | null = null,
): AsyncGenerator<Chunk> {
  const reader = new CsvReader(header.columns);
  const writer = new ChunkWriter(
    rowParser(member.kind, member.asOf, header, importNumber),
  );
  const onRecord = (record: CsvRecord) => writer.add(record);
  for await (const piece of member.open()) {
    writer.countBytes(piece.length);
    reader.push(piece, onRecord);
    if (writer.isFull) yield writer.close();
  }
  reader.end(onRecord);
  if (reader.isCut) {
    throw new ImportProblem(
      `${member.name} ends in the middle of a row; download it again, then repeat the import`,
    );
  }
  yield writer.close();
}
