import test, { type ExecutionContext } from 'ava';
import { sql as text } from 'drizzle-orm';
import { takePlaces } from '../../db/accounts/limits.ts';
import { suspendWebhooks } from '../../db/accounts/organizations.ts';
import { rotateWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { nextCandidate, recordUndecided } from '../../db/lookups/candidate-checks.ts';
import { copyKnown } from '../../db/lookups/candidates.ts';
import { admitCall, type CallOutcome, recordOne } from '../../db/lookups/sources.ts';
import { giveBackTurn } from '../../db/lookups/turns.ts';
import { recordVendorJob } from '../../db/lookups/vendor-attempts.ts';
import { beginVendorStep } from '../../db/lookups/vendor-steps.ts';
import { noteWorker, readBuilds } from '../../db/operations/workers.ts';
import {
  claimTurn,
  claimUnfinished,
  claimWorkflowTurn,
  listToStart,
  markStarted,
} from '../../db/requests/outbox.ts';
import { submit } from '../../db/requests/submit.ts';
import { claimUnsubmitted } from '../../db/uploads/parts.ts';
import { claimDelivery, recordAttempt } from '../../db/webhooks/attempts.ts';
import { admitToAddresses } from '../../db/webhooks/networks.ts';
import { resend } from '../../db/webhooks/resends.ts';
import { fresh } from '../support/database.ts';
import {
  logAttempt,
  responded,
  startDelivering,
  WEBHOOK_RULES,
} from '../support/deliveries.ts';
import {
  acceptedIds,
  BY,
  joinLookups,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { uploadInParts } from '../support/uploads.ts';

// Tests that nothing waits for a time that was stored before PostgreSQL's clock was set back, for
// example by a failover to a server whose clock is right. Each stored time is listed in COLUMNS.
// The times that something waits for are set while the clock is ten minutes ahead. Then the clock is
// set back, and the work must go on within its usual wait.

const AHEAD_MS = 600_000;
const SECOND = 1000;
const MINUTE = 60 * SECOND;

const life = fresh(test, () => startDelivering(async () => responded(200)));

test.before(() => life.time.freeze());

let nextNpi = 2_000_000_000;

async function requestsOf(count: number): Promise<string[]> {
  const organization = await openOrganization(life.db, 1000);
  const npis = Array.from({ length: count }, () => String(nextNpi++));
  const submitted = await submit(life.db, submitCommand(organization, { npis }), RULES);
  return acceptedIds(submitted).requestIds;
}

function admit(
  source: string,
  requestId: string | null = null,
  slotMs: number | null = null,
) {
  const rates = slotMs === null ? [] : [{ calls: 1, perMs: slotMs / 1.03 }];
  const limits = { rates, dailyCredits: null };
  return admitCall(life.db, {
    source,
    limits,
    cost: 1,
    requestId,
    patienceMs: 15 * MINUTE,
  });
}

async function record(source: string, outcome: CallOutcome): Promise<void> {
  const { era } = await admit(source);
  await recordOne(life.db, source, era, outcome);
}

/** Makes a request wait as it is asked to, until its call is admitted. Returns its whole wait. */
async function waitForCall(source: string, requestId: string, slotMs: number) {
  let waitedMs = 0;
  while (waitedMs < AHEAD_MS) {
    const admission = await admit(source, requestId, slotMs);
    if (admission.kind !== 'wait') return waitedMs;
    await life.time.advance(admission.afterMs);
    waitedMs += admission.afterMs;
  }
  return waitedMs;
}

/** Makes a delivery wait as it is asked to, until it may be attempted. Returns its whole wait. */
async function waitForAttempt(deliveryId: string): Promise<number> {
  let waitedMs = 0;
  while (waitedMs < AHEAD_MS) {
    const claimed = await claimDelivery(life.db, deliveryId, WEBHOOK_RULES);
    if (claimed.kind !== 'wait') return waitedMs;
    const afterMs = Math.max(claimed.afterMs, SECOND);
    await life.time.advance(afterMs);
    waitedMs += afterMs;
  }
  return waitedMs;
}

/** Makes an attempt that the receiver does not respond to. */
async function attemptInVain(deliveryId: string, afterMs: number): Promise<void> {
  const claimed = await claimDelivery(life.db, deliveryId, WEBHOOK_RULES);
  if (claimed.kind !== 'attempt') throw new Error(JSON.stringify(claimed));
  const attempt = {
    startedAt: claimed.claim.at,
    durationMs: 5,
    statusCode: null,
    reason: 'timeout_total',
    responseExcerpt: null,
  } as const;
  const silent = { kind: 'silent', reason: 'timeout_total', restMs: 5000 } as const;
  const outcome = { state: 'pending', afterMs } as const;
  await recordAttempt(life.db, claimed.claim, attempt, outcome, silent);
}

let hosts = 0;

/** Creates deliveries of a new organization to a new host. */
async function deliveriesTo(count: number, organization = life.organization()) {
  hosts += 1;
  return life.deliveries(await organization, `https://h${hosts}.example/hook`, count);
}

const vendorCall = (requestId: string, vendor: string) =>
  beginVendorStep(life.db, {
    ...{ requestId, vendor, mayRepeat: true, callMs: 5 * SECOND, freshnessMs: 1000 },
    ...{ patienceMs: 0, limits: { rates: [], dailyCredits: null }, cost: () => 1 },
  });

type Check = (t: ExecutionContext) => Promise<void>;

/**
 * The waits. Each function runs while the clock is ahead, and returns what must be true after the
 * clock was set back.
 */
const WAITS = {
  async 'expected slots of a source'() {
    const [one = '', waiting = '', gone = '', next = ''] = await requestsOf(4);
    for (const id of [one, waiting, gone]) await admit('slow', id, 10 * SECOND);
    return async (t) => {
      t.true((await waitForCall('slow', waiting, 10 * SECOND)) <= 16 * SECOND);
      t.true((await waitForCall('slow', next, 10 * SECOND)) <= 16 * SECOND);
    };
  },
  async 'reserved slots of a source'() {
    const [one = '', waiting = ''] = await requestsOf(2);
    for (const id of [one, waiting]) await admit('quick', id, SECOND);
    return async (t) => {
      t.true((await waitForCall('quick', waiting, SECOND)) <= 7 * SECOND);
    };
  },
  async "a source's breaker"() {
    for (let n = 0; n < 5; n += 1)
      await record('broken', { kind: 'failed', why: 'upstream' });
    const { kind } = await admit('broken');
    return async (t) => {
      t.deepEqual([kind, (await admit('broken')).kind], ['wait', 'go']);
    };
  },
  async "a source's pause"() {
    await record('paused', { kind: 'rate_limit', afterMs: 5 * MINUTE });
    const { kind } = await admit('paused');
    return async (t) => {
      t.is(kind, 'wait');
      const requiredVerifiers = [{ source: 'paused', cost: 1, dailyCredits: null }];
      const call = { source: 'dependent', cost: 1, requestId: null, patienceMs: 0 };
      const limits = { rates: [], dailyCredits: null };
      const dependent = await admitCall(life.db, { ...call, limits, requiredVerifiers });
      t.is(dependent.kind, 'go');
      await record('paused', { kind: 'rate_limit', afterMs: 2 * SECOND });
      const again = await admit('paused');
      t.true(again.kind === 'wait' && again.afterMs <= 2 * SECOND);
    };
  },
  async 'the turn of a worker that died'() {
    const [requestId = ''] = await requestsOf(1);
    await joinLookups(life.db, [requestId]);
    const first = await vendorCall(requestId, 'dead');
    return async (t) => {
      t.is(first.kind, 'ask');
      t.like(await vendorCall(requestId, 'dead'), { kind: 'wait', why: 'shared_lookup' });
      // The stored end is too far ahead, so the longest turn of any vendor counts.
      await life.time.advance(225 * SECOND);
      t.is((await vendorCall(requestId, 'dead')).kind, 'ask');
    };
  },
  async "the next poll of a vendor's job"() {
    const [requestId = ''] = await requestsOf(1);
    await joinLookups(life.db, [requestId]);
    const first = await vendorCall(requestId, 'slow-job');
    if (first.kind !== 'ask') throw new Error(first.kind);
    await recordVendorJob(life.db, first.key, 'job', 30 * SECOND, { kind: 'responded' });
    await giveBackTurn(life.db, first.turn);
    return async (t) => {
      t.like(await vendorCall(requestId, 'slow-job'), { kind: 'ask', jobRef: 'job' });
    };
  },
  async 'the next check of a greylisted address'() {
    const [, requestId = ''] = await requestsOf(2);
    const npi = String(nextNpi - 1);
    await joinLookups(life.db, [requestId]);
    const step = await vendorCall(requestId, 'greylisting');
    if (step.kind !== 'ask') throw new Error(step.kind);
    const { turn } = step;
    const { lookupId } = turn;
    const email = 'jane@greylisted.example';
    const known = { npi, lookupId, listed: [email], freshnessMs: 1000, canVerify: true };
    await copyKnown(life.db, known);
    await recordUndecided(life.db, { lookupId, email }, [], 5 * MINUTE);
    const next = () =>
      nextCandidate(life.db, turn, {
        ...{ employerDomains: [], except: [], isDeadline: false },
        ...{
          greylistMs: 5 * MINUTE,
          turnMs: MINUTE,
          requestedType: 'any',
          freshnessMs: RULES.freshnessMs,
        },
      });
    const paused = await next();
    return async (t) => {
      t.deepEqual(paused, { candidate: null, areLater: true, isFound: false });
      t.is((await next())?.candidate?.email, email);
    };
  },
  async "the sweep's turns"() {
    const turns = () =>
      Promise.all([
        claimTurn(life.db, 15 * SECOND, 'default'),
        claimWorkflowTurn(life.db, 15 * SECOND, 'default'),
      ]);
    await turns();
    return async (t) => {
      t.deepEqual(await turns(), [{ isHome: true }, true]);
    };
  },
  async 'batches whose workflow was never started'() {
    const organization = await openOrganization(life.db, 10);
    const { batchId } = await submitAccepted(life.db, organization, {
      npis: [String(nextNpi++)],
    });
    return async (t) => {
      const listed = await listToStart(life.db, 5 * SECOND, 1000);
      t.true(listed.some((one) => one.batchId === batchId));
    };
  },
  async 'batches whose workflow was started'() {
    const organization = await openOrganization(life.db, 10);
    const { batchId } = await submitAccepted(life.db, organization, {
      npis: [String(nextNpi++)],
    });
    await markStarted(life.db, batchId);
    return async (t) => {
      const claimed = await claimUnfinished(life.db, MINUTE, 1000);
      t.true(claimed.some((one) => one.batchId === batchId));
      const again = await claimUnfinished(life.db, MINUTE, 1000);
      t.false(again.some((one) => one.batchId === batchId));
    };
  },
  async 'uploads whose workflow was started'() {
    const organization = await openOrganization(life.db, 10);
    const uploadId = await uploadInParts(life.db, organization, { parts: 2, size: 1 });
    return async (t) => {
      const claimed = await claimUnsubmitted(life.db, MINUTE, 1000);
      t.true(claimed.some((one) => one.uploadId === uploadId));
    };
  },
  async 'heartbeats of a worker that died'() {
    const place = { namespace: 'set-back', taskQueue: 'set-back' };
    await noteWorker(life.db, { ...place, id: 'dead', buildId: 'old' });
    return async (t) => {
      await noteWorker(life.db, { ...place, id: 'alive', buildId: 'new' });
      await life.time.advance(46 * SECOND);
      await noteWorker(life.db, { ...place, id: 'alive', buildId: 'new' });
      const builds = await readBuilds(life.db, place);
      t.deepEqual([builds.get('old'), builds.get('new')], ['silent', 'live']);
    };
  },
  async 'an attempt of a delivery by a worker that died'() {
    const [id = ''] = await deliveriesTo(1);
    await claimDelivery(life.db, id, WEBHOOK_RULES);
    return async (t) => {
      t.true((await waitForAttempt(id)) <= 25 * SECOND);
    };
  },
  async 'the next attempt of a delivery'() {
    const [id = ''] = await deliveriesTo(1);
    await attemptInVain(id, 5 * SECOND);
    return async (t) => {
      t.true((await waitForAttempt(id)) <= 10 * SECOND);
    };
  },
  async 'a delivery whose organization was suspended'() {
    const organization = await life.organization();
    const [id = ''] = await deliveriesTo(1, Promise.resolve(organization));
    await suspendWebhooks(life.db, BY, organization.organizationId, true);
    await claimDelivery(life.db, id, WEBHOOK_RULES);
    await suspendWebhooks(life.db, BY, organization.organizationId, false);
    return async (t) => {
      t.true((await waitForAttempt(id)) <= 5 * MINUTE);
    };
  },
  async 'deliveries to a host that is away'() {
    const [waiting = '', ...failing] = await deliveriesTo(6);
    await attemptInVain(waiting, 0);
    for (const id of failing.slice(1)) await attemptInVain(id, 5 * SECOND);
    const [last = ''] = failing;
    await attemptInVain(last, 0);
    const held = await claimDelivery(life.db, waiting, WEBHOOK_RULES);
    return async (t) => {
      t.like(held, { kind: 'wait', why: 'host_away' });
      t.true((await waitForAttempt(waiting)) <= MINUTE);
    };
  },
  async 'the queue of deliveries to a busy host'() {
    const ids = await deliveriesTo(40);
    const claim = (from: number, to: number) =>
      ids.slice(from, to).map((id) => () => claimDelivery(life.db, id, WEBHOOK_RULES));
    for (const next of claim(0, 15)) await next();
    return async (t) => {
      for (const next of claim(20, 30)) t.is((await next()).kind, 'attempt');
      for (const next of claim(30, 35)) {
        const claimed = await next();
        t.true(claimed.kind === 'wait' && claimed.why === 'no_room');
        t.true(claimed.kind === 'wait' && claimed.afterMs <= 5 * SECOND);
      }
    };
  },
  async 'the attempts of the last second to a host'() {
    const [sent = '', waiting = ''] = await deliveriesTo(2);
    await claimDelivery(life.db, sent, WEBHOOK_RULES);
    await life.db.drizzle.execute(text`
      insert into webhook_attempts (delivery_id, n, started_at, duration_ms)
      select ${sent}, n, travel.clock_timestamp(), 1 from generate_series(1, 200) n`);
    return async (t) => {
      t.is(await waitForAttempt(waiting), 0);
    };
  },
  async 'attempts to an address that never responded'() {
    const customers = await Promise.all(
      Array.from({ length: 6 }, () => openOrganization(life.db, 0)),
    );
    const address = ['192.0.2.77'];
    const admitted = async () => {
      const asked = customers.map(({ organizationId }) =>
        admitToAddresses(life.db, organizationId, address),
      );
      return (await Promise.all(asked)).flat().length;
    };
    let before = 0;
    for (let n = 0; n < 20; n += 1) before += await admitted();
    return async (t) => {
      t.is(before, 100);
      await life.time.advance(3 * MINUTE);
      t.is(await admitted(), 1, 'one of all customers');
      t.is(await admitted(), 0);
    };
  },
  async "a customer's resends"() {
    const organization = await life.organization();
    const [deliveryId = ''] = await deliveriesTo(1, Promise.resolve(organization));
    const [row] = await life.db.drizzle.execute<{ id: string }>(text`
      select batch_id as id from webhook_deliveries where id = ${deliveryId}`);
    const owner = { ...organization, batchId: row?.id ?? '' };
    const own = { kind: 'one', deliveryId, owner } as const;
    const resendOwn = async () => {
      await logAttempt(life.db, deliveryId, 200, 'delivered');
      return await resend(life.db, own, 'customer');
    };
    for (let n = 0; n < 10; n += 1) await resendOwn();
    const limited = await resendOwn();
    return async (t) => {
      t.is(limited.kind, 'limited');
      t.is((await resend(life.db, own, 'customer')).kind, 'resent');
    };
  },
  async 'the next rotation of a webhook secret'() {
    const { organizationId } = await openOrganization(life.db, 0);
    await rotateWebhookSecret(life.db, BY, organizationId);
    return async (t) => {
      await t.notThrowsAsync(rotateWebhookSecret(life.db, BY, organizationId));
    };
  },
  async 'the rate limit of a key'() {
    const { keyId } = await openOrganization(life.db, 0);
    const take = () => takePlaces(life.db, { keyId, requestsPerMinute: 3 }, MINUTE, 3);
    await take();
    return async (t) => {
      const { taken, freeInMs } = await take();
      t.deepEqual([taken, freeInMs], [0, MINUTE]);
    };
  },
} as const satisfies Record<string, () => Promise<Check>>;

/**
 * The kinds of stored times:
 * - `fact`: the time when something happened. Nothing waits for it.
 * - `end`: the time until which something is allowed, kept, or worked on. It may be later, and
 *   nothing waits for it.
 * - `backup`: only the sweep waits for it, before it looks whether the workflow is lost. After the
 *   clock was set back, it looks later by as much.
 * - a name in `WAITS`
 */
type Kind = 'fact' | 'end' | 'backup' | keyof typeof WAITS;

const COLUMNS: Readonly<Record<string, Kind>> = {
  'api_keys.created_at': 'fact',
  'api_keys.expires_at': 'end',
  'api_keys.revoked_at': 'fact',
  'audit_log.at': 'fact',
  'batches.admitted_at': 'batches whose workflow was never started',
  'batches.checked_at': 'batches whose workflow was started',
  'batches.created_at': 'fact',
  'batches.deadline_at': 'end',
  'batches.started_at': 'batches whose workflow was started',
  'batches.updated_at': 'fact',
  'candidates.check_after': 'the next check of a greylisted address',
  'candidates.claimed_date': 'fact',
  'candidates.named_at': 'fact',
  'candidates.validated_at': 'fact',
  'console_sessions.created_at': 'fact',
  'console_sessions.used_at': 'fact',
  'email_checks.at': 'fact',
  'entitlements.charged_at': 'fact',
  'idempotency_keys.created_at': 'fact',
  'idempotency_keys.expires_at': 'end',
  'import_runs.finished_at': 'fact',
  'import_runs.started_at': 'fact',
  'ledger_entries.created_at': 'fact',
  'lookups.closed_at': 'fact',
  'lookups.opened_at': 'fact',
  'lookups.turn_until': 'the turn of a worker that died',
  'organizations.closed_at': 'fact',
  'organizations.created_at': 'fact',
  'organizations.erased_at': 'fact',
  'organizations.previous_webhook_secret_expires_at':
    'the next rotation of a webhook secret',
  'providers.imported_at': 'fact',
  'rate_windows.hits': 'the rate limit of a key',
  'requests.accepted_at': 'fact',
  'requests.deadline_at': 'end',
  'requests.email_last_validated_at': 'fact',
  'requests.erased_at': 'fact',
  'requests.settled_at': 'fact',
  'requests.started_at': 'fact',
  'routines.ended_at': 'fact',
  'secret_keys.created_at': 'fact',
  'source_health.open_until': "a source's breaker",
  'source_health.opened_at': "a source's breaker",
  'source_health.paused_at': "a source's pause",
  'source_health.paused_until': "a source's pause",
  'source_rates.next_at': 'expected slots of a source',
  'source_slots.asked_at': 'expected slots of a source',
  'source_slots.slot_at': 'reserved slots of a source',
  'stored_emails.first_seen_at': 'fact',
  'stored_emails.last_validated_at': 'fact',
  'stored_emails.professional_sought_at': 'fact',
  'stored_emails.updated_at': 'fact',
  'suppressions.created_at': 'fact',
  'sweeps.due_at': "the sweep's turns",
  'sweeps.swept_at': 'fact',
  'sweeps.workflows_due_at': "the sweep's turns",
  'uploads.checked_at': 'uploads whose workflow was started',
  'uploads.created_at': 'fact',
  'uploads.expires_at': 'end',
  'uploads.started_at': 'fact',
  'uploads.notified_at': 'fact',
  'uploads.submitted_at': 'fact',
  'used_credits.hour': 'fact',
  'vendor_attempts.ended_at': 'fact',
  'vendor_attempts.next_poll_at': "the next poll of a vendor's job",
  'vendor_attempts.polled_at': "the next poll of a vendor's job",
  'vendor_attempts.started_at': 'fact',
  'vendor_profiles.seen_at': 'fact',
  'webhook_attempts.started_at': 'the attempts of the last second to a host',
  'webhook_blocks.created_at': 'fact',
  'webhook_deliveries.checked_at': 'backup',
  'webhook_deliveries.created_at': 'backup',
  'webhook_deliveries.customer_resends': "a customer's resends",
  'webhook_deliveries.decided_at': 'fact',
  'webhook_deliveries.due_at': 'the next attempt of a delivery',
  'webhook_deliveries.leased_until': 'an attempt of a delivery by a worker that died',
  'webhook_deliveries.step_at': 'deliveries to a host that is away',
  'webhook_hosts.accepted_at': 'fact',
  'webhook_hosts.failing_since': 'fact',
  'webhook_hosts.open_until': 'deliveries to a host that is away',
  'webhook_hosts.turn_at': 'the queue of deliveries to a busy host',
  'webhook_networks.spent_until': 'attempts to an address that never responded',
  'workers.seen_at': 'heartbeats of a worker that died',
  'workers.stopped_at': 'fact',
};

test.serial('every column with a time is listed with what waits for it', async (t) => {
  const rows = await life.db.drizzle.execute<{ name: string }>(text`
    select c.relname || '.' || a.attname as name
      from pg_attribute a join pg_class c on c.oid = a.attrelid
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
       and a.attnum > 0 and not a.attisdropped
       and a.atttypid in ('timestamptz'::regtype, 'timestamptz[]'::regtype)`);
  t.deepEqual(rows.map(({ name }) => name).sort(), Object.keys(COLUMNS).sort());
});

for (const [name, setUp] of Object.entries(WAITS)) {
  test.serial(
    `after the clock was set back, nothing waits longer: ${name}`,
    async (t) => {
      await life.time.advance(AHEAD_MS);
      const check: Check = await setUp();
      await life.time.advance(-AHEAD_MS);
      await check(t);
    },
  );
}
