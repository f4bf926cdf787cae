import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { Client } from '@temporalio/client';
import test from 'ava';
import { pino } from 'pino';
import {
  keepNamespace,
  reverifyScheduleId,
} from '../../../../deploy/temporal/namespace.ts';
import { WORKFLOWS } from '../../../../workflows/messages.ts';
import { fresh, openEmptyDatabase, testSetting } from '../../../support/database.ts';
import { eventually } from '../../../support/organization.ts';
import { runProgram } from '../../../support/programs.ts';
import { startRefusing } from '../../../support/refusing.ts';
import { startStack } from '../../../support/stack.ts';

// Tests the maintenance of the namespace, which every worker does every five minutes.

const log = pino({ level: 'silent' });
const stack = fresh(test, () => startStack());

const keep = () => keepNamespace(stack.client, stack.taskQueue, 3_600_000, log);
const schedule = () =>
  stack.client.schedule.getHandle(reverifyScheduleId(stack.taskQueue));

test.serial(
  'a worker creates its Temporal Schedule again if it was deleted',
  async (t) => {
    await schedule().delete();
    await t.throwsAsync(schedule().describe());
    await keep();
    t.is((await schedule().describe()).action.workflowType, WORKFLOWS.reverify);
  },
);

test.serial('a Temporal Schedule that an operator has paused stays paused', async (t) => {
  await schedule().pause('a test');
  await keep();
  t.like((await schedule().describe()).state, { paused: true, note: 'a test' });
});

/** Returns whether a namespace has all of our search attributes. */
function isComplete(namespace: string): Promise<true | null> {
  const { connection } = stack.client;
  return new Client({ connection, namespace }).workflow
    .count('OrganizationId is null and Npi is null and Outcome is null')
    .then(
      () => true as const,
      () => null,
    );
}

async function migrate(env: Readonly<Record<string, string>>) {
  await using database = await openEmptyDatabase();
  return await runProgram('migrate', [], { env: { DATABASE_URL: database.url, ...env } });
}

test("migrate creates Temporal's namespace and search attributes if they are missing", async (t) => {
  const TEMPORAL_ADDRESS = testSetting('TEST_TEMPORAL_ADDRESS');
  const TEMPORAL_NAMESPACE = `migrated-${randomBytes(4).toString('hex')}`;
  t.is(await isComplete(TEMPORAL_NAMESPACE), null);
  for (let time = 1; time <= 2; time += 1) {
    t.deepEqual(await migrate({ TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE }), {
      code: 0,
      stdout: `migrate: the database has the newest schema and all rights\nmigrate: the namespace ${TEMPORAL_NAMESPACE} of Temporal has its search attributes\n`,
      stderr: '',
    });
    t.true(await isComplete(TEMPORAL_NAMESPACE));
  }
});

test('migrate prints commands to run if it has no right to change the namespace', async (t) => {
  const namespace = `by-hand-${randomBytes(4).toString('hex')}`;
  const refusing = await startRefusing(t, 7);
  const refused = await migrate({
    TEMPORAL_ADDRESS: refusing,
    TEMPORAL_NAMESPACE: namespace,
  });
  t.deepEqual(
    [refused.code, refused.stdout],
    [0, 'migrate: the database has the newest schema and all rights\n'],
  );
  t.regex(
    refused.stderr,
    /^migrate: the namespace \S+ may lack search attributes: Temporal at \S+ gives us no rights in the namespace /,
  );
  const typed = refused.stderr.match(/^ {2}temporal .*$/gm) ?? [];
  t.is(typed.length, 2);
  const address = ['--address', testSetting('TEST_TEMPORAL_ADDRESS')];
  for (const line of typed) {
    const [, ...args] = line.trim().split(' ');
    // A new namespace is served after a moment.
    await eventually(() =>
      promisify(execFile)(testSetting('TEST_TEMPORAL_CLI'), [...args, ...address]).then(
        () => true,
        () => null,
      ),
    );
  }
  t.true(await eventually(() => isComplete(namespace)));
  t.regex(
    refused.stderr,
    /^ {2}tcld namespace search-attributes add --namespace \S+ --search-attribute OrganizationId=Keyword /m,
  );
  const away = await migrate({ TEMPORAL_ADDRESS: '127.0.0.1:1' });
  t.is(away.code, 0);
  t.regex(away.stderr, /Temporal at 127\.0\.0\.1:1 cannot be reached/);
});

test('each view in operations.md is a valid filter', async (t) => {
  const page = await readFile(
    new URL('../../../../deploy/operations.md', import.meta.url),
    'utf8',
  );
  const [, section = ''] = page.split('## In the Temporal UI\n');
  const [table = ''] = section.split('\n## ');
  const filters = [...table.matchAll(/^\| .* \| `(.+)` \|$/gm)];
  t.true(filters.length > 4);
  for (const [, filter = ''] of filters) {
    await t.notThrowsAsync(stack.client.workflow.count(filter), filter);
  }
});
