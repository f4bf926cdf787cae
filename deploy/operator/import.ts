import type { Command } from 'commander';
import type { Database } from '../../db/connection/client.ts';
import { beginImport, type Dataset, endImport } from '../../db/lookups/imports.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import { countDomains } from '../../db/privacy/suppressions.ts';
import type { ImportKind } from '../../db/words.ts';
import {
  type ImportOptions,
  type ImportResult,
  importDownload,
} from '../nppes/importer.ts';
import { printable } from '../printable.ts';
import { audited, dryRun, label, parser } from './arguments.ts';
import { domainRows } from './domain-rows.ts';
import { emailRows, SOURCE_NAME } from './email-rows.ts';
import {
  type CommandSurroundings,
  fields,
  type Part,
  type Report,
  type Run,
  table,
} from './print.ts';
import { ACCEPTABLE, importRows, type RowImport, readRows, Tally } from './rows.ts';
import { suppressionRows } from './suppression-rows.ts';

interface RowOptions extends ChangedBy {
  readonly verdicts?: string;
  /** Only for `import emails`. */
  readonly source: string;
  readonly dryRun?: true;
  /** Only for `import suppressions`. */
  readonly yes?: true;
}

type DownloadOptions = Omit<ImportOptions, 'dataset' | 'path' | 'databaseUrl' | 'output'>;

/**
 * Adds the commands `import nppes`, `import clinicians`, `import domains`, `import emails`, and
 * `import suppressions`.
 */
export function addCommands(
  program: Command,
  run: Run,
  surroundings: CommandSurroundings,
): void {
  const parent = program.command('import').description('import data from files');
  addDownloadCommand(parent, run, surroundings, 'nppes').description(
    'import providers with their endpoints, other names, and practice locations from NPPES',
  );
  addDownloadCommand(parent, run, surroundings, 'clinicians').description(
    'import the workplaces and groups of clinicians from "Doctors and Clinicians" of CMS',
  );
  addRowCommand(parent, run, 'domains', domainRows).description(
    'import the email domains of employers; each row gets a verdict',
  );
  addRowCommand(parent, run, 'emails', (db, { source }) => emailRows(db, source))
    .description('import your own addresses of providers; each row gets a verdict')
    .option(
      '--source <NAME>',
      'the name of the source to store for rows that do not name one',
      sourceName,
      'import',
    );
  addRowCommand(parent, run, 'suppressions', (db, { yes = false }) =>
    suppressionRows(db, yes),
  )
    .description(
      'import people who must not be looked up or returned; each row gets a verdict',
    )
    .option('--yes', 'also suppress free-mail domains, such as gmail.com');
}

const sourceName = parser(
  '1 to 40 letters a to z, digits, dots, dashes, and underscores',
  (text) => {
    if (SOURCE_NAME.test(text)) {
      return text;
    }
    return null;
  },
);

function addDownloadCommand(
  parent: Command,
  run: Run,
  { databaseUrl, output }: CommandSurroundings,
  dataset: Dataset,
): Command {
  return audited(parent.command(dataset), 'import')
    .argument('<PATH>', 'a zip, a folder, or a CSV file')
    .option(
      '--rejects <FILE>',
      'the file to which rejected rows are written (default: NAME.rejects.csv in the current folder)',
      label(4096),
    )
    .addOption(dryRun())
    .option('--again', 'import the download even if it was imported before')
    .option('--yes', 'import it even if that removes more than 5 % of a table')
    .action((path: string, options: DownloadOptions) =>
      run(async () => {
        const given = { ...options, dataset, path, databaseUrl: databaseUrl(), output };
        return downloadReport(await importDownload(given));
      }),
    );
}

function addRowCommand<T extends object>(
  parent: Command,
  run: Run,
  kind: Exclude<ImportKind, Dataset>,
  rowsOf: (db: Database, options: RowOptions) => RowImport<T>,
): Command {
  return audited(parent.command(kind), 'import')
    .argument('<FILE>', 'a CSV file or an .xlsx workbook')
    .option(
      '--verdicts <FILE>',
      'the file to which the line number and verdict of each row are written',
      label(4096),
    )
    .option('--dry-run', 'only check the rows, and store none')
    .action((path: string, options: RowOptions) =>
      run((db) => {
        const work = rowsOf(db, options);
        if (options.dryRun) {
          return checkFile(path, options, work);
        }
        return importFile(db, kind, path, options, work);
      }),
    );
}

const HEADLINES: Readonly<Record<ImportResult['outcome'], string>> = {
  imported: 'imported',
  already:
    'was already imported, so nothing was changed (to import it again, add --again)',
  rehearsed: 'compared with the database; nothing was changed',
};

/**
 * The columns of the printed table. Each has the number of rows with this outcome, except `read`,
 * which has the number of all rows.
 */
const FATES = [
  'read',
  'inserted',
  'updated',
  'unchanged',
  'removed',
  'erased',
  'deactivated',
  'reactivated',
  'outdated',
  'repeated',
  'rejected',
];

function downloadReport({ counts, members, ...result }: ImportResult): Report {
  const { file, asOf, outcome, rejectsPath, seconds, rowsPerSecond } = result;
  const files: Record<string, object> = {};
  for (const kind of members) {
    files[kind] = Object.fromEntries(
      FATES.map((fate) => [fate, counts[`${kind}.${fate}`]]),
    );
  }
  const heading = asOf === null ? file : `${file}, as of ${asOf}`;
  const parts: Part[] = [
    `${heading}: ${HEADLINES[outcome]}`,
    table(Object.entries(files).map(([kind, fates]) => ({ file: kind, ...fates }))),
  ];
  if (rejectsPath !== null) {
    parts.push(`Rejected rows are listed in ${rejectsPath}`);
  }
  if (outcome !== 'already') {
    parts.push(
      `${seconds.toFixed(1)} s, ${rowsPerSecond.toLocaleString('en-US')} rows/s`,
    );
  }
  const data = { file, asOf, outcome, files, rejectsPath, seconds, rowsPerSecond };
  return { data, parts };
}

/** Gives each row its verdict, without storing any. */
async function checkFile<T extends object>(
  path: string,
  { verdicts }: RowOptions,
  work: RowImport<T>,
): Promise<Report> {
  const tally = new Tally();
  const accept = async (rows: readonly T[]) => rows.map(() => ACCEPTABLE);
  const { rehearse = accept } = work;
  const file = await readRows(path);
  await importRows({ ...work, store: rehearse }, file, verdicts, tally);
  const { rows, counts, refused } = tally;
  const { notes } = file;
  const data = { rows, verdicts: counts, refused, notes };
  const parts = [
    fields({ rows, ...counts }),
    ...notes.map(printable),
    ...refusalsOf(tally),
    'Nothing was stored.',
  ];
  return { data, parts, exitCode: exitCodeOf(tally) };
}

async function importFile<T extends object>(
  db: Database,
  kind: Exclude<ImportKind, Dataset>,
  path: string,
  { verdicts, actor, reason }: RowOptions,
  work: RowImport<T>,
): Promise<Report> {
  const file = await readRows(path);
  const { name, fingerprint, notes } = file;
  const { id } = await beginImport(db, { actor, reason }, kind, { name, fingerprint });
  const tally = new Tally();
  try {
    await importRows(work, file, verdicts, tally);
  } catch (error) {
    // If this fails too, because PostgreSQL is down, the next import of the same file marks this
    // import as failed.
    await endImport(db, id, 'failed', tally.counts).catch(() => {});
    throw error;
  }
  const { rows, counts, refused } = tally;
  await endImport(db, id, 'done', counts);
  const data = { id, file: name, rows, verdicts: counts, refused, notes };
  const parts: Part[] = [fields({ import: id, file: name, rows, ...counts })];
  parts.push(...notes.map(printable), ...refusalsOf(tally));
  if (verdicts === undefined) {
    parts.push('To list the verdict of each row, add --verdicts FILE.');
  } else {
    parts.push(`The verdict of each row is in ${verdicts}`);
  }
  const exitCode = exitCodeOf(tally);
  const { unconfirmed: skipped = new Set<string>() } = work;
  if (skipped.size === 0) {
    return { data, parts, exitCode };
  }
  const domains = [...skipped].sort();
  const reach = await countDomains(db, domains);
  const unconfirmed = { domains, ...reach };
  parts.push(
    fields({ 'not suppressed': domains.join(', '), ...reach }),
    'Rows with free-mail domains were skipped. Add --yes to suppress these domains too.',
  );
  return { data: { ...data, unconfirmed }, parts, exitCode };
}

/** The maximum number of refused rows that are printed as text. */
const MAX_REFUSED = 20;

/** Returns the lines of the refused rows for printing. Values are personal data, so none is shown. */
function refusalsOf({ refused }: Tally): Part[] {
  if (refused.length === 0) return [];
  const parts: Part[] = ['REFUSED ROWS', table(refused.slice(0, MAX_REFUSED))];
  const more = refused.length - MAX_REFUSED;
  if (more > 0) parts.push(`${more} more rows were refused.`);
  return parts;
}

function exitCodeOf({ refused }: Tally): 0 | 1 {
  return refused.length === 0 ? 0 : 1;
}
