import { startPostgres } from '../../deploy/local/postgres.ts';

/** A process that owns a temporary PostgreSQL: it tells its parent the URL, and when it is interrupted. */
const server = await startPostgres({});
process.on('SIGINT', () => process.send?.('interrupted'));
process.send?.(server.url);
