import type { Command } from 'commander';
import { type Figure, readConcerns, readFigures } from '../../db/figures.ts';
import { readSourceFigures } from '../../db/lookups/sources.ts';
import { readiness } from '../../db/migrate.ts';
import { listVersions } from '../../db/workers.ts';
import { loadConfig } from '../config/config.ts';
import { fields, type Run, sections, spelled, table } from './print.ts';

const HOUR_MS = 3_600_000;
/** As late as the doctor lets each be (db/doctor). */
const LATE_S = { sweep: 120, request: 60, delivery: 900 };

/** `status`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('status')
    .description('how the service is, on one screen; ends with 3 if something wants attention')
    .action(() =>
      run(async (db) => {
        const versions = await listVersions(db);
        const figures = await readFigures(db, []);
        const { waiting, low, hosts } = await readConcerns(db);
        const sources = (await readSourceFigures(db, new Date(Date.now() - HOUR_MS))).map(
          ({ source, role, breaker, pausedUntil, lastError, creditsToday, asked, found }) => {
            return { source, role, breaker, pausedUntil, creditsToday, asked, found, lastError };
          },
        );
        const health = {
          postgresql: 'ok',
          temporal: await askTemporal(),
          migrations: await readiness(db),
          workers: versions.reduce((sum, { workers }) => sum + workers, 0),
          sweepSecondsAgo: sumOf(figures, 'npe_sweep_age_seconds'),
        };
        const queues = {
          accepted: sumOf(figures, 'npe_requests_open', 'accepted'),
          inProgress: sumOf(figures, 'npe_requests_open', 'in_progress'),
          waitingForRoom: sumOf(figures, 'npe_lookups_waiting'),
          outboxBatches: sumOf(figures, 'npe_outbox_batches'),
          deliveriesPending: sumOf(figures, 'npe_deliveries_pending'),
          requestOverdueSeconds: sumOf(figures, 'npe_request_overdue_seconds'),
          deliveryOverdueSeconds: sumOf(figures, 'npe_delivery_overdue_seconds'),
        };
        const troubles: readonly (readonly [isSo: boolean, what: string])[] = [
          [health.temporal.startsWith('Temporal'), health.temporal],
          [health.migrations !== 'ready', 'migrations are missing: run "npm run migrate"'],
          [health.workers === 0, 'no worker is alive: start workers'],
          [
            health.sweepSecondsAgo > LATE_S.sweep,
            'no sweep for two minutes: see "sweep failed" in the workers\' log',
          ],
          [queues.requestOverdueSeconds > LATE_S.request, 'a request is overdue: "doctor" says which'],
          [queues.deliveryOverdueSeconds > LATE_S.delivery, 'a delivery is overdue: "doctor" says which'],
          ...sources.map(({ source, breaker, lastError }) => {
            return [breaker !== 'closed', `${source} is not asked (${lastError}): see "vendors"`] as const;
          }),
        ];
        const attention = troubles.flatMap(([isSo, what]) => (isSo ? [what] : []));
        const lists = {
          versions,
          waitingForRoom: waiting,
          sourcesInTheLastHour: sources,
          nearlyOutOfCredits: low,
          webhookHostsAway: hosts,
        };
        const text = sections([
          attention.length === 0 ? 'Nothing wants attention.' : `WANTS ATTENTION\n${attention.join('\n')}`,
          'HEALTH',
          fields(health),
          'QUEUES',
          fields(queues),
          ...Object.entries(lists).flatMap(([name, rows]) =>
            rows.length === 0 ? [] : [spelled(name, ' ').toUpperCase(), table<object>(rows)],
          ),
        ]);
        const data = { attention, health, queues, ...lists };
        return { data, rows: [{ ...health, ...queues }], text, exitCode: attention.length > 0 ? 3 : 0 };
      }),
    );
}

function sumOf(figures: readonly Figure[], name: Figure['name'], state?: string): number {
  const those = figures.filter((one) => one.name === name && (!state || one.labels.state === state));
  return Math.round(those.reduce((sum, { value }) => sum + value, 0));
}

/** @returns `ok`, that it was not asked, or one sentence that begins with "Temporal" and says why it cannot be used */
async function askTemporal(): Promise<string> {
  const { temporalEnvironment } = loadConfig();
  if (!temporalEnvironment.TEMPORAL_ADDRESS) return 'not asked: TEMPORAL_ADDRESS is not set';
  // Its client takes longer to load than any command takes to run.
  const { temporalTarget } = await import('../temporal/client.ts');
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  return (await temporalTrouble(temporalTarget(temporalEnvironment)))?.message ?? 'ok';
}
