import type { Command } from 'commander';
import { DNS } from '../../activities/verification/dns-control.ts';
import { readConcerns, readFigures } from '../../db/figures.ts';
import { readSourceStats } from '../../db/lookups/sources.ts';
import { readiness } from '../../db/migrate.ts';
import { listApis, listVersions } from '../../db/workers.ts';
import { loadConfig } from '../config/config.ts';
import { fields, type Run, sections, spelled, table } from './print.ts';

const HOUR_MS = 3_600_000;

/** Limits above which a figure needs attention, the same as in doctor, and the text for each. */
const LATE: Readonly<Record<string, readonly [seconds: number, what: string]>> = {
  sweep_age_seconds: [
    120,
    'no sweep for two minutes: look for "sweep failed" in the log of the workers',
  ],
  request_overdue_seconds: [60, 'a request is overdue: "doctor" says which'],
  delivery_overdue_seconds: [900, 'a delivery is overdue: "doctor" says which'],
};

/** Adds `status`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('status')
    .description('how the service is, on one screen; ends with 3 if something wants attention')
    .action(() =>
      run(async (db) => {
        const figures: Record<string, number> = {};
        for (const { name, labels, value } of await readFigures(db, [])) {
          // Adds up all organizations.
          const kinds = Object.entries(labels).flatMap(([label, kind]) =>
            label === 'organization' ? [] : [kind],
          );
          const figure = [name.replace('npe_', ''), ...kinds].join('_');
          figures[figure] = Math.round((figures[figure] ?? 0) + value);
        }
        const sources = (await readSourceStats(db, new Date(Date.now() - HOUR_MS))).map(
          ({ source, role, breaker, pausedUntil, creditsToday, asked, found, lastError }) => {
            return { source, role, breaker, pausedUntil, creditsToday, asked, found, lastError };
          },
        );
        const workers = await listVersions(db);
        const apis = await listApis(db);
        const lists = { apis, workers, ...(await readConcerns(db)), sourcesInTheLastHour: sources };
        const health = { temporal: await askTemporal(), migrations: await readiness(db) };
        const attention = [
          ...(health.temporal.startsWith('Temporal') ? [health.temporal] : []),
          ...(health.migrations === 'ready'
            ? []
            : ['migrations are missing: run "npm run migrate"']),
          ...trouble(apis, workers),
          ...Object.entries(LATE).flatMap(([name, [late, what]]) =>
            (figures[name] ?? 0) > late ? [what] : [],
          ),
          ...sources.flatMap(({ source, breaker, lastError }) =>
            breaker === 'closed' ? [] : [notAsked(source, lastError)],
          ),
        ];
        const alive = {
          apisAlive: apis.reduce((sum, one) => sum + one.apis, 0),
          workersAlive: workers.reduce((sum, one) => sum + one.workers, 0),
        };
        const text = sections([
          attention.length === 0
            ? 'Nothing wants attention.'
            : `WANTS ATTENTION\n${attention.join('\n')}`,
          'NOW',
          fields({ ...health, ...alive, ...figures }),
          ...Object.entries(lists).flatMap(([name, rows]) =>
            rows.length === 0 ? [] : [spelled(name, ' ').toUpperCase(), table<object>(rows)],
          ),
        ]);
        const data = { attention, ...health, figures, ...lists };
        return {
          data,
          rows: [{ ...health, ...figures }],
          text,
          exitCode: attention.length > 0 ? 3 : 0,
        };
      }),
    );
}

function notAsked(source: string, lastError: string | null): string {
  if (source === DNS)
    return `name servers are not believed (${lastError}): see deploy/runbooks/dns-lying.md`;
  return `${source} is not asked (${lastError}): see "vendors"`;
}

/** Returns what is wrong with the processes, one sentence each. */
function trouble(
  apis: Awaited<ReturnType<typeof listApis>>,
  workers: Awaited<ReturnType<typeof listVersions>>,
): string[] {
  const found: string[] = [];
  if (apis.length === 0) found.push('no API is alive: start one');
  if (workers.length === 0) {
    found.push('no worker is alive: start workers');
    return found;
  }
  for (const { namespace, queue, has_worker: hasWorker } of apis) {
    if (hasWorker) continue;
    found.push(
      `an API is in ${namespace}/${queue}, where no worker was ever seen: check TEMPORAL_NAMESPACE and TASK_QUEUE`,
    );
  }
  return found;
}

/**
 * Checks Temporal.
 * @returns `ok`, or a sentence that begins with "Temporal" and says why it cannot be used, or that
 * it was not checked
 */
async function askTemporal(): Promise<string> {
  const { temporalEnvironment } = loadConfig();
  if (!temporalEnvironment.TEMPORAL_ADDRESS) return 'not asked: TEMPORAL_ADDRESS is not set';
  // Loaded only here, because its client takes longer to load than a command takes to run.
  const { temporalTarget } = await import('../temporal/client.ts');
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  return (await temporalTrouble(temporalTarget(temporalEnvironment)))?.message ?? 'ok';
}
