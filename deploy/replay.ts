import { readFile } from 'node:fs/promises';
import { text } from 'node:stream/consumers';
import type { Client } from '@temporalio/client';
import type { Command } from 'commander';
import { openDatabase } from '../db/connection/client.ts';
import { OperatorProblem } from '../db/connection/errors.ts';
import { isId } from '../db/connection/ids.ts';
import { findBatch } from '../db/requests/inspect.ts';
import { WORKFLOWS } from '../workflows/messages.ts';
import { loadReplayConfig, type ReplayConfig, temporalUi } from './config/config.ts';
import { main } from './main.ts';
import { integer, pastMoment } from './operator/arguments.ts';
import { outputWidth, table } from './operator/print.ts';
import { printableLines } from './printable.ts';
import {
  grpcFailure,
  lazyClient,
  messageOf,
  onOurQueues,
  temporalTarget,
} from './temporal/client.ts';
import { fetchRun, parseRun, pinnedTo, type Run } from './temporal/history.ts';
import { type Checked, replayInChild } from './temporal/replay-process.ts';
import { storyOf } from './temporal/story.ts';
import { temporalTrouble } from './temporal/trouble.ts';
import { versionOf } from './temporal/versions.ts';
import { loadBundle } from './temporal/workers.ts';

// `npm run replay` replays the histories of workflow runs with the current code, to check that the
// code can continue them. It also prints what happened in the runs.

const HELP = `
The code fits the history of a run if the code, replayed with the history, makes the same
decisions.

With ids or --file, the command also prints what happened in each run: its decisions,
calls, and failures.

With --since, --failed, or --query, it prints a table, and the last events of runs that do
not fit. A run that does not fit but is pinned to another build is counted under "need
not", because only workers of that build continue it. Then the command asks whether you
meant to change that workflow. If you did, go on. This does not apply to a run in which
the code throws an error or does not end, because the code would do the same in new runs.

The command stops at the first run whose replay does not end within --timeout.

With --inspect, the command waits for a debugger. It stops when the workflows are loaded,
so that you can set breakpoints, or choose to pause on exceptions.

Required settings: none with --file, otherwise TEMPORAL_ADDRESS and TASK_QUEUE.
DATABASE_URL is required for the id of a request that was final at its submit: such a
request has no run, so its batch is replayed. See deploy/env.example, and "Replaying a
failed run" in deploy/operations.md.

Exit codes: 0 all runs fit, 4 only runs that need not fit do not fit (confirm that the
change was meant), 3 at least one run that must fit does not fit, 1 nothing was checked
(one sentence on stderr), 2 wrong usage.

Examples:
  npm run replay -- req_01h2xcejqtf2nbrexx3vqjhp41
  npm run replay -- --since 24h --bundle workflow-bundle.js  (before a release)`;

const FINAL_AT_SUBMIT =
  'a request that was final at its submit has no run; give the id of its batch, or set DATABASE_URL';

const FAILED =
  '(Outcome STARTS_WITH "failed" or ExecutionStatus in ("Failed", "TimedOut", "Terminated", "Canceled"))';

interface Options {
  readonly file?: string;
  readonly since?: Date;
  readonly failed?: true;
  readonly query?: string;
  readonly limit: number;
  readonly timeout: number;
  readonly all?: true;
  readonly bundle?: string;
  readonly inspect?: true;
}

/** A run that does not fit, and that only workers of another build continue. */
interface Remaining {
  readonly workflow: string;
  readonly build: string;
  /** The description of the run. */
  readonly text: string;
}

/** The number of events that are printed for a run that does not fit. */
const LAST_EVENTS = 5;

/** Describes a run that does not fit, with its last events. */
function misfitText({ run, misfit }: Checked): string {
  const last = storyOf(run).slice(-LAST_EVENTS);
  return [`${run.workflowId} ${misfit}`, ...last].join('\n');
}

/** Counts runs by workflow type and by whether they fit the code. */
class Tally {
  readonly counts = Object.values(WORKFLOWS).map((workflow) => ({
    workflow,
    runs: 0,
    fit: 0,
    doNot: 0,
    needNot: 0,
  }));
  readonly remaining: Remaining[] = [];
  private readonly buildId: string;
  private readonly mustAllFit: boolean;

  constructor(buildId: string, mustAllFit: boolean) {
    this.buildId = buildId;
    this.mustAllFit = mustAllFit;
  }

  /** Counts a run. Returns whether it fits, and if not, whether it has to. */
  add(one: Checked): 'fit' | 'doNot' | 'needNot' {
    const fate = this.fateOf(one);
    const count = this.counts.find(({ workflow }) => workflow === one.run.type);
    if (count) {
      count.runs += 1;
      count[fate] += 1;
    }
    return fate;
  }

  private fateOf(one: Checked) {
    const { run, misfit, throws } = one;
    if (misfit === null) return 'fit';
    const build = this.mustAllFit ? null : pinnedTo(run);
    if (throws || build === null || build === this.buildId) return 'doNot';
    this.remaining.push({ workflow: run.type, build, text: misfitText(one) });
    return 'needNot';
  }
}

await main(
  {
    name: 'replay',
    description:
      'Checks that the current code can continue workflow runs, and shows what happened in them.',
    help: HELP,
  },
  async (stopped, ids: string[], options: Options, command: Command) => {
    requireOneSource(ids, options, command);
    // Exits at once, because an interrupted replay has no result.
    void stopped.then(() => process.exit(1));
    const { file, bundle = null, inspect: isDebugged = false } = options;
    const config = loadReplayConfig();
    const ui = temporalUi();
    const { code } = await loadBundle(bundle);
    const runs =
      file === undefined ? fromTemporal(config, ids, options) : [await readRun(file)];
    const limitMs = options.timeout * 1000;
    const checked = replayInChild({ code, isDebugged, limitMs }, runs);
    if (selectsRuns(options)) await printSelected(config, code, checked, options);
    else await printNamed(checked, ui);
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
        'open runs, and runs that ended after this time, such as 24h (ago) or 2026-11-20T00:00Z',
        pastMoment,
      )
      .option(
        '--failed',
        'runs that failed, timed out, or were terminated or canceled, and runs with a failed request',
      )
      .option('--query <QUERY>', "runs that match this list filter in Temporal's syntax")
      .option(
        '--limit <N>',
        'the newest N runs of each workflow type, 1 to 100000',
        integer(1, 100_000),
        1000,
      )
      .option(
        '--timeout <SECONDS>',
        'the longest time for the replay of one run, 1 to 3600',
        integer(1, 3600),
        60,
      )
      .option('--all', 'also require that runs pinned to another build fit')
      .option(
        '--bundle <FILE>',
        'the file from "npm run bundle"; default: the code in this folder',
      )
      .option('--inspect', 'stop in a debugger before the replay'),
);

/** Returns true if the options select runs by a filter, and not by ids or a file. */
function selectsRuns({ since, failed, query }: Options): boolean {
  return Boolean(since ?? failed ?? query);
}

/**
 * Ends the program with an error unless exactly one of these is given: ids, a file, or a filter.
 */
function requireOneSource(
  ids: readonly string[],
  options: Options,
  command: Command,
): void {
  const isMany = selectsRuns(options);
  const given = [ids.length > 0, options.file !== undefined, isMany].filter(Boolean);
  if (given.length !== 1) {
    command.error(
      'error: give ids, or --file, or at least one of --since, --failed, and --query',
    );
  }
  if (options.inspect !== undefined && (isMany || ids.length > 1)) {
    command.error('error: --inspect works only with one id or file');
  }
}

type CheckedRuns = AsyncIterable<Checked>;

/** Prints what happened in each run, and whether the run fits the code. */
async function printNamed(checked: CheckedRuns, ui: string | null): Promise<void> {
  for await (const { run, misfit } of checked) {
    if (misfit !== null) process.exitCode = 3;
    printRun(run, misfit, ui);
  }
}

/**
 * Prints the runs that do not fit the code, then a table with the number of runs per workflow type.
 * At the end, asks about each workflow whose runs do not fit and need not.
 */
async function printSelected(
  config: ReplayConfig,
  code: string,
  checked: CheckedRuns,
  options: Options,
): Promise<void> {
  const { buildId } = versionOf(config.taskQueue, code);
  const tally = new Tally(buildId, options.all ?? false);
  let isStopped = false;
  for await (const one of checked) {
    if (tally.add(one) === 'doNot') {
      process.exitCode = 3;
      print(`${misfitText(one)}\n`);
    }
    isStopped = one.hangs;
    if (isStopped) break;
  }
  const { counts } = tally;
  const isGate = options.since !== undefined && !options.failed && !options.query;
  if (isGate) requireRuns(counts, config);
  print(
    `${table(counts)(outputWidth())}\nreplayed with build ${buildId}; runs under "need not" are pinned to other builds`,
  );
  if (isGate && !isStopped) warnOfUntried(counts);
  if (isStopped) print('stopped at a run that did not end; no further run was replayed');
  for (const { workflow, runs, needNot } of counts) {
    if (needNot === 0) continue;
    process.exitCode ??= 4;
    const remaining = tally.remaining.filter((one) => one.workflow === workflow);
    print(`\n${questionAbout(workflow, runs, remaining)}`);
  }
}

/** Returns a question about a workflow whose runs do not fit and need not, with an example. */
function questionAbout(
  workflow: string,
  runs: number,
  remaining: readonly Remaining[],
): string {
  const builds = [...new Set(remaining.map(({ build }) => build))];
  const [example] = remaining;
  return [
    `did you mean to change ${workflow}? ${remaining.length} of its ${runs} runs ` +
      'no longer fit, for example:',
    example?.text,
    `if you did, go on: these runs end on their builds (${builds.join(', ')}); ` +
      'if not, do not release',
  ].join('\n');
}

type RunCounts = readonly { readonly workflow: string; readonly runs: number }[];

/**
 * Checks that at least one run was replayed, because a release gate without any run proves nothing.
 * @throws {OperatorProblem} if there wasn't one
 */
function requireRuns(counts: RunCounts, config: ReplayConfig): void {
  if (counts.some(({ runs }) => runs > 0)) return;
  const { namespace = 'default' } = temporalTarget(config.temporalEnvironment);
  throw new OperatorProblem(
    `no run was found in the queue ${config.taskQueue} of the namespace ${namespace}; ` +
      'check TASK_QUEUE and TEMPORAL_NAMESPACE, or give an earlier --since',
  );
}

/** Warns about each workflow type without a replayed run, because its code was not checked. */
function warnOfUntried(counts: RunCounts): void {
  const untried = counts.filter(({ runs }) => runs === 0).map(({ workflow }) => workflow);
  if (untried.length === 0) return;
  print(
    `warning: no run of ${untried.join(', ')} was replayed, so the code of these ` +
      'workflows was not checked',
  );
}

async function readRun(file: string): Promise<Run> {
  if (file === '-') return parseRun(await text(process.stdin));
  return parseRun(await readFile(file, 'utf8'));
}

/**
 * Yields the histories of runs from Temporal.
 * @throws {OperatorProblem} if Temporal is unreachable, rejects the filter, or has no run with a
 * given id
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
    if (!(error instanceof Error) || grpcFailure(error) === null) throw error;
    throw new OperatorProblem(`Temporal failed a call: ${messageOf(error)}`);
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
      throw new OperatorProblem(
        `Temporal has no run of ${id} or has deleted it; ${FINAL_AT_SUBMIT}`,
      );
    }
    yield run;
  }
}

/** Returns the run of the batch that a request belongs to, or null if there isn't one. */
async function batchRun(
  client: Client,
  config: ReplayConfig,
  id: string,
): Promise<Run | null> {
  const batchId = await batchOf(config, id);
  if (batchId === null) return null;
  return await fetchRun(client, batchId);
}

/**
 * Yields the selected runs, one workflow type after the other. The limit applies to each type
 * separately. With one limit for all types, the many runs of batches and lookups could use up the
 * limit before the few runs of deliveries.
 */
async function* listed(
  client: Client,
  { taskQueue }: ReplayConfig,
  options: Options,
): AsyncGenerator<Run> {
  const { since, failed, query: given, limit } = options;
  const conditions = [onOurQueues(taskQueue)];
  if (since) {
    conditions.push(
      `(ExecutionStatus = "Running" or CloseTime >= "${since.toISOString()}")`,
    );
  }
  if (failed) conditions.push(FAILED);
  if (given) conditions.push(`(${given})`);
  for (const type of Object.values(WORKFLOWS)) {
    const query = [`WorkflowType = "${type}"`, ...conditions].join(' and ');
    let left = limit;
    for await (const { workflowId, runId } of client.workflow.list({ query })) {
      const run = await fetchRun(client, workflowId, runId);
      // The run is null if Temporal has deleted it since it was listed.
      if (run) yield run;
      left -= 1;
      if (left === 0) break;
    }
  }
}

async function batchOf(
  { databaseUrl }: ReplayConfig,
  id: string,
): Promise<string | null> {
  if (databaseUrl === null || !isId('req', id)) return null;
  const db = openDatabase({ url: databaseUrl, poolSize: 1, applicationName: 'replay' });
  return await findBatch(db, id).finally(() => db.close());
}

function printRun(run: Run, misfit: string | null, ui: string | null): void {
  const { workflowId, type, events } = run;
  const pinned = pinnedTo(run);
  const build = pinned === null ? '' : `, pinned to build ${pinned}`;
  const lines = [`${type} ${workflowId}, begun ${events[0]?.at.toISOString()}${build}`];
  if (ui !== null) lines.push(`${ui}/${workflowId}`);
  lines.push(...storyOf(run), misfit ?? 'this code fits the history');
  print(lines.join('\n'));
}

/**
 * Prints a text with masked email addresses. A history can contain an address, for example if
 * somebody typed one as the reason for terminating a workflow.
 */
function print(text: string): void {
  console.log(printableLines(text).replaceAll(/[^\s"'<>(),;:=]+/g, masked));
}

/**
 * Masks a word that has an @ inside. We search for the @ with `indexOf`, because a regular
 * expression that matches such words would take quadratic time.
 */
function masked(word: string): string {
  const at = word.indexOf('@', 1);
  const isAddress = at !== -1 && at < word.length - 1;
  return isAddress ? '***' : word;
}
