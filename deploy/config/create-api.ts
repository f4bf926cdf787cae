import type { Server } from '@hapi/hapi';
import { testOutcomeOf } from '../../activities/sandbox.ts';
import { createAddressPolicy } from '../../activities/webhooks/ip-policy.ts';
import { type ConsoleDeps, registerConsole } from '../../api/console/console.ts';
import { type ApiDeps, createServer } from '../../api/server.ts';
import { listenForChanges } from '../../db/connection/changes.ts';
import type { ApiConfig } from './config.ts';

interface Deps
  extends Pick<ApiDeps, 'db' | 'log' | 'client' | 'taskQueue' | 'trouble'>,
    Pick<ConsoleDeps, 'testEventMs'> {}

/** Creates the HTTP API from the configuration. It does not listen yet. */
export async function createApi(config: ApiConfig, deps: Deps): Promise<Server> {
  const policy = createAddressPolicy({ openCidrs: config.webhookOpenCidrs });
  const forbids = (url: URL) => policy.forbids(url);
  const check = { db: deps.db, rules: config, testOutcomeOf };
  const server = createServer({
    ...deps,
    ...check,
    forbids,
    changes: listenForChanges(deps.db),
    site: config,
    host: config.apiHost,
    port: config.apiPort,
    keepAliveMs: config.apiKeepAliveMs,
    connectionsPerAddress: config.apiConnectionsPerAddress,
    rateWindowMs: config.rateWindowMs,
    trustedProxies: config.trustedProxies,
    poolSize: config.databasePool,
  });
  const { log, testEventMs } = deps;
  const sendsMail = config.smtpFrom !== null;
  const pages = { site: config, log, check, forbids, sendsMail, testEventMs };
  await registerConsole(server, pages);
  return server;
}
