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
For runs that are named, it also prints what happened in them: the decisions, the calls, the failures. With --since,
--failed or --query, runs that are pinned to another build are counted under "need not", because only workers of that
build continue them. A run in which the code throws an error is never counted there, because new runs throw it too.
--inspect waits for a debugger, and stops it where the code first handles that event or a later one.

Needs no settings with --file. Otherwise it needs TEMPORAL_ADDRESS and TASK_QUEUE. It also needs DATABASE_URL for requests
that were final at their submit, because only their batch has a run. See deploy/env.example, and "Replaying a failed run"
in deploy/operations.md.
Exit codes: 0 all fit, 3 one does not, 1 failed: nothing was checked (one sentence on stderr), 2 wrong usage.

Examples:
  npm run replay -- req_01h2xcejqtf2nbrexx3vqjhp41
  npm run replay -- --since 24h --bundle workflow-bundle.js     (the gate of a release)`;

const FINAL_AT_SUBMIT =
  'a request that was final at its submit has no run; give its batch, or set DATABASE_URL';

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
    description: 'Check that runs of workflows fit the code, and show what happened in them.',
    help: HELP,
  },
  async (stopped, ids: string[], options: Options, command: Command) => {
    requireOneSource(ids, options, command);
    // Exits at once, because an interrupted replay has no result.
    void stopped.then(() => process.exit(1));
    const { file, bundle = null, inspect = null } = options;
    const config = loadReplayConfig();
    installRuntime(createLog('replay', 'silent'));
    const { code } = await loadBundle(bundle);
    if (inspect !== null) inspector.open(undefined, undefined, true);
    const runs = file === undefined ? fromTemporal(config, ids, options) : [await readRun(file)];
    if (selectsRuns(options)) await replaySelected(config, code, runs, options);
    else await replayNamed(code, runs, inspect);
  },
  (command) =>
    command
      .argument('[ID...]', 'ids of requests, batches, deliveries, or workflows')
      .option(
        '--file <FILE>',
        'a history from Temporal\'s CLI, or from "Download" in its UI with the setting "Encoded"; - is stdin',
      )
      .option(
        '--since <MOMENT>',
        'runs that ended since then (24h, 2026-11-20T00:00Z), and all open runs',
        pastMoment,
      )
      .option('--failed', 'runs that failed, were ended, or could not answer a request')
      .option('--query <QUERY>', "runs that match a list filter of Temporal's")
      .option(
        '--limit <N>',
        'the newest N runs of each workflow, 1 to 100000',
        integer(1, 100_000),
        1000,
      )
      .option('--all', 'runs that are pinned to another build must fit too')
      .option('--bundle <FILE>', 'the file from "npm run bundle"; default: the code in this folder')
      .option('--inspect <EVENT>', 'stop under a debugger at this event', integer(1, 1_000_000)),
);

/** Returns whether the options select many runs, in place of ids or a file. */
function selectsRuns({ since, failed, query }: Options): boolean {
  return Boolean(since ?? failed ?? query);
}

/** Ends the program unless ids, a file or a selection is given, and only one of them. */
function requireOneSource(ids: readonly string[], options: Options, command: Command): void {
  const isMany = selectsRuns(options);
  const given = [ids.length > 0, options.file !== undefined, isMany].filter(Boolean);
  if (given.length !== 1) {
    command.error('error: give ids, or --file, or one of --since, --failed and --query');
  }
  if (options.inspect !== undefined && (isMany || ids.length > 1)) {
    command.error('error: --inspect works with one run only');
  }
}

type Runs = Parameters<typeof replay>[1];

/** Prints what happened in each run, and whether it fits. */
async function replayNamed(code: string, runs: Runs, inspect: number | null): Promise<void> {
  for await (const { run, misfit } of replay(code, runs, inspect)) {
    if (misfit !== null) process.exitCode = 3;
    printRun(run, misfit);
  }
}

/** Prints the runs that do not fit, then a table with the counts by workflow type. */
async function replaySelected(
  config: ReplayConfig,
  code: string,
  runs: Runs,
  options: Options,
): Promise<void> {
  const { buildId } = versionOf(config.taskQueue, code);
  const types = Object.values(WORKFLOWS);
  const counts = types.map((workflow) => ({ workflow, runs: 0, fit: 0, doNot: 0, needNot: 0 }));
  for await (const { run, misfit, throws } of replay(code, runs, null)) {
    const pinned = pinnedTo(run);
    const isElsewhere = !options.all && pinned !== null && pinned !== buildId;
    let fate: 'fit' | 'doNot' | 'needNot' = 'fit';
    if (misfit !== null) fate = isElsewhere && !throws ? 'needNot' : 'doNot';
    if (fate === 'doNot') {
      process.exitCode = 3;
      print(`${run.workflowId} ${misfit}\n`);
    }
    const count = counts.find(({ workflow }) => workflow === run.type);
    if (!count) continue;
    count.runs += 1;
    count[fate] += 1;
  }
  const isGate = options.since !== undefined && !options.failed && !options.query;
  if (isGate) requireRuns(counts, config);
  print(`${table(counts)}\nby build ${buildId}; "need not" is pinned to other builds`);
  if (isGate) warnOfUntried(counts);
}

type RunCounts = readonly { readonly workflow: string; readonly runs: number }[];

/** Makes a gate fail that has replayed nothing. @throws {OperatorProblem} */
function requireRuns(counts: RunCounts, config: ReplayConfig): void {
  if (counts.some(({ runs }) => runs > 0)) return;
  const { namespace = 'default' } = temporalTarget(config.temporalEnvironment);
  throw new OperatorProblem(
    `no run was found in the queue ${config.taskQueue} of the namespace ${namespace}; check TASK_QUEUE and TEMPORAL_NAMESPACE, or give an earlier --since`,
  );
}

/** Warns about workflow types without a run, because the gate says nothing about their code. */
function warnOfUntried(counts: RunCounts): void {
  const untried = counts.filter(({ runs }) => runs === 0).map(({ workflow }) => workflow);
  if (untried.length === 0) return;
  print(`warning: no run of ${untried.join(', ')} was replayed, so that code was not tried`);
}

async function readRun(file: string): Promise<Run> {
  if (file === '-') return parseRun(await text(process.stdin));
  return parseRun(await readFile(file, 'utf8'));
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
    if (ids.length > 0) yield* named(client, config, ids);
    else yield* listed(client, config, options);
  } catch (error) {
    const cause = error instanceof Error ? error.cause : null;
    const refused = [error, cause].find(isGrpcServiceError);
    if (refused === undefined) throw error;
    throw new OperatorProblem(`Temporal refused: ${refused.details}`);
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
    const run = (await fetchRun(client, id)) ?? (await batchRun(client, config, id));
    if (run === null) {
      throw new OperatorProblem(`Temporal has no run of ${id} (any more); ${FINAL_AT_SUBMIT}`);
    }
    yield run;
  }
}

/** Returns the run of a request's batch, or null if there is none. */
async function batchRun(client: Client, config: ReplayConfig, id: string): Promise<Run | null> {
  const batchId = await batchOf(config, id);
  return batchId === null ? null : await fetchRun(client, batchId);
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
  const conditions = [onOurQueues(taskQueue)];
  if (since) {
    conditions.push(`(ExecutionStatus = "Running" or CloseTime >= "${since.toISOString()}")`);
  }
  if (failed) conditions.push(FAILED);
  if (given) conditions.push(`(${given})`);
  for (const type of Object.values(WORKFLOWS)) {
    const query = [`WorkflowType = "${type}"`, ...conditions].join(' and ');
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

function printRun(run: Run, misfit: string | null): void {
  const { workflowId, type, events } = run;
  const pinned = pinnedTo(run);
  const ui = temporalUi();
  const build = pinned === null ? '' : `, pinned to build ${pinned}`;
  const lines = [`${type} ${workflowId}, begun ${events[0]?.at.toISOString()}${build}`];
  if (ui !== null) lines.push(`${ui}/${workflowId}`);
  lines.push(...storyOf(run), misfit ?? 'fits');
  print(lines.join('\n'));
}

/**
 * Prints a text with masked email addresses. A history contains one if somebody typed it into a
 * reason.
 */
function print(text: string): void {
  console.log(printableLines(text).replaceAll(/[^\s"'<>(),;:=]+/g, masked));
}

/**
 * Masks a word with an @ inside. A regular expression that looks for the @ itself would take
 * quadratic time.
 */
function masked(word: string): string {
  const at = word.indexOf('@', 1);
  const isAddress = at !== -1 && at < word.length - 1;
  return isAddress ? '***' : word;
}
