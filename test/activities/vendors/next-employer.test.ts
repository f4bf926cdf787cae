import type { ExecutionContext } from 'ava';
import test from 'ava';
import { createFullEnrich } from '../../../activities/vendors/fullenrich.ts';
import { createHunter } from '../../../activities/vendors/hunter.ts';
import { createProspeo } from '../../../activities/vendors/prospeo.ts';
import type {
  Organization,
  Step,
  Subject,
  Vendor,
} from '../../../activities/vendors/vendor.ts';
import { type Played, playVendor, recorded, SUBJECT } from '../../support/vendors.ts';

const NEVER = new AbortController().signal;
const NOBODY = {
  status: 404,
  body: { errors: [{ id: 'not_found', code: 404, details: '' }] },
};
const next = (domain: string): Organization => {
  return { name: null, domain, source: 'elsewhere', confidence: 0.35 };
};
const ELSEWHERE: Subject = {
  ...SUBJECT,
  otherOrganizations: [next('elsewhere.com'), next('third.com')],
};

async function hunter(t: ExecutionContext, ...responses: Played[]) {
  const { url, asked } = await playVendor(t, ...responses);
  return { asked, vendor: createHunter({ baseUrl: `${url}/v2`, apiKey: 'key' }) };
}

/** Submits and polls without pauses, and returns all steps. */
async function converse(vendor: Vendor, subject: Subject): Promise<Step[]> {
  const steps = [await vendor.submit(subject, NEVER)];
  for (;;) {
    const last = steps.at(-1);
    if (last?.kind !== 'pending') return steps;
    steps.push(await vendor.poll(last.jobRef, subject, NEVER));
  }
}

function domainsOf(asked: readonly { readonly url: string }[]) {
  return asked.map(({ url }) => new URL(url, 'http://vendor').searchParams.get('domain'));
}

test('if Hunter has no result at the likeliest employer, it is called for the next one', async (t) => {
  const { vendor, asked } = await hunter(t, NOBODY, recorded('hunter/valid'));
  const [first, second, ...rest] = await converse(vendor, ELSEWHERE);
  t.like(first, { kind: 'pending', pollAfterMs: 0 });
  t.like(second, { kind: 'found', credits: 1 });
  t.deepEqual(rest, []);
  t.deepEqual(domainsOf(asked), ['cedarvalleyclinic-sim.com', 'elsewhere.com']);
});

test('Hunter is called for at most two employers of a person', async (t) => {
  const { vendor, asked } = await hunter(t, NOBODY, NOBODY);
  t.deepEqual((await converse(vendor, ELSEWHERE)).at(-1), {
    kind: 'miss',
    reason: 'no_email',
    credits: 0,
  });
  t.is(asked.length, 2);
});

test('"no result" is final for a person with only one known employer', async (t) => {
  const { vendor, asked } = await hunter(t, NOBODY);
  t.is((await vendor.submit(SUBJECT, NEVER)).kind, 'miss');
  t.is(asked.length, 1);
});

test('after a result or an error, Hunter is not called for the next employer', async (t) => {
  for (const response of [
    recorded('hunter/valid'),
    { status: 500, body: {} },
    { status: 429, body: {} },
  ]) {
    const { vendor, asked } = await hunter(t, response);
    t.not((await vendor.submit(ELSEWHERE, NEVER)).kind, 'pending');
    t.is(asked.length, 1);
  }
});

test('after a "no result" that was charged, the next employer is not looked up', async (t) => {
  const email = { status: 'VERIFIED', revealed: true, email: 'm***@elsewhere.com' };
  const masked = {
    status: 200,
    body: { error: false, free_enrichment: false, person: { email } },
  };
  const { url, asked } = await playVendor(t, masked);
  const step = await createProspeo({ baseUrl: url, apiKey: 'key' }).submit(
    ELSEWHERE,
    NEVER,
  );
  t.deepEqual(step, { kind: 'miss', reason: 'email_masked', credits: 1 });
  t.is(asked.length, 1);
});

test('polls for the second employer keep using that employer, even after errors', async (t) => {
  const { vendor, asked } = await hunter(
    t,
    NOBODY,
    { status: 202, body: {} },
    { status: 503, body: {} },
    recorded('hunter/valid'),
  );
  const first = await vendor.submit(ELSEWHERE, NEVER);
  const jobRef = first.kind === 'pending' ? first.jobRef : '';
  const running = await vendor.poll(jobRef, ELSEWHERE, NEVER);
  t.is(running.kind, 'pending');
  const later = running.kind === 'pending' ? running.jobRef : '';
  t.is((await vendor.poll(later, ELSEWHERE, NEVER)).kind, 'retry');
  t.is((await vendor.poll(later, ELSEWHERE, NEVER)).kind, 'found');
  t.deepEqual(domainsOf(asked).slice(1), [
    'elsewhere.com',
    'elsewhere.com',
    'elsewhere.com',
  ]);
});

test('the first "no result" is final if Hunter rejects the next employer or no other is known', async (t) => {
  const refused = {
    status: 400,
    body: { errors: [{ id: 'wrong_params', code: 400, details: '' }] },
  };
  const { vendor } = await hunter(t, NOBODY, refused, NOBODY);
  t.like((await converse(vendor, ELSEWHERE)).at(-1), { kind: 'miss', credits: 0 });
  const first = await vendor.submit(ELSEWHERE, NEVER);
  t.like(
    await vendor.poll(first.kind === 'pending' ? first.jobRef : '', SUBJECT, NEVER),
    {
      kind: 'miss',
    },
  );
});

test('Prospeo is called for the next employer, but FullEnrich is too slow for that', async (t) => {
  const noMatch = { status: 400, body: { error: true, error_code: 'NO_MATCH' } };
  const prospeo = await playVendor(t, noMatch, noMatch);
  await converse(createProspeo({ baseUrl: prospeo.url, apiKey: 'key' }), ELSEWHERE);
  t.is(prospeo.asked.length, 2);

  const finished = {
    status: 200,
    body: {
      id: '1',
      status: 'FINISHED',
      cost: { credits: 0 },
      data: [{ contact_info: {} }],
    },
  };
  const fullenrich = await playVendor(
    t,
    { status: 200, body: { enrichment_id: '1' } },
    finished,
  );
  const vendor = createFullEnrich({ baseUrl: fullenrich.url, apiKey: 'key', pollMs: 1 });
  t.like((await converse(vendor, ELSEWHERE)).at(-1), { kind: 'miss', credits: 0 });
  t.is(fullenrich.asked.length, 2);
});
