import { startPostgres } from '../../deploy/local/postgres.ts';

/**
 * Owns a temporary PostgreSQL. Sends its URL to the parent process, and a message when it is
 * interrupted.
 */
const server = await startPostgres({});
process.on('SIGINT', () => process.send?.('interrupted'));
process.send?.(server.url);
