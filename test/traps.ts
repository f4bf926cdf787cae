import { Command } from 'commander';
import { startServers } from './support/servers.ts';
import {
  everySetup,
  mistakeIn,
  type Outcome,
  type Setup,
  springTraps,
  tableOf,
  tell,
} from './support/traps/run.ts';
import { readTraps } from './support/traps/set.ts';

const TITLES = {
  returned: 'Wrongly returned',
  refused: 'Wrongly refused',
  type: 'Returned with the wrong type',
} as const;
type Mistake = keyof typeof TITLES;

const command = new Command('npm run traps --')
  .description(
    'Looks up people under every policy. For each kind of trap, prints how often the service ' +
      'decided differently from a careful person as soon as a policy ends, and at the end each ' +
      'such address with its policies.',
  )
  .option('--sets <folder>', 'the folder with the sets, instead of test/traps')
  .parse();
const { sets } = command.opts<{ readonly sets?: string }>();
const traps = readTraps(sets);
const setups = everySetup();
/** The outcomes of each setup; null if its run failed. */
const runs: (readonly Outcome[] | null)[] = [];

const stopServers = await startServers();
try {
  for (const [index, setup] of setups.entries()) {
    const begun = performance.now();
    const outcomes = await run(setup);
    runs.push(outcomes);
    const seconds = Math.round((performance.now() - begun) / 1000);
    console.log(`\n${index + 1}. ${setup.name}, ${seconds} s`);
    for (const line of outcomes === null ? [] : tableOf(outcomes)) console.log(line);
  }
} finally {
  await stopServers();
}

for (const [mistake, title] of Object.entries(TITLES)) {
  console.log(`\n${title}, and under which of the policies above`);
  for (const index of traps.keys()) printMistake(index, mistake as Mistake);
}

const failed = runs.flatMap((outcomes) => outcomes ?? []).filter(isFailed);
if (failed.length > 0) {
  console.log(`${failed.length} requests failed, so their decisions are unknown`);
}
process.exit(failed.length > 0 || runs.includes(null) ? 1 : 0);

function isFailed({ state }: Outcome): boolean {
  return state === 'failed';
}

/**
 * Runs a setup. If it fails, prints the error and returns null, so that the results of the others
 * are not lost. If a server died, closing the stack fails too. The first error is then inside of the
 * last one, and it is the one that explains the failure.
 */
async function run(setup: Setup): Promise<readonly Outcome[] | null> {
  try {
    return await springTraps(traps, setup);
  } catch (error) {
    let first = error;
    while (first instanceof SuppressedError) first = first.suppressed;
    console.error(`The run of ${setup.name} failed.`, first);
    return null;
  }
}

/** Prints a trap if some policies make this mistake, after the numbers of those policies. */
function printMistake(index: number, mistake: Mistake): void {
  const numbers: number[] = [];
  let example: Outcome | undefined;
  for (const [n, outcomes] of runs.entries()) {
    const outcome = outcomes?.[index];
    if (outcome === undefined || mistakeIn(outcome) !== mistake) continue;
    numbers.push(n + 1);
    example = outcome;
  }
  if (example === undefined) return;
  console.log(`  ${numbers.join(' ').padEnd(2 * runs.length)}${tell(example)}`);
}
