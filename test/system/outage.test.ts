import { join } from 'node:path';
import test from 'ava';
import postgres from 'postgres';
import { migrate } from '../../db/operations/migrate.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { temporaryFolder } from '../support/database.ts';
import {
  type ApiResponse,
  eventually,
  type SubmitResponse,
} from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

// Tests the API without PostgreSQL. It responds with 503, writes nothing by halves, and becomes
// ready again by itself.

test('if PostgreSQL is killed under load, submits get a 202 or 503, and none is lost', async (t) => {
  const dataDir = join(temporaryFolder(t.teardown), 'data');
  let server = await startPostgres({ dataDir });
  t.teardown(() => server.stop());
  const { url, port } = server;
  await migrate(url);
  const api = await startApi({ databaseUrl: url });
  t.teardown(api.stop);
  const client = await api.organization(100_000);
  const responses: ApiResponse<SubmitResponse>[] = [];
  let running = true;
  const submitting = Array.from({ length: 8 }, async () => {
    while (running)
      responses.push(
        await client.bulk({ npis: ['2000000010', '2000000028', '2000000036'] }),
      );
  });
  const count = (status: number) =>
    responses.filter((response) => response.status === status).length;
  const more = (status: number, than: number) =>
    eventually(async () => count(status) > than || null);

  for (let kill = 1; kill <= 3; kill += 1) {
    await more(202, count(202) + 10);
    process.kill(server.pid, 'SIGKILL');
    await server.exited;
    await more(503, count(503) + 5);
    // The API checks PostgreSQL once a second.
    await eventually(
      async () => (await fetch(`${api.baseUrl}/readyz`)).status === 503 || null,
    );
    t.is((await fetch(`${api.baseUrl}/healthz`)).status, 200);
    server = await startPostgres({ dataDir, port });
    await eventually(async () => (await fetch(`${api.baseUrl}/readyz`)).ok || null);
  }
  await more(202, count(202) + 10);
  running = false;
  await Promise.all(submitting);

  t.deepEqual(
    [...new Set(responses.map((response) => response.status))].sort(),
    [202, 503],
  );
  const refused = responses.find((response) => response.status === 503);
  t.like(refused?.json, { code: 'service_unavailable', status: 503 });
  t.is(refused?.headers.get('retry-after'), '5');

  const sql = postgres(url, { max: 1, onnotice: () => {} });
  t.teardown(() => sql.end());
  const batches = await sql`
    select b.id, b.total, count(r.id)::int as requests,
           (select count(*)::int from ledger_entries e where e.kind = 'hold'
              and e.request_id in (select id from requests where batch_id = b.id)) as holds
      from batches b left join requests r on r.batch_id = b.id group by b.id`;
  t.true(
    batches.every(
      (batch) => batch.total === batch.requests && batch.total === batch.holds,
    ),
  );
  const stored = new Set(batches.map((batch) => batch.id));
  const accepted = responses
    .filter((response) => response.status === 202)
    .map((response) => response.json.batch_id);
  t.deepEqual(
    accepted.filter((id) => !stored.has(id)),
    [],
  );
  const [balance] = await sql`
    select total::int, available::int, held::int, used::int from credit_balances
     where organization_id = ${client.organizationId}`;
  t.deepEqual(
    { ...balance },
    {
      total: 100_000,
      available: 100_000 - 3 * stored.size,
      held: 3 * stored.size,
      used: 0,
    },
  );
});
