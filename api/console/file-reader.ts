import { MAX_UPLOAD_BYTES } from '../../db/uploads/uploads.ts';
import { findColumn } from '../files/column.ts';
import { contactsIn, readTable, type Table } from '../files/table.ts';
import { UsageError } from '../files/usage-error.ts';
import { outlineOf } from './outline.ts';

// Reads uploaded CSV files with the reader of the client's command. These functions run in a thread
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

export interface Draft {
  readonly kind: 'draft';
  readonly header: readonly string[];
  /** The position of the NPI column, from 0. Null if the visitor must choose it. */
  readonly column: number | null;
  /** The cells of the first rows. */
  readonly preview: readonly (readonly string[])[];
  readonly rows: number;
  /** The different NPIs to look up. */
  readonly npis: readonly string[];
  readonly duplicates: number;
  readonly unusable: readonly UnusableRow[];
  /** Sentences about how the file was read. */
  readonly notes: readonly string[];
}

const MAX_ROWS = 10_000;
const MAX_COLUMNS = 200;
/** The number of characters that are shown of a cell without a usable NPI. */
const MAX_CELL = 40;
const PREVIEW_ROWS = 5;
const PREVIEW_COLUMNS = 8;
/** The number of characters of a cell or a column name that a draft shows. */
const PREVIEW_CHARACTERS = 100;
const MAX_NAME = 200;

export interface FormTask {
  /** The body of a multipart form. */
  readonly body: Uint8Array<ArrayBuffer>;
  readonly contentType: string;
}

/** Reads the file of a form. Returns a sentence that says what is wrong if it can't be used. */
export async function receive(task: FormTask): Promise<UploadedFile | string> {
  const file = await readForm(task);
  if (file === null) return 'Choose a CSV file.';
  if (file.content.length > MAX_UPLOAD_BYTES)
    return `${file.fileName} is larger than 5 MB. Split it into smaller files.`;
  const inspection = inspect({ file, column: null });
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
  if (!(file instanceof File)) return null;
  // Removes invisible characters, such as half of a character that was cut.
  const fileName = file.name.slice(0, MAX_NAME).replace(/\p{C}/gu, '');
  if (fileName === '') return null;
  return { fileName, content: await file.bytes() };
}

/** Does nothing. It is called to start the thread. */
export function ready(): void {}

export interface InspectTask {
  readonly file: UploadedFile;
  /** The position of the NPI column, or null to guess it. */
  readonly column: number | null;
}

/** Reads a file for its draft. */
export function inspect({ file, column }: InspectTask): Inspection {
  let table: Table;
  try {
    table = readTable(file.fileName, Buffer.from(file.content));
  } catch (error) {
    if (error instanceof UsageError) return { kind: 'unusable', problem: error.message };
    throw error;
  }
  const { header, rows } = table;
  if (rows.length > MAX_ROWS) {
    const problem = `${file.fileName} has ${rows.length} rows. Split it into files of at most ${MAX_ROWS} rows.`;
    return { kind: 'unusable', problem };
  }
  const width = Math.max(header.length, ...rows.map(({ cells }) => cells.length));
  if (width > MAX_COLUMNS) {
    const problem = `${file.fileName} has ${width} columns. Remove all but ${MAX_COLUMNS}.`;
    return { kind: 'unusable', problem };
  }
  const shortened = (cell: string) => cell.slice(0, PREVIEW_CHARACTERS);
  const preview = rows
    .slice(0, PREVIEW_ROWS)
    .map(({ cells }) => cells.slice(0, PREVIEW_COLUMNS).map(shortened));
  const found = column !== null && column in header ? column : guess(table);
  const shown = {
    kind: 'draft',
    header: header.map(shortened),
    column: found,
    preview,
    rows: rows.length,
  } as const;
  if (found === null) {
    return { ...shown, npis: [], duplicates: 0, unusable: [], notes: table.notes };
  }
  const contacts = contactsIn(table, found);
  const asked = contacts.rows.flatMap(({ npi, earlier }) => (npi && !earlier ? npi : []));
  const npis = [...new Set(asked)];
  const unusable = contacts.rows.filter(({ npi }) => npi === null);
  return {
    ...shown,
    npis,
    duplicates: asked.length - npis.length,
    unusable: unusable.map(({ line, cell, problem }) => ({
      line,
      cell: cell.slice(0, MAX_CELL),
      problem,
    })),
    notes: contacts.notes,
  };
}

function guess({ header, rows }: Table): number | null {
  try {
    const cells = rows.map((row) => row.cells);
    return findColumn('', header, cells, undefined).index;
  } catch (error) {
    if (error instanceof UsageError) return null;
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
export function prepare({ file, column }: InspectTask): Prepared | null {
  const draft = inspect({ file, column });
  if (draft.kind === 'unusable' || draft.column === null) return null;
  const { npis, column: npiColumn } = draft;
  if (npis.length === 0) return null;
  const table = readTable(file.fileName, Buffer.from(file.content));
  return { npis, npiColumn, outline: outlineOf(contactsIn(table, npiColumn)) };
}
