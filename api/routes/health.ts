import type { Server } from '@hapi/hapi';
import type { Database } from '../../db/client.ts';
import { readiness } from '../../db/ready.ts';

/** `/healthz`: the process answers. `/readyz`: it can serve, with PostgreSQL there and migrated. Neither needs a key. */
export function registerHealth(server: Server, db: Database): void {
  server.route({
    method: 'GET',
    path: '/healthz',
    options: { auth: false },
    handler: () => ({ status: 'ok' }),
  });
  server.route({
    method: 'GET',
    path: '/readyz',
    options: { auth: false },
    handler: async (_request, h) => {
      const status = await readiness(db);
      const response = h.response({ status }).code(status === 'ready' ? 200 : 503);
      return status === 'ready' ? response : response.header('retry-after', '5');
    },
  });
}
