import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json as jsonOf } from 'node:stream/consumers';
import test from 'ava';
import postgres from 'postgres';
import { CHECK_MS } from '../../../db/lookups/turns.ts';
import { submit } from '../../../db/requests/submit.ts';
import { loadConfig } from '../../../deploy/config/config.ts';
import { leftOver } from '../../support/all-ended.ts';
import { fresh } from '../../support/database.ts';
import {
  acceptedIds,
  eventually,
  RULES,
  submitCommand,
} from '../../support/organization.ts';
import { type ApiClient, startStack } from '../../support/stack.ts';
import { endTurn, lockRows, waitsForTurn } from '../../support/turns.ts';
import {
  createScriptedVendor,
  foundStep,
  heldScript,
  ordinaryNpis,
} from '../../support/vendors.ts';

// Tests that two requests that share a lookup do not stop each other. The first one is held in a step of
// its lookup, and an operator acts on it or its deadline passes. The second one must get its email
// after one turn at most, while the first one is still held.

/** Longer than any test takes on a busy machine. */
const LOOKUP_TIMEOUT_MS = 600_000;
/** The longest turn of a vendor call of 30 s. */
const CALL_MS = 55_000;

/** A vendor that charges again for a repeated call. */
const vendor = { ...createScriptedVendor(), repeatIsFree: false };
const npis = ordinaryNpis('found', 60, 140_000).values();

/** The verifier's calls, by address. */
const checks = new Map<string, number>();
/** The first checks of these addresses wait. */
const heldChecks = new Map<string, Promise<void>>();
const reacher = createServer(async (request, response) => {
  const { to_email: email } = (await jsonOf(request)) as { to_email: string };
  const nth = (checks.get(email) ?? 0) + 1;
  checks.set(email, nth);
  if (nth === 1) await heldChecks.get(email);
  response.writeHead(200, { 'content-type': 'application/json' });
  response.end(JSON.stringify({ misc: {}, mx: {}, is_reachable: 'safe' }));
}).listen(0, '127.0.0.1');
test.after.always(() => void reacher.close());

const stack = fresh(test, () => {
  const { port } = reacher.address() as AddressInfo;
  const { access } = loadConfig({ DATABASE_URL: 'postgres://127.0.0.1/none' });
  return startStack({
    lookupTimeoutMs: LOOKUP_TIMEOUT_MS,
    providers: [vendor],
    access: { ...access, reacher: { baseUrl: `http://127.0.0.1:${port}`, apiKey: '' } },
  });
});
let sql: postgres.Sql;
test.before(() => {
  sql = postgres(stack.databaseUrl, { max: 30, onnotice: () => {} });
});
test.after.always(() => sql?.end({ timeout: 1 }));

test.after('every request of these tests ends, and nothing stays held', async (t) => {
  t.deepEqual(await leftOver(stack), []);
});

/** Two organizations that submit the same NPI. */
class Scene {
  readonly npi = npis.next().value ?? '';
  readonly email: string;
  /** The connection that may change the first request. */
  sql: postgres.Sql | postgres.ReservedSql = sql;
  /** The first request, which is held in a step. */
  held = { requestId: '', batchId: '' };
  second = { requestId: '', batchId: '' };

  readonly first: ApiClient;
  readonly other: ApiClient;

  constructor(first: ApiClient, other: ApiClient) {
    this.first = first;
    this.other = other;
    const step = foundStep(this.npi);
    this.email = (step.kind === 'found' && step.candidates[0]?.email) || '';
  }

  static async open(): Promise<Scene> {
    return new Scene(await stack.organization(10), await stack.organization(10));
  }

  async submitFirst(): Promise<void> {
    this.held = await submitted(this.first, this.npi);
  }

  async submitSecond(): Promise<void> {
    this.second = await submitted(this.other, this.npi);
  }

  /** Submits the second request, and waits until it waits for the turn of the first one. */
  async submitSecondToWait(): Promise<void> {
    await this.submitSecond();
    await waitsForTurn(stack, this.second.requestId);
  }

  async asked(operation: 'submit' | 'poll'): Promise<void> {
    await eventually(async () => (vendor.asked(this.npi, operation) > 0 ? true : null));
  }

  paid(): Paid {
    return [vendor.asked(this.npi, 'submit'), checks.get(this.email) ?? 0];
  }
}

async function submitted(client: ApiClient, npi: string) {
  const { json } = await client.single({ npi });
  return { requestId: json.requests[0]?.request_id ?? '', batchId: json.batch_id };
}

/** The numbers of paid calls of the vendor and of the verifier. */
type Paid = readonly [number, number];

interface HeldStep {
  /**
   * Submits both requests, and holds the first one in the step.
   * @returns the function that releases it
   */
  readonly hold: (scene: Scene) => Promise<() => void | Promise<void>>;
  /** The longest turn that the first request may have during the step; null if it needs none. */
  readonly turnMs: number | null;
  /** The paid calls of the vendor and of the verifier before the turn is over. */
  readonly paidBefore?: Paid;
  /** The same, after both requests have ended. */
  readonly paid: Paid;
}

const STEPS: Readonly<Record<string, HeldStep>> = {
  plan: {
    turnMs: null,
    paid: [1, 1],
    async hold(scene) {
      const { npi, first } = scene;
      vendor.script(npi, () => foundStep(npi));
      const command = submitCommand(first, { npis: [npi] });
      const rules = { ...RULES, lookupTimeoutMs: LOOKUP_TIMEOUT_MS };
      const { batchId, requestIds } = acceptedIds(await submit(stack.db, command, rules));
      scene.held = { batchId, requestId: requestIds[0] ?? '' };
      const lock = await lockRows(sql, 'requests', 'batch_id', [batchId]);
      scene.sql = lock.sql;
      await stack.startedWorkflow(batchId);
      await lock.isInTheWay();
      await scene.submitSecond();
      return lock.release;
    },
  },
  'vendor call': {
    turnMs: CALL_MS,
    paidBefore: [1, 0],
    // The first call was lost, and is repeated once.
    paid: [2, 1],
    async hold(scene) {
      const held = heldScript(foundStep(scene.npi));
      vendor.script(scene.npi, (call) => {
        return call.nth === 1 ? held.script(call) : foundStep(scene.npi);
      });
      await scene.submitFirst();
      await scene.asked('submit');
      await scene.submitSecondToWait();
      return held.release;
    },
  },
  'vendor job': {
    // The turn of a poll.
    turnMs: CALL_MS,
    paid: [1, 1],
    async hold(scene) {
      const { npi } = scene;
      const polls = () => vendor.asked(npi, 'poll');
      let last = Number.POSITIVE_INFINITY;
      vendor.script(npi, ({ operation, nth }) => {
        if (operation === 'poll' && nth > last) return foundStep(npi);
        return { kind: 'pending', jobRef: npi, pollAfterMs: 200 };
      });
      await scene.submitFirst();
      await scene.asked('poll');
      await scene.submitSecond();
      last = polls() + 2;
      return () => {};
    },
  },
  check: {
    turnMs: CHECK_MS,
    paidBefore: [1, 1],
    // The first check was lost, too.
    paid: [1, 2],
    async hold(scene) {
      const { npi, email } = scene;
      const { promise, resolve } = Promise.withResolvers<void>();
      heldChecks.set(email, promise);
      vendor.script(npi, () => foundStep(npi));
      await scene.submitFirst();
      await eventually(async () => (checks.has(email) ? true : null));
      await scene.submitSecondToWait();
      return resolve;
    },
  },
  settlement: {
    turnMs: null,
    paid: [1, 1],
    async hold(scene) {
      const held = heldScript(foundStep(scene.npi));
      vendor.script(scene.npi, held.script);
      await scene.submitFirst();
      await scene.asked('submit');
      await scene.submitSecondToWait();
      const { organizationId } = scene.first;
      const lock = await lockRows(sql, 'credit_balances', 'organization_id', [
        organizationId,
      ]);
      held.release();
      await lock.isInTheWay();
      return lock.release;
    },
  },
};

const activityOf = ({ held }: Scene) => ({
  namespace: stack.client.options.namespace,
  execution: { workflowId: held.requestId },
  id: vendor.id,
});
const workflowOf = ({ held }: Scene) => stack.client.workflow.getHandle(held.requestId);

const ACTS: Readonly<Record<string, (scene: Scene) => Promise<unknown>>> = {
  canceled: (scene) => workflowOf(scene).cancel(),
  terminated: (scene) => workflowOf(scene).terminate('test'),
  paused: (scene) => stack.client.workflowService.pauseActivity(activityOf(scene)),
  reset: (scene) => stack.client.workflowService.resetActivity(activityOf(scene)),
  overdue: (scene) => scene.sql`
    update requests set deadline_at = clock_timestamp() where id = ${scene.held.requestId}`,
};

for (const [step, { hold, turnMs, paidBefore, paid }] of Object.entries(STEPS)) {
  for (const [how, act] of Object.entries(ACTS)) {
    // Operators can pause and reset only activities that are not local.
    if (step === 'plan' && (how === 'paused' || how === 'reset')) continue;
    test(`a request that is ${how} in its ${step} delays others by one turn at most`, async (t) => {
      const scene = await Scene.open();
      const release = await hold(scene);
      t.teardown(release);
      await act(scene);
      if (paidBefore) t.deepEqual(scene.paid(), paidBefore, 'no call overlaps another');
      const restMs = await endTurn(stack, scene.held.requestId);
      if (turnMs === null) t.is(restMs, null, 'the turn is free');
      else t.true((restMs ?? 0) <= turnMs, `${restMs} ms`);
      const { data } = await scene.other.completed(scene.second.batchId);
      t.is(data[0]?.email, scene.email);
      t.deepEqual(await scene.other.credits(), { balance: 9, total: 10, used: 1 });

      await release();
      if (how === 'paused') {
        await stack.client.workflowService
          .unpauseActivity(activityOf(scene))
          .catch(() => {});
      }
      if (how === 'overdue') await stack.reconcile();
      await scene.first.completed(scene.held.batchId);
      t.deepEqual(scene.paid(), paid);
    });
  }
}
