import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { agrees } from '../../../activities/person/identity.ts';
import { createFullEnrich } from '../../../activities/vendors/fullenrich.ts';
import { createHunter } from '../../../activities/vendors/hunter.ts';
import { createProspeo } from '../../../activities/vendors/prospeo.ts';
import { createRocketReach } from '../../../activities/vendors/rocketreach.ts';
import type { Person, Provider, Step, Subject } from '../../../activities/vendors/vendor.ts';
import { MAGIC } from '../../../deploy/local/sim/magic.ts';
import { personOf } from '../../../deploy/local/sim/people.ts';
import { createSimulator } from '../../../deploy/local/simulator.ts';

// What production adapters and the identity check make of each magic NPI at each vendor of the waterfall.

const apiKey = 'key-of-a-test';
const NEVER = new AbortController().signal;

async function vendors(t: ExecutionContext): Promise<readonly Provider[]> {
  const { urls, close } = await createSimulator({ port: 0, speed: 1000, apiKey });
  t.teardown(close);
  return [
    createRocketReach({ baseUrl: urls.rocketreach, apiKey, api: 'legacy' }),
    createFullEnrich({ baseUrl: urls.fullenrich, apiKey, pollMs: 1 }),
    createProspeo({ baseUrl: urls.prospeo, apiKey }),
    createHunter({ baseUrl: urls.hunter, apiKey }),
  ];
}

function subjectOf(npi: string): Subject & { readonly person: Person } {
  const { first, last, middle, credential, organization } = personOf(npi);
  const { name, domain, address, phone } = organization;
  const { line1, city, state, zip } = address;
  const practice = { line1, city, state, zip, phone };
  return {
    npi,
    wantedType: 'any',
    person: { first, last, middle, suffix: null, credential, otherNames: [], practice, otherStates: [] },
    organization: { name, domain, source: 'same_phone', confidence: 0.8 },
  };
}

/** What becomes of one NPI at one vendor, in a word or two. */
async function outcomeOf(vendor: Provider, npi: string): Promise<string> {
  const subject = subjectOf(npi);
  let step: Step = await vendor.submit(subject, NEVER);
  while (step.kind === 'pending' || (step.kind === 'retry' && step.why === 'rate_limit')) {
    await sleep(1);
    step =
      step.kind === 'pending'
        ? await vendor.poll(step.jobRef, subject, NEVER)
        : await vendor.submit(subject, NEVER);
  }
  if (step.kind !== 'found') return step.kind;
  const identity = agrees(step.identity, npi, subject.person);
  if (!identity.ok) return identity.reason;
  return step.candidates.map(({ vendorType, verdict }) => `${verdict} ${vendorType}`).join(', ');
}

/** Outcomes by vendor in the order of the waterfall; after what is given, `miss`. */
const EXPECTED: Readonly<Record<string, readonly string[]>> = {
  '010': ['valid professional'],
  '028': ['valid personal'],
  '036': ['valid professional, valid personal'],
  '044': [],
  '051': ['valid professional'],
  '069': ['valid professional'],
  '077': ['valid professional'],
  '085': [],
  '093': [],
  '119': ['retry', 'valid professional'],
  '127': ['valid professional'],
  '135': ['catch_all professional'],
  '143': ['unknown professional'],
  '150': ['valid professional'],
  '168': ['identity_mismatch'],
  '176': ['miss', 'miss', 'miss', 'blocked'],
  '184': ['valid professional'],
  '192': ['miss', 'valid professional'],
  '200': ['miss', 'miss', 'valid professional'],
  '218': ['miss', 'miss', 'miss', 'valid professional'],
  '226': ['miss', 'identity_mismatch', 'miss', 'valid professional'],
};

test('each magic NPI, at each vendor', async (t) => {
  const all = await vendors(t);
  const outcomes: Record<string, string[]> = {};
  const expected: Record<string, string[]> = {};
  for (const npi of MAGIC.keys()) {
    if (npi === '2000000101') continue;
    const key = npi.slice(-3);
    outcomes[key] = await Promise.all(all.map((vendor) => outcomeOf(vendor, npi)));
    expected[key] = all.map((_, index) => EXPECTED[key]?.[index] ?? 'miss');
  }
  t.deepEqual(outcomes, expected);
});

test('the one whom the first vendor never answers about is unknown to the others', async (t) => {
  const [, ...others] = await vendors(t);
  t.deepEqual(await Promise.all(others.map((vendor) => outcomeOf(vendor, '2000000101'))), [
    'miss',
    'miss',
    'miss',
  ]);
});
