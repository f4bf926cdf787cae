import type { Client } from '@temporalio/client';
import { sql } from 'drizzle-orm';
import postgres from 'postgres';
import { diagnose } from '../../db/doctor/doctor.ts';
import { onOurQueues } from '../../deploy/temporal/client.ts';
import { checkWorkflows } from '../../deploy/temporal/doctor.ts';
import { auditLedger } from './ledger.ts';
import { eventually, RULES } from './organization.ts';
import type { Stack } from './stack.ts';

/**
 * Waits until no workflow is open. Then looks for leftovers: open requests, held credits,
 * undelivered webhooks, and all findings of the audit and the doctor.
 * @returns one line per leftover
 */
export async function leftOver({
  db,
  databaseUrl,
  client,
  taskQueue,
}: Stack): Promise<string[]> {
  await eventually(async () =>
    (await openWorkflows(client, taskQueue)).length === 0 ? true : null,
  );
  const rows = await db.drizzle.execute<{ finding: string }>(sql`
    select 'open: ' || id as finding from requests where settled_at is null
    union all
    select held || ' held by ' || organization_id from credit_balances where held <> 0
    union all
    select state || ': ' || id from webhook_deliveries where state <> 'delivered'`);
  const admin = postgres(databaseUrl, { max: 1, onnotice: () => {} });
  const organizations = await admin<{ id: string }[]>`select id from organizations`;
  const audited = await auditLedger(
    admin,
    organizations.map(({ id }) => id),
    RULES.replayMs,
  );
  await admin.end();
  const checks = await diagnose(db, {
    ...RULES,
    webhookScheduleMs: [0, 100, 200, 300],
  });
  const diagnosed = [...checks, ...(await checkWorkflows(db, client, taskQueue))]
    .filter(({ findings }) => findings > 0)
    .map(({ code, examples }) => [code, ...examples].join(' '));
  return [...rows.map(({ finding }) => finding), ...audited, ...diagnosed];
}

async function openWorkflows(client: Client, taskQueue: string): Promise<string[]> {
  const open: string[] = [];
  const query = `${onOurQueues(taskQueue)} and ExecutionStatus = 'Running'`;
  for await (const { workflowId } of client.workflow.list({ query }))
    open.push(workflowId);
  return open;
}
