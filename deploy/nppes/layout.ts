import { realpath } from 'node:fs/promises';
import { OperatorProblem } from '../../db/connection/errors.ts';
import clinicians from './clinicians.json' with { type: 'json' };
import columns from './columns.json' with { type: 'json' };

// Finds the columns that we read in the files of NPPES and of "Doctors and Clinicians". The layouts
// of NPPES are described in "NPPES Data Dissemination - Readme" (V2, and the draft of V3) by CMS.
// README.md of this folder explains them.

export const MEMBER_KINDS = ['npidata', 'othername', 'pl', 'endpoint'] as const;
/** A kind of NPPES file. The file's name begins with it, followed by `_pfile_`. */
export type MemberKind = (typeof MEMBER_KINDS)[number];
/** A kind of NPPES file, or the file of "Doctors and Clinicians". */
export type FileKind = MemberKind | 'clinicians';

/**
 * The column of the V3 layout that says whether an NPI is active. V2 has only the dates of changes.
 */
export const STATUS = 'npi_activation_status';
/**
 * The columns of the taxonomies of a provider, each with the column that says which is the primary
 * one. An import works without them, because they only describe a person.
 */
export const TAXONOMIES = Array.from({ length: 15 }, (_, n) => ({
  code: `Healthcare Provider Taxonomy Code_${n + 1}`,
  isPrimary: `Healthcare Provider Primary Taxonomy Switch_${n + 1}`,
}));
/**
 * Matches the names of columns that may say whether an NPI is active. If we ignored such a column,
 * we would treat inactive NPIs as active.
 */
const TELLING = /activ|status/i;
/**
 * Columns that `TELLING` matches, but that don't say whether an NPI is active. They only contain
 * the reason or the date of a change.
 */
const NOT_TELLING: ReadonlySet<string> = new Set(
  [
    'NPI Deactivation Reason Code',
    'npi_activation_change_reason_list',
    'npi_activation_future_change_date',
  ].map(folded),
);

/**
 * Thrown if an import cannot start or has to stop. The message tells the operator why, and what to
 * do.
 */
export class ImportProblem extends OperatorProblem {
  override readonly name = 'ImportProblem';
}

/**
 * Converts a file system error to an `ImportProblem`.
 * @param says returns the message for a reason. The reason is an error code such as `EACCES`, or
 * that there is no such file
 */
export async function orImportProblem<T>(
  work: Promise<T>,
  says: (why: string) => string,
): Promise<T> {
  return await work.catch(({ code = 'unknown' }: NodeJS.ErrnoException) => {
    throw new ImportProblem(says(code === 'ENOENT' ? 'there is no such file' : code));
  });
}

/**
 * Checks that the output file is not the input file.
 * @throws {ImportProblem} if they are the same file
 */
export async function requireOther(read: string, written: string): Promise<void> {
  if ((await realPathOf(read)) !== (await realPathOf(written))) return;
  throw new ImportProblem(
    `${written} is the file to import; give another file for the output`,
  );
}

/**
 * Returns the path with symbolic links resolved, or the unchanged path of a file that does not exist.
 */
async function realPathOf(path: string): Promise<string> {
  return await realpath(path).catch(() => path);
}

export const cannotOpen = (path: string) => (why: string) =>
  `cannot open ${path}: ${why}`;

/** The positions of the columns in a file. */
export interface Header {
  /** The number of columns that every row must have. */
  readonly columns: number;
  /**
   * Returns the index of a column, from 0. For a missing column, returns an index at which every
   * row has an empty value.
   */
  readonly at: (name: string) => number;
  /** The columns with texts that we store as they are, each with its index. */
  readonly read: readonly (readonly [name: string, place: number])[];
}

const SHOWN = 8;

/**
 * Finds the columns that we read, by their names. The columns may be in any order. Differences in
 * case or between underscores and spaces don't matter, and additional columns are ignored.
 * @param file the name of the file, for messages
 * @throws {ImportProblem} that names the columns that are missing or occur twice, or an unknown
 * column that may say whether an NPI is active
 */
export function findColumns(
  file: string,
  kind: FileKind,
  names: readonly string[],
): Header {
  const found = names.map(folded);
  const places = new Map<string, number>();
  const wrong: string[] = [];
  for (const [name, others] of namesOf(kind)) {
    const spellings = [name, ...others].map(folded);
    const [place, ...more] = found.flatMap((one, index) =>
      spellings.includes(one) ? [index] : [],
    );
    if (place === undefined || more.length > 0) wrong.push(name);
    else places.set(name, place);
  }
  if (wrong.length > 0) throw wrongLayout(file, kind, wrong);
  const status = found.indexOf(folded(STATUS));
  if (status !== -1) places.set(STATUS, status);
  const read = new Set(places.values());
  const telling = found.find(
    (name, at) => TELLING.test(name) && !NOT_TELLING.has(name) && !read.has(at),
  );
  if (telling !== undefined && kind !== 'clinicians') {
    throw new ImportProblem(
      `${file} has an unknown column "${telling.slice(0, 100)}", which may say ` +
        'that an NPI is out of service; import the file whose name ends in _V2.zip',
    );
  }
  const optional = new Map(
    TAXONOMIES.flatMap(({ code, isPrimary }) => [code, isPrimary])
      .map((name) => [name, found.indexOf(folded(name))] as const)
      .filter(([, place]) => place !== -1),
  );
  const nowhere = Number.POSITIVE_INFINITY;
  return {
    columns: found.length,
    at: (name) => places.get(name) ?? optional.get(name) ?? nowhere,
    read: [...places],
  };
}

/**
 * Returns an error that names the wrong columns. It does not quote the file, because the first line
 * of a wrong file may contain personal data.
 */
function wrongLayout(
  file: string,
  kind: FileKind,
  wrong: readonly string[],
): ImportProblem {
  let what = `an NPPES ${kind} file`;
  let from = 'download.cms.gov/nppes/NPI_Files.html, version 2 or 3';
  if (kind === 'clinicians') {
    what = 'the national file of "Doctors and Clinicians"';
    from = 'data.cms.gov/provider-data/dataset/mj5m-pzi6';
  }
  const shown = wrong.slice(0, SHOWN).join(', ');
  const more = wrong.length > SHOWN ? ` and ${wrong.length - SHOWN} more` : '';
  return new ImportProblem(
    `${file} is not ${what}: it must have each of these columns once: ` +
      `${shown}${more}. Download it again from ${from}`,
  );
}

/** Returns the required columns of a kind of file, each with its older names. */
function namesOf(kind: FileKind): [name: string, others: readonly string[]][] {
  if (kind === 'clinicians') {
    const { '//': _source, ...named } = clinicians;
    return Object.entries(named);
  }
  const names = ['NPI', ...Object.values(columns[kind]).flat()];
  return names.map((name) => [name, []]);
}

function folded(name: string): string {
  return name
    .replace(/[\s_]+/g, ' ')
    .trim()
    .toLowerCase();
}
