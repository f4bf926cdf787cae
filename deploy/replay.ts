import type { Client } from '@temporalio/client';
import type { Command } from 'commander';
import { OperatorProblem } from '../db/connection/errors.ts';
import { WORKFLOWS } from '../workflows/messages.ts';
import { loadTemporalConfig, type TemporalConfig } from './config/config.ts';
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
import { fetchRun, pinnedTo, type Run } from './temporal/history.ts';
import { type Checked, replayInChild } from './temporal/replay-process.ts';
import { temporalTrouble } from './temporal/trouble.ts';
import { versionOf } from './temporal/versions.ts';
import { loadBundle } from './temporal/workers.ts';

// `npm run replay` replays the histories of workflow runs with the current code, to check that the
// code can continue them.

const HELP = `
The code fits the history of a run if the code, replayed with the history, makes the same
decisions.

With ids, the command prints for each run whether it fits. To see the events of a run, use
"temporal workflow show --detailed --workflow-id ID".

With --since, it prints the runs that do not fit, and a table. A run that does not fit but
is pinned to another build is counted under "need not", because only workers of that build
continue it. Then the command asks whether you meant to change that workflow. If you did,
go on. This does not apply to a run in which the code throws an error or does not end,
because the code would do the same in new runs.

The command stops at the first run whose replay does not end within --timeout.

Required settings: TEMPORAL_ADDRESS and TASK_QUEUE. See deploy/env.example, and "Replaying
a failed run" in deploy/operations.md.

Exit codes: 0 all runs fit, 4 only runs that need not fit do not fit (confirm that the
change was meant), 3 at least one run that must fit does not fit, 1 nothing was checked
(one sentence on stderr), 2 wrong usage.

Examples:
  npm run replay -- req_01h2xcejqtf2nbrexx3vqjhp41
  npm run replay -- --since 24h --bundle workflow-bundle.js  (before a release)`;

const FINAL_AT_SUBMIT =
  'a request that was final at its submit has no run, so give the id of its batch';

interface Options {
  readonly since?: Date;
  readonly limit: number;
  readonly timeout: number;
  readonly all?: true;
  readonly bundle?: string;
}

/** A run that does not fit, and that only workers of another build continue. */
interface Remaining {
  readonly workflow: string;
  readonly build: string;
  /** The description of the run. */
  readonly text: string;
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
    if (throws || build === null || build === this.buildId) {
      return 'doNot';
    }
    this.remaining.push({ workflow: run.type, build, text: verdictOf(one) });
    return 'needNot';
  }
}

await main(
  {
    name: 'replay',
    description: 'Checks that the current code can continue workflow runs.',
    help: HELP,
  },
  async (stopped, ids: string[], options: Options, command: Command) => {
    const { since, bundle = null } = options;
    if (ids.length > 0 === (since !== undefined)) {
      command.error('error: give either ids or --since');
    }
    // Exits at once, because an interrupted replay has no result.
    void stopped.then(() => process.exit(1));
    const config = loadTemporalConfig();
    const { code } = await loadBundle(bundle);
    const runs = fromTemporal(config, ids, options);
    const checked = replayInChild({ code, limitMs: options.timeout * 1000 }, runs);
    if (since === undefined) await printNamed(checked);
    else await printSelected(config, code, checked, options);
  },
  (command) =>
    command
      .argument('[ID...]', 'ids of requests, batches, deliveries, or workflows')
      .option(
        '--since <MOMENT>',
        'open runs, and runs that ended after this time, such as 24h (ago) or 2026-11-20T00:00Z',
        pastMoment,
      )
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
      ),
);

type CheckedRuns = AsyncIterable<Checked>;

/** Prints for each run whether it fits the code. */
async function printNamed(checked: CheckedRuns): Promise<void> {
  for await (const one of checked) {
    if (one.misfit !== null) process.exitCode = 3;
    print(verdictOf(one));
  }
}

/** Returns a run and whether it fits the code, with the SDK's message if it does not. */
function verdictOf({ run, misfit }: Checked): string {
  return `${run.workflowId} ${misfit ?? 'fits this code'}`;
}

/**
 * Prints the runs that do not fit the code, then a table with the number of runs per workflow type.
 * At the end, asks about each workflow whose runs do not fit and need not.
 */
async function printSelected(
  config: TemporalConfig,
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
      print(verdictOf(one));
    }
    isStopped = one.hangs;
    if (isStopped) break;
  }
  const { counts } = tally;
  requireRuns(counts, config);
  print(
    `${table(counts)(outputWidth())}\nreplayed with build ${buildId}; runs under "need not" are pinned to other builds`,
  );
  if (isStopped) print('stopped at a run that did not end; no further run was replayed');
  else warnOfUntried(counts);
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
function requireRuns(counts: RunCounts, config: TemporalConfig): void {
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

/**
 * Yields the histories of runs from Temporal.
 * @throws {OperatorProblem} if Temporal is unreachable, or has no run with a given id
 */
async function* fromTemporal(
  config: TemporalConfig,
  ids: readonly string[],
  options: Options,
): AsyncGenerator<Run> {
  const target = temporalTarget(config.temporalEnvironment);
  const trouble = await temporalTrouble(target);
  if (trouble) throw trouble;
  const client = lazyClient(target);
  try {
    if (ids.length > 0) yield* named(client, ids);
    else yield* listed(client, config, options);
  } catch (error) {
    if (!(error instanceof Error) || grpcFailure(error) === null) {
      throw error;
    }
    throw new OperatorProblem(`Temporal failed a call: ${messageOf(error)}`);
  } finally {
    await client.connection.close();
  }
}

async function* named(client: Client, ids: readonly string[]): AsyncGenerator<Run> {
  for (const id of ids) {
    const run = await fetchRun(client, id);
    if (run === null) {
      throw new OperatorProblem(
        `Temporal has no run of ${id} or has deleted it; ${FINAL_AT_SUBMIT}`,
      );
    }
    yield run;
  }
}

/**
 * Yields the selected runs, one workflow type after the other. The limit applies to each type
 * separately. With one limit for all types, the many runs of batches and lookups could use up the
 * limit before the few runs of deliveries.
 */
async function* listed(
  client: Client,
  { taskQueue }: TemporalConfig,
  { since = new Date(), limit }: Options,
): AsyncGenerator<Run> {
  const isRecent = `(ExecutionStatus = "Running" or CloseTime >= "${since.toISOString()}")`;
  for (const type of Object.values(WORKFLOWS)) {
    const query = `WorkflowType = "${type}" and ${onOurQueues(taskQueue)} and ${isRecent}`;
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

function print(text: string): void {
  console.log(printableLines(text));
}
