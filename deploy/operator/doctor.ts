import type { Command } from 'commander';
import { printable } from '../../api/client/printable.ts';
import type { ChangedBy } from '../../db/audit.ts';
import type { Database } from '../../db/client.ts';
import type { CheckResult } from '../../db/doctor/check.ts';
import { diagnose, REPAIRABLE, repair } from '../../db/doctor/doctor.ts';
import { checkProcesses } from '../../db/doctor/processes.ts';
import { DatabaseError } from '../../db/errors.ts';
import { type Config, loadConfig } from '../config/config.ts';
import { accountable } from './arguments.ts';
import { counted, type Run, table } from './print.ts';

/** Maximum number of findings per check that `--fix` repairs. */
const REPAIRS_AT_MOST = 1000;
/** Number of ids shown for each finding. */
const SHOWN = 3;

const NOT_SET = 'Workflows were not checked: TEMPORAL_ADDRESS is not set.';
const FAIRNESS_UNKNOWN =
  'Temporal does not show whether fairness is on: see "Fairness" in deploy/operations.md.';

/** Adds `doctor`. */
export function addCommands(program: Command, run: Run): void {
  accountable(program.command('doctor'), 'fix', 'repair what is safe to repair')
    .description('check every promise about money and work that the database can prove')
    .option('--offline', 'leave out processes, and what only Temporal knows')
    .action(
      ({ fix, offline, ...by }: ChangedBy & { readonly fix?: true; readonly offline?: true }) =>
        run(async (db) => {
          const config = loadConfig();
          const repairs =
            fix && (await repair(db, by, await diagnose(db, config, REPAIRS_AT_MOST), config));
          const begun = performance.now();
          const { checks: inDatabase } = await diagnose(db, config);
          const checks = [...inDatabase];
          if (!offline) checks.push(...(await checkProcesses(db)));
          const notes: string[] = [];
          if (!offline) {
            const temporal = await checkTemporal(db, config);
            checks.push(...temporal.checks);
            notes.push(...temporal.notes);
          }
          const durationMs = Math.round(performance.now() - begun);
          const findings = checks.reduce((sum, check) => sum + check.findings, 0);
          const parts = [
            ...checks.flatMap((check) => (check.findings > 0 ? [textOf(check)] : [])),
            ...(repairs ? [`REPAIRS\n${table(repairs)}`] : []),
            ...notes,
            `${checks.length} checks in ${(durationMs / 1000).toFixed(1)} s: ${findings === 0 ? 'no findings' : counted(findings, 'finding')}`,
          ];
          const rows = checks.map((check) => ({
            ...check,
            repairable: REPAIRABLE.has(check.code),
          }));
          const data = { findings, durationMs, checks: rows, ...(repairs && { repairs }) };
          return { data, rows, text: parts.join('\n\n'), exitCode: findings > 0 ? 3 : 0 };
        }),
    );
}

/** The results of checks in Temporal, and notes about checks that were not possible. */
interface TemporalChecks {
  readonly checks: readonly CheckResult[];
  readonly notes: readonly string[];
}

async function checkTemporal(db: Database, config: Config): Promise<TemporalChecks> {
  if (!config.temporalEnvironment.TEMPORAL_ADDRESS) return { checks: [], notes: [NOT_SET] };
  // Loaded only here, because Temporal's client takes longer to load than other commands take to
  // run.
  const { lazyClient, temporalTarget } = await import('../temporal/client.ts');
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  const { checkFairness, checkWorkers, checkWorkflows, unreachable } = await import(
    '../temporal/doctor.ts'
  );
  const { taskQueue, temporalEnvironment } = config;
  const target = temporalTarget(temporalEnvironment);
  const client = lazyClient(target);
  const { namespace } = client.options;
  const workers = await checkWorkers(db, { namespace, taskQueue });
  try {
    const trouble = await temporalTrouble(target);
    if (trouble) return { checks: [unreachable(trouble.message), workers], notes: [] };
    const checks = [...(await checkWorkflows(db, client, taskQueue)), workers];
    const fairness = await checkFairness(target, taskQueue);
    if (fairness === null) return { checks, notes: [FAIRNESS_UNKNOWN] };
    return { checks: [...checks, fairness], notes: [] };
  } catch (error) {
    // Any other error is only a finding, so that the findings from PostgreSQL are still printed.
    if (error instanceof DatabaseError) throw error;
    const unusable = unreachable(`Temporal answers, and not this: ${(error as Error).message}`);
    return { checks: [unusable, workers], notes: [] };
  } finally {
    await client.connection.close();
  }
}

function textOf({ code, title, explanation, findings, examples }: CheckResult): string {
  const found = [`${findings} found`, ...examples.slice(0, SHOWN)].join('  ');
  return `${code}: ${title}\n  ${explanation}\n  ${printable(found)}`;
}
