import { realpath } from 'node:fs/promises';
import { OperatorProblem } from '../../db/errors.ts';
import clinicians from './clinicians.json' with { type: 'json' };
import columns from './columns.json' with { type: 'json' };

// Which columns are read of NPPES's files (CMS, "NPPES Data Dissemination - Readme", V2, and the draft of V3) and of "Doctors
// and Clinicians", and where a file has them: see README.md of this folder.

export const MEMBER_KINDS = ['npidata', 'othername', 'pl', 'endpoint'] as const;
/** What a file of the set holds; also how its name begins, before `_pfile_`. */
export type MemberKind = (typeof MEMBER_KINDS)[number];
/** NPPES's, and the one file of "Doctors and Clinicians". */
export type FileKind = MemberKind | 'clinicians';

/** Whether an NPI is in service, in V3; V2 has the dates alone. */
export const STATUS = 'npi_activation_status';
/** A column by a name like these may say that an NPI is out of service: not to read it would make it active. */
const TELLING = /activ|status/i;
/** Columns that have such a name, and say why or from when on. */
const NOT_TELLING: ReadonlySet<string> = new Set(
  [
    'NPI Deactivation Reason Code',
    'npi_activation_change_reason_list',
    'npi_activation_future_change_date',
  ].map(folded),
);

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

/** @throws {ImportProblem} if what is to be written would take the place of what is read */
export async function requireOther(read: string, written: string): Promise<void> {
  const [one, other] = await Promise.all([read, written].map((path) => realpath(path).catch(() => path)));
  if (one === other)
    throw new ImportProblem(`${written} is the file that is imported; name another one to write`);
}

export const cannotOpen = (path: string) => (why: string) => `cannot open ${path}: ${why}`;

/** Where a file has its columns. */
export interface Header {
  /** How many columns every row has. */
  readonly columns: number;
  /** The place of a column, from 0; one that is always empty if the file does not have it. */
  readonly at: (name: string) => number;
  /** The columns that are read, with their places. */
  readonly read: readonly (readonly [name: string, place: number])[];
}

const SHOWN = 8;

/**
 * Finds the columns that are read by name, whatever their order, spaces and case, and whatever else there is.
 * @param file for the message
 * @throws {ImportProblem} naming what is not there once, and what may say who is out of service
 */
export function findColumns(file: string, kind: FileKind, names: readonly string[]): Header {
  const found = names.map(folded);
  const places = new Map<string, number>();
  const wrong: string[] = [];
  for (const [name, others] of namesOf(kind)) {
    const spellings = [name, ...others].map(folded);
    const [place, ...more] = found.flatMap((one, index) => (spellings.includes(one) ? [index] : []));
    if (place === undefined || more.length > 0) wrong.push(name);
    else places.set(name, place);
  }
  if (wrong.length > 0) {
    const shown = wrong.slice(0, SHOWN).join(', ');
    const more = wrong.length > SHOWN ? ` and ${wrong.length - SHOWN} more` : '';
    const [what, from] =
      kind === 'clinicians'
        ? ['the national file of "Doctors and Clinicians"', 'data.cms.gov/provider-data/dataset/mj5m-pzi6']
        : [`an NPPES ${kind} file`, 'download.cms.gov/nppes/NPI_Files.html, version 2 or 3'];
    // What the file has is not quoted: the first line of one without a header is somebody's.
    throw new ImportProblem(
      `${file} is not ${what}: it has to name each of these columns once: ${shown}${more}. Download it again from ${from}`,
    );
  }
  const status = found.indexOf(folded(STATUS));
  if (status !== -1) places.set(STATUS, status);
  const read = new Set(places.values());
  const telling = found.find((name, at) => TELLING.test(name) && !NOT_TELLING.has(name) && !read.has(at));
  if (telling !== undefined && kind !== 'clinicians') {
    throw new ImportProblem(
      `${file} has a column "${telling.slice(0, 100)}" that may say who is out of service, and is not read; import the file whose name ends in _V2.zip`,
    );
  }
  return {
    columns: found.length,
    at: (name) => places.get(name) ?? Number.POSITIVE_INFINITY,
    read: [...places],
  };
}

/** The columns without which a file cannot be read, each with what else it was ever called. */
function namesOf(kind: FileKind): [name: string, others: readonly string[]][] {
  if (kind !== 'clinicians') return ['NPI', ...Object.values(columns[kind]).flat()].map((name) => [name, []]);
  const { '//': _source, ...called } = clinicians;
  return Object.entries(called);
}

function folded(name: string): string {
  return name
    .replace(/[\s_]+/g, ' ')
    .trim()
    .toLowerCase();
}
