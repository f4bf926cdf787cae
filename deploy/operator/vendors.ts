import type { Command } from 'commander';
import { VERIFIERS } from '../../activities/verification/verifiers/catalogue.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { forgetMisses } from '../../db/lookups/lookups.ts';
import { readSourceFigures, type SourceFigures } from '../../db/lookups/sources.ts';
import { change, parser, pastMoment } from './arguments.ts';
import { type Run, sections, table } from './print.ts';

/** `vendors`, `lookups`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('vendors')
    .description('hit rate, cost, latency and breaker of each vendor and verifier')
    .option('--since <WHEN>', 'since then, such as 30d or 2026-11-20T00:00Z (default: 30d)', pastMoment)
    .action(({ since = pastMoment('30d') }: { readonly since?: Date }) =>
      run(async (db) => {
        const data = (await readSourceFigures(db, since)).map(withRates);
        return { data, text: textOf(data) };
      }),
    );
  const lookups = program.command('lookups').description('what is remembered of whom vendors did not know');
  change(lookups, 'forget', 'the next lookup of an NPI asks every vendor, those too that had nothing')
    .argument('<NPI>', '10 digits', npi)
    .action((which: string, by: ChangedBy) =>
      run(async (db) => ({ npi: which, forgotten: await forgetMisses(db, by, which) })),
    );
}

const npi = parser('an NPI of 10 digits', (text) => (/^[0-9]{10}$/.test(text) ? text : null));

function withRates(figures: SourceFigures) {
  const { asked, open, returned, credits } = figures;
  const per = (part: number | null, whole: number | null) =>
    part === null || !whole ? null : Math.round((part / whole) * 1000) / 1000;
  return {
    ...figures,
    // One that was not asked about anybody leaves nothing that tells what it is.
    role: Object.hasOwn(VERIFIERS, figures.source) ? ('verifier' as const) : figures.role,
    // The rate is of the questions that are over; 0 to 1.
    hitRate: per(returned, asked - open),
    creditsPerReturned: per(credits, returned),
  };
}

function textOf(lines: readonly ReturnType<typeof withRates>[]): string {
  const errors = lines.flatMap(({ source, errors }) =>
    Object.entries(errors).map(([error, times]) => ({ source, error, times })),
  );
  const figures = lines.map(
    ({ source, role, hitRate, breaker, openUntil, pausedUntil, lastError, errors, ...rest }) => ({
      source,
      role,
      hitRate: hitRate === null ? null : `${(hitRate * 100).toFixed(1)} %`,
      ...rest,
    }),
  );
  return sections([
    table(figures),
    'STATE NOW',
    table(lines, ['source', 'breaker', 'openUntil', 'pausedUntil', 'lastError']),
    'ERRORS',
    table(errors),
  ]);
}
