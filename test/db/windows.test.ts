import test from 'ava';
import { transaction } from '../../db/connection/client.ts';
import { claimEntitlements, findKnownEmails } from '../../db/requests/entitlements.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { fresh, freshDatabase, travel } from '../support/database.ts';
import {
  acceptedIds,
  openOrganization,
  RULES,
  submitAccepted,
  submitCommand,
} from '../support/organization.ts';
import { storeEmail } from '../support/stored.ts';

// Tests windows and deadlines to the millisecond. The model tests move in days and skip these
// edges.

const { db, sql, url } = freshDatabase(test);
const time = fresh(test, () => travel(url));

test.before(() => time.freeze());

const EMAIL = {
  email: 'a@example.com',
  emailType: 'professional',
  source: 'test',
} as const;

/** Opens an organization that was charged for this NPI just now. */
async function charged(npi: string) {
  const organization = await openOrganization(db, 100_000);
  await storeEmail(db, { ...EMAIL, npi });
  const { requestIds } = await submitAccepted(db, organization, { npis: [npi] });
  return { ...organization, requestId: requestIds[0] ?? '' };
}

for (const offset of [-1, 0, 1]) {
  const when = ['1 ms before', 'exactly at', '1 ms after'][offset + 1];

  test(`${when} the end of the replay window, a request is ${offset > 0 ? 'charged' : 'a free replay'}`, async (t) => {
    const npi = `100000000${offset + 1}`;
    const { organizationId, requestId } = await charged(npi);
    const [row] =
      await sql`select charged_at from entitlements where organization_id = ${organizationId}`;
    const at: Date = row?.charged_at;
    await sql`update entitlements set charged_at = ${new Date(at.getTime() - RULES.replayMs - offset)}
      where organization_id = ${organizationId}`;
    await sql`update stored_emails set last_validated_at = '2026-01-01' where npi = ${npi}`;
    const request = { id: requestId, npi, emailType: EMAIL.emailType, settledAt: at };
    await transaction(db, async (tx) => {
      const asked = {
        organizationId,
        npis: [npi],
        requestedType: 'any',
        at,
        lookupId: null,
      } as const;
      const known = await findKnownEmails(tx, asked, { ...RULES, freshnessMs: 0 });
      t.is(known.get(npi)?.replayed, offset <= 0 ? true : undefined);
      const claimed = await Promise.allSettled([
        claimEntitlements(tx, organizationId, [request], RULES.replayMs),
      ]);
      t.is(claimed[0].status, offset > 0 ? 'fulfilled' : 'rejected');
    });
  });

  test(`${when} the time when a stored email goes stale, it is ${offset > 0 ? 'not used' : 'used'}`, async (t) => {
    const npi = `100000001${offset + 1}`;
    const lastValidatedAt = new Date('2026-01-01T00:00:00.000Z');
    await storeEmail(db, { ...EMAIL, npi, lastValidatedAt });
    const { freshnessMs } = RULES;
    const at = new Date(lastValidatedAt.getTime() + freshnessMs + offset);
    await transaction(db, async (tx) => {
      const asked = {
        organizationId: 'nobody',
        npis: [npi],
        requestedType: 'any',
        at,
        lookupId: null,
      } as const;
      const known = await findKnownEmails(tx, asked, RULES);
      t.is(known.has(npi), offset <= 0);
    });
  });
}

/** Returns the time `behind` milliseconds ago by PostgreSQL's frozen clock. */
async function edgeBefore(behind: number): Promise<Date> {
  const [row] = await sql`select clock_timestamp() as now`;
  return new Date(row?.now.getTime() - behind);
}

test('submitting an NPI again is free until the last millisecond of the replay window', async (t) => {
  const npi = '1000000020';
  const organization = await charged(npi);
  for (const behind of [-1, 0, 1]) {
    const edge = await edgeBefore(behind);
    await sql`update entitlements set charged_at = ${new Date(edge.getTime() - RULES.replayMs)}
               where organization_id = ${organization.organizationId}`;
    const { batchId } = await submitAccepted(db, organization, { npis: [npi] });
    const [seen] =
      await sql`select status, replayed, settled_at from requests where batch_id = ${batchId}`;
    t.is(seen?.settled_at.getTime() - edge.getTime(), behind);
    t.like(seen, { status: 'completed', replayed: behind <= 0 });
  }
});

test('a result that arrives by the last millisecond of the replay window is free', async (t) => {
  const npi = '1000000030';
  const organization = await charged(npi);
  const { organizationId } = organization;
  for (const behind of [-1, 0, 1]) {
    const edge = await edgeBefore(behind);
    await sql`delete from stored_emails where npi = ${npi}`;
    await sql`update entitlements set charged_at = '2020-01-01' where organization_id = ${organizationId}`;
    const outcome = await submit(db, submitCommand(organization, { npis: [npi] }), RULES);
    const requestId = acceptedIds(outcome).requestIds[0] ?? '';
    await storeEmail(db, { ...EMAIL, npi });
    await sql`update entitlements set charged_at = ${new Date(edge.getTime() - RULES.replayMs)}
               where organization_id = ${organizationId}`;
    await settle(db, requestId, 'finished', 'test', RULES);
    const [seen] =
      await sql`select status, replayed, settled_at from requests where id = ${requestId}`;
    t.is(seen?.settled_at.getTime() - edge.getTime(), behind);
    t.like(seen, { status: 'completed', replayed: behind <= 0 });
  }
});

test('a found address that is too old when its request settles is recorded as "none_valid"', async (t) => {
  const npi = '1000000050';
  const organization = await openOrganization(db, 100_000);
  for (const behind of [-1, 0, 1]) {
    const edge = await edgeBefore(behind);
    await sql`delete from stored_emails where npi = ${npi}`;
    await sql`update entitlements set charged_at = '2020-01-01'
               where organization_id = ${organization.organizationId}`;
    const outcome = await submit(db, submitCommand(organization, { npis: [npi] }), RULES);
    const requestId = acceptedIds(outcome).requestIds[0] ?? '';
    const lastValidatedAt = new Date(edge.getTime() - RULES.freshnessMs);
    await storeEmail(db, { ...EMAIL, npi, lastValidatedAt });
    const { status, reason } = await settle(db, requestId, 'finished', null, RULES);
    const isFresh = behind <= 0;
    t.is(status, isFresh ? 'completed' : 'not_found');
    t.is(reason, isFresh ? null : 'none_valid');
  }
});

test('a request fails if its result comes 1 ms after the deadline', async (t) => {
  const organization = await openOrganization(db, 100_000);
  for (const behind of [-1, 0, 1]) {
    const edge = await edgeBefore(behind);
    const outcome = await submit(
      db,
      submitCommand(organization, { npis: ['1000000040'] }),
      RULES,
    );
    const requestId = acceptedIds(outcome).requestIds[0] ?? '';
    await sql`update requests set deadline_at = ${edge} where id = ${requestId}`;
    const { status } = await settle(db, requestId, 'finished', 'test', RULES);
    const [seen] =
      await sql`select settled_at, reason from requests where id = ${requestId}`;
    t.is(seen?.settled_at.getTime() - edge.getTime(), behind);
    t.is(status, behind <= 0 ? 'not_found' : 'failed');
    t.is(seen?.reason, behind <= 0 ? 'test' : 'deadline');
  }
});
