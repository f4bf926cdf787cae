import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { balanceOf } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/client.ts';
import { readiness } from '../../db/migrate.ts';
import { listElsewhere } from '../../db/workers.ts';
import { readInTurn } from '../http/overload.ts';
import { openapi } from '../openapi/document.ts';
import type { TemporalDeps } from '../temporal.ts';

/** Whoever asks within this is told the same: anybody may ask, at any rate. */
const READINESS_MS = 1000;

/**
 * An organization's credits; and without a key whether the process answers, whether it can serve (PostgreSQL is there
 * and migrated, workers are not elsewhere only, and it is not about to end), and what it serves.
 */
export function serviceHandlers({ db, client, taskQueue }: TemporalDeps & { readonly db: Database }) {
  const place = { namespace: client.options.namespace, taskQueue };
  const look = async () => {
    const state = await readiness(db);
    const elsewhere = state === 'ready' ? await listElsewhere(db, place) : [];
    return elsewhere.length > 0 ? 'worker_elsewhere' : state;
  };
  let lookedAt = -READINESS_MS;
  let looked: ReturnType<typeof look>;
  return {
    // balance = total − used − held (api/docs/lifecycle.md, Credits).
    getCredits: async (request) => {
      const { organizationId } = request.auth.credentials;
      const { available, total, used } = await readInTurn(request, () => balanceOf(db, organizationId));
      return { balance: available, total, used };
    },
    getHealth: () => ({ status: 'ok' }),
    getReadiness: async ({ server }, h) => {
      if (performance.now() >= lookedAt + READINESS_MS) {
        lookedAt = performance.now();
        looked = look();
      }
      const status = server.app.isDraining ? 'draining' : await looked;
      const response = h.response({ status }).code(status === 'ready' ? 200 : 503);
      return status === 'ready' ? response : response.header('retry-after', '5');
    },
    getDescription: published('application/json', JSON.stringify(openapi, null, 1)),
  } satisfies Record<string, Lifecycle.Method>;
}

/** Answers with a text that is the same for everybody until the next release; hapi answers If-None-Match by itself. */
export function published(
  type: string,
  text: string,
): (request: Request, h: ResponseToolkit) => ResponseObject {
  const etag = hash('sha256', text, 'base64url').slice(0, 27);
  return (_request, h) =>
    h.response(text).type(type).etag(etag).header('cache-control', 'public, max-age=300');
}
