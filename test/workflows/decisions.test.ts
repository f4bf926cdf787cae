import { WorkflowFailedError } from '@temporalio/client';
import { ApplicationFailure, CancelledFailure } from '@temporalio/common';
import test, { type ExecutionContext } from 'ava';
import { retryLater } from '../../activities/failures.ts';
import {
  type BatchFacts,
  type BatchResult,
  type DueDelivery,
  type LookupInput,
  type LookupPlan,
  type LookupResult,
  MEANING,
  type PlannedSource,
  requestSettled,
  type VendorResult,
  WORKFLOWS,
} from '../../workflows/messages.ts';
import { fresh } from '../support/database.ts';
import { type Mocks, startMockedWorkers } from '../support/mocked-activities.ts';
import { eventually } from '../support/organization.ts';

// Tests the decisions of batches and lookups, with mocked activities: what each response of a source
// means, and what happens after each failure. Replaying histories can't detect a wrong decision if
// no recorded run had that response or that failure.

const workers = fresh(test, startMockedWorkers);

const MINUTE = 60_000;
const GREYLIST_MS = 5 * MINUTE;
const SHARE_MS = 30_000;
const FOUND: LookupResult = { status: 'completed', reason: null };
const MISS: VendorResult = { kind: 'miss', reason: 'nobody' };
/** The activity that found an email has also settled the request. */
const FINDS: VendorResult = { kind: 'found', reason: null, settled: FOUND };

/** The result of asking a source, or the failure of each attempt. */
type Response = VendorResult | Error;

/** What happens in one lookup. */
interface Scenario {
  /** The responses of each source, in the order in which the sources are asked. */
  readonly sources: Readonly<Record<string, { first: Response; again?: Response }>>;
  /** The response of a check after greylisting. */
  readonly check?: Response;
  /** The plan, if it is not to ask the sources. */
  readonly plan?: LookupPlan;
  /** The response of the registry, if the plan needs it. */
  readonly registry?: string | null | Error;
  /** Why the person is unknown, if a source was skipped for that. */
  readonly unidentified?: string | null;
  /** The time until the deadline, 15 minutes by default. */
  readonly timeoutMs?: number;
}

function given<T>(response: T | Error): T {
  if (response instanceof Error) throw response;
  return response;
}

function planOf({ sources, unidentified = null }: Scenario): LookupPlan {
  const planned: PlannedSource[] = Object.keys(sources).map((name) => ({
    vendor: name === 'known' ? null : name,
    capMs: SHARE_MS,
  }));
  return {
    kind: 'ask',
    lookupId: 'lookup',
    requestedType: 'any',
    greylistMs: GREYLIST_MS,
    unidentified,
    sources: planned,
  };
}

function mocksOf(scenario: Scenario): Mocks {
  const { sources, check = MISS, plan = planOf(scenario), registry = null } = scenario;
  return {
    planLookup: (request) => (request.registry === null ? plan : planOf(scenario)),
    identify: () => given(registry),
    askVendor({ vendor, again }) {
      const responses = sources[vendor] ?? { first: MISS };
      return given(again ? (responses.again ?? responses.first) : responses.first);
    },
    verifyEmails({ patience }) {
      return given(patience === 'first' ? (sources.known?.first ?? MISS) : check);
    },
    settleRequest: ({ reason }) => ({ status: 'not_found', reason }),
    refundCredits: ({ reason }) => ({ status: 'failed', reason }),
    readBatch: () => Promise.reject(new Error('there is no batch')),
    attemptDeliveries: () => Promise.reject(new Error('there is no batch')),
  };
}

let ids = 0;

async function requestOf(batchId: string, timeoutMs = 15 * MINUTE): Promise<LookupInput> {
  ids += 1;
  const deadline = (await workers.now()) + timeoutMs;
  return { requestId: `request-${ids}`, batchId, npi: '2000000010', deadline };
}

async function startLookup(timeoutMs?: number) {
  const request = await requestOf('batch', timeoutMs);
  const { client, taskQueue } = workers;
  return await client.workflow.start<(input: LookupInput) => Promise<LookupResult>>(
    WORKFLOWS.lookup,
    { workflowId: request.requestId, taskQueue, args: [request] },
  );
}

/**
 * Runs one lookup, and asserts its result and its calls after the first plan.
 * @returns all calls
 */
async function decides(
  t: ExecutionContext,
  scenario: Scenario,
  expected: { readonly result: string; readonly calls: readonly string[] },
) {
  const calls = workers.begin(mocksOf(scenario));
  const lookup = await startLookup(scenario.timeoutMs);
  const { status, reason } = await lookup.result();
  const [, ...after] = calls.map(({ what }) => what);
  const result = reason === null ? status : `${status}: ${reason}`;
  t.deepEqual({ result, calls: after }, expected);
  return calls;
}

// Time may skip an activity that waits for a worker's first poll, so a first lookup runs in real time.
test.serial.before(async () => {
  const calls = workers.begin(mocksOf({ sources: { first: { first: MISS } } }));
  const lookup = await startLookup();
  await eventually(async () => calls.find(({ what }) => /^settle/.test(what)) ?? null);
  await lookup.result();
});

const RATE_LIMITED = retryLater('first', 'rate_limit', 10_000);
const BROKEN = ApplicationFailure.create({ message: 'a bug', type: 'Internal' });
const REJECTED = ApplicationFailure.nonRetryable('rejected', 'Database.23514');

/** How a lookup of two sources ends if the second one finds nothing. */
type Decision = readonly [first: VendorResult, result: string, ...calls: string[]];

const BOTH = ['askVendor first', 'askVendor second'] as const;
const DECISIONS: Readonly<Record<keyof typeof MEANING, Decision>> = {
  found: [FINDS, 'completed', 'askVendor first'],
  stored: [{ ...FINDS, kind: 'stored' }, 'completed', 'askVendor first'],
  settled: [
    { kind: 'settled', reason: null },
    'not_found: no_source',
    'askVendor first',
    'settleRequest no_source',
  ],
  blocked: [
    { kind: 'blocked', reason: 'privacy' },
    'not_found: privacy',
    'askVendor first',
    'settleRequest privacy',
  ],
  miss: [
    { kind: 'miss', reason: 'no_email' },
    'not_found: nobody',
    ...BOTH,
    'settleRequest nobody',
  ],
  skip: [
    { kind: 'skip', reason: 'missing name' },
    'not_found: nobody',
    ...BOTH,
    'settleRequest nobody',
  ],
  unusable: [
    { kind: 'unusable', reason: 'identity_mismatch' },
    'not_found: nobody',
    ...BOTH,
    'settleRequest nobody',
  ],
  fatal: [
    { kind: 'fatal', reason: 'auth' },
    'failed: auth',
    ...BOTH,
    'refundCredits auth',
  ],
  lost: [
    { kind: 'lost', reason: 'unanswered' },
    'failed: unanswered',
    ...BOTH,
    'askVendor first-again',
    'refundCredits unanswered',
  ],
  later: [
    { kind: 'later', reason: 'greylisted' },
    'not_found: nobody',
    'askVendor first',
    'verifyEmails first-over',
    'askVendor second',
    'settleRequest nobody',
  ],
  unresolved: [
    { kind: 'unresolved', reason: 'rate_limit' },
    'failed: rate_limit',
    ...BOTH,
    'askVendor first-again',
    'refundCredits rate_limit',
  ],
};

for (const [kind, [first, result, ...calls]] of Object.entries(DECISIONS)) {
  const meaning = MEANING[first.kind];
  test.serial(`the response "${kind}" of a source is ${meaning}`, async (t) => {
    const sources = { first: { first }, second: { first: MISS } };
    await decides(t, { sources }, { result, calls });
  });

  if (meaning === 'final') continue;
  test.serial(`a source is still asked after the response "${kind}"`, async (t) => {
    const sources = { first: { first }, second: { first: FINDS } };
    const asked = calls.slice(0, calls.indexOf('askVendor second') + 1);
    await decides(t, { sources }, { result: 'completed', calls: asked });
  });
}

for (const kind of ['lost', 'unresolved'] as const) {
  test.serial(`a source may find an email after the response "${kind}"`, async (t) => {
    const first = { first: { kind, reason: 'pending' }, again: FINDS };
    const sources = { first, second: { first: MISS } };
    const calls = [...BOTH, 'askVendor first-again'];
    await decides(t, { sources }, { result: 'completed', calls });
  });
}

test.serial('sources are asked in the order of the plan', async (t) => {
  const names = ['known', 'third', 'first', 'second'];
  const sources = Object.fromEntries(names.map((name) => [name, { first: MISS }]));
  await decides(
    t,
    { sources },
    {
      result: 'not_found: nobody',
      calls: [
        'verifyEmails known-first',
        'askVendor third',
        'askVendor first',
        'askVendor second',
        'settleRequest nobody',
      ],
    },
  );
});

test.serial(
  'no other source is asked until a greylisted address is checked',
  async (t) => {
    const greylisted = { kind: 'later', reason: 'greylisted' } as const;
    const sources = { first: { first: greylisted }, second: { first: MISS } };
    const calls = await decides(
      t,
      { sources, check: FINDS },
      { result: 'completed', calls: ['askVendor first', 'verifyEmails first-over'] },
    );
    const [, asked, checked] = calls;
    t.true((checked?.at ?? 0) - (asked?.at ?? 0) >= GREYLIST_MS);
  },
);

test.serial(
  'a greylisted address is checked early if the deadline is near',
  async (t) => {
    const greylisted = { kind: 'later', reason: 'greylisted' } as const;
    await decides(
      t,
      { sources: { first: { first: greylisted } }, check: FINDS, timeoutMs: MINUTE },
      { result: 'completed', calls: ['askVendor first', 'verifyEmails first-early'] },
    );
  },
);

for (const [title, failure, result, again] of [
  ['a rate limit', RATE_LIMITED, 'deadline (rate_limit)', true],
  ['a bug', BROKEN, 'deadline', true],
  ['a rejected statement', REJECTED, 'lookup_failed', false],
] as const) {
  const repeated = again ? ['askVendor first-again'] : [];
  test.serial(
    `a request is refunded if ${title} fails a source until the end`,
    async (t) => {
      const sources = { first: { first: failure }, second: { first: MISS } };
      const calls = await decides(
        t,
        { sources },
        {
          result: `failed: ${result}`,
          calls: [...BOTH, ...repeated, `refundCredits ${result}`],
        },
      );
      const [, asked, next] = calls;
      t.true((next?.at ?? 0) - (asked?.at ?? 0) < SHARE_MS + 3 * MINUTE);
    },
  );

  test.serial(`another source is asked after ${title} fails a source`, async (t) => {
    const sources = { first: { first: failure }, second: { first: FINDS } };
    await decides(t, { sources }, { result: 'completed', calls: BOTH });
  });
}

test.serial('a source that timed out may find an email at the end', async (t) => {
  const first = { first: RATE_LIMITED, again: FINDS };
  const calls = [...BOTH, 'askVendor first-again'];
  await decides(
    t,
    { sources: { first, second: { first: MISS } } },
    { result: 'completed', calls },
  );
});

test.serial('no source is asked after the deadline', async (t) => {
  const sources = { first: { first: FINDS } };
  await decides(
    t,
    { sources, timeoutMs: -1000 },
    { result: 'failed: deadline', calls: ['refundCredits deadline'] },
  );
});

const UNIDENTIFIED = { kind: 'unidentified' } as const;

for (const [title, registry, planned] of [
  ['responds', null, 'planLookup'],
  ['is rate-limited', 'rate_limit', 'planLookup rate_limit'],
  ['times out', RATE_LIMITED, 'planLookup rate_limit'],
  ['fails', REJECTED, 'planLookup lookup_failed'],
] as const) {
  test.serial(`sources are asked after the registry ${title}`, async (t) => {
    const sources = { first: { first: FINDS } };
    await decides(
      t,
      { sources, plan: UNIDENTIFIED, registry },
      { result: 'completed', calls: ['identify registry', planned, 'askVendor first'] },
    );
  });
}

test.serial('a request for an unknown person is refunded, not not_found', async (t) => {
  const sources = { first: { first: MISS } };
  await decides(
    t,
    { sources, unidentified: 'rate_limit' },
    {
      result: 'failed: rate_limit',
      calls: ['askVendor first', 'refundCredits rate_limit'],
    },
  );
});

test.serial('a request that its plan settles asks no source', async (t) => {
  const result = { status: 'not_found', reason: 'npi_inactive' } as const;
  await decides(
    t,
    { sources: {}, plan: { kind: 'settled', result } },
    { result: 'not_found: npi_inactive', calls: [] },
  );
});

for (const step of ['planLookup', 'settleRequest'] as const) {
  test.serial(`a request is refunded if ${step} fails`, async (t) => {
    const mocks = mocksOf({ sources: { first: { first: MISS } } });
    const calls = workers.begin({ ...mocks, [step]: () => Promise.reject(REJECTED) });
    const lookup = await startLookup();
    t.deepEqual(await lookup.result(), { status: 'failed', reason: 'lookup_failed' });
    t.is(calls.at(-1)?.what, 'refundCredits lookup_failed');
  });
}

test.serial(
  'a refund is repeated until it succeeds, even after the deadline',
  async (t) => {
    const deadline = (await workers.now()) + MINUTE;
    workers.begin({
      ...mocksOf({ sources: { first: { first: { kind: 'fatal', reason: 'auth' } } } }),
      async refundCredits({ reason }) {
        if ((await workers.now()) < deadline + MINUTE) throw BROKEN;
        return { status: 'failed', reason };
      },
    });
    const lookup = await startLookup(MINUTE);
    t.deepEqual(await lookup.result(), { status: 'failed', reason: 'auth' });
  },
);

test.serial('a canceled lookup refunds its request', async (t) => {
  const calls = workers.begin(mocksOf({ sources: { first: { first: RATE_LIMITED } } }));
  const lookup = await startLookup();
  await eventually(async () => calls.find(({ what }) => what === BOTH[0]) ?? null);
  await lookup.cancel();
  const error = await t.throwsAsync(lookup.result());
  t.true(error instanceof WorkflowFailedError && error.cause instanceof CancelledFailure);
  t.deepEqual(
    calls.map(({ what }) => what),
    ['planLookup', 'askVendor first', 'refundCredits cancelled'],
  );
});

/** A batch of two requests. The vendor finds an email for the first, and never responds for the other. */
interface Batch {
  readonly id: string;
  readonly found: LookupInput;
  readonly silent: LookupInput;
  /** Signals that the first request is final and has a webhook, as its activity does. */
  report(): Promise<void>;
}

const COUNTS = { completed: 1, notFound: 0, failed: 1 };
const REPORTED = 'delivery-1';

/**
 * Starts a batch.
 * @param changes mocks that replace the usual ones
 * @returns the batch, the calls of its activities, and the deliveries of each `attemptDeliveries`
 */
async function startBatch(changes: (batch: Batch) => Partial<Mocks> = () => ({})) {
  ids += 1;
  const id = `batch-${ids}`;
  const { client, taskQueue } = workers;
  const [found, silent] = [await requestOf(id), await requestOf(id)];
  const signal = { requestId: found.requestId, deliveryId: REPORTED };
  const report = () => client.workflow.getHandle(id).signal(requestSettled, signal);
  const attempted: (readonly string[])[] = [];
  const batch: Batch = { id, found, silent, report };
  let reads = 0;
  const calls = workers.begin({
    ...mocksOf({ sources: { first: { first: MISS } } }),
    readBatch() {
      reads += 1;
      return factsOf(batch, reads === 1 ? [found, silent] : []);
    },
    askVendor: ({ requestId }) =>
      given<VendorResult>(requestId === found.requestId ? FINDS : RATE_LIMITED),
    attemptDeliveries({ deliveryIds }) {
      attempted.push(deliveryIds);
      return [];
    },
    ...changes(batch),
  });
  const handle = await client.workflow.start<
    (input: { batchId: string }) => Promise<BatchResult>
  >(WORKFLOWS.batch, { workflowId: id, taskQueue, args: [{ batchId: id }] });
  return { batch, calls, attempted, handle };
}

function factsOf(
  { id, found, silent }: Batch,
  open: readonly LookupInput[],
  due: readonly DueDelivery[] = [],
): BatchFacts {
  const npis = { [found.requestId]: found.npi, [silent.requestId]: silent.npi };
  const organizationId = 'organization';
  return {
    ...COUNTS,
    ...{ batchId: id, organizationId, webhookMode: 'real-time', npis, open, due },
  };
}

/** Returns the askVendor mock of an activity that reports the first request `times` times. */
function reporting({ found, report }: Batch, times = 1): Mocks['askVendor'] {
  return async ({ requestId }) => {
    if (requestId !== found.requestId) throw RATE_LIMITED;
    for (let time = 0; time < times; time += 1) await report();
    return FINDS;
  };
}

test.serial('a webhook is attempted before the other lookups have ended', async (t) => {
  const { handle, calls, attempted } = await startBatch((batch) => ({
    askVendor: reporting(batch),
  }));
  t.deepEqual(await handle.result(), COUNTS);
  t.deepEqual(attempted, [[REPORTED]]);
  const order = calls.map(({ what }) => what);
  const refundAt = order.indexOf('refundCredits deadline (rate_limit)');
  t.true(refundAt > order.indexOf('attemptDeliveries'), order.join());
});

/** Returns mocks of a batch in which the two deliveries are due when all lookups have ended. */
function dueAtEnd(batch: Batch): Pick<Mocks, 'readBatch'> {
  const due = [REPORTED, 'delivery-2'].map((deliveryId) => ({
    deliveryId,
    requestId: batch.found.requestId,
  }));
  let reads = 0;
  return {
    readBatch() {
      reads += 1;
      if (reads === 1) return factsOf(batch, [batch.found, batch.silent]);
      return factsOf(batch, [], due);
    },
  };
}

test.serial('webhooks whose reports were lost are attempted at the end', async (t) => {
  const { handle, attempted } = await startBatch(dueAtEnd);
  t.deepEqual(await handle.result(), COUNTS);
  t.deepEqual(attempted, [[REPORTED, 'delivery-2']]);
});

test.serial('a webhook that is reported several times is attempted once', async (t) => {
  const { handle, attempted } = await startBatch((batch) => ({
    ...dueAtEnd(batch),
    askVendor: reporting(batch, 2),
  }));
  t.deepEqual(await handle.result(), COUNTS);
  t.deepEqual(attempted, [[REPORTED], ['delivery-2']]);
});

test.serial('a batch ends even if its webhooks can not be attempted', async (t) => {
  const { handle } = await startBatch((batch) => ({
    ...dueAtEnd(batch),
    attemptDeliveries: () => Promise.reject(REJECTED),
  }));
  t.deepEqual(await handle.result(), COUNTS);
});

test.serial('a batch refunds a request whose lookup ends without it', async (t) => {
  const { handle, calls } = await startBatch(() => ({
    async refundCredits({ reason }) {
      if (reason !== 'lookup_lost') throw BROKEN;
      return { status: 'failed', reason };
    },
  }));
  t.deepEqual(await handle.result(), COUNTS);
  t.is(calls.at(-2)?.what, 'refundCredits lookup_lost');
});

test.serial('a canceled batch refunds its open requests', async (t) => {
  const refunded: string[] = [];
  const { handle, calls } = await startBatch(() => ({
    askVendor: () => Promise.reject(RATE_LIMITED),
    refundCredits({ requestId, reason }) {
      refunded.push(`${requestId} ${reason}`);
      return { status: 'failed', reason };
    },
  }));
  const asked = () => calls.filter(({ what }) => what === BOTH[0]).length;
  await eventually(async () => (asked() === 2 ? true : null));
  await handle.cancel();
  const error = await t.throwsAsync(handle.result());
  t.true(error instanceof WorkflowFailedError && error.cause instanceof CancelledFailure);
  t.is(new Set(refunded).size, 2);
  t.true(refunded.every((line) => line.endsWith(' cancelled')));
});
