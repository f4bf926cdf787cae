import { type Command, Option } from 'commander';
import { VERIFIERS } from '../../activities/verification/verifiers/catalogue.ts';
import type { ChangedBy } from '../../db/audit.ts';
import { forgetChecks, forgetMisses } from '../../db/lookups/lookups.ts';
import { readSourceStats, type SourceStats } from '../../db/lookups/sources.ts';
import { change, label, parser, pastMoment } from './arguments.ts';
import { type Run, sections, table } from './print.ts';

/** Adds `vendors`, `lookups`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('vendors')
    .description('hit rate, cost, latency and breaker of each vendor and verifier')
    .option(
      '--since <WHEN>',
      'since then, such as 30d or 2026-11-20T00:00Z (default: 30d)',
      pastMoment,
    )
    .action(({ since = pastMoment('30d') }: { readonly since?: Date }) =>
      run(async (db) => {
        const data = (await readSourceStats(db, since)).map(withRates);
        return { data, text: textOf(data) };
      }),
    );
  const lookups = program
    .command('lookups')
    .description('what is remembered of whom vendors did not know');
  addForgetCommand(lookups, run);
}

interface ForgetOptions extends ChangedBy {
  readonly since?: Date;
  readonly until?: Date;
  readonly verdictReason?: string;
  readonly source?: string;
  readonly dryRun?: true;
}

function addForgetCommand(lookups: Command, run: Run): void {
  const forget = change(
    lookups,
    'forget',
    'the next lookup asks again: every vendor about an NPI, or (--since) about what broken checks rejected',
  );
  forget
    .argument('[NPI]', '10 digits', npi)
    .option('--since <WHEN>', 'undo what our checks rejected since then, such as 24h', pastMoment)
    .option('--until <WHEN>', 'until then (default: now)', pastMoment)
    .addOption(
      new Option('--verdict-reason <WORD>', 'only rejections for this reason, such as nxdomain')
        .argParser(label(100))
        .conflicts('source'),
    )
    .option('--source <ID>', 'only rejections by this verifier, such as reacher', label(100))
    .option('--dry-run', 'only count what would be forgotten')
    .hook('preAction', () => {
      const { since, until, verdictReason, source, dryRun } = forget.opts<ForgetOptions>();
      const isOfNpi = forget.processedArgs[0] !== undefined;
      if (isOfNpi === (since !== undefined)) forget.error('error: give either an NPI or --since');
      if (isOfNpi && (until ?? verdictReason ?? source ?? dryRun) !== undefined) {
        forget.error('error: an NPI needs no other option: all of its misses are forgotten');
      }
    })
    .action((which: string | undefined, options: ForgetOptions) =>
      run(async (db) => {
        const {
          since,
          until = new Date(),
          verdictReason = null,
          source = null,
          dryRun = false,
          ...by
        } = options;
        if (which !== undefined)
          return { npi: which, forgotten: await forgetMisses(db, by, which) };
        if (since === undefined) throw new Error('--since is missing');
        const counts = await forgetChecks(db, by, { since, until, verdictReason, source }, dryRun);
        return { dryRun, since, until, ...counts };
      }),
    );
}

const npi = parser('an NPI of 10 digits', (text) => (/^[0-9]{10}$/.test(text) ? text : null));

function withRates(figures: SourceStats) {
  const { asked, open, returned, credits } = figures;
  const per = (part: number | null, whole: number | null) =>
    part === null || !whole ? null : Math.round((part / whole) * 1000) / 1000;
  return {
    ...figures,
    // A source without calls has no recorded role.
    role: Object.hasOwn(VERIFIERS, figures.source) ? ('verifier' as const) : figures.role,
    // The share of finished calls, 0 to 1.
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
