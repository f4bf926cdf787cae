import { migrate } from '../db/migrate.ts';
import { loadOperatorConfig } from './config/config.ts';
import { main } from './main.ts';

// `npm run migrate`: brings the database to the newest schema.

const HELP = `
Migrations only go forward, and processes of the release before run on with the new schema. A database that has them
all is left as it is. Safe to run from several machines at once: the others wait for the first.

Needs DATABASE_URL; see "Configuration" in README.md.
Exit codes: 0 the database has the newest schema, 1 failed (one sentence on stderr), 2 wrong usage.`;

await main(
  { name: 'migrate', description: 'Brings the database to the newest schema.', help: HELP },
  async () => {
    await migrate(loadOperatorConfig().databaseUrl);
    console.log('migrate: the database has the newest schema');
  },
);
