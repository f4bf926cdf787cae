import type { Command } from 'commander';
import { DNS } from '../../activities/verification/dns-control.ts';
import type { Database } from '../../db/client.ts';
import { readSourceStats } from '../../db/lookups/sources.ts';
import { readiness } from '../../db/migrate.ts';
import { readConcerns, readStats } from '../../db/stats.ts';
import { listApis, listVersions } from '../../db/workers.ts';
import { loadConfig } from '../config/config.ts';
import { fields, type Report, type Run, sections, spelled, table } from './print.ts';

const HOUR_MS = 3_600_000;

/**
 * A stat that needs attention if it is above a limit. The checks of `doctor` have the same limits.
 */
interface Limit {
  readonly stat: string;
  readonly seconds: number;
  readonly warning: string;
}

const LIMITS: readonly Limit[] = [
  {
    stat: 'sweep_age_seconds',
    seconds: 120,
    warning:
      'no sweep for two minutes: look for "sweep failed" in the log of the workers',
  },
  {
    stat: 'request_overdue_seconds',
    seconds: 60,
    warning: 'a request is overdue: "doctor" shows which one',
  },
  {
    stat: 'delivery_overdue_seconds',
    seconds: 900,
    warning: 'a webhook delivery is overdue: "doctor" shows which one',
  },
];

/** Adds the command `status`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('status')
    .description(
      'show the state of the service on one screen; exits with 3 if it needs attention',
    )
    .action(() => run(reportStatus));
}

async function reportStatus(db: Database): Promise<Report> {
  const stats = await sumFigures(db);
  const sources = await listSources(db);
  const workers = await listVersions(db);
  const apis = await listApis(db);
  const lists = {
    apis,
    workers,
    ...(await readConcerns(db)),
    sourcesInTheLastHour: sources,
  };
  const health = { temporal: await askTemporal(), migrations: await readiness(db) };

  const attention = [...healthWarnings(health), ...trouble(apis, workers)];
  for (const { stat, seconds, warning } of LIMITS) {
    const value = stats[stat] ?? 0;
    if (value > seconds) attention.push(warning);
  }
  for (const { source, breaker, lastError } of sources) {
    if (breaker !== 'closed') attention.push(notAsked(source, lastError));
  }

  const apisAlive = apis.reduce((sum, one) => sum + one.apis, 0);
  const workersAlive = workers.reduce((sum, one) => sum + one.workers, 0);
  const parts = [
    summaryOf(attention),
    'NOW',
    fields({ ...health, apisAlive, workersAlive, ...stats }),
  ];
  for (const [name, rows] of Object.entries(lists)) {
    if (rows.length > 0) {
      parts.push(spelled(name, ' ').toUpperCase(), table<object>(rows));
    }
  }
  return {
    data: { attention, ...health, stats, ...lists },
    rows: [{ ...health, ...stats }],
    text: sections(parts),
    exitCode: attention.length > 0 ? 3 : 0,
  };
}

/**
 * Returns the stats of the service, such as `requests_accepted`, added up over all organizations.
 */
async function sumFigures(db: Database): Promise<Record<string, number>> {
  const stats: Record<string, number> = {};
  for (const { name, labels, value } of await readStats(db, [])) {
    const words = [name.replace('npe_', '')];
    for (const [label, kind] of Object.entries(labels)) {
      if (label !== 'organization') words.push(kind);
    }
    const stat = words.join('_');
    stats[stat] = Math.round((stats[stat] ?? 0) + value);
  }
  return stats;
}

async function listSources(db: Database) {
  const sources = await readSourceStats(db, new Date(Date.now() - HOUR_MS));
  return sources.map(
    ({ source, role, breaker, pausedUntil, creditsToday, asked, found, lastError }) => {
      return {
        source,
        role,
        breaker,
        pausedUntil,
        creditsToday,
        asked,
        found,
        lastError,
      };
    },
  );
}

interface Health {
  readonly temporal: string;
  readonly migrations: string;
}

function healthWarnings({ temporal, migrations }: Health): string[] {
  const warnings: string[] = [];
  if (temporal.startsWith('Temporal')) warnings.push(temporal);
  if (migrations !== 'ready') {
    warnings.push('migrations are missing: run "npm run migrate"');
  }
  return warnings;
}

function summaryOf(attention: readonly string[]): string {
  if (attention.length === 0) return 'Nothing needs attention.';
  return `NEEDS ATTENTION\n${attention.join('\n')}`;
}

function notAsked(source: string, lastError: string | null): string {
  if (source === DNS) {
    return `name servers are not believed (${lastError}): see deploy/runbooks/dns-lying.md`;
  }
  return `${source} is not called (${lastError}): see "vendors"`;
}

/** Returns a sentence for each problem with the API and worker processes. */
function trouble(
  apis: Awaited<ReturnType<typeof listApis>>,
  workers: Awaited<ReturnType<typeof listVersions>>,
): string[] {
  const found: string[] = [];
  if (apis.length === 0) found.push('no API is alive: start one');
  if (workers.length === 0) {
    found.push('no worker is alive: start one');
    return found;
  }
  for (const { namespace, queue, has_worker: hasWorker } of apis) {
    if (hasWorker) continue;
    const where = `an API starts workflows in the queue ${queue} of the namespace ${namespace}, which no worker uses`;
    found.push(`${where}: check TEMPORAL_NAMESPACE and TASK_QUEUE`);
  }
  return found;
}

/**
 * Checks whether Temporal can be used.
 * @returns `ok` if it can be used, or `not checked` and the reason. Otherwise a sentence that
 * begins with "Temporal" and says why it cannot be used
 */
async function askTemporal(): Promise<string> {
  const { temporalEnvironment } = loadConfig();
  if (!temporalEnvironment.TEMPORAL_ADDRESS) {
    return 'not checked: TEMPORAL_ADDRESS is not set';
  }
  // These modules are loaded here and not when the program starts, because loading Temporal's
  // client takes longer than the rest of this command.
  const { temporalTarget } = await import('../temporal/client.ts');
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  const found = await temporalTrouble(temporalTarget(temporalEnvironment));
  if (found === null) return 'ok';
  return found.message;
}
