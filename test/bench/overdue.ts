import { Client, Connection } from '@temporalio/client';
import { pino } from 'pino';
import postgres from 'postgres';
import { openDatabase } from '../../db/connection/client.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { submit } from '../../db/requests/submit.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { runReconciler } from '../../deploy/reconciler/reconciler.ts';
import { createControl } from '../../deploy/temporal/client.ts';
import {
  openOrganization,
  RULES,
  submitCommand,
  WORKER_RULES,
} from '../support/organization.ts';

// `node test/bench/overdue.ts`: measures how long one process takes to refund all requests that
// became overdue while no process was running. Temporal is down, and PostgreSQL is a temporary one
// without fsync.

const REQUESTS = Number(process.argv[2] ?? 10_000);
const ORGANIZATIONS = Number(process.argv[3] ?? 20);
const BULK = 50;

const server = await startPostgres({});
try {
  await migrate(server.url);
  const db = openDatabase({ url: server.url, poolSize: 10, applicationName: 'bench' });
  const sql = postgres(server.url, { max: 1, onnotice: () => {} });
  const organizations = await Promise.all(
    Array.from({ length: ORGANIZATIONS }, () => openOrganization(db, REQUESTS)),
  );
  for (let batch = 0; batch < REQUESTS / BULK; batch += 1) {
    const organization = organizations[batch % ORGANIZATIONS];
    if (!organization) throw new Error('no organization was opened');
    const npis = Array.from(
      { length: BULK },
      (_, index) => `1${String(batch * BULK + index).padStart(9, '0')}`,
    );
    await submit(db, submitCommand(organization, { npis }), RULES);
  }
  await sql`update requests set deadline_at = now()`;
  await sql`update batches set started_at = now()`;
  const stopping = new AbortController();
  const control = createControl(
    new Client({ connection: Connection.lazy({ address: '127.0.0.1:1' }) }),
    'bench',
  );
  const rules = {
    ...WORKER_RULES,
    sweep: { startAfterMs: 5000, checkEveryMs: 30_000 },
  };
  const begun = performance.now();
  const sweeps = runReconciler(
    { db, log: pino({ level: 'silent' }), control, rules },
    15_000,
    stopping.signal,
  );
  for (let open = 1; open > 0; ) {
    const [row] =
      await sql`select count(*)::int as open from requests where settled_at is null`;
    open = row?.open;
    if (open > 0) await new Promise((resolve) => setTimeout(resolve, 100));
  }
  const seconds = ((performance.now() - begun) / 1000).toFixed(1);
  console.log(
    `${REQUESTS} overdue requests of ${ORGANIZATIONS} organizations refunded in ${seconds} s`,
  );
  stopping.abort();
  await sweeps;
  await sql.end();
  await db.close();
} finally {
  await server.stop();
}
process.exit();
