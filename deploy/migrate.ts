import { tlsWarning } from '../db/connection/tls.ts';
import { migrate } from '../db/operations/migrate.ts';
import { loadOperatorConfig, loadTemporalConfig } from './config/config.ts';
import { main } from './main.ts';
import {
  grpcFailure,
  lazyClient,
  messageOf,
  type TemporalTarget,
  temporalTarget,
} from './temporal/client.ts';
import { addSearchAttributes, commandsFor, makeNamespace } from './temporal/namespace.ts';
import { temporalTrouble } from './temporal/trouble.ts';

// `npm run migrate` migrates the database to the newest schema, and prepares Temporal's namespace.

const HELP = `
Migrations only go forward. Processes of the previous release keep working with the new
schema. If the database has all migrations, this command only grants the roles' rights
again. If several machines run it at the same time, one works and the others wait.
DATABASE_URL must name the owner or a superuser.

If TEMPORAL_ADDRESS is set, this command also creates Temporal's namespace and its search
attributes. It may lack the permission (as in Temporal Cloud), or Temporal may not
respond. Then it prints the commands that create them, and exits with 0. The workers try
to create them again.

Required settings: DATABASE_URL. Optional: TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE. See
deploy/env.example.

Exit codes: 0 the database has the newest schema, 1 failed (one sentence on stderr), 2
wrong usage.`;

await main(
  {
    name: 'migrate',
    description: 'Migrates the database to the newest schema.',
    help: HELP,
  },
  async () => {
    const { databaseUrl } = loadOperatorConfig();
    const warning = tlsWarning(databaseUrl);
    if (warning !== null) console.error(`migrate: ${warning}`);
    await migrate(databaseUrl);
    console.log('migrate: the database has the newest schema and all rights');
    const { temporalEnvironment } = loadTemporalConfig();
    if (!temporalEnvironment.TEMPORAL_ADDRESS) return;
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
    console.log(
      `migrate: the namespace ${namespace} of Temporal has its search attributes`,
    );
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    if (grpcFailure(error) === null && error !== trouble) throw error;
    const why = trouble?.message ?? `Temporal failed a call: ${messageOf(error)}`;
    const problem = `the namespace ${namespace} may lack search attributes: ${why}`;
    console.error(`migrate: ${problem}. To add them:\n${commandsFor(namespace)}`);
  } finally {
    await client.connection.close();
  }
}
