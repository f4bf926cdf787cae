import test from 'ava';
import { sql } from 'drizzle-orm';
import { VENDORS } from '../../activities/vendors/catalogue.ts';
import { createSimulator } from '../../deploy/local/simulator.ts';
import { fresh } from '../support/database.ts';
import { sayThisMachine, startNameServer } from '../support/name-server.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';
import { ordinaryNpis } from '../support/vendors.ts';

// Tests domains whose name servers never respond, and the work for other domains at the same time.

/** At most 20 attempts run at once, each for some seconds. */
const SILENT = 80;
/** A failed query is cached for less than the wait, so each attempt waits for a name server. */
const UNTIL_THE_END = [0, ...Array.from({ length: 100 }, () => 4000)];
/** Its check digit is wrong, so it ends as `not_found` without a lookup. */
const NOBODY = '1234567890';
const [FOUND = ''] = ordinaryNpis('found', 1);

const server = fresh(test, async () => {
  const { close, ...rest } = await startNameServer((name, type) =>
    /silent/.test(name) ? 'silence' : sayThisMachine(name, type),
  );
  return { ...rest, stop: async () => close() };
});
const simulator = fresh(test, async () => {
  const { close, urls } = await createSimulator({ port: 0, speed: 20, apiKey: 'k' });
  return { urls, stop: close };
});
const stack = fresh(test, () => {
  const baseUrl = simulator.urls.rocketreach.replace('127.0.0.1', 'vendor.example');
  const vendor = VENDORS.rocketreach.create({
    baseUrl,
    apiKey: 'k',
    api: 'legacy',
    callMs: 30_000,
  });
  return startStack({
    dnsServers: [server.address],
    providers: [vendor],
    lookupTimeoutMs: 300_000,
    webhookScheduleMs: UNTIL_THE_END,
  });
});

test('domains whose name servers never respond do not delay other calls and webhooks', async (t) => {
  const attacker = await stack.organization();
  const submits = Array.from({ length: SILENT }, (_, n) =>
    attacker.single({
      npi: NOBODY,
      webhook: { url: `https://hook${n}.silent.example/` },
    }),
  );
  await Promise.all(submits);
  const hanging = async () => {
    const [row] = await stack.db.drizzle.execute<{ n: number }>(sql`
      select count(*)::int as n from webhook_deliveries d join batches b on b.id = d.batch_id
       where d.leased_until > clock_timestamp() and b.organization_id = ${attacker.organizationId}`);
    return row?.n ?? 0;
  };
  await eventually(async () => ((await hanging()) >= 10 ? true : null));
  const asked = new Set(
    server.questions.filter((question) => question.includes('silent')),
  );
  t.true(asked.size < 2 * SILENT, 'the rest waits for room');

  const other = await stack.organization();
  // The final dot bypasses the hosts file, so that name servers are queried.
  const url = `${stack.receiver.url.replace('127.0.0.1', 'localhost.')}/beside`;
  await other.single({ npi: FOUND, webhook: { url } });
  const { body } = await eventually(
    async () =>
      stack.receiver.deliveries().find(({ path }) => path === '/beside') ?? null,
  );
  const left = await hanging();
  t.true(left > 0 && left <= 20, `${left} at once`);
  t.like(JSON.parse(body).data[0], { npi: FOUND, status: 'completed' });
  for (const name of ['localhost', 'vendor.example'])
    t.true(server.questions.includes(`A ${name}`), name);
});
