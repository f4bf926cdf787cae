import { randomUUID } from 'node:crypto';
import test from 'ava';
import { noteStopped, noteWorker } from '../../../../db/operations/workers.ts';
import { launch } from '../../../../deploy/local/processes.ts';
import { freePort, LOOPBACK } from '../../../../deploy/ports.ts';
import { openTestDatabase, testSetting } from '../../../support/database.ts';
import { eventually } from '../../../support/organization.ts';
import { programCommand, runProgram } from '../../../support/programs.ts';
import { SITE_SETTINGS } from '../../../support/site.ts';

// Tests that different namespaces or queues of API and workers are noticed. With them, every live
// request would fail.

test('an API whose task queue has no worker is not ready, and status says so', async (t) => {
  await using database = await openTestDatabase();
  const { db } = database;
  const port = await freePort();
  const env = {
    DATABASE_URL: database.url,
    TEMPORAL_ADDRESS: testSetting('TEST_TEMPORAL_ADDRESS'),
    TASK_QUEUE: 'canary',
    ...SITE_SETTINGS,
  };
  let output = '';
  const api = launch({
    name: 'the API',
    ...programCommand('api', [], {
      env: { ...env, API_HOST: LOOPBACK, API_PORT: String(port) },
    }),
    onLine: (line) => (output += `${line}\n`),
  });
  t.teardown(() => api.stop());
  const said = (what: RegExp) => eventually(async () => output.match(what));
  const readyz = async () => {
    const { status, headers } = await fetch(`http://${LOOPBACK}:${port}/readyz`);
    return [status, headers.get('retry-after')];
  };
  await said(/"msg":"api ready"/g);
  t.deepEqual(await readyz(), [200, null], 'no worker anywhere: one may be starting');

  const [there, here] = [randomUUID(), randomUUID()];
  const worker = { namespace: 'default', buildId: 'a' };
  await noteWorker(db, { ...worker, id: there, taskQueue: 'enrichment' });
  const missing =
    /"elsewhere":\["default\/enrichment"\],"msg":"no worker uses the namespace and task queue of this API/g;
  await said(missing);
  t.deepEqual(await readyz(), [503, '5']);
  const status = async () => (await runProgram('operator', ['status'], { env })).stdout;
  const stray =
    /^an API starts workflows in the queue canary of the namespace default, which no worker uses: check TEMPORAL_NAMESPACE and TASK_QUEUE$/m;
  // A heartbeat counts for 45 s.
  await noteWorker(db, { ...worker, id: there, taskQueue: 'enrichment' });
  t.regex(await status(), stray);

  await noteWorker(db, { ...worker, id: here, taskQueue: 'canary' });
  await eventually(async () => {
    await noteWorker(db, { ...worker, id: there, taskQueue: 'enrichment' });
    return output.match(
      /"msg":"a worker uses the namespace and task queue of this API"/g,
    );
  });
  t.deepEqual(await readyz(), [200, null]);
  t.notRegex(await status(), stray);

  await noteStopped(db, here);
  await noteWorker(db, { ...worker, id: there, taskQueue: 'enrichment' });
  t.deepEqual(
    await readyz(),
    [200, null],
    'a worker that was here a moment ago may be replaced',
  );
  t.is(output.match(missing)?.length, 1);

  await api.stop();
  t.regex(await status(), /^no API is alive: /m, 'it ended in order');
});
