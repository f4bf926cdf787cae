import type { Lifecycle } from '@hapi/hapi';
import { balanceOf } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/client.ts';

/** Credits (api/README.md, Credits): balance = total − used − held. */
export function creditHandlers(db: Database) {
  return {
    getCredits: async (request) => {
      const { available, total, used } = await balanceOf(db, request.auth.credentials.organizationId);
      return { balance: available, total, used };
    },
  } satisfies Record<string, Lifecycle.Method>;
}
