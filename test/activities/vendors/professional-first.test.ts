import test from 'ava';
import { professionalFirst } from '../../../activities/vendors/professional-first.ts';
import type { Step, Subject, Vendor } from '../../../activities/vendors/vendor.ts';
import type { EmailType, StoredVerdict } from '../../../db/words.ts';
import { createScriptedVendor, SUBJECT } from '../../support/vendors.ts';

const NEVER = new AbortController().signal;
const MISS = { kind: 'miss', reason: 'no_email', credits: 0 } as const satisfies Step;

function found(vendorType: EmailType, verdict: StoredVerdict): Step {
  const email = `${vendorType}@clinic.example`;
  const rest = { validatedAt: null, isCurrent: false, confidence: null };
  return {
    kind: 'found',
    candidates: [{ email, vendorType, verdict, ...rest }],
    identity: { npi: SUBJECT.npi, name: null, state: null, employerDomain: null },
    repeatsInput: false,
  };
}

/** A vendor with jobs that charges for each type. It records the types of its jobs in order. */
function pricedByType(results: Readonly<Record<EmailType, Step>>) {
  const bought: string[] = [];
  const vendor: Vendor = {
    ...createScriptedVendor(),
    cost: (requestedType) => ({ professional: 1, personal: 3, any: 4 })[requestedType],
    async submit({ requestedType }) {
      bought.push(requestedType);
      return { kind: 'pending', jobRef: `job-of:${requestedType}`, pollAfterMs: 5 };
    },
    async poll(jobRef, { requestedType }) {
      if (jobRef !== `job-of:${requestedType}` || requestedType === 'any')
        throw new Error(`unknown job ${jobRef}`);
      return results[requestedType];
    },
  };
  return { vendor: professionalFirst(vendor), bought };
}

async function ask(vendor: Vendor, subject: Subject): Promise<Step> {
  let step = await vendor.submit(subject, NEVER);
  while (step.kind === 'pending') step = await vendor.poll(step.jobRef, subject, NEVER);
  return step;
}

for (const [title, professional, bought, kind] of [
  ['is found', found('professional', 'unknown'), ['professional'], 'professional'],
  ['does not exist', MISS, ['professional', 'personal'], 'personal'],
  [
    'does not work',
    found('professional', 'invalid'),
    ['professional', 'personal'],
    'personal',
  ],
] as const) {
  test(`if a professional email ${title}, a request of any type buys ${bought.join(', then ')}`, async (t) => {
    const results = { professional, personal: found('personal', 'unknown') };
    const priced = pricedByType(results);
    t.deepEqual(await ask(priced.vendor, SUBJECT), results[kind]);
    t.deepEqual(priced.bought, bought);
  });
}

test('a request of one type buys only that type', async (t) => {
  for (const requestedType of ['professional', 'personal'] as const) {
    const priced = pricedByType({ professional: MISS, personal: MISS });
    t.deepEqual(await ask(priced.vendor, { ...SUBJECT, requestedType }), MISS);
    t.deepEqual(priced.bought, [requestedType]);
  }
});

test('a request of any type reserves the credits of the more expensive type', (t) => {
  const { vendor } = pricedByType({ professional: MISS, personal: MISS });
  t.deepEqual(
    (['professional', 'personal', 'any'] as const).map((type) => vendor.cost(type)),
    [1, 3, 3],
  );
});
