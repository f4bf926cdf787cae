import type { Command } from 'commander';
import { clock, type Database, query } from '../../db/connection/client.ts';
import { Refusal } from '../../db/connection/errors.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import {
  countFailed,
  countWaiting,
  type ResendOutcome,
  resend,
} from '../../db/webhooks/resends.ts';
import { change, dryRun, OF_ORG, pastMoment } from './arguments.ts';
import { fields, labeled, type Report, type Run } from './print.ts';

interface ResendOptions extends ChangedBy {
  readonly failed?: true;
  readonly organization?: string;
  readonly since?: Date;
  readonly dryRun?: boolean;
}

interface RetryOptions extends ChangedBy {
  readonly organization?: string | null;
  readonly dryRun?: boolean;
}

/** Adds the commands `webhooks resend` and `webhooks retry`. */
export function addResendCommands(
  webhooks: Command,
  run: Run,
  progress: (line: string) => void,
): void {
  addResendCommand(webhooks, run, progress);
  change(webhooks, 'retry', 'make the next attempts of pending deliveries due now')
    .requiredOption('--due', 'all deliveries whose next attempt is due later (required)')
    .option(...OF_ORG)
    .addOption(dryRun())
    .action((options: RetryOptions) => run((db) => retryWaiting(db, options, progress)));
}

function addResendCommand(
  webhooks: Command,
  run: Run,
  progress: (line: string) => void,
): void {
  change(webhooks, 'resend', 'send deliveries again that have succeeded or failed')
    .argument('[DELIVERY...]', 'delivery ids (msg_…)')
    .option(
      '--failed',
      'resend all deliveries of --organization that failed since --since',
    )
    .option(...OF_ORG)
    .option(
      '--since <WHEN>',
      'only deliveries that failed after this time, such as 24h (ago) or 2026-11-20T00:00Z',
      pastMoment,
    )
    .addOption(dryRun())
    .action((ids: string[], options: ResendOptions, command: Command) => {
      const { failed = false, organization, since, dryRun = false } = options;
      const hasIds = ids.length > 0;
      if (failed && organization !== undefined && since !== undefined && !hasIds) {
        if (dryRun) return run((db) => reportFailed(db, organization, since));
        return run((db) => resendAllFailed(db, options, organization, since, progress));
      }
      if (
        !failed &&
        organization === undefined &&
        since === undefined &&
        hasIds &&
        !dryRun
      ) {
        return run((db) => resendNamed(db, options, ids));
      }
      return command.error(
        'error: give delivery ids, or --failed with --organization and --since (and --dry-run)',
      );
    });
}

/** The outcome of an operator's resend. It is never limited. */
type OperatorOutcome = Exclude<ResendOutcome['kind'], 'limited'>;

const OUTCOMES: Readonly<Record<OperatorOutcome, string>> = {
  resent: 'pending: the sweep starts it within SWEEP_INTERVAL',
  pending: 'not resent: it is already under way, or its result is not there yet',
  suspended:
    'not resent: webhooks of its organization are suspended ("webhooks resume ORG")',
  unknown: 'unknown; "webhooks list" and "batch show BATCH" show ids',
};

async function resendNamed(
  db: Database,
  by: ChangedBy,
  ids: readonly string[],
): Promise<Report> {
  const data: { readonly delivery: string; readonly outcome: OperatorOutcome }[] = [];
  for (const delivery of ids) {
    const one = { kind: 'one', deliveryId: delivery, owner: null } as const;
    const { kind } = await resend(db, one, by);
    data.push({ delivery, outcome: kind as OperatorOutcome });
  }
  const lines = data.map(
    ({ delivery, outcome }) => [delivery, OUTCOMES[outcome]] as const,
  );
  const isDone = data.every(({ outcome }) => outcome === 'resent');
  return { data, parts: [labeled(lines)], exitCode: isDone ? 0 : 1 };
}

const NONE_FAILED = 'Nothing has failed since then: there is nothing to send.';
const STARTED_LATER = 'The workers start them at their next sweeps (SWEEP_INTERVAL).';

/**
 * Resends all failed deliveries of an organization, in transactions of up to 500. After an
 * interruption, the command can be repeated, because deliveries that were resent are not in the
 * state `failed` any more.
 */
async function resendAllFailed(
  db: Database,
  by: ChangedBy,
  organizationId: string,
  since: Date,
  progress: (line: string) => void,
): Promise<Report> {
  // The loop leaves out deliveries that fail after this time. Otherwise it might never end, because
  // deliveries to a blocked receiver fail again immediately.
  const until = await query(db, clock);
  let resent = 0;
  for (;;) {
    const failed = { kind: 'failed', organizationId, since, until } as const;
    const outcome = await resend(db, failed, by);
    if (outcome.kind !== 'resent') {
      throw new Refusal('webhooks_suspended');
    }
    resent += outcome.ids.length;
    if (!outcome.more) break;
    progress(`${resent} deliveries resent, more to come\n`);
  }
  const data = { organizationId, since, resent };
  const closing = resent === 0 ? NONE_FAILED : STARTED_LATER;
  return { data, parts: [fields(data), closing] };
}

async function reportFailed(
  db: Database,
  organizationId: string,
  since: Date,
): Promise<Report> {
  const until = await query(db, clock);
  const failed = await countFailed(db, { kind: 'failed', organizationId, since, until });
  return { data: { organizationId, since, failed, resent: 0 } };
}

/**
 * Hastens all waiting deliveries, in transactions of up to 500. Deliveries are visited in
 * the order of their ids, so one that soon waits again is not hastened twice.
 */
async function retryWaiting(
  db: Database,
  { organization = null, dryRun = false, ...by }: RetryOptions,
  progress: (line: string) => void,
): Promise<Report> {
  const waiting = await countWaiting(db, organization);
  let hastened = 0;
  let after = '';
  let isOver = dryRun;
  while (!isOver) {
    const later = { kind: 'waiting', organizationId: organization, after } as const;
    const outcome = await resend(db, later, by);
    if (outcome.kind !== 'resent') break;
    after = outcome.ids.at(-1) ?? after;
    hastened += outcome.ids.length;
    isOver = !outcome.more;
    if (!isOver) {
      progress(`${hastened} deliveries hastened, more to come\n`);
    }
  }
  const data = { organizationId: organization, waiting, hastened };
  if (hastened === 0) return { data };
  return { data, parts: [fields(data), STARTED_LATER] };
}
