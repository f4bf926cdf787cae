import type { Command } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import type { Database } from '../../db/client.ts';
import { beginImport, type Dataset, endImport } from '../../db/lookups/imports.ts';
import { countDomains } from '../../db/privacy/suppressions.ts';
import type { ImportKind } from '../../db/words.ts';
import { type ImportOptions, type ImportResult, importDownload } from '../nppes/importer.ts';
import { audited, label, parser } from './arguments.ts';
import { type CommandSurroundings, fields, type Report, type Run, table } from './print.ts';
import {
  domainRows,
  emailRows,
  identify,
  importRows,
  type RowImport,
  SOURCE_NAME,
  suppressionRows,
} from './rows.ts';

interface RowOptions extends ChangedBy {
  readonly verdicts?: string;
  /** Set only for addresses. */
  readonly source: string;
  /** Set only for suppressions. */
  readonly yes?: true;
}

/**
 * Adds `import nppes`, `import clinicians`, `import domains`, `import emails`, `import
 * suppressions`.
 */
export function addCommands(
  program: Command,
  run: Run,
  { databaseUrl, output }: CommandSurroundings,
): void {
  const parent = program.command('import').description('bring in data from files');
  const ofDownload = (dataset: Dataset, description: string) =>
    audited(parent.command(dataset), 'import')
      .description(description)
      .argument('<PATH>', 'a zip, a folder or a csv file')
      .option(
        '--rejects <FILE>',
        'where rows that cannot be imported are listed (default: NAME.rejects.csv here)',
        label(4096),
      )
      .option('--dry-run', 'count what would change, and change nothing')
      .option('--again', 'import a file that was imported before')
      .option('--yes', 'go on although it removes more than 5 % of a table')
      .action(
        (
          path: string,
          options: Omit<ImportOptions, 'dataset' | 'path' | 'databaseUrl' | 'output'>,
        ) =>
          run(async () => {
            const given = { ...options, dataset, path, databaseUrl: databaseUrl(), output };
            return downloadReport(await importDownload(given));
          }),
      );
  ofDownload(
    'nppes',
    'providers, their endpoints, other names and practice locations, from the files of NPPES',
  );
  ofDownload(
    'clinicians',
    'where clinicians work and for which group, from the "Doctors and Clinicians" of CMS',
  );
  const ofRows = <T extends object>(
    kind: Exclude<ImportKind, Dataset>,
    description: string,
    rowsOf: (db: Database, options: RowOptions) => RowImport<T>,
  ) =>
    audited(parent.command(kind), 'import')
      .description(`${description}, each row with a verdict`)
      .argument('<CSV>', 'the file')
      .option(
        '--verdicts <FILE>',
        'where the line and verdict of each row are written',
        label(4096),
      )
      .action((path: string, options: RowOptions) =>
        run((db) => importFile(db, kind, path, options, rowsOf(db, options))),
      );
  ofRows('domains', "employers' domains", (db) => domainRows(db));
  ofRows('emails', "the operator's own addresses", (db, { source }) =>
    emailRows(db, source),
  ).option(
    '--source <NAME>',
    'where rows come from that do not say',
    parser('1 to 40 of a-z, 0-9, dot, dash and underscore', (text) =>
      SOURCE_NAME.test(text) ? text : null,
    ),
    'import',
  );
  ofRows('suppressions', 'who must not be looked up or returned', (db, { yes = false }) =>
    suppressionRows(db, yes),
  ).option('--yes', 'also free-mail domains, such as gmail.com');
}

const HEADLINES: Readonly<Record<ImportResult['outcome'], string>> = {
  imported: 'imported',
  already: 'already imported, nothing to do (--again imports it again)',
  rehearsed: 'read and compared; nothing was changed',
};

function downloadReport({ counts, members, ...result }: ImportResult): Report {
  const { file, asOf, outcome, rejectsPath, seconds, rowsPerSecond } = result;
  const fates = members.map((kind) =>
    Object.fromEntries(FATES.map((fate) => [fate, counts[`${kind}.${fate}`]])),
  );
  const files = Object.fromEntries(members.map((kind, n) => [kind, fates[n]]));
  const speed = `${seconds.toFixed(1)} s, ${rowsPerSecond.toLocaleString('en-US')} rows/s`;
  const text = [
    `${file}${asOf === null ? '' : `, as of ${asOf}`}: ${HEADLINES[outcome]}`,
    table(members.map((kind, n) => ({ file: kind, ...fates[n] }))),
    ...(rejectsPath === null ? [] : [`Rejected rows are listed in ${rejectsPath}`]),
    ...(outcome === 'already' ? [] : [speed]),
  ].join('\n\n');
  return { data: { file, asOf, outcome, files, rejectsPath, seconds, rowsPerSecond }, text };
}

/** Everything that can happen to a row of a file. */
const FATES =
  'read inserted updated unchanged removed erased deactivated reactivated outdated repeated rejected'.split(
    ' ',
  );

async function importFile<T extends object>(
  db: Database,
  kind: Exclude<ImportKind, Dataset>,
  path: string,
  { verdicts, actor, reason }: RowOptions,
  work: RowImport<T>,
): Promise<Report> {
  const file = await identify(path);
  const { id } = await beginImport(db, { actor, reason }, kind, file);
  const counts: Record<string, number> = {};
  try {
    await importRows(work, path, verdicts, counts);
  } catch (error) {
    // The next run of the file marks this import as failed if the database is away now.
    await endImport(db, id, 'failed', counts).catch(() => {});
    throw error;
  }
  await endImport(db, id, 'done', counts);
  const rows = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const closing =
    verdicts === undefined ? 'Each row with its verdict: --verdicts FILE' : `Each row: ${verdicts}`;
  const data = { id, file: file.name, rows, verdicts: counts };
  const parts = [fields({ import: id, file: file.name, rows, ...counts }), closing];
  const domains = [...(work.unconfirmed ?? [])].sort();
  if (domains.length === 0) return { data, text: parts.join('\n\n') };
  const reach = await countDomains(db, domains);
  const unconfirmed = { domains, ...reach };
  parts.push(
    fields({ 'not suppressed': domains.join(', '), ...reach }),
    'Rows with free-mail domains were left out: add --yes to suppress these domains too.',
  );
  return { data: { ...data, unconfirmed }, text: parts.join('\n\n'), exitCode: 1 };
}
