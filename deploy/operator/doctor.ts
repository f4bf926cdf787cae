import type { Command } from 'commander';
import { registrableDomain } from '../../activities/verification/domains.ts';
import type { Database } from '../../db/connection/client.ts';
import { DatabaseError } from '../../db/connection/errors.ts';
import { type CheckResult, found } from '../../db/doctor/check.ts';
import { diagnose, REPAIRABLE, repair } from '../../db/doctor/doctor.ts';
import type { ChangedBy } from '../../db/operations/audit.ts';
import { noteDoctor } from '../../db/operations/routines.ts';
import { listSuppressions } from '../../db/privacy/suppressions.ts';
import { type Config, loadConfig } from '../config/config.ts';
import { printable } from '../printable.ts';
import { accountable } from './arguments.ts';
import { counted, type Part, type Report, type Run, table } from './print.ts';

/** The maximum number of findings that `--fix` repairs for each check. */
const MAX_REPAIRS = 1000;
/** The number of suppressed domains that are checked, the newest first. */
const MAX_DOMAINS = 100_000;
/** Number of example ids that are printed for each check with findings. */
const SHOWN = 3;

const NOT_SET = 'Workflows were not checked: TEMPORAL_ADDRESS is not set.';
const NOT_NOTED =
  'The metrics of the doctor still show its last run: PostgreSQL takes no writes.';

interface DoctorOptions extends ChangedBy {
  readonly fix?: true;
  readonly offline?: true;
}

/** Adds the command `doctor`. */
export function addCommands(program: Command, run: Run): void {
  accountable(
    program.command('doctor'),
    'fix',
    'repair the findings that are safe to repair',
  )
    .description(
      'check the credits, requests, and deliveries in the database, and their workflows in Temporal',
    )
    .option('--offline', 'skip the checks of Temporal')
    .action((options: DoctorOptions) => run((db) => examine(db, options)));
}

/** Repairs all findings that are safe to repair. @returns what was repaired */
async function repairAll(db: Database, by: ChangedBy, config: Config) {
  const checks = await diagnose(db, config, MAX_REPAIRS);
  return await repair(db, by, checks, config);
}

async function examine(
  db: Database,
  { fix, offline, ...by }: DoctorOptions,
): Promise<Report> {
  const config = loadConfig();
  const repairs = fix ? await repairAll(db, by, config) : undefined;
  const begun = performance.now();
  const { checks, notes } = offline
    ? await checkOffline(db, config)
    : await checkService(db, config);
  const durationMs = Math.round(performance.now() - begun);
  return reportOf(checks, notes, durationMs, repairs);
}

async function checkOffline(db: Database, config: Config): Promise<Checked> {
  return { checks: await checkData(db, config), notes: [] };
}

/** Checks the data and the workflows, and notes the number of findings for the metrics. */
async function checkService(db: Database, config: Config): Promise<Checked> {
  const checks = await checkData(db, config);
  const temporal = await checkTemporal(db, config);
  checks.push(...temporal.checks);
  const notes = [...temporal.notes];
  if (await db.canCommit()) {
    await noteDoctor(db, sumOf(checks)).catch(() => notes.push(NOT_NOTED));
  } else {
    notes.push(NOT_NOTED);
  }
  return { checks, notes };
}

async function checkData(db: Database, config: Config): Promise<CheckResult[]> {
  const checks = await diagnose(db, config);
  return [...checks, await checkSuppressedDomains(db)];
}

/**
 * Finds suppressed domains without a public suffix. Earlier imports stored an NPI that they could
 * not read as such a domain. `suppress add` and imports reject it now.
 */
async function checkSuppressedDomains(db: Database): Promise<CheckResult> {
  const domains = await listSuppressions(db, 'domain', MAX_DOMAINS);
  const values = domains.map(({ value }) => value);
  const unusable = values.filter((domain) => registrableDomain(domain) === null);
  return found('suppression_without_suffix', unusable.sort());
}

function reportOf(
  checks: readonly CheckResult[],
  notes: readonly string[],
  durationMs: number,
  repairs: Awaited<ReturnType<typeof repairAll>> | undefined,
): Report {
  const findings = sumOf(checks);
  const found = checks.filter((check) => check.findings > 0);
  const parts: Part[] = found.map(textOf);
  if (repairs !== undefined) parts.push('REPAIRS', table(repairs));
  parts.push(...notes);
  const seconds = (durationMs / 1000).toFixed(1);
  const result = findings === 0 ? 'no findings' : counted(findings, 'finding');
  parts.push(`${checks.length} checks in ${seconds} s: ${result}`);

  const rows = checks.map((check) => ({
    ...check,
    repairable: REPAIRABLE.has(check.code),
  }));
  const data = { findings, durationMs, checks: rows, repairs };
  return { data, parts, exitCode: findings > 0 ? 3 : 0 };
}

function sumOf(checks: readonly CheckResult[]): number {
  return checks.reduce((sum, check) => sum + check.findings, 0);
}

/** The results of checks, and notes that say which checks could not run and why. */
interface Checked {
  readonly checks: readonly CheckResult[];
  readonly notes: readonly string[];
}

async function checkTemporal(db: Database, config: Config): Promise<Checked> {
  if (!config.temporalEnvironment.TEMPORAL_ADDRESS) {
    return { checks: [], notes: [NOT_SET] };
  }
  // These modules are loaded here and not when the program starts, because loading Temporal's
  // client takes longer than running a command that does not need it.
  const { lazyClient, messageOf, temporalTarget } = await import('../temporal/client.ts');
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  const { checkLostBatches, checkLostResults, checkWorkflows, unreachable } =
    await import('../temporal/doctor.ts');
  const { taskQueue, temporalEnvironment } = config;
  const target = temporalTarget(temporalEnvironment);
  const client = lazyClient(target);
  try {
    const trouble = await temporalTrouble(target);
    if (trouble) {
      return { checks: [unreachable(trouble.message)], notes: [] };
    }
    const checks = [
      ...(await checkWorkflows(db, client, taskQueue)),
      await checkLostBatches(db, client, taskQueue),
      await checkLostResults(db, client),
    ];
    return { checks, notes: [] };
  } catch (error) {
    // An error of Temporal becomes a finding and does not end the command, so that the findings in
    // PostgreSQL are still printed.
    if (error instanceof DatabaseError || !(error instanceof Error)) {
      throw error;
    }
    const unusable = unreachable(`Temporal failed a check: ${messageOf(error)}`);
    return { checks: [unusable], notes: [] };
  } finally {
    await client.connection.close();
  }
}

function textOf({ code, title, explanation, findings, examples }: CheckResult): string {
  const found = [`${findings} found`, ...examples.slice(0, SHOWN)].join('  ');
  return `${code}: ${title}\n  ${explanation}\n  ${printable(found)}`;
}
