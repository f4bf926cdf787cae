import { basename } from 'node:path';
import { type Command, InvalidArgumentError } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import type { Database } from '../../db/client.ts';
import { beginImport, endImport, type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';
import { importSuppressions } from '../../db/privacy/suppressions.ts';
import { loadConfig } from '../config/config.ts';
import { type ImportResult, importNppes } from '../nppes/importer.ts';
import { MEMBER_KINDS } from '../nppes/layout.ts';
import type { ProgressOutput } from '../nppes/output.ts';
import { importing, label } from './arguments.ts';
import { fields, type Report, type Run, table } from './print.ts';
import {
  identify,
  importRows,
  type RowImport,
  readEmailRows,
  readSuppressionRows,
  SOURCE_NAME,
} from './rows.ts';

const NPPES_HELP = `
PATH is a download of https://download.cms.gov/nppes/NPI_Files.html (…_V2.zip, monthly or weekly), the folder it was
unpacked to, or one of its csv files under its own name. Every NPI that it names is made what it says; others stay.
Import the monthly file first, then the weekly ones; an older file undoes nothing of a newer one. An import that was
killed is run again: what it did already changes no more.`;

const EMAIL_HELP = `
Columns: npi, email, and if there are any: type (professional, personal), validated_at (ISO 8601), source. A header may
give them in another order. With validated_at an address is valid as of then, without it a candidate that is checked
before it is served; if the directory knows something newer, that stays.
Verdicts: stored, candidate (stored without a date), stale (stored, but checked again before it is served), unchanged,
suppressed, invalid_npi, invalid_address, no_suffix, disposable, relay, lookalike, placeholder, role, direct, bad_type,
bad_date, bad_source, broken_row.`;

const SUPPRESSION_HELP = `
Columns by a header: value, and if there are any: kind (npi, email, sha256, domain), reason. Without a header, one value
a line: ten digits are an NPI, 64 hex digits an address's SHA-256, what has an @ an address (kept as its SHA-256), the
rest a domain with its subdomains.
Verdicts: added, already_there, not_an_npi, not_a_hash, not_an_address, not_a_domain, unknown_kind, broken_row.`;

interface NppesOptions extends ChangedBy {
  readonly rejects?: string;
  readonly dryRun?: true;
  readonly again?: true;
  readonly acceptDrift?: true;
}

interface RowOptions extends ChangedBy {
  readonly verdicts?: string;
}

/**
 * `import nppes`, `import emails`, `import suppressions`.
 * @param databaseUrl an import of NPPES has a connection of its own
 * @param output where its progress is shown
 */
export function addImportCommands(
  program: Command,
  run: Run,
  { databaseUrl, output }: { readonly databaseUrl: () => string; readonly output: ProgressOutput },
): void {
  const parent = program.command('import').description('bring in data from files');
  importing(parent.command('nppes'))
    .description('providers, their endpoints, other names and practice locations, from the files of NPPES')
    .argument('<PATH>', 'a zip, a folder or a csv file')
    .option(
      '--rejects <FILE>',
      'where rows that cannot be imported are listed (default: NAME.rejects.csv here)',
      label(4096),
    )
    .option('--dry-run', 'count what would change, and change nothing')
    .option('--again', 'import a file that was imported before')
    .option('--accept-drift', 'take a header that differs in columns that are not read')
    .addHelpText('after', NPPES_HELP)
    .action((path: string, { rejects, dryRun, again, acceptDrift, actor, reason }: NppesOptions) =>
      run(null, async () =>
        nppesReport(
          await importNppes({
            databaseUrl: databaseUrl(),
            by: { actor, reason },
            path,
            rejectsPath: rejects ?? `${basename(path)}.${dryRun ? 'dry-run.' : ''}rejects.csv`,
            dryRun: dryRun === true,
            again: again === true,
            acceptsDrift: acceptDrift === true,
            output,
          }),
        ),
      ),
    );
  ofRows(parent.command('emails').description("the operator's own addresses, each row with a verdict"))
    .option('--source <NAME>', 'where rows come from that do not say', sourceName, 'import')
    .addHelpText('after', EMAIL_HELP)
    .action((path: string, { source, ...rest }: RowOptions & { readonly source: string }) =>
      run(null, async (db) => {
        const { freshnessMs } = loadConfig();
        const now = Date.now();
        return await importFile(db, 'emails', rest, {
          path,
          verdictsPath: rest.verdicts ?? null,
          begin: (first) => readEmailRows(first, source, now),
          store: async (rows) => {
            const verdicts = await storeOwnEmails(db, rows);
            return rows.map((row, n) => emailVerdict(row, verdicts[n] ?? 'unchanged', now - freshnessMs));
          },
        });
      }),
    );
  ofRows(parent.command('suppressions').description('who must not be looked up or returned'))
    .addHelpText('after', SUPPRESSION_HELP)
    .action((path: string, rest: RowOptions) =>
      run(null, async (db) =>
        importFile(db, 'suppressions', rest, {
          path,
          verdictsPath: rest.verdicts ?? null,
          begin: readSuppressionRows,
          store: async (rows) =>
            (await importSuppressions(db, rows)).map((isNew) => (isNew ? 'added' : 'already_there')),
        }),
      ),
    );
}

const HEADLINES: Readonly<Record<ImportResult['outcome'], string>> = {
  imported: 'imported',
  already: 'already imported, nothing to do (--again imports it again)',
  rehearsed: 'read and compared; nothing was changed',
};

function nppesReport({ file, asOf, outcome, members, counts, rejectsPath, ...speed }: ImportResult): Report {
  const of = (kind: string, fates: readonly string[]) =>
    Object.fromEntries(fates.map((fate) => [fate, counts[`${kind}.${fate}`] ?? null]));
  const kinds = MEMBER_KINDS.filter((kind) => members.includes(kind));
  const text = [
    `${file}, as of ${asOf}: ${HEADLINES[outcome]}`,
    table(kinds.map((kind) => ({ file: kind, ...of(kind, FATES) }))),
    ...(rejectsPath === null ? [] : [`Rejected rows are listed in ${rejectsPath}`]),
    ...(outcome === 'already'
      ? []
      : [`${speed.seconds.toFixed(1)} s, ${speed.rowsPerSecond.toLocaleString('en-US')} rows/s`]),
  ].join('\n\n');
  const files = Object.fromEntries(
    kinds.map((kind) => [
      kind,
      of(
        kind,
        FATES.filter((fate) => `${kind}.${fate}` in counts),
      ),
    ]),
  );
  return { data: { file, asOf, outcome, files, rejectsPath, ...speed }, text };
}

/** What may become of the rows of a file. */
const FATES =
  'read inserted updated unchanged removed erased deactivated reactivated outdated repeated rejected'.split(
    ' ',
  );

function ofRows(command: Command): Command {
  return importing(command)
    .argument('<CSV>', 'the file')
    .option('--verdicts <FILE>', 'where the line and verdict of each row are written', label(4096));
}

async function importFile<T>(
  db: Database,
  kind: 'emails' | 'suppressions',
  { verdicts, actor, reason }: RowOptions,
  work: RowImport<T>,
): Promise<Report> {
  const file = await identify(work.path);
  const id = await beginImport(db, { actor, reason }, kind, file);
  let counts: Readonly<Record<string, number>> = {};
  try {
    await importRows(work, (now) => {
      counts = now;
    });
  } catch (error) {
    // Where the database is what failed, the next run of the file marks this one.
    await endImport(db, id, 'failed', counts).catch(() => {});
    throw error;
  }
  await endImport(db, id, 'done', counts);
  const rows = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const closing =
    verdicts === undefined ? 'Each row with its verdict: --verdicts FILE' : `Each row: ${verdicts}`;
  return {
    data: { id, file: file.name, rows, verdicts: counts },
    text: `${fields({ import: id, file: file.name, rows, ...counts })}\n\n${closing}`,
  };
}

function emailVerdict({ validatedAt }: OwnEmail, verdict: string, freshSince: number): string {
  if (verdict !== 'stored') return verdict;
  if (validatedAt === null) return 'candidate';
  return validatedAt.getTime() < freshSince ? 'stale' : 'stored';
}

function sourceName(text: string): string {
  if (SOURCE_NAME.test(text)) return text;
  throw new InvalidArgumentError('Write 1 to 40 of a-z, 0-9, dot, dash and underscore.');
}
