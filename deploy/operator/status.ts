import type { Command } from 'commander';
import { DNS } from '../../activities/verification/dns-control.ts';
import type { Database } from '../../db/connection/client.ts';
import { DatabaseError } from '../../db/connection/errors.ts';
import { tlsWarning } from '../../db/connection/tls.ts';
import { readSourceStats } from '../../db/lookups/source-stats.ts';
import { readiness } from '../../db/operations/migrate.ts';
import { readServerStats } from '../../db/operations/server.ts';
import { readConcerns, readStats, type Stat } from '../../db/operations/stats.ts';
import {
  listApis,
  listSilent,
  listVersions,
  NO_BUILD,
} from '../../db/operations/workers.ts';
import { loadConfig } from '../config/config.ts';
import { FAILING, LIMITS } from '../limits.ts';
import { printable } from '../printable.ts';
import {
  counted,
  fields,
  type Part,
  type Report,
  type Run,
  spelled,
  table,
} from './print.ts';

const HOUR_MS = 3_600_000;

const COMMITS_HANG =
  'PostgreSQL commits nothing, so each submit fails: see deploy/runbooks/postgresql-down.md';

const ONLY_REFUNDS =
  'all workers wait for Temporal, and only refund overdue requests: see deploy/runbooks/temporal-down.md';

const HELD_WITHOUT_REQUEST =
  'credits are held although no request is open: "doctor" shows whose';

/** Adds the command `status`. */
export function addCommands(program: Command, run: Run): void {
  program
    .command('status')
    .description(
      'show the state of the service on one screen; exits with 3 if it needs attention',
    )
    .action(() => run(reportStatus));
}

/**
 * Reads the parts of the status from PostgreSQL. If one cannot be read, the others are still shown.
 */
class PartReader {
  readonly #unread: (readonly [part: string, error: DatabaseError])[] = [];
  #isAnyRead = false;

  /** Reads a part. @returns null if it cannot be read */
  async read<T>(part: string, read: () => Promise<T>): Promise<T | null> {
    const last = this.#unread.at(-1)?.[1];
    try {
      // The connection may still be waiting for the last response, so the next part would wait, too.
      if (last?.isAway || last?.code === 'client_deadline') throw last;
      const result = await read();
      this.#isAnyRead = true;
      return result;
    } catch (error) {
      if (!(error instanceof DatabaseError)) throw error;
      this.#unread.push([part, error]);
      return null;
    }
  }

  /**
   * Returns a sentence about the parts that could not be read, or null if there are none.
   * @throws {DatabaseError} if no part could be read
   */
  warning(): string | null {
    const [first] = this.#unread;
    if (first === undefined) return null;
    if (!this.#isAnyRead) throw first[1];
    const parts = this.#unread.map(([part, { code }]) => `${part} (${code})`);
    return `these could not be read from PostgreSQL: ${parts.join(', ')}`;
  }
}

type Stats = Readonly<Record<string, number>>;

async function reportStatus(db: Database): Promise<Report> {
  const { webhookScheduleMs } = loadConfig();
  const rules = { sources: [], webhookScheduleMs };
  const reader = new PartReader();
  // Comes first, because a lock on a table can block everything else.
  const server = await reader.read('the server', () => readServerStats(db));
  const service = await reader.read('requests and credits', () => readStats(db, rules));
  const read = [...(server ?? []), ...(service ?? [])];
  const stats = sumStats(read);
  const sources = await reader.read('sources', () => listSources(db));
  const workers = await reader.read('workers', () => listVersions(db));
  const apis = await reader.read('APIs', () => listApis(db));
  const silent = await reader.read('silent processes', () => listSilent(db));
  const concerns = await reader.read('customers', () =>
    readConcerns(db, webhookScheduleMs),
  );
  const unread = reader.warning();
  const lists = { apis, workers, ...concerns, sourcesInTheLastHour: sources };
  const { temporal, waitingBatches } = await askTemporal(workers);
  const health = { temporal, migrations: await readiness(db) };
  const settled = concerns?.settledInTheLastQuarterHour;
  const errors = apis?.reduce((sum, one) => sum + one.errors, 0);
  const outcomes = settled === undefined ? null : outcomesOf(settled);
  const lastQuarterHour = { ...outcomes, errors };

  const attention = healthWarnings(health);
  if (apis !== null && workers !== null) {
    attention.push(...trouble(apis, workers));
  }
  attention.push(...(silent ?? []).map(silentProcesses));
  attention.push(...failures(lastQuarterHour));
  attention.push(...waitingBatches.map(waitingFor));
  attention.push(...aboveLimits(read));
  if (isHeldWithoutRequest(stats)) attention.push(HELD_WITHOUT_REQUEST);
  for (const { source, breaker, lastError } of sources ?? []) {
    if (breaker === 'open' || breaker === 'half_open') {
      attention.push(notAsked(source, lastError));
    }
  }
  if (unread !== null) attention.push(unread);

  const apisAlive = apis?.reduce((sum, one) => sum + one.apis, 0);
  const workersAlive = workers?.reduce((sum, one) => sum + one.workers, 0);
  const parts: Part[] = [
    summaryOf(attention),
    'NOW',
    fields({ ...health, apisAlive, workersAlive, lastQuarterHour, ...stats }),
  ];
  for (const [name, rows] of Object.entries(lists)) {
    if (rows !== null && rows.length > 0) {
      parts.push(spelled(name, ' ').toUpperCase(), table<object>(rows));
    }
  }
  return {
    data: { attention, ...health, lastQuarterHour, waitingBatches, stats, ...lists },
    parts,
    exitCode: attention.length > 0 ? 3 : 0,
  };
}

/** Returns a sentence for each stat that is above its limit. */
function aboveLimits(read: readonly Stat[]): string[] {
  const sentences: string[] = [];
  for (const { stat, max, problem, runbook } of LIMITS) {
    const above = read.filter(({ name, value }) => name === stat && value > max);
    if (above.length === 0) continue;
    const subjects = above.flatMap(({ subject }) => subject ?? []);
    const which = subjects.length === 0 ? '' : ` (${printable(subjects.join(', '))})`;
    sentences.push(`${problem}${which}: see deploy/runbooks/${runbook}`);
  }
  return sentences;
}

/** Returns stats, such as `requests_open_accepted`, added up over all organizations. */
function sumStats(read: readonly Stat[]): Stats {
  const stats: Record<string, number> = {};
  for (const { name, labels, value } of read) {
    const words = [name.replace('npe_', '')];
    for (const [label, kind] of Object.entries(labels)) {
      if (label !== 'organization') words.push(kind);
    }
    const stat = words.join('_');
    const before = stats[stat] ?? 0;
    // Waits of organizations are not added up. The longest one is shown.
    const after = stat.endsWith('_seconds') ? Math.max(before, value) : before + value;
    stats[stat] = Math.round(after);
  }
  return stats;
}

async function listSources(db: Database) {
  const sources = await readSourceStats(db, new Date(Date.now() - HOUR_MS));
  return sources.map((stats) => ({
    source: stats.source,
    role: stats.role,
    breaker: stats.breaker,
    lastError: stats.lastError,
    asked: stats.asked,
    found: stats.found,
    creditsToday: stats.creditsToday,
    pausedUntil: stats.pausedUntil,
  }));
}

/** Returns true if credits are held although no request is open. */
function isHeldWithoutRequest(stats: Stats): boolean {
  const accepted = stats.requests_open_accepted ?? 0;
  const inProgress = stats.requests_open_in_progress ?? 0;
  const held = stats.credits_balance_held ?? 0;
  return held > 0 && accepted + inProgress === 0;
}

interface Health {
  readonly temporal: string;
  readonly migrations: string;
}

function healthWarnings({ temporal, migrations }: Health): string[] {
  const warnings: string[] = [];
  const exposed = tlsWarning(loadConfig().databaseUrl);
  if (exposed !== null) warnings.push(exposed);
  if (temporal.startsWith('Temporal')) warnings.push(temporal);
  if (migrations === 'migrations_missing') {
    warnings.push('migrations are missing: run "npm run migrate"');
  }
  if (migrations === 'database_read_only') {
    warnings.push('PostgreSQL takes no writes: see deploy/runbooks/postgresql-down.md');
  }
  if (migrations === 'commits_hang') warnings.push(COMMITS_HANG);
  return warnings;
}

function summaryOf(attention: readonly string[]): string {
  if (attention.length === 0) return 'Nothing needs attention.';
  return `NEEDS ATTENTION\n${attention.join('\n')}`;
}

function notAsked(source: string, lastError: string | null): string {
  if (source === DNS) {
    return `name servers are not trusted (${lastError}): see deploy/runbooks/source-lying.md`;
  }
  return `${source} is not called (${lastError}): see deploy/runbooks/source-down.md`;
}

/** Counts the requests that became final within the last 15 minutes, and those that failed. */
function outcomesOf(
  settled: Awaited<ReturnType<typeof readConcerns>>['settledInTheLastQuarterHour'],
) {
  let failed = 0;
  let final = 0;
  for (const { status, requests } of settled) {
    final += requests;
    if (status === 'failed') failed += requests;
  }
  return { final, failed };
}

/** Counts of the last 15 minutes. Those that could not be read are missing. */
interface LastQuarterHour extends Partial<ReturnType<typeof outcomesOf>> {
  /** The responses with status 500. */
  readonly errors: number | undefined;
}

/**
 * Returns a sentence if so many recent requests failed that the alert fires. Also returns one if an
 * API has sent a 500, because that is always a bug or a missing right.
 */
function failures({ final = 0, failed = 0, errors = 0 }: LastQuarterHour): string[] {
  const found: string[] = [];
  const { maxCount, maxPercent, runbook } = FAILING;
  if (failed > maxCount && 100 * failed > maxPercent * final) {
    found.push(
      `${failed} of the ${final} requests of the last 15 minutes failed: see deploy/runbooks/${runbook}`,
    );
  }
  if (errors > 0) {
    found.push(
      `${counted(errors, 'response')} of the last 15 minutes had status 500: see deploy/runbooks/api-errors.md`,
    );
  }
  return found;
}

function waitingFor({ build, batches }: WaitingBatches): string {
  return `no worker of the build ${build} is alive, and open batches wait for it (${batches}): see deploy/runbooks/processes-down.md`;
}

type LiveWorkers = Awaited<ReturnType<typeof listVersions>>;

/** Returns a sentence for each problem with the API and worker processes. */
function trouble(
  apis: Awaited<ReturnType<typeof listApis>>,
  workers: LiveWorkers,
): string[] {
  const found: string[] = [];
  if (apis.length === 0) found.push('no API is alive: start one');
  if (workers.length === 0) {
    found.push('no worker is alive: see deploy/runbooks/processes-down.md');
    return found;
  }
  if (workers.every(({ version }) => version === NO_BUILD)) {
    found.push(ONLY_REFUNDS);
  }
  for (const { namespace, queue, hasWorker } of apis) {
    if (hasWorker) continue;
    const where = `an API starts workflows in the queue ${queue} of the namespace ${namespace}, which no worker uses`;
    found.push(`${where}: check TEMPORAL_NAMESPACE and TASK_QUEUE`);
  }
  return found;
}

type Silent = Awaited<ReturnType<typeof listSilent>>[number];

/** Returns a sentence about the processes of a kind that send no heartbeat. */
function silentProcesses({ kind, ids }: Silent): string {
  const noun = kind === 'api' ? 'an API' : 'a worker';
  return `${noun} was killed or hangs (${ids.join(', ')}): see deploy/runbooks/processes-down.md`;
}

interface WaitingBatches {
  readonly build: string;
  readonly batches: number;
}

/** The facts that `status` reads from Temporal. */
interface TemporalState {
  /**
   * `ok` if Temporal can be used, or `not checked` and the reason. Otherwise a sentence that begins
   * with "Temporal" and says why it cannot be used.
   */
  readonly temporal: string;
  /** The builds without a worker that batches wait for. */
  readonly waitingBatches: readonly WaitingBatches[];
}

/**
 * Checks whether Temporal can be used, and whether batches wait for a build without a worker.
 * @param workers the live workers, or null if they could not be read
 */
async function askTemporal(workers: LiveWorkers | null): Promise<TemporalState> {
  const { temporalEnvironment, taskQueue } = loadConfig();
  if (!temporalEnvironment.TEMPORAL_ADDRESS) {
    const temporal = 'not checked: TEMPORAL_ADDRESS is not set';
    return { temporal, waitingBatches: [] };
  }
  // These modules are loaded here and not when the program starts, because loading Temporal's
  // client takes longer than the rest of this command.
  const { inTime, lazyClient, messageOf, temporalTarget } = await import(
    '../temporal/client.ts'
  );
  const { temporalTrouble } = await import('../temporal/trouble.ts');
  const { countWaitingBatches } = await import('../temporal/versions.ts');
  const target = temporalTarget(temporalEnvironment);
  const found = await temporalTrouble(target);
  if (found !== null) {
    return { temporal: found.message, waitingBatches: [] };
  }
  if (workers === null) return { temporal: 'ok', waitingBatches: [] };
  const client = lazyClient(target);
  const { namespace } = client.options;
  const ours = workers.filter((one) => {
    return one.namespace === namespace && one.queue === taskQueue;
  });
  const live = new Set(ours.map(({ version }) => version));
  try {
    const count = () => countWaitingBatches(client, taskQueue, live);
    return { temporal: 'ok', waitingBatches: await inTime(client, count) };
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const temporal = `Temporal failed a check: ${messageOf(error)}`;
    return { temporal, waitingBatches: [] };
  } finally {
    await client.connection.close();
  }
}
