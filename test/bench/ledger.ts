import postgres, { type Sql } from 'postgres';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { migrate } from '../../db/operations/migrate.ts';
import { settle } from '../../db/requests/settle.ts';
import { submit } from '../../db/requests/submit.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import {
  acceptedIds,
  type Organization,
  openOrganization,
  RULES,
  submitCommand,
} from '../support/organization.ts';

// `node test/bench/ledger.ts`: measures submits and settlements per second, for one hot
// organization and for 50 at once. Each is a ratio to plain transactions that update one row, on
// the same PostgreSQL (a temporary one, without fsync) and in the same run. Ratios are comparable
// between machines, absolute numbers are not.

const CALLERS = 16;
const CALLS = Number(process.argv[2] ?? 2000);

const server = await startPostgres({});
try {
  await migrate(server.url);
  const db = openDatabase({
    url: server.url,
    poolSize: CALLERS,
    applicationName: 'bench',
  });
  const sql = postgres(server.url, { max: CALLERS, onnotice: () => {} });
  await compare(db, sql, 1);
  await compare(db, sql, 50);
  await sql.end();
  await db.close();
} finally {
  await server.stop();
}
process.exit();

async function compare(db: Database, sql: Sql, count: number): Promise<void> {
  const organizations = await Promise.all(
    Array.from({ length: count }, () => openOrganization(db, CALLS)),
  );
  const of = (call: number): Organization => {
    const organization = organizations[call % count];
    if (!organization) throw new Error('no organization was opened');
    return organization;
  };
  const requestIds: string[] = [];
  const plain = await rate((call) => updateOneRow(sql, of(call).organizationId));
  const submits = await rate(async (call) => {
    const npi = `1${String(count).padStart(2, '0')}${String(call).padStart(7, '0')}`;
    const outcome = await submit(db, submitCommand(of(call), { npis: [npi] }), RULES);
    requestIds.push(...acceptedIds(outcome).requestIds);
  });
  const settles = await rate((call) =>
    settle(db, requestIds[call] ?? '', 'failed', 'bench', RULES),
  );
  const after = await rate((call) => updateOneRow(sql, of(call).organizationId));
  const base = (plain + after) / 2;
  console.log(
    `${count} organization${count === 1 ? '' : 's'}, ${CALLERS} callers, ${CALLS} calls each:`,
  );
  for (const [name, perSecond] of Object.entries({
    'plain update': base,
    submit: submits,
    settle: settles,
  })) {
    console.log(
      `  ${name.padEnd(12)} ${perSecond.toFixed(0).padStart(6)} a second   ${(perSecond / base).toFixed(3)}`,
    );
  }
}

/** Runs a transaction that only locks and changes one row: begin, update, commit. */
async function updateOneRow(sql: Sql, organizationId: string): Promise<void> {
  await sql.begin(async (tx) => {
    await tx`update organizations set webhooks_suspended = false where id = ${organizationId}`;
  });
}

/** Returns calls per second of `CALLERS` concurrent callers. */
async function rate(call: (index: number) => Promise<unknown>): Promise<number> {
  let next = 0;
  const begun = performance.now();
  await Promise.all(
    Array.from({ length: CALLERS }, async () => {
      while (next < CALLS) {
        const index = next;
        next += 1;
        await call(index);
      }
    }),
  );
  return CALLS / ((performance.now() - begun) / 1000);
}
