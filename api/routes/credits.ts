import type { Server } from '@hapi/hapi';
import { balanceOf } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/client.ts';

/** `GET /api/v1/credits` (api/README.md, Credits): balance = total − used − held. */
export function registerCredits(server: Server, db: Database): void {
  server.route({
    method: 'GET',
    path: '/api/v1/credits',
    handler: async (request) => {
      const { available, total, used } = await balanceOf(db, request.auth.credentials.organizationId);
      return { balance: available, total, used };
    },
  });
}
