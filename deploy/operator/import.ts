import { basename } from 'node:path';
import type { Command } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import { type ImportResult, importNppes } from '../nppes/importer.ts';
import { MEMBER_KINDS } from '../nppes/layout.ts';
import type { ProgressOutput } from '../nppes/output.ts';
import { importing, label } from './arguments.ts';
import { type Report, type Run, table } from './print.ts';

const HELP = `
PATH is a download of https://download.cms.gov/nppes/NPI_Files.html (…_V2.zip, monthly or weekly), the folder it was
unpacked to, or one of its csv files under its own name. Every NPI that it names is made what it says; others stay.
Import the monthly file first, then the weekly ones; an older file undoes nothing of a newer one. An import that was
killed is run again: what it did already changes no more.`;

interface NppesOptions extends ChangedBy {
  readonly rejects?: string;
  readonly dryRun?: true;
  readonly again?: true;
  readonly acceptDrift?: true;
}

/** `import`, made by the first who asks: its kinds are in several files. */
export function importCommand(program: Command): Command {
  const made = program.commands.find((command) => command.name() === 'import');
  return made ?? program.command('import').description('bring in data from files');
}

/**
 * `import nppes`.
 * @param databaseUrl an import has a connection of its own
 * @param output where progress is shown
 */
export function addImportCommands(
  program: Command,
  run: Run,
  { databaseUrl, output }: { readonly databaseUrl: () => string; readonly output: ProgressOutput },
): void {
  importing(importCommand(program).command('nppes'))
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
    .addHelpText('after', HELP)
    .action((path: string, { rejects, dryRun, again, acceptDrift, actor, reason }: NppesOptions) =>
      run(null, async () =>
        report(
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
}

const HEADLINES: Readonly<Record<ImportResult['outcome'], string>> = {
  imported: 'imported',
  already: 'already imported, nothing to do (--again imports it again)',
  rehearsed: 'read and compared; nothing was changed',
};

function report({ file, asOf, outcome, members, counts, rejectsPath, ...speed }: ImportResult): Report {
  const kinds = MEMBER_KINDS.filter((kind) => members.includes(kind));
  const of = (kind: string, name: string) => counts[`${kind}.${name}`] ?? null;
  const rows = table(kinds, {
    FILE: (kind) => kind,
    READ: (kind) => of(kind, 'read'),
    INSERTED: (kind) => of(kind, 'inserted'),
    UPDATED: (kind) => of(kind, 'updated'),
    UNCHANGED: (kind) => of(kind, 'unchanged'),
    REMOVED: (kind) => of(kind, 'removed'),
    ERASED: (kind) => of(kind, 'erased'),
    DEACTIVATED: (kind) => of(kind, 'deactivated'),
    REACTIVATED: (kind) => of(kind, 'reactivated'),
    OUTDATED: (kind) => of(kind, 'outdated'),
    REPEATED: (kind) => of(kind, 'repeated'),
    REJECTED: (kind) => of(kind, 'rejected'),
  });
  const text = [
    `${file}, as of ${asOf}: ${HEADLINES[outcome]}`,
    rows,
    ...(rejectsPath === null ? [] : [`Rejected rows are listed in ${rejectsPath}`]),
    ...(outcome === 'already'
      ? []
      : [`${speed.seconds.toFixed(1)} s, ${speed.rowsPerSecond.toLocaleString('en-US')} rows/s`]),
  ].join('\n\n');
  const files = Object.fromEntries(
    kinds.map((kind) => [
      kind,
      Object.fromEntries(
        Object.entries(counts)
          .filter(([name]) => name.startsWith(`${kind}.`))
          .map(([name, count]) => [name.slice(kind.length + 1), count]),
      ),
    ]),
  );
  return { data: { file, asOf, outcome, files, rejectsPath, ...speed }, text };
}
