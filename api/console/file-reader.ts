import { MAX_UPLOAD_BYTES } from '../../db/uploads/uploads.ts';
import { NO_NPI } from '../files/cell.ts';
import { findColumn } from '../files/column.ts';
import { readSheet } from '../files/file.ts';
import { MAX_TITLES } from '../files/layout.ts';
import type { Sheet } from '../files/sheet.ts';
import { type Contacts, contactsIn, type Table, tableOf } from '../files/table.ts';
import { UsageError } from '../files/usage-error.ts';
import { shownName } from './name.ts';
import { outlineOf } from './outline.ts';

// Reads uploaded files with the reader of the client's command. These functions run in a thread
// (file-pool.ts), because a hostile file can take seconds.

export interface UploadedFile {
  readonly fileName: string;
  readonly content: Uint8Array;
}

/** A file as its draft shows it, or a sentence that says why it can't be used. */
export type Inspection = { readonly kind: 'unusable'; readonly problem: string } | Draft;

export interface UnusableRow {
  readonly line: number;
  readonly cell: string;
  readonly problem: string;
}

/** One of the first rows. The cells have the same number in all of them. */
export interface PreviewRow {
  readonly cells: readonly string[];
  readonly npi: string | null;
}

export interface Draft {
  readonly kind: 'draft';
  /** The sheet that was read, and all sheets of the workbook. Null and empty for a CSV file. */
  readonly sheet: string | null;
  readonly sheets: readonly string[];
  /** The word for the number of a row. */
  readonly place: Sheet['place'];
  readonly header: readonly string[];
  /** The position of the NPI column, from 0. Null if the visitor must choose it. */
  readonly column: number | null;
  readonly preview: readonly PreviewRow[];
  readonly rows: number;
  /** The different NPIs to look up. */
  readonly npis: readonly string[];
  readonly duplicates: number;
  /** The number of rows that keep an email from an earlier run. */
  readonly kept: number;
  /** The number of rows whose cell in the NPI column has no number. */
  readonly empty: number;
  readonly unusable: readonly UnusableRow[];
  /** Sentences about how the file was read. */
  readonly notes: readonly string[];
}

const MAX_ROWS = 10_000;
/** The number of rows that are read: one more than allowed, the titles, and the column names. */
const MAX_READ = MAX_ROWS + MAX_TITLES + 2;
const MAX_COLUMNS = 200;
/** The number of characters that are shown of a cell without a usable NPI. */
const MAX_CELL = 40;
const PREVIEW_ROWS = 5;
const PREVIEW_COLUMNS = 8;
/** The number of characters of a cell or a column name that a draft shows. */
const PREVIEW_CHARACTERS = 100;

export interface FormTask {
  /** The body of a multipart form. */
  readonly body: Uint8Array<ArrayBuffer>;
  readonly contentType: string;
}

/** Reads the file of a form. Returns a sentence that says what is wrong if it can't be used. */
export async function receive(task: FormTask): Promise<UploadedFile | string> {
  const file = await readForm(task);
  if (file === null) {
    return 'Choose a CSV or Excel file.';
  }
  if (file.content.length > MAX_UPLOAD_BYTES)
    return `${file.fileName} is larger than 5 MB. Split it into smaller files.`;
  const inspection = await inspect({ file, column: null, sheet: null });
  return inspection.kind === 'unusable' ? inspection.problem : file;
}

/**
 * Reads the file of a form. hapi would read it in the main thread, where a hostile form takes hours.
 * @returns null if the form has no file
 */
async function readForm({ body, contentType }: FormTask): Promise<UploadedFile | null> {
  const headers = { 'content-type': contentType };
  const form = await new Response(body, { headers }).formData().catch(() => null);
  const file = form?.get('file');
  if (!(file instanceof File)) {
    return null;
  }
  const fileName = shownName(file.name);
  if (fileName === '') return null;
  return { fileName, content: await file.bytes() };
}

/** Loads the reader of workbooks if it is needed. It is called to start the thread. */
export async function ready(task: { readonly hasWorkbook: boolean }): Promise<void> {
  if (task.hasWorkbook) {
    await import('../files/workbook.ts');
  }
}

export interface InspectTask {
  readonly file: UploadedFile;
  /** The position of the NPI column, or null to guess it. */
  readonly column: number | null;
  /** The name of the sheet of a workbook, or null to choose it. */
  readonly sheet: string | null;
}

/** A file whose NPI column is known, or null if the visitor must choose it. */
interface Reading {
  readonly sheet: Sheet;
  readonly table: Table;
  readonly column: number | null;
  readonly contacts: Contacts | null;
}

/** Reads a file for its draft. */
export async function inspect(task: InspectTask): Promise<Inspection> {
  try {
    return draftOf(await read(task));
  } catch (error) {
    if (error instanceof UsageError) {
      return { kind: 'unusable', problem: error.message };
    }
    throw error;
  }
}

/** @throws {UsageError} if the file can't be used */
async function read({ file, column, sheet: name }: InspectTask): Promise<Reading> {
  const { fileName, content } = file;
  const options = { sheet: name ?? undefined, maxRows: MAX_READ };
  const sheet = await readSheet(fileName, Buffer.from(content), options);
  const table = tableOf(fileName, sheet);
  const { titles, header, rows } = table;
  // The reader of workbooks stops at the second limit.
  if (rows.length > MAX_ROWS || sheet.rows.length >= MAX_READ) {
    throw new UsageError(
      `${fileName} has more than ${MAX_ROWS} rows. Split it into files of at most ${MAX_ROWS} rows.`,
    );
  }
  const width = [...titles, ...rows].reduce(
    (widest, { cells }) => Math.max(widest, cells.length),
    header.length,
  );
  if (width > MAX_COLUMNS) {
    throw new UsageError(
      `${fileName} has ${width} columns. Remove all but ${MAX_COLUMNS}.`,
    );
  }
  const found = column !== null && column in header ? column : guess(table);
  const contacts = found === null ? null : contactsIn(table, found);
  return { sheet, table, column: found, contacts };
}

function draftOf({ sheet, table, column, contacts }: Reading): Draft {
  const { header, rows, place } = table;
  const shortened = (cell: string) => cell.slice(0, PREVIEW_CHARACTERS);
  const first = rows.slice(0, PREVIEW_ROWS);
  const widest = Math.max(...first.map(({ cells }) => cells.length));
  const shown = Array.from({ length: Math.min(widest, PREVIEW_COLUMNS) });
  const preview = first.map(({ cells }, at) => ({
    cells: shown.map((_, column) => shortened(cells[column] ?? '')),
    npi: contacts?.rows[at]?.npi ?? null,
  }));
  const { npis, duplicates } = askedIn(contacts);
  const all = contacts?.rows ?? [];
  const unusable = all.filter(({ npi, earlier }) => !npi && !earlier);
  return {
    kind: 'draft',
    sheet: sheet.name,
    sheets: sheet.names,
    place,
    header: header.map(shortened),
    column,
    preview,
    rows: rows.length,
    npis,
    duplicates,
    kept: all.filter(({ earlier }) => earlier).length,
    empty: unusable.filter(({ problem }) => problem === NO_NPI).length,
    unusable: unusable.map(({ line, cell, problem }) => ({
      line,
      cell: cell.slice(0, MAX_CELL),
      problem,
    })),
    notes: contacts?.notes ?? table.notes,
  };
}

/** Returns the different NPIs to look up, and the number of their repetitions. */
function askedIn(contacts: Contacts | null): Pick<Draft, 'npis' | 'duplicates'> {
  const rows = contacts?.rows ?? [];
  const asked = rows.flatMap(({ npi, earlier }) => (npi && !earlier ? npi : []));
  const npis = [...new Set(asked)];
  return { npis, duplicates: asked.length - npis.length };
}

function guess(table: Table): number | null {
  try {
    return findColumn(table, undefined).index;
  } catch (error) {
    if (error instanceof UsageError) {
      return null;
    }
    throw error;
  }
}

/** The data that the start of an upload stores. */
export interface Prepared {
  readonly npis: readonly string[];
  readonly npiColumn: number;
  /** The outline of the results (`outlineOf`). */
  readonly outline: Uint8Array;
}

/** Prepares a draft for its start. Returns null if it has no NPIs, or no column is chosen. */
export async function prepare(task: InspectTask): Promise<Prepared | null> {
  try {
    const { column, contacts } = await read(task);
    const { npis } = askedIn(contacts);
    if (column === null || contacts === null || npis.length === 0) {
      return null;
    }
    return { npis, npiColumn: column, outline: outlineOf(contacts) };
  } catch (error) {
    if (error instanceof UsageError) {
      return null;
    }
    throw error;
  }
}
