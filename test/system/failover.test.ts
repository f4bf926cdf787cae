import { join } from 'node:path';
import test from 'ava';
import { temporaryFolder, testSetting } from '../support/database.ts';
import { Clients } from '../support/promises.ts';
import { startStandby } from '../support/standby.ts';
import {
  compare,
  openClients,
  startPrimary,
  startWholeService,
} from '../support/whole-service.ts';

// Kills PostgreSQL under load and promotes a standby that lags. The service goes on by itself, and
// each lost batch or result is reported.

/** The number of batches between two steps. */
const BATCHES = 12;

test('each batch and each result that a failover loses is reported', async (t) => {
  t.timeout(900_000);
  const temporalAddress = testSetting('TEST_TEMPORAL_ADDRESS');
  const folder = temporaryFolder(t.teardown);
  const defer = (stop: () => Promise<unknown>) => t.teardown(stop);
  const primary = await startPrimary(join(folder, 'primary'));
  defer(primary.stop);
  const standby = await startStandby(primary, {
    name: 'standby',
    dataDir: join(folder, 'standby'),
  });
  defer(standby.stop);
  const service = await startWholeService({ primary, temporalAddress, defer });
  const clients = new Clients(service.api.url, service.stack.receiver);
  clients.start(await openClients(service));
  await clients.more(BATCHES);
  standby.lag();
  await clients.more(BATCHES);

  process.kill(primary.pid, 'SIGKILL');
  await primary.exited;
  await clients.moreResponses(/503/);
  await standby.promote();
  await service.moveTo(standby, clients);
  await clients.more(BATCHES);
  await clients.stop();

  const { account, unseen, ...reports } = await compare(service, clients);
  t.log(account, reports);
  const { byDoctor, lostResults, otherFindings } = reports;
  t.true(byDoctor > 0);
  t.true(lostResults.byLog > 0);
  t.true(lostResults.byMetric >= lostResults.byLog);
  t.deepEqual(otherFindings, []);
  t.deepEqual(unseen, []);
});
