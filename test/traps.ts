import { Command } from 'commander';
import { startServers } from './support/servers.ts';
import {
  everySetup,
  mistakeIn,
  type Outcome,
  type Run,
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
      'decided differently from a careful person, and each such address with its policies.',
  )
  .option('--sets <folder>', 'the folder with the sets, instead of test/traps')
  .parse();
const { sets } = command.opts<{ readonly sets?: string }>();
const traps = readTraps(sets);
const runs: Run[] = [];
const durations: string[] = [];

const stopServers = await startServers();
try {
  for (const setup of everySetup()) {
    const begun = performance.now();
    runs.push({ setup, outcomes: await springTraps(traps, setup) });
    const seconds = Math.round((performance.now() - begun) / 1000);
    durations.push(`${setup.name}: ${seconds} s`);
  }
} finally {
  await stopServers();
}

for (const line of tableOf(runs)) console.log(line);
for (const [mistake, title] of Object.entries(TITLES)) {
  console.log(`\n${title}`);
  for (const index of traps.keys()) printMistake(index, mistake as Mistake);
}
console.log(`\n${durations.join(', ')}`);

const failed = runs
  .flatMap(({ outcomes }) => outcomes)
  .filter(({ state }) => state === 'failed');
if (failed.length > 0) {
  console.log(`${failed.length} requests failed, so their decisions are unknown`);
}
process.exit(failed.length > 0 ? 1 : 0);

/** Prints a trap if some policies make this mistake, after the numbers of those policies. */
function printMistake(index: number, mistake: Mistake): void {
  const numbers: number[] = [];
  let example: Outcome | undefined;
  for (const [n, { outcomes }] of runs.entries()) {
    const outcome = outcomes[index];
    if (outcome === undefined || mistakeIn(outcome) !== mistake) continue;
    numbers.push(n + 1);
    example = outcome;
  }
  if (example === undefined) return;
  console.log(`  ${numbers.join(' ').padEnd(2 * runs.length)}${tell(example)}`);
}
