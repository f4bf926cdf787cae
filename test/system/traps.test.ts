import test from 'ava';
import {
  DEFAULT,
  MAX_RUN_MS,
  mistakeIn,
  type Outcome,
  type Score,
  scoresOf,
  springTraps,
  tell,
} from '../support/traps/run.ts';
import { readTraps } from '../support/traps/set.ts';

// Compares a customer's results under the default policy with a verifier to a careful person's
// decision about each address of test/traps/. `npm run traps` prints every policy.

const TRAPS = readTraps();
const outcomes: Outcome[] = [];

test.before(async (t) => {
  t.timeout(MAX_RUN_MS);
  outcomes.push(...(await springTraps(TRAPS, DEFAULT)));
});

/**
 * Returns true if at most `percent` of the decisions are wrong, and otherwise the list of the wrong
 * ones.
 */
function isWithin({ wrong, of }: Score, percent: number): true | string {
  const share = (100 * wrong.length) / of;
  return share <= percent || [`${wrong.length} of ${of}:`, ...wrong.map(tell)].join('\n');
}

test('the service returns at most 5 % of the bad addresses in the trap set', (t) => {
  t.is(isWithin(scoresOf(outcomes).returned, 5), true);
});

test('the service rejects at most 4 % of the good addresses in the trap set', (t) => {
  t.is(isWithin(scoresOf(outcomes).refused, 4), true);
});

test('at most 1 % of the returned good addresses have the wrong type', (t) => {
  t.is(isWithin(scoresOf(outcomes).type, 1), true);
});

test('every request for an address of the trap set ends as completed or not_found', (t) => {
  t.deepEqual(
    outcomes
      .filter(({ state }) => state !== 'completed' && state !== 'not_found')
      .map(tell),
    [],
  );
});

test('the trap sets have at least 600 addresses, of which 50 to 65 % are bad', (t) => {
  const bad = TRAPS.filter(({ careful }) => careful === 'refuse').length;
  t.true(TRAPS.length >= 600);
  t.true(bad / TRAPS.length > 0.5 && bad / TRAPS.length < 0.65);
});

test('each trap has a type if and only if a careful person ever returns it', (t) => {
  t.deepEqual(
    TRAPS.filter(({ careful, withoutVerifier, type }) => {
      const isEverReturned = careful === 'return' || withoutVerifier === 'return';
      return isEverReturned !== (type !== undefined) || withoutVerifier === careful;
    }),
    [],
  );
});

test('the trap test fails a service that returns everything, nothing, or a wrong type', (t) => {
  const as = (returned: (outcome: Outcome) => Outcome['returned']) =>
    outcomes.map((outcome) => ({ ...outcome, returned: returned(outcome) }));
  const { returned, refused } = scoresOf(as(() => 'professional'));
  t.deepEqual([returned.wrong.length, refused.wrong.length], [returned.of, 0]);
  const nothing = scoresOf(as(() => null));
  t.deepEqual(
    [nothing.returned.wrong.length, nothing.refused.wrong.length],
    [0, nothing.refused.of],
  );
  const other = as(({ trap }) =>
    trap.type === 'personal' ? 'professional' : 'personal',
  );
  t.true(other.every((outcome) => mistakeIn(outcome) !== null));
  t.not(isWithin(scoresOf(other).type, 1), true);
});
