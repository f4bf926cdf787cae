import { randomInt } from 'node:crypto';
import test from 'ava';
import fc from 'fast-check';
import { diagnose } from '../../db/doctor/doctor.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { freshDatabase } from '../support/database.ts';
import {
  auditLedger,
  type Mutation,
  mutantLedger,
  WITHOUT_LOCKS,
} from '../support/ledger.ts';
import { applyCall, MODEL_RULES, type ModelState, openModel } from '../support/model.ts';
import {
  type Ledger,
  type ModelClient,
  openModelClient,
  performCall,
  viewDatabase,
  viewModel,
} from '../support/model-client.ts';
import {
  type Counts,
  count,
  modelSteps,
  NPIS,
  ORGANIZATIONS,
  requestsOf,
} from '../support/model-commands.ts';

// Tests the service against a model of its rules (support/model.ts). Several clients make random
// calls at once, and after every step model and database must agree. To repeat a failure, run the
// tests with the printed values: TEST_SEED=… TEST_PATH=… TEST_REPLAY_PATH=… npm test --
// test/system/model.test.ts TEST_RUNS sets the number of sequences, for a longer run.

const { TEST_SEED, TEST_PATH, TEST_REPLAY_PATH, TEST_RUNS } = process.env;
const SEED = Number(TEST_SEED ?? randomInt(1_000_000_000));
const RUNS = Number(TEST_RUNS ?? 528);
/** Number of sequences that run at the same time. */
const SHARDS = 8;
const MAX_STEPS = 30;

const { db, sql } = freshDatabase(test);

// The model does not know for which addresses a professional one was looked for. So a stored personal
// address always completes a request for `any`.
test.before(async () => {
  await sql`alter table stored_emails alter professional_sought_at set default clock_timestamp()`;
});

let sequence = 0;

interface Run extends Pick<fc.Parameters, 'seed' | 'numRuns' | 'path' | 'endOnFailure'> {
  readonly ledger: Ledger;
  readonly counts: Counts;
  readonly afterStep: (client: ModelClient) => Promise<void>;
}

/**
 * Runs sequences one after the other.
 * @returns null if all pass, or the first failure and how to repeat it
 */
async function runSequences({
  ledger,
  counts,
  afterStep,
  ...parameters
}: Run): Promise<string | null> {
  const property = fc.asyncProperty(
    fc.array(fc.integer({ min: 0, max: 3 }), {
      minLength: ORGANIZATIONS,
      maxLength: ORGANIZATIONS,
    }),
    modelSteps({
      counts,
      afterStep,
      maxSteps: MAX_STEPS,
      replayPath: parameters.path === undefined ? undefined : TEST_REPLAY_PATH,
    }),
    async (credits, steps) => {
      counts.sequences += 1;
      sequence += 1;
      const own = String(sequence).padStart(8, '0');
      const npis = Array.from({ length: NPIS }, (_, index) => `1${own}${index}`);
      const real = await openModelClient({ db, sql, ledger, npis }, credits);
      const model = openModel(credits);
      await fc.asyncModelRun(() => ({ model, real }), steps);
      await drain(model, real);
      for (const { status, replayed } of Object.values(model.batches).flatMap(
        ({ requests }) => requests,
      )) {
        count(counts, `request ${status}${replayed ? ' replayed' : ''}`);
      }
    },
  );
  const details = await fc.check(property, parameters);
  if (!details.failed) return null;
  const { errorInstance } = details;
  const why = errorInstance instanceof Error ? errorInstance.message : 'interrupted';
  return `${why}\n${fc.defaultReportMessage(details)}`;
}

/**
 * Settles all open requests and checks that no credits stay held (ARCHITECTURE.md, Invariants, L3).
 */
async function drain(model: ModelState, client: ModelClient): Promise<void> {
  for (const request of requestsOf(model, true)) {
    const call = { name: '', kind: 'settle', request, end: 'finished' } as const;
    const told = (await performCall(client, call))();
    const expected = applyCall(model, call);
    if (told !== expected)
      throw new Error(`drained ${JSON.stringify(request)}: ${told}, not ${expected}`);
  }
  if (model.organizations.some(({ held }) => held !== 0))
    throw new Error('the model still holds credits');
  const seen = await viewDatabase(client);
  if (viewModel(model).join('\n') !== seen.join('\n'))
    throw new Error('drained to another state');
  await requireSilentAudit(client);
}

async function requireSilentAudit({ organizationIds }: ModelClient): Promise<void> {
  const findings = await auditLedger(sql, organizationIds, MODEL_RULES.replayMs);
  if (findings.length > 0) throw new Error(`the audit found: ${findings.join('; ')}`);
}

/**
 * Findings that are expected here, because no sweep starts batches and settles overdue requests, and
 * because `passTime` moves requests to earlier days. The audit compares the usage of all days.
 */
const NOT_HERE = ['batch_not_started', 'request_overdue', 'usage_differs'];

async function requireSilentDoctor(): Promise<void> {
  const checks = await diagnose(db, { ...MODEL_RULES, webhookScheduleMs: [0] });
  const findings = checks.filter(
    ({ code, findings }) => findings > 0 && !NOT_HERE.includes(code),
  );
  if (findings.length > 0)
    throw new Error(`the doctor found: ${JSON.stringify(findings)}`);
}

const openCounts = (): Counts => ({ sequences: 0, steps: 0, calls: 0, told: {} });
const real: Ledger = { submit, settle };

// Runs first, because the doctor reads whole tables.
test.serial(
  'doctor finds nothing after any step of random submits and settlements',
  async (t) => {
    const counts = openCounts();
    const run = {
      ledger: real,
      counts,
      seed: SEED,
      numRuns: 12,
      afterStep: requireSilentDoctor,
    };
    t.is(await runSequences(run), null);
    t.log(counts);
  },
);

test.serial(
  'random concurrent submits and settlements never break the rules of the ledger',
  async (t) => {
    // No longer than necessary. While a test's own time limit runs, AVA does not end other files that
    // hang.
    t.timeout(300_000 + RUNS * 1_000);
    t.log(`TEST_SEED=${SEED}`);
    const counts = openCounts();
    const shards = TEST_PATH === undefined ? SHARDS : 1;
    const failures = await Promise.all(
      Array.from({ length: shards }, (_, shard) =>
        runSequences({
          ledger: real,
          counts,
          afterStep: requireSilentAudit,
          seed: SEED + shard,
          numRuns: Math.ceil(RUNS / shards),
          ...(TEST_PATH === undefined ? {} : { path: TEST_PATH }),
        }),
      ),
    );
    t.log(counts);
    for (const failure of failures) if (failure !== null) t.fail(failure);
    await requireSilentDoctor();
    // All writers lock in the same order, so deadlocks must not happen. The clients would not
    // notice one, because the service retries it.
    const [waits] =
      await sql`select deadlocks::int from pg_stat_database where datname = current_database()`;
    t.is(waits?.deadlocks, 0);
    if (TEST_PATH === undefined && RUNS >= 500) t.true(counts.calls >= 10_000);
  },
);

test.serial(
  'the test of the ledger passes with an unchanged copy of the code',
  async (t) => {
    const ledger = await mutantLedger([]);
    const run = {
      ledger,
      counts: openCounts(),
      seed: SEED,
      numRuns: 12,
      afterStep: requireSilentAudit,
    };
    t.is(await runSequences(run), null);
  },
);

const BUGS: Record<string, readonly Mutation[]> = {
  'a second charge within the replay window': [
    {
      file: 'requests/settle.ts',
      from: 'replayed: email.replayed',
      to: 'replayed: false',
    },
    {
      file: 'requests/entitlements.ts',
      from: 'where e.charged_at <',
      to: 'where true or e.charged_at <',
    },
  ],
  'a charge for a result after the deadline': [
    { file: 'requests/settle.ts', from: 'at > request.deadlineAt', to: 'false' },
  ],
  'a balance that is read without a lock': [
    { file: 'requests/submit.ts', from: ' for update of b', to: '' },
  ],
  'a settlement without locks': WITHOUT_LOCKS,
  'a replay of a result that another organization paid for': [
    { file: 'requests/entitlements.ts', from: 'e.organization_id = ', to: "'' <> " },
  ],
  'an Idempotency-Key that never expires': [
    {
      file: 'requests/idempotency.ts',
      from: 'setWhere: sql`',
      to: 'setWhere: sql`false and ',
    },
  ],
  'a replay window of half the length': [
    {
      file: 'requests/entitlements.ts',
      from: 'e.charged_at >= ',
      to: "e.charged_at - interval '15 days' >= ",
    },
  ],
  'a replay with another email type': [
    {
      file: 'requests/entitlements.ts',
      from: "in ('any', e.email_type)",
      to: "in ('any', 'personal', 'professional')",
    },
  ],
  'a second charge for an NPI that is in one bulk twice': [
    { file: 'requests/submit.ts', from: ' || charged.has(npi)', to: '' },
  ],
};

for (const [bug, mutations] of Object.entries(BUGS)) {
  test.serial(`the test of the ledger detects ${bug}`, async (t) => {
    const counts = openCounts();
    const ledger = await mutantLedger(mutations);
    const run = {
      ledger,
      counts,
      seed: SEED,
      numRuns: 500,
      endOnFailure: true,
      afterStep: requireSilentAudit,
    };
    const failure = await runSequences(run);
    t.log(`caught in sequence ${counts.sequences}`);
    t.regex(
      failure ?? 'not caught',
      /no order of these calls explains|the audit found|drained/,
    );
  });
}
