import type { ExecutionContext } from 'ava';
import test from 'ava';
import { mismatchOf } from '../../../../activities/person/identity.ts';
import { createFullEnrich } from '../../../../activities/vendors/fullenrich.ts';
import { createHunter } from '../../../../activities/vendors/hunter.ts';
import { createProspeo } from '../../../../activities/vendors/prospeo.ts';
import { createRocketReach } from '../../../../activities/vendors/rocketreach.ts';
import type { Step, Subject, Vendor } from '../../../../activities/vendors/vendor.ts';
import { MAGIC } from '../../../../deploy/local/sim/magic.ts';
import { personOf } from '../../../../deploy/local/sim/people.ts';
import { createSimulator } from '../../../../deploy/local/simulator.ts';

// Runs the real adapters against the simulated vendors.

const KEY = 'key-of-a-test';
const NEVER = new AbortController().signal;

/** Starts the simulator, and creates every adapter for it. */
async function simulated(t: ExecutionContext, apiKey = KEY) {
  const simulator = await createSimulator({ port: 0, speed: 100, apiKey: KEY });
  t.teardown(() => simulator.close());
  const at = (id: VendorId) => ({ baseUrl: simulator.urls[id], apiKey });
  return {
    simulator,
    rocketreach: createRocketReach({ ...at('rocketreach'), api: 'legacy' }),
    fullenrich: createFullEnrich({ ...at('fullenrich'), pollMs: 10 }),
    prospeo: createProspeo(at('prospeo')),
    hunter: createHunter(at('hunter')),
  };
}

type VendorId = 'rocketreach' | 'fullenrich' | 'prospeo' | 'hunter';

function subjectOf(npi: string, rest: Partial<Subject> = {}): Subject {
  const { first, last, middle, organization } = personOf(npi);
  return {
    npi,
    requestedType: 'any',
    person: person({ first, last, middle }),
    organization: {
      name: organization.name,
      domain: organization.domain,
      source: 'affiliation',
      confidence: 0.9,
    },
    otherOrganizations: [],
    strangers: [],
    patterns: [],
    writtenEmail: null,
    ...rest,
  };
}

function person(name: Pick<NonNullable<Subject['person']>, 'first' | 'last' | 'middle'>) {
  const practice = { line1: null, city: null, state: null, zip: null };
  return {
    ...name,
    generation: null,
    otherNames: [],
    profileNames: [],
    profileSurnames: [],
    practice,
    otherStates: [],
  };
}

/** Calls a vendor until it has a result, without the pauses between polls. */
async function ask(vendor: Vendor, subject: Subject): Promise<Step> {
  let step = await vendor.submit(subject, NEVER);
  while (step.kind === 'pending') step = await vendor.poll(step.jobRef, subject, NEVER);
  return step;
}

test('simulated profiles and jobs are polled until they are complete', async (t) => {
  const { rocketreach, fullenrich, simulator } = await simulated(t);
  await ask(rocketreach, subjectOf('2000000143'));
  await ask(fullenrich, subjectOf('2000000192'));
  t.deepEqual(
    simulator.calls().map(({ route }) => route),
    [
      ...['GET /person/lookup', 'GET /person/checkStatus', 'GET /person/checkStatus'],
      ...['POST /contact/enrich/bulk', 'GET /contact/enrich/bulk/*'],
      'GET /contact/enrich/bulk/*',
    ],
  );
});

test('lookups without an email, and repeated ones at Prospeo, are free', async (t) => {
  const { fullenrich, prospeo } = await simulated(t);
  t.like(await ask(fullenrich, subjectOf('2000000200')), { kind: 'miss', credits: 0 });
  t.like(await ask(prospeo, subjectOf('2000000200')), { credits: 1 });
  t.like(await ask(prospeo, subjectOf('2000000200')), { credits: 0 });
});

for (const id of ['rocketreach', 'fullenrich', 'prospeo', 'hunter'] as const) {
  test(`a wrong API key is a fatal error at the simulated ${id}`, async (t) => {
    const { [id]: vendor, simulator } = await simulated(t, 'another');
    t.deepEqual(await ask(vendor, subjectOf('2000000010')), {
      kind: 'fatal',
      why: 'auth',
    });
    t.deepEqual(simulator.calls(), [], 'not recorded as calls');
  });
}

// The outcome of the identity check for each magic NPI at each vendor of the waterfall.

/** Returns the outcome of an NPI at a vendor, in a word or two. */
async function outcomeOf(vendor: Vendor, npi: string): Promise<string> {
  const subject = subjectOf(npi);
  let step = await ask(vendor, subject);
  while (step.kind === 'retry' && step.why === 'rate_limit')
    step = await ask(vendor, subject);
  if (step.kind !== 'found') return step.kind;
  const mismatch = mismatchOf(step.identity, npi, subject.person);
  if (mismatch !== null) return mismatch;
  return step.candidates
    .map(({ vendorType, verdict }) => `${verdict} ${vendorType}`)
    .join(', ');
}

/** Outcomes by vendor, in the order of the waterfall. Missing ones are `miss`. */
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

test('each simulated vendor gives each magic NPI its expected outcome', async (t) => {
  const { rocketreach, fullenrich, prospeo, hunter } = await simulated(t);
  const all = [rocketreach, fullenrich, prospeo, hunter];
  const outcomes: Record<string, string[]> = {};
  const expected: Record<string, string[]> = {};
  for (const npi of MAGIC.keys()) {
    const key = npi.slice(-3);
    // RocketReach never responds for this one.
    const asked = npi === '2000000101' ? all.slice(1) : all;
    outcomes[key] = await Promise.all(asked.map((vendor) => outcomeOf(vendor, npi)));
    expected[key] = asked.map((_, index) => EXPECTED[key]?.[index] ?? 'miss');
  }
  t.deepEqual(outcomes, expected);
});
