import { ServiceError } from '@temporalio/client';
import { TransportError } from '@temporalio/worker';
import test from 'ava';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { serviceVersion } from '../../deploy/config/config.ts';
import { createLog } from '../../deploy/log.ts';
import { eventually } from '../support/organization.ts';
import { startStack } from '../support/stack.ts';

test('the log of a batch contains its IDs, but nothing personal or secret', async (t) => {
  const lines: string[] = [];
  const stack = await startStack({
    onLog: (line) => lines.push(line),
    lookupTimeoutMs: 30_000,
    // Otherwise the sweep could settle a request, and not its workflow.
    sweepIntervalMs: 900_000,
  });
  const client = await stack.organization();
  const { webhookSecret } = await showWebhookSecret(stack.db, client.organizationId);
  const canary = 'canary-7f3a';
  const submitted = await client.bulk(
    {
      npis: [
        '2000000010',
        '2000000028',
        '2000000044',
        '2000000101',
        '2000000119',
        '1234567890',
      ],
      webhook: { url: `${stack.receiver.url}/${canary}` },
      custom_data: { [canary]: canary },
    },
    { 'idempotency-key': canary },
  );
  await stack.startedWorkflow(submitted.json.batch_id);
  const envelope = await client.completed(submitted.json.batch_id);
  await client.get(`/api/v1/batch/${submitted.json.batch_id}?${canary}`);
  await eventually(async () => (stack.receiver.deliveries().length < 6 ? null : true));
  await stack.stop();

  const log = lines.join('');
  const emails = envelope.data.flatMap((item) =>
    item.email === null ? [] : [item.email],
  );
  t.is(emails.length, 2);
  for (const secret of [
    ...emails,
    canary,
    client.apiKey,
    webhookSecret,
    stack.receiver.url,
  ])
    t.false(log.includes(secret));

  const entries = lines.map((line) => JSON.parse(line) as Record<string, unknown>);
  const of = (msg: string) => entries.filter((entry) => entry.msg === msg);
  const { batch_id: batchId } = submitted.json;
  t.like(of('batch accepted')[0], {
    batch_id: batchId,
    organization_id: client.organizationId,
    total: 6,
  });
  const settled = of('request settled').map((entry) => entry.request_id);
  for (const item of envelope.data.slice(0, 5))
    t.true(settled.includes(item.request_id), item.npi);
  t.like(of('webhook attempt')[0], {
    batch_id: batchId,
    organization_id: client.organizationId,
    result: 'delivered',
  });
  for (const entry of [...of('request settled'), ...of('webhook attempt')]) {
    t.regex(String(entry.workflow_id), /^(?:bat|req|msg)_/);
    t.regex(String(entry.run_id), /^[0-9a-f-]{36}$/);
  }
  t.true(of('http').some((entry) => entry.batch_id === batchId && entry.status === 200));
});

test('each log line contains the version of the code', (t) => {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => lines.push(line) });
  log.info('said');
  t.is(JSON.parse(lines[0] ?? '')['service.version'], serviceVersion());
});

test('control characters in log lines are escaped without changing the values', (t) => {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => lines.push(line) });
  log.info({ host: 'a\u009b2J\u202e\u{e0041}' }, 'said');
  t.notRegex(lines.join('').replaceAll('\n', ''), /[\p{Cc}\p{Cf}]/u);
  t.is(JSON.parse(lines[0] ?? '').host, 'a\u009b2J\u202e\u{e0041}');
});

test('a logged error keeps its name, code, and stack, but loses its message', (t) => {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => lines.push(line) });
  const error = Object.assign(new TypeError('canary@example.com'), { code: 'E_TEST' });
  log.error({ err: error }, 'failed');
  const entry = JSON.parse(lines[0] ?? '') as {
    err: { type: string; code: string; stack: string };
  };
  t.like(entry.err, { type: 'TypeError', code: 'E_TEST' });
  t.regex(entry.err.stack, /logs\.test\.ts/);
  t.false(lines.join('').includes('canary'));
});

test('a logged error from Temporal keeps its gRPC code and details', (t) => {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => lines.push(line) });
  const failure = { code: 14, details: 'No connection established', metadata: {} };
  const raw = Object.assign(new Error('canary'), failure);
  for (const err of [raw, new ServiceError('canary', { cause: raw })]) {
    log.error({ err }, 'failed');
    t.like(JSON.parse(lines.at(-1) ?? '').err, { code: 14, details: failure.details });
  }
  log.error({ err: new TransportError('tcp connect error') }, 'failed');
  t.like(JSON.parse(lines.at(-1) ?? '').err, { details: 'tcp connect error' });
  t.false(lines.join('').includes('canary'));
});
