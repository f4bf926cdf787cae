import { Client, Connection } from '@temporalio/client';
import { pino } from 'pino';
import { openDatabase } from '../../db/client.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createApi } from '../../deploy/config/create-api.ts';
import { openTestDatabase } from './database.ts';
import { testSetting } from './environment.ts';
import { createCaller, openOrganization, RULES } from './organization.ts';

export interface ApiOptions {
  readonly rateWindowMs?: number;
  /** Another database than a migrated one of its own. */
  readonly databaseUrl?: string;
  /** How long it waits for PostgreSQL. */
  readonly deadlineMs?: number;
  readonly keepAliveMs?: number;
  /** Receives each log line, as JSON text. */
  readonly onLog?: (line: string) => void;
}

/**
 * One API process, without worker, vendor and receiver: real HTTP, real PostgreSQL, and a Temporal that takes the
 * workflows nobody runs. Batches stay as the submit left them.
 */
export async function startApi(options: ApiOptions = {}) {
  const { rateWindowMs = 60_000, keepAliveMs = 75_000, databaseUrl, deadlineMs, onLog } = options;
  const own = databaseUrl === undefined ? await openTestDatabase() : null;
  const url = databaseUrl ?? own?.url ?? '';
  const deadline = deadlineMs === undefined ? {} : { deadlineMs };
  const db = openDatabase({ url, poolSize: 20, applicationName: 'test api', ...deadline });
  const connection = Connection.lazy({ address: testSetting('TEST_TEMPORAL_ADDRESS') });
  const config = { ...loadConfig({ DATABASE_URL: url }), lookupTimeoutMs: RULES.lookupTimeoutMs };
  const server = createApi(
    { ...config, apiHost: '127.0.0.1', apiPort: 0, apiKeepAliveMs: keepAliveMs, rateWindowMs },
    {
      db,
      log: onLog ? pino({}, { write: onLog }) : pino({ level: 'silent' }),
      client: new Client({ connection }),
      taskQueue: 'nobody',
    },
  );
  await server.start();

  return {
    baseUrl: server.info.uri,
    port: Number(server.info.port),
    db,
    databaseUrl: url,
    /** What it serves. */
    routes: () => server.table().map(({ method, path }) => ({ method: method.toUpperCase(), path })),
    /** A new organization with credits and a key, and its way to call the API. */
    async organization(credits = 1000, requestsPerMinute?: number) {
      const organization = await openOrganization(db, credits, requestsPerMinute);
      return { ...organization, ...createCaller(server.info.uri, organization.apiKey) };
    },
    async stop() {
      await server.stop({ timeout: 1000 });
      await connection.close();
      await db.close();
      await own?.stop();
    },
  };
}

export type Api = Awaited<ReturnType<typeof startApi>>;
export type ApiClient = Awaited<ReturnType<Api['organization']>>;
