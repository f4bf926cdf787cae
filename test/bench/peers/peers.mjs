import { DBOS } from '@dbos-inc/dbos-sdk';
import { Logger, run } from 'graphile-worker';

/**
 * Opens engines that keep their work in PostgreSQL. They run a bulk as one DBOS workflow with one
 * step per NPI, or as one job of graphile-worker per NPI, and wait until all are done.
 * @param {string} databaseUrl their own database
 * @param {(organization: number, npis: string[]) => Promise<unknown>} take the work
 */
export async function openPeers(databaseUrl, take) {
  DBOS.setConfig({ name: 'peers', systemDatabaseUrl: databaseUrl, logLevel: 'error', runAdminServer: false });
  const one = DBOS.registerWorkflow(
    (organization, npi) => DBOS.runStep(async () => void (await take(organization, [npi])), { name: 'take' }),
    { name: 'one' },
  );
  const dbos = (organization, npis) => Promise.all(npis.map((npi) => one(organization, npi)));
  await DBOS.launch();
  const waiting = new Map();
  const runner = await run({
    connectionString: databaseUrl,
    concurrency: 20,
    noHandleSignals: true,
    logger: new Logger(() => () => {}),
    taskList: {
      one: async ({ id, organization, npi }) => {
        await take(organization, [npi]);
        waiting.get(id)?.();
        waiting.delete(id);
      },
    },
  });
  let jobs = 0;
  const graphileWorker = (organization, npis) =>
    Promise.all(
      npis.map(async (npi) => {
        jobs += 1;
        const id = jobs;
        const done = new Promise((resolve) => waiting.set(id, resolve));
        await runner.addJob('one', { id, organization, npi });
        await done;
      }),
    );
  return {
    engines: { DBOS: dbos, 'graphile-worker': graphileWorker },
    async stop() {
      await runner.stop();
      await DBOS.shutdown();
    },
  };
}
