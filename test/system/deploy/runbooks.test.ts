import { randomUUID } from 'node:crypto';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import postgres from 'postgres';
import { noteApi } from '../../../db/operations/workers.ts';
import { run } from '../../../deploy/local/processes.ts';
import { freePort, LOOPBACK } from '../../../deploy/ports.ts';
import {
  asRole,
  fresh,
  SECRETS_KEY,
  temporaryFolder,
  testSetting,
} from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { workerProcesses } from '../../support/programs.ts';
import { startStack } from '../../support/stack.ts';

// Tests the pages of deploy/runbooks/: every alert has a page, and the commands on each page work
// against the whole service. `sh` blocks run in a shell that stops at the first failing command,
// `sql` blocks in PostgreSQL. `console` blocks are about the reader's own machines.

const ROOT = fileURLToPath(new URL('../../..', import.meta.url));
const FOLDER = join(ROOT, 'deploy', 'runbooks');
const pages = new Map(
  readdirSync(FOLDER).map(
    (page) => [page, readFileSync(join(FOLDER, page), 'utf8')] as const,
  ),
);

const temporalAddress = () => testSetting('TEST_TEMPORAL_ADDRESS');
/** Makes the names of queues unique, because other tests must not share them. */
const suffix = randomUUID();
const metricsPort = await freePort();
const folder = temporaryFolder(test.after.always);
const FAILED = join(folder, 'failed');
const stack = fresh(test, () =>
  startStack({
    allSources: true,
    // This is longer than the test, so a request without a vendor's response stays open. Pages
    // request the same NPI, so they share its calls.
    lookupTimeoutMs: 900_000,
    rocketReach: { wait: '15m', call: '200s' },
    elsewhere: { temporalAddress: temporalAddress(), taskQueue: `enrichment-${suffix}` },
  }),
);
const workers = workerProcesses();
let stopBeating = () => {};
test.serial.before(async () => {
  await workers.start(stack, {
    METRICS_HOST: LOOPBACK,
    METRICS_PORT: String(metricsPort),
  });
  // The API of a test stack stores no heartbeats, so the test stores them.
  const { namespace } = stack.client.options;
  const beat = () =>
    noteApi(stack.db, { id: 'the API', namespace, taskQueue: stack.taskQueue });
  await beat();
  const beating = setInterval(beat, 5000);
  stopBeating = () => clearInterval(beating);
  await symlink(testSetting('TEST_TEMPORAL_CLI'), join(folder, 'temporal'));
  await writeFile(join(folder, 'npm'), npmWithoutItsStart(), { mode: 0o755 });
});
test.after.always(async () => {
  stopBeating();
  await workers.stop();
});

/**
 * Returns a faster replacement for `npm run NAME -- …`. Exit code 3 means findings. Other failures
 * are written to the file `failed`.
 */
function npmWithoutItsStart(): string {
  const { scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  const cases = Object.entries(scripts).map(
    ([name, command]) => `${name}) ${command} "$@" ;;`,
  );
  return `#!/bin/sh
name=$2
shift 3
case $name in
${cases.join('\n')}
*) false ;;
esac
code=$?
[ $code = 0 ] || [ $code = 3 ] || echo "$name $*" >> '${FAILED}'
exit $code
`;
}

/**
 * Returns the commands of a page, with placeholders replaced by a customer's ids, the same on the
 * whole page.
 */
async function filledIn(text: string): Promise<string> {
  const customer = await stack.organization(1000);
  // No vendor ever responds for the first NPI.
  const { json } = await customer.bulk({
    npis: ['2000000101', '2000000010'],
    webhook: { url: stack.receiver.url },
  });
  const { deliveries } = (
    await customer.get<{ deliveries: { id: string }[] }>(
      `/api/v1/batch/${json.batch_id}/deliveries`,
    )
  ).json;
  const request = json.requests[1];
  await eventually(async () => {
    const { data } = (await customer.get(request?.poll_url ?? '')).json;
    return data[0]?.status === 'completed' || null;
  });
  const words: Record<string, string | undefined> = {
    ORG: customer.organizationId,
    KEY: customer.keyId,
    BATCH: json.batch_id,
    REQUEST: request?.request_id,
    DELIVERY: deliveries[0]?.id,
    NPI: '2000000028',
    ADDRESS: `somebody-${json.batch_id}@example.com`.toLowerCase(),
    SHA256: 'a'.repeat(64),
    HOST: 'hooks.clinic-example.com',
    WHEN: new Date(Date.now() - 3_600_000).toISOString(),
  };
  return text
    .replace(/\b[A-Z][A-Z0-9]+\b(?!_)/g, (word) => words[word] ?? word)
    .replace(
      /\b(enrichment|lookups|webhooks)(?=\s|$)/gm,
      (queue, _, at: number, all: string) =>
        /--task-queue $|npi-email-$|reverify-$/.test(all.slice(0, at))
          ? `${queue}-${suffix}`
          : queue,
    )
    .replaceAll('http://127.0.0.1:8080', stack.baseUrl)
    .replaceAll('http://127.0.0.1:9464', `http://${LOOPBACK}:${metricsPort}`);
}

const blocksOf = (text: string, language: string) =>
  [...text.matchAll(/^```(\w+)\n(.*?)^```$/gms)]
    .filter(([, its]) => its === language)
    .map(([, , block = '']) => block);

for (const [page, text] of pages) {
  test.serial(`the commands in the runbook ${page} work`, async (t) => {
    const script = await filledIn(blocksOf(text, 'sh').join('\n'));
    const { code, output } = await run(
      'bash',
      ['--norc', '-xeuo', 'pipefail', '-c', script],
      {
        env: {
          PATH: `${folder}:${process.env.PATH}`,
          HOME: folder,
          DATABASE_URL: asRole(stack.databaseUrl, 'operator'),
          SECRETS_KEY,
          TEMPORAL_ADDRESS: temporalAddress(),
          TASK_QUEUE: stack.taskQueue,
        },
      },
    );
    t.is(code, 0, output);
    t.false(existsSync(FAILED), output);
    const connection = postgres(stack.databaseUrl, { max: 1 });
    for (const statements of blocksOf(text, 'sql'))
      await t.notThrowsAsync(connection.unsafe(statements).simple(), statements);
    await connection.end();
  });
}

/** Finds the places in the code that name reasons of failed requests, in quotes. */
const REASONS: Readonly<Record<string, RegExp>> = {
  'activities/http/client.ts': /readonly why: '[^;}]+/g,
  'activities/sandbox.ts': /kind: 'fatal', (reason: '\w+')/g,
  'activities/verification/check.ts': /readonly reason: [^;]+;/g,
  'activities/verify.ts': /retryLater\('verification', '\w+'/g,
  'db/lookups/sources.ts': /readonly why: '[^;]+;/g,
  'db/lookups/vendor-steps.ts': /kind: 'wait', (why: '\w+')|SHARED = '\w+'/g,
  'db/requests/cancel.ts': /failAll\(tx, ids, '\w+'/g,
  'db/requests/settle.ts': /failAll\(tx, ids, '\w+'/g,
  'deploy/reconciler/reconciler.ts': /reason: '\w+'/g,
  'workflows/batch.ts': /reason(?: =|:) [^;}]*'\w+'/g,
  'workflows/lookup.ts': /kind: 'fatal', (reason: '\w+')/g,
};

test('requests-failing.md lists each reason that the code can write', (t) => {
  const [, listed = ''] = pages.get('requests-failing.md')?.split('all reasons') ?? [];
  const known = [...listed.matchAll(/(?:`|\()([a-z_]+)\)?`/g)].map(([, word]) => word);
  const written = new Set(['verifier_', 'verifier_working', 'verifier_unavailable']);
  for (const [file, pattern] of Object.entries(REASONS)) {
    const matches = readFileSync(join(ROOT, file), 'utf8').matchAll(pattern);
    for (const [match, part = match] of matches) {
      for (const [, word = ''] of part.matchAll(/'(\w+)'/g)) written.add(word);
    }
  }
  written.delete('verification');
  t.true(written.size > 20);
  t.deepEqual([...new Set(known)].sort(), [...written].sort());
});

test('promtool tests when each alert fires and when it stops', (t) => {
  const alerts = readFileSync(join(ROOT, 'deploy/prometheus/alerts.yaml'), 'utf8');
  const file = readFileSync(join(ROOT, 'deploy/prometheus/alerts.test.yaml'), 'utf8');
  const tests = file.split('  - name: ').filter((one) => !one.startsWith('no alert'));
  const untested = [...alerts.matchAll(/- alert: (\w+)/g)].filter(
    ([, alert]) =>
      !tests.some(
        (one) =>
          one.includes(`{alertname="${alert}"}`) &&
          /^ +- (\*over|&over|.*eval_time: \w+(, exp_samples: \[\*api, \*workers\])? \})$/m.test(
            one,
          ),
      ),
  );
  t.deepEqual(untested, []);
});

test('every alert links to a runbook that names it, and the index names all alerts', (t) => {
  const alerts = readFileSync(join(ROOT, 'deploy/prometheus/alerts.yaml'), 'utf8');
  const led = [
    ...alerts.matchAll(
      /- alert: (\w+).*?runbook_url: '\{\{ \$externalLabels.runbooks \}\}\/([^\n']+)/gs,
    ),
  ].map(([, alert = '', page = '']) => [alert, page] as const);
  t.true(led.length > 20);
  const rules = [...alerts.matchAll(/- alert: (\w+)/g)].map(([, alert = '']) => alert);
  t.deepEqual(
    led.map(([alert]) => alert),
    rules,
  );
  t.deepEqual(
    led.filter(([alert, page]) => !pages.get(page)?.includes(`\`${alert}\``)),
    [],
  );
  const first = pages.get('README.md') ?? '';
  const named = [...pages.keys()].filter((page) => page !== 'README.md');
  t.deepEqual(
    [
      ...named.filter((page) => !first.includes(`(${page})`)),
      ...led.filter(([alert]) => !first.includes(alert)),
    ],
    [],
  );
});
