import { OperatorProblem } from '../../db/errors.ts';
import clinicians from './clinicians.json' with { type: 'json' };
import layout from './layout.json' with { type: 'json' };

// The V2 layout of NPPES's files (CMS, "NPPES Data Dissemination - Readme", V2), and what the draft of V3 adds to it: see
// README.md of this folder.

export const MEMBER_KINDS = ['npidata', 'othername', 'pl', 'endpoint'] as const;
/** What a file of the set holds; also how its name begins, before `_pfile_`. */
export type MemberKind = (typeof MEMBER_KINDS)[number];
/** NPPES's, and the one file of "Doctors and Clinicians". */
export type FileKind = MemberKind | 'clinicians';

/** Every column of a file, in the order in which CMS writes them, with the spaces as they are there. */
export const LAYOUT: Readonly<Record<MemberKind, readonly string[]>> = layout;

/** Columns that some files have and others do not: the date in a generation of V2, the rest in V3. */
const COMES_AND_GOES: readonly string[] = layout.sometimes;

/** A column by a name like these may say that an NPI is out of service: not to read it would make it active. */
const TELLING = /activ|status/i;

/** Why an import did not begin, or stopped: one sentence for the operator that says what to do. */
export class ImportProblem extends OperatorProblem {
  override readonly name = 'ImportProblem';
}

/** What the file system refuses, as an `ImportProblem`. @param says what could not be done, given why */
export async function orImportProblem<T>(work: Promise<T>, says: (why: string) => string): Promise<T> {
  return await work.catch((error: NodeJS.ErrnoException) => {
    throw new ImportProblem(
      says(error.code === 'ENOENT' ? 'there is no such file' : (error.code ?? 'unknown')),
    );
  });
}

export const cannotOpen = (path: string) => (why: string) => `cannot open ${path}: ${why}`;

/** Where a file has its columns. */
export interface Header {
  /** How many columns every row has. */
  readonly columns: number;
  has(name: string): boolean;
  /** The place of a column, from 0. @throws {RangeError} if there is none */
  at(name: string): number;
}

const SHOWN = 8;

/**
 * Finds the columns by name, whatever their order, spaces and case.
 * @param file for the message
 * @param needed columns without which nothing can be read
 * @param acceptsDrift true to take a header that differs in columns that nothing reads
 * @throws {ImportProblem} naming what is missing, unknown or there twice
 */
export function findColumns(
  file: string,
  kind: MemberKind,
  names: readonly string[],
  needed: readonly string[],
  acceptsDrift: boolean,
): Header {
  const found = names.map(folded).map((name) => OLD_NAMES.get(name) ?? name);
  const layout = new Set(LAYOUT[kind].map(folded));
  const known = new Set([...layout, ...COMES_AND_GOES.map(folded)]);
  const present = new Set(found);
  if (found.filter((name) => known.has(name)).length * 2 < Math.min(found.length, layout.size)) {
    // Not quoted: the first line of a file without a header is somebody's.
    throw new ImportProblem(
      `${file} does not begin with the header of an NPPES ${kind} file; download it again`,
    );
  }
  const missing = LAYOUT[kind].filter((name) => !present.has(folded(name)));
  const unknown = names.filter((_name, index) => !known.has(found[index] ?? ''));
  const doubled = names.filter((_name, index) => found.indexOf(found[index] ?? '') < index);
  const isTelling = [...unknown, ...doubled].some((name) => TELLING.test(name));
  const hasAll = needed.every((name) => found.filter((one) => one === folded(name)).length === 1);
  const canRead = hasAll && !isTelling;
  if (missing.length + unknown.length + doubled.length > 0 && !(acceptsDrift && canRead)) {
    const differences = [
      ...listed('without', missing),
      ...listed('with the unknown', unknown),
      ...listed('with twice', doubled),
    ];
    const advice = canRead
      ? 'all that is read of it is there, so --accept-drift imports it as it is'
      : isTelling
        ? 'a column may say who is out of service, and is not read; import the file whose name ends in _V2.zip'
        : 'import a file of a known layout, one whose name ends in _V2.zip or _V3.zip';
    throw new ImportProblem(
      `${file} is not of the V2 or V3 layout: ${found.length} columns, ${differences.join('; ')}. ${advice[0]?.toUpperCase()}${advice.slice(1)}`,
    );
  }
  return {
    columns: found.length,
    has: (name) => present.has(folded(name)),
    at(name) {
      const index = found.indexOf(folded(name));
      if (index === -1) throw new RangeError(`${kind} has no column ${name}`);
      return index;
    },
  };
}

/**
 * Finds the columns of "Doctors and Clinicians" under any name they ever had; what else there is does not matter.
 * @param file for the message
 * @throws {ImportProblem} naming what is not there once
 */
export function findClinicianColumns(file: string, names: readonly string[]): Header {
  // The catalogue's own API writes `zip_code` for `ZIP Code`.
  const plain = (name: string) => folded(name).replaceAll('_', ' ');
  const found = names.map(plain);
  const { '//': _source, ...columns } = clinicians;
  const places = new Map(
    Object.entries(columns).map(([name, others]) => {
      const spellings = [name, ...others].map(plain);
      return [name, found.flatMap((one, index) => (spellings.includes(one) ? [index] : []))] as const;
    }),
  );
  const wrong = [...places].filter(([, at]) => at.length !== 1).map(([name]) => name);
  if (wrong.length > 0) {
    throw new ImportProblem(
      `${file} is not the national file of "Doctors and Clinicians": it has to name each of these columns once: ${wrong.join(', ')}. Download it again from data.cms.gov/provider-data/dataset/mj5m-pzi6`,
    );
  }
  return { columns: found.length, has: (name) => places.has(name), at: (name) => places.get(name)?.[0] ?? 0 };
}

/** Columns that had another name once. */
const OLD_NAMES = new Map([[folded('Provider Gender Code'), folded('Provider Sex Code')]]);

function listed(what: string, names: readonly string[]): string[] {
  if (names.length === 0) return [];
  const shown = names.slice(0, SHOWN).map((name) => `"${name.replace(/\s+/g, ' ').trim()}"`);
  const more = names.length > SHOWN ? ` and ${names.length - SHOWN} more` : '';
  return [`${what} ${shown.join(', ')}${more}`];
}

function folded(name: string): string {
  return name
    .replace(/^\ufeff/, '')
    .replace(/[\s_]+/g, ' ')
    .trim()
    .toLowerCase();
}
