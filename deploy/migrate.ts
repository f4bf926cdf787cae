import { isGrpcServiceError } from '@temporalio/client';
import { migrate } from '../db/migrate.ts';
import { loadOperatorConfig, loadReplayConfig } from './config/config.ts';
import { main } from './main.ts';
import { lazyClient, type TemporalTarget, temporalTarget } from './temporal/client.ts';
import { addSearchAttributes, commandsFor, makeNamespace } from './temporal/namespace.ts';
import { temporalTrouble } from './temporal/trouble.ts';

// `npm run migrate` migrates the database to the newest schema, and prepares Temporal's namespace.

const HELP = `
Migrations only go forward, and processes of the release before run on with the new schema. A database that has them
all is left as it is. Safe to run from several machines at once: the others wait for the first.

With TEMPORAL_ADDRESS set it also makes the namespace and its search attributes, if they are missing; where it may not
(Temporal Cloud), or Temporal is away, it prints the commands that do, and ends with 0: workers try it again.

Needs DATABASE_URL; has TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE; see deploy/env.example.
Exit codes: 0 the database has the newest schema, 1 failed (one sentence on stderr), 2 wrong usage.`;

await main(
  { name: 'migrate', description: 'Brings the database to the newest schema.', help: HELP },
  async () => {
    await migrate(loadOperatorConfig().databaseUrl);
    console.log('migrate: the database has the newest schema');
    const { temporalEnvironment } = loadReplayConfig();
    if (temporalEnvironment.TEMPORAL_ADDRESS)
      await prepareNamespace(temporalTarget(temporalEnvironment));
  },
);

async function prepareNamespace(target: TemporalTarget): Promise<void> {
  const client = lazyClient(target);
  const { namespace } = client.options;
  const trouble = await temporalTrouble(target);
  try {
    if (trouble?.isAway) throw trouble;
    await makeNamespace(client);
    await addSearchAttributes(client);
    console.log(`migrate: the namespace ${namespace} of Temporal has its search attributes`);
  } catch (error) {
    if (!isGrpcServiceError(error) && error !== trouble) throw error;
    const why = trouble?.message ?? `Temporal refuses it (${(error as Error).message})`;
    console.error(
      `migrate: the namespace ${namespace} may lack search attributes: ${why}. To add them:\n${commandsFor(namespace)}`,
    );
  } finally {
    await client.connection.close();
  }
}
