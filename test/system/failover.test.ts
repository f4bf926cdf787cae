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
// each accepted batch that is lost is reported.

/** The number of batches between two steps. */
const BATCHES = 12;

test('each batch that a failover loses is reported', async (t) => {
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
  service.moveTo(standby);
  await clients.more(BATCHES);
  await clients.stop();

  const { account, byDoctor, lostWork, otherFindings, unseen } = await compare(
    service,
    clients,
  );
  t.log(account);
  t.true(account.lost.length > 0);
  // Only the API's log names a bulk that waited for its turn, because it had no workflow yet.
  t.true(byDoctor > 0);
  t.true(lostWork > 0);
  t.deepEqual(otherFindings, []);
  t.deepEqual(unseen, []);
});
