import { Client, Connection } from '@temporalio/client';
import type { ExecutionContext } from 'ava';
import { startPostgres } from '../../../../deploy/local/postgres.ts';
import { temporaryFolder, withSql } from '../../../support/database.ts';
import { test } from '../../../support/on-server.ts';
import { eventually } from '../../../support/organization.ts';
import { startTemporalServer } from '../../../support/temporal-server.ts';

// Tests the start of Temporal's real server on PostgreSQL.

const NAMESPACE = 'kept';

const temporalDatabase = (url: string) => url.replace(/postgres$/, 'temporal');

/**
 * Returns the members that the server would join, including those of an earlier start, optionally
 * filtered.
 */
async function membersOf(
  url: string,
  among: readonly string[] | null = null,
): Promise<string[]> {
  const rows = await withSql(
    temporalDatabase(url),
    (sql) =>
      sql<{ id: string }[]>`select encode(host_id, 'hex') as id from cluster_membership`,
  );
  return rows.map(({ id }) => id).filter((id) => among?.includes(id) ?? true);
}

async function connect(t: ExecutionContext, address: string): Promise<Client> {
  const connection = await Connection.connect({ address });
  t.teardown(() => connection.close());
  return new Client({ connection, namespace: NAMESPACE });
}

test("a new Temporal server keeps a killed server's workflows and deletes its entry", async (t) => {
  const postgres = await startPostgres({});
  t.teardown(() => postgres.stop());
  const options = {
    namespace: NAMESPACE,
    postgresUrl: postgres.url,
    dir: temporaryFolder(t.teardown),
  };
  const first = await startTemporalServer(options);
  const started = await (await connect(t, first.address)).workflow.start('anything', {
    workflowId: 'outlives',
    taskQueue: 'nobody',
  });
  process.kill(first.pid, 'SIGKILL');
  t.is(await first.exited, 'signal SIGKILL');
  const former = await membersOf(postgres.url);
  t.not(former.length, 0);

  const second = await startTemporalServer(options);
  t.teardown(() => second.stop());
  const client = await connect(t, second.address);
  const found = await client.workflow.getHandle('outlives').describe();
  t.is(found.runId, started.firstExecutionRunId);
  t.is(found.status.name, 'RUNNING');
  t.deepEqual(await membersOf(postgres.url, former), []);
  const taskQueue = { name: 'nobody' };
  await eventually(() =>
    client.workflowService
      .describeTaskQueue({ namespace: NAMESPACE, taskQueue })
      .catch(() => null),
  );
  const [row] = await withSql(
    temporalDatabase(postgres.url),
    (sql) => sql`select count(*)::int as shards from shards`,
  );
  t.is(row?.shards, 4);
});
