import { stringify } from 'csv-stringify/sync';
import { formatOf, resultRows } from '../files/result-rows.ts';
import type { Contacts } from '../files/table.ts';
import { quoted } from '../http/csv.ts';

// When an upload is started, its file is replaced by the outline of its results: the file with the
// columns of the command's result, and a place for the result of each NPI. So results are sent in
// parts, without parsing the file again.

/** Begins a place. A file can't contain it, because we don't read files with NUL bytes. */
const MARK = '\0';
/** A place: an NPI in the first of five cells. The second group is the delimiter. */
const PLACE = /\0(\d{10})(.)\2{3}/gs;
const PLACE_LENGTH = 15;

/** Returns the outline of the results of a file. */
export function outlineOf(contacts: Contacts): Uint8Array {
  const empty = {
    email_type: null,
    email_last_validated: null,
    status: '',
    replayed: false,
  };
  const places = contacts.rows.map(
    ({ npi }) => [npi ?? '', { ...empty, email: `${MARK}${npi}` }] as const,
  );
  const rows = resultRows(contacts, new Map(places), '');
  return Buffer.from(stringify([...rows], formatOf(contacts)));
}

/** Fills the places of an outline, which is read in parts. */
export class Filling {
  readonly #cellsOf: (npi: string) => readonly string[];
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  /** The beginning of a place that ends in the next part. */
  #rest = '';

  /** @param cellsOf returns the five cells for an NPI */
  constructor(cellsOf: (npi: string) => readonly string[]) {
    this.#cellsOf = cellsOf;
  }

  /** Returns the text of the next part, with its places filled. */
  next(part: Uint8Array): string {
    const text = this.#rest + this.#decoder.decode(part, { stream: true });
    const last = text.lastIndexOf(MARK);
    const isCut = last !== -1 && last + PLACE_LENGTH > text.length;
    const end = isCut ? last : text.length;
    this.#rest = text.slice(end);
    return text.slice(0, end).replaceAll(PLACE, (_, npi: string, delimiter: string) =>
      this.#cellsOf(npi)
        .map((cell) => quoted(cell, delimiter))
        .join(delimiter),
    );
  }
}
