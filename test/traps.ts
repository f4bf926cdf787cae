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
import { TRAPS } from './support/traps/set.ts';

/**
 * `npm run traps`: looks up all people in test/traps/ under every policy. For each kind of trap it
 * prints how often the service decided differently from a careful person, and then each such
 * address with the numbers of the policies.
 */
const stopServers = await startServers();
const runs: {
  readonly setup: Setup;
  readonly outcomes: readonly Outcome[];
  readonly seconds: number;
}[] = [];
try {
  for (const setup of everySetup()) {
    const begun = performance.now();
    const outcomes = await springTraps(setup);
    runs.push({
      setup,
      outcomes,
      seconds: Math.round((performance.now() - begun) / 1000),
    });
  }
} finally {
  await stopServers();
}
for (const line of tableOf(runs)) console.log(line);
for (const mistake of ['returned', 'refused', 'type'] as const) {
  console.log(
    mistake === 'type' ? '\nReturned with the wrong type' : `\nWrongly ${mistake}`,
  );
  for (const [index] of TRAPS.entries()) {
    const isMistake = (outcome: Outcome | undefined) =>
      outcome !== undefined && mistakeIn(outcome) === mistake;
    const numbers = runs.flatMap(({ outcomes }, n) =>
      isMistake(outcomes[index]) ? [n + 1] : [],
    );
    const outcome = runs.map(({ outcomes }) => outcomes[index]).find(isMistake);
    if (outcome)
      console.log(`  ${numbers.join(' ').padEnd(2 * runs.length)}${tell(outcome)}`);
  }
}
const failed = runs.flatMap(({ outcomes }) =>
  outcomes.filter(({ state }) => state === 'failed'),
);
console.log(
  `\n${runs.map(({ setup, seconds }) => `${setup.name}: ${seconds} s`).join(', ')}`,
);
if (failed.length > 0)
  console.log(`${failed.length} requests failed: nothing is known of these`);
process.exit(failed.length > 0 ? 1 : 0);
