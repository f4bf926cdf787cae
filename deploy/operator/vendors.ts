import { type Command, Option } from 'commander';
import { VERIFIERS } from '../../activities/verification/verifiers/catalogue.ts';
import type { Database } from '../../db/connection/client.ts';
import { countMisses, forgetChecks, forgetMisses } from '../../db/lookups/lookups.ts';
import { readSourceStats, type SourceStats } from '../../db/lookups/source-stats.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import {
  change,
  countedSince,
  dryRun,
  endsBefore,
  label,
  NPI,
  parser,
  pastMoment,
} from './arguments.ts';
import { leading, type Part, type Run, table } from './print.ts';

/** Adds the commands `vendors` and `lookups`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('vendors')
    .description(
      'show the hit rate, cost, latency, and circuit breaker of each vendor and verifier',
    )
    .addOption(countedSince())
    .action(({ since }: { readonly since: Date }) =>
      run(async (db) => {
        const stats = await readSourceStats(db, since);
        const data = stats.map(withRates);
        return { data, parts: partsOf(data) };
      }),
    );
  const lookups = program
    .command('lookups')
    .description('discard stored results that may be wrong');
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
    'discard vendor results of one NPI, or (with --since) wrong rejections, so that vendors are called again',
  );
  endsBefore(forget, 'only rejections before this time');
  forget
    .argument('[NPI]', '10 digits', npi)
    .option(
      '--since <WHEN>',
      'discard rejections by our checks since this time, such as 24h (ago)',
      pastMoment,
    )
    .addOption(
      new Option(
        '--verdict-reason <WORD>',
        'only rejections for this reason, such as nxdomain',
      )
        .argParser(label(100))
        .conflicts('source'),
    )
    .option(
      '--source <ID>',
      'only rejections by the verifier with this id, such as reacher',
      label(100),
    )
    .addOption(dryRun())
    .action((which: string | undefined, options: ForgetOptions) => {
      const { since, until, verdictReason, source } = options;
      if (which === undefined && since !== undefined) {
        return run((db) => forgetRejections(db, options, since));
      }
      if (which === undefined || since !== undefined) {
        return forget.error('error: give either an NPI or --since');
      }
      if (until !== undefined || verdictReason !== undefined || source !== undefined) {
        return forget.error(
          'error: with an NPI, give none of --until, --verdict-reason, and --source',
        );
      }
      return run((db) => forgetResults(db, options, which));
    });
}

async function forgetResults(
  db: Database,
  { dryRun, ...by }: ForgetOptions,
  which: string,
): Promise<object> {
  if (dryRun) {
    return { npi: which, dryRun, lookups: await countMisses(db, which) };
  }
  return { npi: which, forgotten: await forgetMisses(db, by, which) };
}

async function forgetRejections(
  db: Database,
  options: ForgetOptions,
  since: Date,
): Promise<object> {
  const { until = new Date(), dryRun = false, actor, reason } = options;
  const { verdictReason = null, source = null } = options;
  const selected = { since, until, verdictReason, source };
  const counts = await forgetChecks(db, { actor, reason }, selected, dryRun);
  return { dryRun, since, until, ...counts };
}

const npi = parser('an NPI of 10 digits', (text) => {
  if (NPI.test(text)) return text;
  return null;
});

function withRates(stats: SourceStats) {
  const { asked, open, returned, credits, dollars } = stats;
  return {
    ...stats,
    // `stats.role` is recorded with each call of a source, so a source without calls has no role.
    // Verifiers are in the catalogue, so their role is known without it.
    role: Object.hasOwn(VERIFIERS, stats.source) ? ('verifier' as const) : stats.role,
    // The share of finished calls that found an address which a client received, from 0 to 1.
    hitRate: ratio(returned, asked - open),
    creditsPerReturned: ratio(credits, returned),
    dollarsPerReturned: ratio(dollars, returned),
  };
}

/**
 * Returns a ratio rounded to three decimals, or null if a number is unknown or the divisor is 0.
 */
function ratio(part: number | null, whole: number | null): number | null {
  if (part === null || whole === null || whole === 0) return null;
  return Math.round((part / whole) * 1000) / 1000;
}

function percent(share: number | null): string | null {
  if (share === null) return null;
  return `${(share * 100).toFixed(1)} %`.padStart('100.0 %'.length);
}

/** The columns of the table that says when each source can be called. */
const STATE_COLUMNS = [
  'source',
  'breaker',
  'lastError',
  'openUntil',
  'pausedUntil',
  'nextSlotAt',
] as const;

function partsOf(lines: readonly ReturnType<typeof withRates>[]): Part[] {
  const errors = lines.flatMap(({ source, errors }) =>
    Object.entries(errors).map(([error, times]) => ({ source, error, times })),
  );
  const stats = lines.map(
    ({ breaker, openUntil, pausedUntil, nextSlotAt, lastError, errors, ...rest }) => {
      const row = { ...rest, hitRate: percent(rest.hitRate) };
      return leading(row, ['source', 'role', 'hitRate', 'dollars']);
    },
  );
  return [
    table(stats),
    'STATE NOW',
    table(lines, STATE_COLUMNS),
    'ERRORS',
    table(errors),
  ];
}
