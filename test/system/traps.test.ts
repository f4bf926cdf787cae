import test from 'ava';
import {
  DEFAULT,
  mistakeIn,
  type Outcome,
  type Score,
  scoresOf,
  springTraps,
  tell,
} from '../support/traps/run.ts';
import { readTraps } from '../support/traps/set.ts';

// Compares a customer's results under the default policy with a verifier to a careful person's
// decision about each address of these sets. `npm run traps` prints all sets and every policy.

/** The sets that the service has rules for. Add a set of test/traps/ when it passes. */
const KINDS = [
  'direct',
  'domains',
  'evidence',
  'free mail',
  'name servers',
  'own names',
  'placeholders',
  'relays',
  'scripts',
  'shared',
  'shared spanish',
  'strangers',
  'types',
  'words as names',
];
const ALL_TRAPS = readTraps();
const TRAPS = ALL_TRAPS.filter(({ kind }) => KINDS.includes(kind));

const outcomes: Outcome[] = [];

test.before(async (t) => {
  // Long enough for a busy machine.
  t.timeout(600_000);
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

test('the service rejects at most 3 % of the good addresses in the trap set', (t) => {
  t.is(isWithin(scoresOf(outcomes).refused, 3), true);
});

test('at most 3 % of the returned good addresses have the wrong type', (t) => {
  t.is(isWithin(scoresOf(outcomes).type, 3), true);
});

test('every request for an address of the trap set ends as completed or not_found', (t) => {
  t.deepEqual(
    outcomes
      .filter(({ state }) => state !== 'completed' && state !== 'not_found')
      .map(tell),
    [],
  );
});

test('the trap sets have at least 320 addresses, of which 50 to 65 % are bad', (t) => {
  const bad = TRAPS.filter(({ careful }) => careful === 'refuse').length;
  t.true(TRAPS.length >= 320);
  t.true(bad / TRAPS.length > 0.5 && bad / TRAPS.length < 0.65);
});

test('each trap has a type if and only if a careful person ever returns it', (t) => {
  t.deepEqual(
    ALL_TRAPS.filter(({ careful, withoutVerifier, type }) => {
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
  t.not(isWithin(scoresOf(other).type, 3), true);
});
