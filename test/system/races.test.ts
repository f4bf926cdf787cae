import test from 'ava';
import { balanceOf } from '../../db/accounts/credits.ts';
import { issueKey, revokeKey } from '../../db/accounts/keys.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { fresh, freshDatabase } from '../support/database.ts';
import { auditLedger, mutantLedger, WITHOUT_LOCKS } from '../support/ledger.ts';
import type { Ledger } from '../support/model-client.ts';
import {
  acceptedIds,
  createCaller,
  type Organization,
  openOrganization,
  RULES,
  type SubmitResponse,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { postUntilResponse, startApiProcess } from '../support/programs.ts';
import { storeEmail } from '../support/stored.ts';

// Tests each race separately, between processes or pools that share only PostgreSQL. The comment at
// each test names the code without which it fails. TEST_RACE_ROUNDS sets how often the race for the
// last credit runs.

const ROUNDS = Number(process.env.TEST_RACE_ROUNDS ?? 2);
const BY = { actor: 'test', reason: 'race' };

const { db, sql, url } = freshDatabase(test);
const pools = [db, openDatabase({ url, poolSize: 24, applicationName: 'test' })] as const;
const apis = [
  fresh(test, () => startApiProcess(url)),
  fresh(test, () => startApiProcess(url)),
] as const;

test.after.always(() => pools[1].close());

const poolOf = (index: number) => pools[index % 2] ?? pools[0];
const apiOf = (index: number) => apis[index % 2] ?? apis[0];
const times = <T>(count: number, make: (index: number) => T) =>
  Array.from({ length: count }, (_, i) => make(i));
const npiOf = (index: number) => `1${String(index).padStart(9, '0')}`;
const audit = ({ organizationId }: Organization) =>
  auditLedger(sql, [organizationId], RULES.replayMs);

/** Opens an organization with several keys, each with its own rate limit. */
async function openWithKeys(credits: number, count: number) {
  const organization = await openOrganization(pools[0], credits);
  const { organizationId } = organization;
  const issued = await Promise.all(
    times(count, () => issueKey(pools[0], BY, organizationId, 'race')),
  );
  const keys = issued.map(({ apiKey }) => apiKey);
  return { ...organization, keyOf: (index: number) => keys[index % count] ?? '' };
}

// Fails without FOR UPDATE on the balance in `accept` of db/requests/submit.ts.
test.serial(
  "exactly one of 1,000 concurrent submits gets an organization's last credit",
  async (t) => {
    t.timeout(300_000 * ROUNDS);
    for (let round = 0; round < ROUNDS; round += 1) {
      const client = await openWithKeys(1, 10);
      const replies = await Promise.all(
        times(1000, (index) => {
          const body = { npi: npiOf(index) };
          return postUntilResponse(
            apiOf(index).url,
            client.keyOf(index),
            '/api/v1/email',
            body,
          );
        }),
      );
      const accepted = replies.filter(({ status }) => status === 202);
      const refused = replies.filter(({ status }) => status === 402);
      t.deepEqual([accepted.length, refused.length], [1, 999]);
      for (const { json } of refused)
        t.like(json, { required: 1, available: 0, shortfall: 1 });
      const balance = await balanceOf(pools[0], client.organizationId);
      t.deepEqual(balance, { total: 1, available: 0, held: 1, used: 0 });
      t.deepEqual(await audit(client), []);
    }
  },
);

// Fails without the primary key of idempotency_keys, which the insert in `claimIdempotencyKey` of
// db/requests/submit.ts waits on.
test.serial(
  '50 clients that share 100 Idempotency-Keys create exactly 100 batches',
  async (t) => {
    t.timeout(600_000);
    const client = await openWithKeys(100, 50);
    const texts = new Map<string, number>();
    let first = 0;
    for (let begin = 0; begin < 100; begin += 5) {
      const calls = times(250, (index) => ({
        key: begin + Math.floor(index / 50),
        caller: index % 50,
      }));
      const replies = await Promise.all(
        calls.map(({ key, caller }) =>
          postUntilResponse(
            apiOf(caller).url,
            client.keyOf(caller),
            '/api/v1/email',
            { npi: npiOf(key) },
            { 'idempotency-key': `key-${key}` },
          ),
        ),
      );
      for (const [index, { status, text, headers }] of replies.entries()) {
        t.is(status, 202);
        if (headers.get('idempotent-replayed') === null) first += 1;
        const seen = `${calls[index]?.key} ${text}`;
        texts.set(seen, (texts.get(seen) ?? 0) + 1);
      }
    }
    t.is(first, 100);
    t.deepEqual(
      [...texts.values()],
      times(100, () => 50),
    );
    const [batches] =
      await sql`select count(*)::int as n from batches where organization_id = ${client.organizationId}`;
    t.is(batches?.n, 100);
    t.deepEqual(await audit(client), []);
  },
);

// Fails unless the response is stored in the transaction of the batch (db/requests/submit.ts), and
// the 202 is sent after that.
test.serial(
  'kill -9 of the API loses no accepted batch and duplicates no batch',
  async (t) => {
    t.timeout(600_000);
    const api = await startApiProcess(url);
    t.teardown(() => api.stop());
    const client = await openWithKeys(40, 20);
    let responded = 0;
    let kills = 0;
    let restarted = Promise.resolve();
    const replies = await Promise.all(
      times(20, async (caller) => {
        const seen: string[] = [];
        for (let key = 0; key < 40; key += 1) {
          const reply = await postUntilResponse(
            api.url,
            client.keyOf(caller),
            '/api/v1/email/bulk',
            { npis: [npiOf(key)] },
            { 'idempotency-key': `key-${key}` },
          );
          t.is(reply.status, 202);
          seen.push(reply.text);
          responded += 1;
          // Kills right after a batch was acknowledged, while the other callers wait for the same
          // one.
          if (
            reply.headers.get('idempotent-replayed') === null &&
            responded > (kills + 1) * 150
          ) {
            kills += 1;
            restarted = restarted.then(() => api.kill()).then(() => api.start());
          }
        }
        return seen;
      }),
    );
    await restarted;
    t.true(kills >= 3);
    t.is(new Set(replies.map((seen) => seen.join('\n'))).size, 1);
    const told = (replies[0] ?? []).map((text) => JSON.parse(text) as SubmitResponse);
    const kept = await sql`
    select r.id, r.batch_id from requests r where r.organization_id = ${client.organizationId} order by r.id`;
    t.deepEqual(
      kept.map((row) => ({ ...row })),
      told.map(({ batch_id, requests }) => ({ id: requests[0]?.request_id, batch_id })),
    );
    t.deepEqual(await audit(client), []);
  },
);

/**
 * Settles requests as finished and as failed at once. Returns the number of requests that did not
 * end exactly once.
 */
async function raceTimeOuts(ledger: Ledger): Promise<number> {
  let wrong = 0;
  const organizations = await Promise.all(
    times(10, () => openOrganization(pools[0], 20)),
  );
  for (const [index, organization] of organizations.entries()) {
    const npis = times(20, (position) => npiOf(100_000 + index * 20 + position));
    const { requestIds } = await submitAccepted(pools[0], organization, { npis });
    // Every other NPI has an email, so that the race includes a charge.
    for (const npi of npis.filter((_, position) => position % 2 === 0)) await found(npi);
    const ends = await Promise.all(
      requestIds.map((requestId, position) =>
        Promise.allSettled([
          ledger.settle(poolOf(position), requestId, 'finished', 'result', RULES),
          ledger.settle(poolOf(position + 1), requestId, 'failed', 'time-out', RULES),
        ]),
      ),
    );
    for (const pair of ends) {
      const settled = pair.flatMap((end) =>
        end.status === 'fulfilled' ? [end.value] : [],
      );
      const winners = settled.filter(({ settledNow }) => settledNow).length;
      const statuses = new Set(settled.map(({ status }) => status)).size;
      if (settled.length !== 2 || winners !== 1 || statuses !== 1) wrong += 1;
    }
    wrong += (await audit(organization)).length;
  }
  return wrong;
}

const found = (npi: string) =>
  storeEmail(pools[0], {
    npi,
    email: 'a@example.com',
  });

// Fails without FOR UPDATE on balance and request in `lock` of db/requests/settle.ts. The second
// test removes these locks.
test.serial(
  'if a result and a time-out come at once, exactly one of them settles the request',
  async (t) => {
    t.is(await raceTimeOuts({ submit, settle }), 0);
  },
);

test.serial(
  'without row locks, a result and a time-out could both settle a request',
  async (t) => {
    t.true((await raceTimeOuts(await mutantLedger(WITHOUT_LOCKS))) > 0);
  },
);

/**
 * Submits one NPI in three bulks at once and stores its email at the same time. Returns the number
 * of deviations from one charge and two replays.
 */
async function raceBulks(
  ledger: Ledger,
  storedBefore: boolean,
  begin: number,
): Promise<number> {
  let wrong = 0;
  for (let round = 0; round < 20; round += 1) {
    const organization = await openOrganization(pools[0], 6);
    const npis = [npiOf(begin + round), npiOf(begin + 100 + round)];
    if (storedBefore) await found(npis[0] ?? '');
    const outcomes = await Promise.all(
      times(3, (index) =>
        ledger.submit(poolOf(index), submitCommand(organization, { npis }), RULES),
      ),
    );
    await found(npis[0] ?? '');
    const ends = await Promise.allSettled(
      outcomes.map((outcome, index) => {
        const requestId = acceptedIds(outcome).requestIds[0] ?? '';
        return ledger.settle(poolOf(index), requestId, 'finished', 'result', RULES);
      }),
    );
    const [seen] = await sql`
      select count(*) filter (where credits_used = 1)::int as charged, count(*) filter (where replayed)::int as replayed
        from requests where organization_id = ${organization.organizationId} and npi = ${npis[0] ?? ''}`;
    const { used } = await balanceOf(pools[0], organization.organizationId);
    if (seen?.charged !== 1 || seen?.replayed !== 2 || used !== 1) wrong += 1;
    wrong += ends.filter(({ status }) => status === 'rejected').length;
    wrong += (await audit(organization)).length;
  }
  return wrong;
}

// Fails without FOR UPDATE on the balance in `lockRequest` of db/requests/settle.ts and in
// `lockBalance` of db/requests/submit.ts, so that the second settlement sees the first one's
// charge. The conditional upsert of `claimEntitlements` protects a second time.
test.serial(
  'the same NPI in three concurrent bulk submits is charged once',
  async (t) => {
    t.is(await raceBulks({ submit, settle }, false, 200_000), 0);
    t.is(await raceBulks({ submit, settle }, true, 201_000), 0);
  },
);

test.serial(
  'without row locks, an NPI in concurrent bulk submits would be charged repeatedly',
  async (t) => {
    const mutant = await mutantLedger([
      ...WITHOUT_LOCKS,
      {
        file: 'requests/entitlements.ts',
        from: 'where e.charged_at <',
        to: 'where true or e.charged_at <',
      },
    ]);
    t.true((await raceBulks(mutant, false, 202_000)) > 0);
  },
);

// Fails without `charged.add` in `newRequests` of db/requests/submit.ts for the stored NPI, and
// without `findKnownEmails` in db/requests/settle.ts for the other one.
test.serial(
  'the same NPI 60 times in one bulk submit causes one charge and 59 free replays',
  async (t) => {
    for (const storedBefore of [true, false]) {
      const npi = npiOf(storedBefore ? 300_000 : 300_001);
      // A stored NPI costs one credit. Without a stored email, each of the 60 holds its own credit
      // until the first is settled.
      const organization = await openOrganization(pools[0], storedBefore ? 1 : 60);
      if (storedBefore) await found(npi);
      const { requestIds } = await submitAccepted(pools[0], organization, {
        npis: times(60, () => npi),
      });
      await found(npi);
      const settled = await Promise.all(
        requestIds.map((id, index) =>
          settle(poolOf(index), id, 'finished', 'result', RULES),
        ),
      );
      t.deepEqual([...new Set(settled.map(({ status }) => status))], ['completed']);
      const [seen] = await sql`
      select count(*) filter (where replayed)::int as replayed, sum(credits_used)::int as charged
        from requests where organization_id = ${organization.organizationId}`;
      t.deepEqual({ ...seen }, { replayed: 59, charged: 1 });
      t.like(await balanceOf(pools[0], organization.organizationId), {
        used: 1,
        held: 0,
      });
      t.deepEqual(await audit(organization), []);
    }
  },
);

// Fails unless `takePlaces` of db/accounts/limits.ts is one statement on one row. A window per
// process, or a read before the write, would admit more than 100.
test.serial(
  'at a rate limit of 100, two API processes admit exactly 100 of 101 requests',
  async (t) => {
    const organization = await openOrganization(pools[0], 0, 100);
    const replies = await Promise.all(
      times(101, (index) =>
        createCaller(apiOf(index).url, organization.apiKey).get('/api/v1/credits'),
      ),
    );
    const refused = replies.filter(({ status }) => status !== 200);
    t.deepEqual(
      refused.map(({ status }) => status),
      [429],
    );
    const wait = Number(refused[0]?.headers.get('retry-after'));
    t.true(wait >= 1 && wait <= 60);
  },
);

// Runs last, because later tests would run from an address with many failures. Fails if
// api/http/auth.ts trusts a key for longer than a second after the database has confirmed it.
test.serial(
  'a revoked API key is rejected by every API process after at most one second',
  async (t) => {
    const organization = await openOrganization(pools[0], 10_000);
    let refusedFrom = Number.POSITIVE_INFINITY;
    let seenBefore = 0;
    const { promise: warm, resolve: isWarm } = Promise.withResolvers<void>();
    // An address with many rejections gets 429 without a key check.
    const isRefused = (status: number) => status === 403 || status === 429;
    const callers = times(20, async (index) => {
      const caller = createCaller(apiOf(index).url, organization.apiKey);
      for (let call = 0; ; call += 1) {
        const sentAfter = performance.now() > refusedFrom;
        const { status } = await caller.single({
          npi: npiOf(400_000 + index * 1000 + call),
        });
        if (sentAfter) return status;
        if (status === 202) seenBefore += 1;
        else t.true(isRefused(status), `${status}`);
        if (seenBefore >= 60) isWarm();
      }
    });
    await warm;
    await revokeKey(pools[0], BY, organization.keyId);
    refusedFrom = performance.now() + 1000;
    t.true((await Promise.all(callers)).every(isRefused));
    const [batches] = await sql`
    select count(*)::int as n from batches where organization_id = ${organization.organizationId}`;
    t.is(batches?.n, seenBefore);
    t.deepEqual(await audit(organization), []);
  },
);
