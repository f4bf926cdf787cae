import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { open, stat } from 'node:fs/promises';
import { basename } from 'node:path';
import { csvReader } from '../nppes/csv.ts';
import { ImportProblem } from '../nppes/layout.ts';

// Imports of one row after the other, each with a verdict: of any size, a thousand rows at a time.

export interface Row {
  /** Of its first line, from 1. */
  readonly line: number;
  /** Without space around them. */
  readonly cells: readonly string[];
}

/** What is to be made of a row: the thing to store, or the verdict it has by itself. */
export type Judged<T> = { readonly verdict: string } | { readonly store: T };

/** How the rows of a file are read, by its first row. */
export interface Reading<T> {
  /** True where the first row only names the columns. */
  readonly hasHeader: boolean;
  judge(row: Row): Judged<T>;
}

export interface RowImport<T> {
  readonly path: string;
  /** Where each row's line and verdict go; null for nowhere. */
  readonly verdictsPath: string | null;
  /** @throws {ImportProblem} where the first row shows that the file is not one of these */
  begin(first: Row): Reading<T>;
  /** @returns a verdict for each */
  store(rows: readonly T[]): Promise<readonly string[]>;
}

const ROWS_AT_ONCE = 1000;
const HEADING = 'line,verdict\n';

/**
 * Reads a file to its end.
 * @param onCounts hears the rows by verdict after each step, the last time at the end
 * @throws {ImportProblem} where a file cannot be read or written, or is not what it should be
 */
export async function importRows<T>(
  { path, verdictsPath, begin, store }: RowImport<T>,
  onCounts: (counts: Readonly<Record<string, number>>) => void,
): Promise<void> {
  const verdicts = verdictsPath === null ? null : await attempt(verdictsPath, () => open(verdictsPath, 'w'));
  try {
    await verdicts?.write(HEADING);
    const counts: Record<string, number> = {};
    let known: Reading<T> | undefined;
    for await (const rows of readRows(path)) {
      const [first] = rows;
      if (first === undefined) continue;
      const reading = known ?? begin(first);
      const own = known === undefined && reading.hasHeader ? rows.slice(1) : rows;
      known = reading;
      const judged = own.map((row) => ({ line: row.line, ...reading.judge(row) }));
      const stored = await store(judged.flatMap((one) => ('store' in one ? [one.store] : [])));
      let n = 0;
      const lines = judged.map((one) => {
        const verdict = 'store' in one ? (stored[n++] ?? 'unchanged') : one.verdict;
        counts[verdict] = (counts[verdict] ?? 0) + 1;
        return `${one.line},${verdict}\n`;
      });
      await verdicts?.write(lines.join(''));
      onCounts(counts);
    }
    if (known === undefined) throw new ImportProblem(`${path} holds no rows`);
  } finally {
    await verdicts?.close();
  }
}

/** A file's name without its folder, and what tells the same content again. @throws {ImportProblem} */
export async function identify(path: string): Promise<{ name: string; fingerprint: string }> {
  return await attempt(path, async () => {
    if ((await stat(path)).isDirectory()) throw new ImportProblem(`${path} is a folder; name a csv file`);
    const hash = createHash('sha256');
    for await (const piece of createReadStream(path)) hash.update(piece as Buffer);
    return { name: basename(path), fingerprint: hash.digest('hex') };
  });
}

/** In steps of about a thousand; empty rows are left out, a row with an open quote has no cells. */
async function* readRows(path: string): AsyncGenerator<Row[]> {
  const reader = csvReader(null);
  const rows: Row[] = [];
  const add = (record: Parameters<Parameters<typeof reader.end>[0]>[0]) => {
    const { line, columns, whole } = record;
    const cells = whole ? Array.from({ length: columns }, (_, column) => clean(record.text(column))) : [];
    if (!whole || cells.some((cell) => cell !== '')) rows.push({ line, cells });
  };
  // Short rows: a piece of this size holds some thousand of them.
  for await (const piece of createReadStream(path, { highWaterMark: 65_536 })) {
    reader.push(piece as Buffer, add);
    while (rows.length >= ROWS_AT_ONCE) yield rows.splice(0, ROWS_AT_ONCE);
  }
  reader.end(add);
  while (rows.length > 0) yield rows.splice(0, ROWS_AT_ONCE);
}

/** A spreadsheet's byte order mark is no part of the first value. */
function clean(text: string): string {
  return text.replace(/^\ufeff/, '').trim();
}

async function attempt<T>(path: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof ImportProblem) throw error;
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
    throw new ImportProblem(`cannot open ${path}: ${code === 'ENOENT' ? 'there is no such file' : code}`);
  }
}
