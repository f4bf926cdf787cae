import { type Command, InvalidArgumentError } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import type { Database } from '../../db/client.ts';
import { beginImport, endImport, type OwnEmail, storeOwnEmails } from '../../db/lookups/imports.ts';
import { importSuppressions } from '../../db/privacy/suppressions.ts';
import { loadConfig } from '../config/config.ts';
import { importing, label } from './arguments.ts';
import { readEmailRows, SOURCE_NAME } from './email-rows.ts';
import { importCommand } from './import.ts';
import { fields, type Report, type Run } from './print.ts';
import { identify, importRows, type RowImport } from './row-import.ts';
import { readSuppressionRows } from './suppression-rows.ts';

const EMAIL_HELP = `
Columns: npi, email, and if there are any: type (professional, personal), validated_at (ISO 8601), source. A header may
give them in another order. With validated_at an address is valid as of then, without it a candidate that is checked
before it is served; where the directory knows something newer, that stays.
Verdicts: stored, candidate (stored without a date), stale (stored, but checked again before it is served), unchanged,
suppressed, invalid_npi, invalid_address, no_suffix, disposable, relay, role, direct, bad_type, bad_date, bad_source,
broken_row.`;

const SUPPRESSION_HELP = `
Columns by a header: value, and if there are any: kind (npi, email, sha256, domain), reason. Without a header, one value
a line: ten digits are an NPI, 64 hex digits an address's SHA-256, what has an @ an address (kept as its SHA-256), the
rest a domain with its subdomains.
Verdicts: added, already_there, not_an_npi, not_a_hash, not_an_address, not_a_domain, unknown_kind, broken_row.`;

interface ImportOptions extends ChangedBy {
  readonly verdicts?: string;
}

/** `import emails`, `import suppressions`. */
export function addRowImportCommands(program: Command, run: Run): void {
  const parent = importCommand(program);
  options(parent.command('emails').description("the operator's own addresses, each row with a verdict"))
    .option('--source <NAME>', 'where rows come from that do not say', sourceName, 'import')
    .addHelpText('after', EMAIL_HELP)
    .action((path: string, { source, ...rest }: ImportOptions & { readonly source: string }) =>
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
  options(parent.command('suppressions').description('who must not be looked up or returned'))
    .addHelpText('after', SUPPRESSION_HELP)
    .action((path: string, rest: ImportOptions) =>
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

function options(command: Command): Command {
  return importing(command)
    .argument('<CSV>', 'the file')
    .option('--verdicts <FILE>', 'where the line and verdict of each row are written', label(4096));
}

async function importFile<T>(
  db: Database,
  kind: 'emails' | 'suppressions',
  { verdicts, actor, reason }: ImportOptions,
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
