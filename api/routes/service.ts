import { createHash } from 'node:crypto';
import type { Lifecycle } from '@hapi/hapi';
import { balanceOf } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/client.ts';
import { readiness } from '../../db/migrate.ts';
import { listElsewhere } from '../../db/workers.ts';
import { openapi } from '../openapi/document.ts';
import type { TemporalDeps } from '../temporal.ts';

/**
 * An organization's credits; and without a key whether the process answers, whether it can serve (PostgreSQL is there
 * and migrated, and workers are not elsewhere only), and what it serves.
 */
export function serviceHandlers({ db, client, taskQueue }: TemporalDeps & { readonly db: Database }) {
  const place = { namespace: client.options.namespace, taskQueue };
  const text = JSON.stringify(openapi, null, 1);
  const etag = createHash('sha256').update(text).digest('base64url').slice(0, 27);
  return {
    // balance = total − used − held (api/README.md, Credits).
    getCredits: async (request) => {
      const { available, total, used } = await balanceOf(db, request.auth.credentials.organizationId);
      return { balance: available, total, used };
    },
    getHealth: () => ({ status: 'ok' }),
    getReadiness: async (_request, h) => {
      const state = await readiness(db);
      const elsewhere = state === 'ready' ? await listElsewhere(db, place) : [];
      const status = elsewhere.length > 0 ? 'worker_elsewhere' : state;
      const response = h.response({ status }).code(status === 'ready' ? 200 : 503);
      return status === 'ready' ? response : response.header('retry-after', '5');
    },
    // hapi answers If-None-Match by itself.
    getDescription: (_request, h) =>
      h.response(text).type('application/json').etag(etag).header('cache-control', 'public, max-age=300'),
  } satisfies Record<string, Lifecycle.Method>;
}
