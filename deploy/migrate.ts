import { migrate } from '../db/migrate.ts';
import { loadOperatorConfig } from './config/config.ts';
import { main } from './main.ts';

// `npm run migrate`: brings the database to the newest schema; safe to run from several machines at once.

await main('migrate', async () => {
  await migrate(loadOperatorConfig().databaseUrl);
  console.log('migrate: the database has the newest schema');
});
