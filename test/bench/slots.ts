import { sql } from 'drizzle-orm';
import type { SourceLimits } from '../../db/lookups/sources.ts';
import { storeRegistryResponse } from '../../db/providers/providers.ts';
import { startServers } from '../support/servers.ts';
import { type Stack, startStack, vendorSource } from '../support/stack.ts';
import {
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
  person,
} from '../support/vendors.ts';

/**
 * `node test/bench/slots.ts`: measures whether a source is called as often as its rate limit allows
 * while 300 NPIs wait for it, and how many activity attempts this takes. First a verifier at 5
 * calls per second, then a vendor at 3. Starts its own servers.
 */
const WAITING = 300;
const UNLIMITED: SourceLimits = { rates: [], dailyCredits: null };

const stopServers = await startServers();
try {
  await measure(
    'verifier reacher',
    5,
    `select at from email_checks where kind = 'verifier'`,
    {
      vendorLimits: UNLIMITED,
      reacherRates: ['5/1s'],
    },
  );
  await measure('vendor scripted', 3, 'select started_at as at from vendor_attempts', {
    vendorLimits: { rates: [{ calls: 3, perMs: 1000 }], dailyCredits: null },
    reacherRates: undefined,
  });
} finally {
  await stopServers();
}
process.exit();

interface Limits {
  readonly vendorLimits: SourceLimits;
  readonly reacherRates: readonly string[] | undefined;
}

/**
 * Measures the calls of a limited source.
 * @param calls a statement that returns the time of each call of the source, as `at`
 */
async function measure(
  source: string,
  perSecond: number,
  calls: string,
  { vendorLimits, reacherRates }: Limits,
) {
  const vendor = createScriptedVendor();
  const stack = await startStack({
    allSources: true,
    vendors: [vendorSource(vendor, { limits: vendorLimits })],
    reacherRates,
    lookupTimeoutMs: 15 * 60_000,
    lookupSlots: 400,
  });
  try {
    const client = await stack.organization(1000);
    const npis = ordinaryNpis('found', WAITING);
    for (const npi of npis) {
      vendor.script(npi, () => foundStep(npi));
      // Stores the registry's response in advance, because its own rate limit would hold up the
      // rest.
      const known = person(npi);
      if (known.kind === 'found')
        await storeRegistryResponse(stack.db, npi, known.provider);
    }
    const batches: string[] = [];
    while (npis.length > 0)
      batches.push((await client.bulk({ npis: npis.splice(0, 60) })).json.batch_id);
    for (const id of batches) await client.completed(id);
    const [made] = await stack.db.drizzle.execute<{ count: number; seconds: number }>(sql`
      select count(*)::int as count, extract(epoch from max(at) - min(at))::float8 as seconds
        from (${sql.raw(calls)}) made`);
    if (!made) throw new Error('no call was made');
    const [both] = await stack.db.drizzle.execute<{ calls: number }>(sql`
      select (select count(*) from vendor_attempts)::int
             + (select count(*) from email_checks where kind = 'verifier')::int as calls`);
    const rate = (made.count - 1) / made.seconds;
    const attempts = await attemptsOf(stack);
    const ended = await stack.db.drizzle.execute(sql`
      select status, reason, count(*)::int as requests from requests group by 1, 2 order by 3 desc`);
    console.log(
      `${source} at ${perSecond}/s with ${WAITING} waiting: ${rate.toFixed(2)} calls a second,`,
      `${Math.round((100 * rate) / perSecond)} % of the rate;`,
      `${attempts} attempts of activities for ${both?.calls} calls: ${(attempts / (both?.calls ?? 1)).toFixed(2)} each`,
    );
    console.log(
      ended
        .map((row) => `  ${row.requests} ${row.status} ${row.reason ?? ''}`)
        .join('\n'),
    );
  } finally {
    await stack.stop();
  }
}

/** Returns the number of activity attempts in the histories of all lookups. */
async function attemptsOf({ client, db }: Stack): Promise<number> {
  const requests = await db.drizzle.execute<{ id: string }>(sql`select id from requests`);
  let attempts = 0;
  for (const { id } of requests) {
    const { events } = await client.workflow.getHandle(id).fetchHistory();
    for (const event of events ?? [])
      attempts += event.activityTaskStartedEventAttributes?.attempt ?? 0;
  }
  return attempts;
}
