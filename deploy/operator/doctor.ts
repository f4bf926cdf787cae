import type { Command } from 'commander';
import type { ChangedBy } from '../../db/audit.ts';
import type { Database } from '../../db/client.ts';
import type { CheckResult, DoctorRules } from '../../db/doctor/check.ts';
import { type Diagnosis, diagnose, REPAIRABLE, type RepairRecord, repair } from '../../db/doctor/doctor.ts';
import { loadConfig } from '../config/config.ts';
import { accountable } from './arguments.ts';
import { type Report, type Run, table } from './print.ts';

/** Findings of one check that one --fix takes on. */
const REPAIRS_AT_MOST = 1000;
/** Ids shown of each finding. */
const SHOWN = 3;

interface DoctorOptions extends ChangedBy {
  readonly fix?: true;
  readonly offline?: true;
}

/** `doctor`. */
export function addCommands(program: Command, run: Run): void {
  accountable(program.command('doctor'), 'fix', 'repair what is safe to repair')
    .description('check every promise about money and work that the database can prove')
    .option('--offline', 'leave out what only Temporal knows')
    .action(({ fix, offline, ...by }: DoctorOptions) =>
      run(async (db) => {
        const config = loadConfig();
        const repairs = fix
          ? await repair(db, by, await diagnose(db, config, REPAIRS_AT_MOST), config)
          : null;
        const environment = config.temporalEnvironment;
        const asksTemporal = !offline && !!environment.TEMPORAL_ADDRESS;
        const diagnosis = await examine(db, config, asksTemporal ? environment : null, config.taskQueue);
        return report(diagnosis, repairs, offline === true || asksTemporal);
      }),
    );
}

async function examine(
  db: Database,
  rules: DoctorRules,
  temporal: Readonly<Record<string, string | undefined>> | null,
  taskQueue: string,
): Promise<Diagnosis> {
  const diagnosis = await diagnose(db, rules);
  if (temporal === null) return diagnosis;
  const begun = performance.now();
  // Temporal's client takes longer to load than any other command takes to run.
  const { lazyClient, temporalTarget } = await import('../temporal/client.ts');
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  const { checkWorkers, checkWorkflows, unreachable } = await import('../temporal/doctor.ts');
  const target = temporalTarget(temporal);
  const client = lazyClient(target);
  try {
    const trouble = await temporalTrouble(target);
    const workflows =
      trouble === null ? await checkWorkflows(db, client, taskQueue) : [unreachable(trouble.message)];
    const { namespace } = client.options;
    const checks = [...diagnosis.checks, ...workflows, await checkWorkers(db, { namespace, taskQueue })];
    const durationMs = diagnosis.durationMs + Math.round(performance.now() - begun);
    return { ...diagnosis, checks, durationMs, findings: sum(checks) };
  } finally {
    await client.connection.close();
  }
}

function report(diagnosis: Diagnosis, repairs: readonly RepairRecord[] | null, isComplete: boolean): Report {
  const { checks, findings, durationMs } = diagnosis;
  const sick = checks.filter((check) => check.findings > 0);
  const seconds = (durationMs / 1000).toFixed(1);
  const verdict = findings === 0 ? 'no findings' : findings === 1 ? '1 finding' : `${findings} findings`;
  const parts = [
    table(
      checks.map(({ code, findings, examples }) => ({
        check: code,
        findings,
        examples: examples.slice(0, SHOWN).join(', ') || null,
      })),
    ),
    ...sick.map(({ code, title, explanation }) => `${code}: ${title}\n  ${explanation}`),
    ...(repairs === null ? [] : [`REPAIRS\n${table(repairs)}`]),
    ...(isComplete ? [] : ['Workflows were not checked: TEMPORAL_ADDRESS is not set.']),
    `${checks.length} checks in ${seconds} s: ${verdict}`,
  ];
  const data = {
    findings,
    durationMs,
    checks: checks.map((check) => ({ ...check, repairable: REPAIRABLE.has(check.code) })),
    ...(repairs === null ? {} : { repairs }),
  };
  return { data, rows: data.checks, text: parts.join('\n\n'), exitCode: findings > 0 ? 3 : 0 };
}

function sum(checks: readonly CheckResult[]): number {
  return checks.reduce((total, check) => total + check.findings, 0);
}
