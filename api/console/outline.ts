import { stringify } from 'csv-stringify/sync';
import { formatOf, otherCells, resultRows } from '../files/result-rows.ts';
import type { Contacts } from '../files/table.ts';
import { quoted } from '../http/csv.ts';
import { FACT_COLUMNS } from './people.ts';

// When an upload is started, its file is replaced by the outline of its results: the file with
// columns for public facts and those of the command's result, and with places for the facts and the
// result of each NPI. So results are sent in parts, without parsing the file again.

/** Begins a place. A file can't contain it, because we don't read files with NUL bytes. */
const MARK = '\0';
/** Follows the mark of a place for facts. */
const FACTS = 'f';
/** A place: an NPI in the first of five cells. The third group is the delimiter. */
const PLACE = /\0(f?)(\d{10})(.)\3{3}/gs;
/** The length of a place for facts. A place for a result is followed by the end of its line. */
const PLACE_LENGTH = 16;
/** The prefix is that of the columns that the command adds. */
const COLUMNS = FACT_COLUMNS.map((name) => `enriched_${name}`);

/** Returns the outline of the results of a file. */
export function outlineOf(contacts: Contacts): Uint8Array {
  const empty = {
    email_type: null,
    email_last_validated: null,
    status: '',
    replayed: false,
  } as const;
  const places = contacts.rows.map(
    ({ npi }) => [npi ?? '', { ...empty, email: `${MARK}${npi}` }] as const,
  );
  const rows = resultRows(withFacts(contacts), new Map(places), '');
  return Buffer.from(stringify([...rows], formatOf(contacts)));
}

/**
 * Adds a column for each public fact, and a place for the facts about each NPI. These columns of an
 * earlier result are replaced.
 */
function withFacts(contacts: Contacts): Contacts {
  const { header, titles, rows } = contacts;
  const kept = otherCells(contacts, COLUMNS);
  const rest = COLUMNS.slice(1).map(() => '');
  return {
    ...contacts,
    header: [...kept(header), ...COLUMNS],
    titles: titles.map((row) => ({ ...row, cells: kept(row.cells) })),
    rows: rows.map((row) => {
      const place = row.npi === null ? '' : `${MARK}${FACTS}${row.npi}`;
      return { ...row, cells: [...kept(row.cells), place, ...rest] };
    }),
  };
}

type CellsOf = (npi: string) => readonly string[];

/** Fills the places of an outline, which is read in parts. */
export class Filling {
  readonly #resultOf: CellsOf;
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  /** The beginning of a place that ends in the next part. */
  #rest = '';

  /** @param resultOf returns five cells for an NPI */
  constructor(resultOf: CellsOf) {
    this.#resultOf = resultOf;
  }

  /** Returns the text of the next part, which ends before a place that is cut. */
  take(part: Uint8Array): string {
    const text = this.#rest + this.#decoder.decode(part, { stream: true });
    const last = text.lastIndexOf(MARK);
    const isCut = last !== -1 && last + PLACE_LENGTH > text.length;
    const end = isCut ? last : text.length;
    this.#rest = text.slice(end);
    return text.slice(0, end);
  }

  /**
   * Returns a text with its places filled.
   * @param factsOf returns five cells for an NPI
   */
  fill(text: string, factsOf: CellsOf): string {
    const filled = (_: string, kind: string, npi: string, delimiter: string) => {
      const cells = kind === FACTS ? factsOf(npi) : this.#resultOf(npi);
      return cells.map((cell) => quoted(cell, delimiter)).join(delimiter);
    };
    return text.replaceAll(PLACE, filled);
  }
}

/** Returns the NPIs of a text that have a place for facts. */
export function npisWithFacts(text: string): string[] {
  const places = [...text.matchAll(PLACE)];
  return places.flatMap(([, kind, npi = '']) => (kind === FACTS ? npi : []));
}
