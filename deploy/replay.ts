import { readFile } from 'node:fs/promises';
import inspector from 'node:inspector';
import { text } from 'node:stream/consumers';
import { type Client, isGrpcServiceError } from '@temporalio/client';
import type { Command } from 'commander';
import { printableLines } from '../api/client/printable.ts';
import { openDatabase } from '../db/client.ts';
import { OperatorProblem } from '../db/errors.ts';
import { isId } from '../db/ids.ts';
import { findBatch } from '../db/requests/inspect.ts';
import { WORKFLOWS } from '../workflows/messages.ts';
import { loadReplayConfig, type ReplayConfig, temporalUi } from './config/config.ts';
import { createLog } from './log.ts';
import { main } from './main.ts';
import { integer, pastMoment } from './operator/arguments.ts';
import { table } from './operator/print.ts';
import { lazyClient, onOurQueues, temporalTarget } from './temporal/client.ts';
import { fetchRun, parseRun, pinnedTo, type Run } from './temporal/history.ts';
import { replay } from './temporal/replay.ts';
import { storyOf } from './temporal/story.ts';
import { temporalTrouble } from './temporal/trouble.ts';
import { versionOf } from './temporal/versions.ts';
import { installRuntime, loadBundle } from './temporal/workers.ts';

// `npm run replay` replays the histories of workflows with this code, and prints what happened in
// them.

const HELP = `
A run that is named is told as well: what was decided, who was asked, why it failed. Of many runs (--since, --failed,
--query) those that are pinned to another build are counted apart: only workers of that build go on with them.
A run in which the code throws an error of its own never counts as "need not", because new runs throw it too.
--inspect waits for a debugger, and stops it at the first that the code does at that event or after it.

Needs no settings for --file. Otherwise it needs TEMPORAL_ADDRESS and TASK_QUEUE, and DATABASE_URL for requests that were
final at their submit: only their batch has a run. See deploy/env.example, and "Replaying a failed run" in deploy/operations.md.
Exit codes: 0 all fit, 3 one does not, 1 failed: could not look (one sentence on stderr), 2 wrong usage.

Examples:
  npm run replay -- req_01h2xcejqtf2nbrexx3vqjhp41
  npm run replay -- --since 24h --bundle workflow-bundle.js     (the gate of a release)`;

const FINAL_AT_SUBMIT =
  'a request that was final at its submit has none: name its batch, or set DATABASE_URL';

const FAILED =
  '(Outcome STARTS_WITH "failed" or ExecutionStatus in ("Failed", "TimedOut", "Terminated", "Canceled"))';

interface Options {
  readonly file?: string;
  readonly since?: Date;
  readonly failed?: true;
  readonly query?: string;
  readonly limit: number;
  readonly all?: true;
  readonly bundle?: string;
  readonly inspect?: number;
}

await main(
  {
    name: 'replay',
    description: 'Whether runs of workflows fit the code, and what happened in them.',
    help: HELP,
  },
  async (stopped, ids: string[], options: Options, command: Command) => {
    const { file, since, failed, query, inspect = null } = options;
    const isMany = Boolean(since ?? failed ?? query);
    if ([ids.length > 0, file !== undefined, isMany].filter(Boolean).length !== 1)
      command.error('error: name runs, or a --file, or use --since, --failed or --query');
    if (inspect !== null && (isMany || ids.length > 1))
      command.error('error: --inspect is about one run');
    // Exits at once, because an interrupted replay has no result.
    void stopped.then(() => process.exit(1));
    const config = loadReplayConfig();
    installRuntime(createLog('replay', 'silent'));
    const { code } = await loadBundle(options.bundle ?? null);
    if (inspect !== null) inspector.open(undefined, undefined, true);
    const runs = file === undefined ? fromTemporal(config, ids, options) : [await readRun(file)];
    const { buildId } = versionOf(config.taskQueue, code);
    const types = Object.values(WORKFLOWS);
    const counts = types.map((workflow) => ({ workflow, runs: 0, fit: 0, doNot: 0, needNot: 0 }));
    for await (const { run, misfit, throws } of replay(code, runs, inspect)) {
      const pinned = pinnedTo(run);
      const isElsewhere = isMany && !options.all && pinned !== null && pinned !== buildId;
      let fate: 'fit' | 'doNot' | 'needNot' = 'fit';
      if (misfit !== null) fate = isElsewhere && !throws ? 'needNot' : 'doNot';
      if (fate === 'doNot') process.exitCode = 3;
      if (!isMany) tell(run, misfit, pinned);
      else if (fate === 'doNot') say(`${run.workflowId} ${misfit}\n`);
      const count = counts.find(({ workflow }) => workflow === run.type);
      if (!count) continue;
      count.runs += 1;
      count[fate] += 1;
    }
    // A gate must not pass if it has replayed nothing.
    if (since && !failed && !query && counts.every((count) => count.runs === 0)) {
      const where = `queue ${config.taskQueue} of the namespace ${temporalTarget(config.temporalEnvironment).namespace ?? 'default'}`;
      throw new OperatorProblem(
        `no run was found in the ${where}; check TASK_QUEUE and TEMPORAL_NAMESPACE, or look further back`,
      );
    }
    if (isMany) say(`${table(counts)}\nby build ${buildId}; "need not" is pinned to other builds`);
    if (since && !failed && !query) warnOfUntried(counts);
  },
  (command) =>
    command
      .argument('[ID...]', 'of requests, batches, deliveries, or workflows')
      .option(
        '--file <FILE>',
        'a history from Temporal\'s CLI, or from "Download" in its UI with the setting "Encoded"; - is stdin',
      )
      .option(
        '--since <MOMENT>',
        'runs that have ended since then (24h, 2026-11-20T00:00Z), and all that are open',
        pastMoment,
      )
      .option('--failed', 'runs that failed, were ended, or could not answer a request')
      .option('--query <QUERY>', 'runs that a list filter of Temporal names')
      .option('--limit <N>', 'the newest of each workflow, 1 to 100000', integer(1, 100_000), 1000)
      .option('--all', 'runs that are pinned to another build have to fit too')
      .option('--bundle <FILE>', 'what "npm run bundle" made, in place of this folder')
      .option('--inspect <EVENT>', 'stop under a debugger at this event', integer(1, 1_000_000)),
);

/** Warns about workflow types without a run, because the gate says nothing about their code. */
function warnOfUntried(
  counts: readonly { readonly workflow: string; readonly runs: number }[],
): void {
  const untried = counts.filter(({ runs }) => runs === 0).map(({ workflow }) => workflow);
  if (untried.length === 0) return;
  say(`warning: no run of ${untried.join(', ')} was replayed, so that code was not tried`);
}

async function readRun(file: string): Promise<Run> {
  return parseRun(file === '-' ? await text(process.stdin) : await readFile(file, 'utf8'));
}

/**
 * Yields runs from Temporal.
 * @throws {OperatorProblem} if Temporal is unreachable, rejects the filter, or does not know a name
 */
async function* fromTemporal(
  config: ReplayConfig,
  ids: readonly string[],
  options: Options,
): AsyncGenerator<Run> {
  const target = temporalTarget(config.temporalEnvironment);
  const trouble = await temporalTrouble(target);
  if (trouble) throw trouble;
  const client = lazyClient(target);
  try {
    yield* ids.length > 0 ? named(client, config, ids) : listed(client, config, options);
  } catch (error) {
    const refused = [error, error instanceof Error && error.cause].find(isGrpcServiceError);
    throw refused ? new OperatorProblem(`Temporal refuses it: ${refused.details}`) : error;
  } finally {
    await client.connection.close();
  }
}

async function* named(
  client: Client,
  config: ReplayConfig,
  ids: readonly string[],
): AsyncGenerator<Run> {
  for (const id of ids) {
    const run =
      (await fetchRun(client, id)) ?? (await fetchRun(client, (await batchOf(config, id)) ?? id));
    if (run === null)
      throw new OperatorProblem(`Temporal has no run of ${id} (any more); ${FINAL_AT_SUBMIT}`);
    yield run;
  }
}

/**
 * Lists runs by workflow type. Each type has its own limit, because deliveries are rare compared
 * with batches and lookups, but every release continues some of them.
 */
async function* listed(
  client: Client,
  { taskQueue }: ReplayConfig,
  options: Options,
): AsyncGenerator<Run> {
  const { since, failed, query: given, limit } = options;
  const rest = [
    ...(since ? [`(ExecutionStatus = "Running" or CloseTime >= "${since.toISOString()}")`] : []),
    ...(failed ? [FAILED] : []),
    ...(given ? [`(${given})`] : []),
  ];
  for (const type of Object.values(WORKFLOWS)) {
    const query = [onOurQueues(taskQueue), `WorkflowType = "${type}"`, ...rest].join(' and ');
    let left = limit;
    for await (const { workflowId, runId } of client.workflow.list({ query })) {
      const run = await fetchRun(client, workflowId, runId);
      // Temporal may have deleted the run since it was listed.
      if (run) yield run;
      left -= 1;
      if (left === 0) break;
    }
  }
}

async function batchOf({ databaseUrl }: ReplayConfig, id: string): Promise<string | null> {
  if (databaseUrl === null || !isId('req', id)) return null;
  const db = openDatabase({ url: databaseUrl, poolSize: 1, applicationName: 'replay' });
  return await findBatch(db, id).finally(() => db.close());
}

function tell(run: Run, misfit: string | null, pinned: string | null): void {
  const { workflowId, type, events } = run;
  const ui = temporalUi();
  const build = pinned ? `, pinned to build ${pinned}` : '';
  const heading = `${type} ${workflowId}, begun ${events[0]?.at.toISOString()}${build}`;
  say(
    [heading, ...(ui ? [`${ui}/${workflowId}`] : []), ...storyOf(run), misfit ?? 'fits'].join('\n'),
  );
}

/**
 * Prints a text with masked email addresses. A history contains one if somebody typed it into a
 * reason.
 */
function say(text: string): void {
  console.log(printableLines(text).replaceAll(/[^\s"'<>(),;:=]+/g, masked));
}

/**
 * Masks a word with an @ inside. A regular expression that looks for the @ itself would take
 * quadratic time.
 */
function masked(word: string): string {
  const at = word.indexOf('@', 1);
  return at !== -1 && at < word.length - 1 ? '***' : word;
}
