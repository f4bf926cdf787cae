import type { Request, Server } from '@hapi/hapi';
import { authenticate, parseApiKey } from '../../db/accounts/keys.ts';
import type { Database } from '../../db/client.ts';
import { type ApiError, problem } from '../problems.ts';
import { createLimit } from './limit.ts';
import { createFloodGuard } from './overload.ts';
import { trustKeys } from './trusted-keys.ts';

declare module '@hapi/hapi' {
  interface AuthCredentials {
    /** Whose key it is. */
    readonly organizationId: string;
    readonly keyId: string;
    readonly requestsPerMinute: number;
  }
}

/** The scheme `api-key`, applied to every route that does not opt out (api/README.md, Keys). */
export function registerAuth(server: Server, db: Database, rateWindowMs: number): void {
  const floods = createFloodGuard(rateWindowMs);
  const ownerOf = trustKeys(db);
  const countRequest = createLimit(db, rateWindowMs);
  server.auth.scheme('api-key', () => ({
    async authenticate(request, h) {
      const presented = presentedKey(request);
      const hash = presented === null ? null : parseApiKey(presented);
      const owner = hash ? await ownerOf(hash) : ({ kind: 'unknown' } as const);
      switch (owner.kind) {
        case 'active': {
          const { keyId, organizationId, requestsPerMinute } = owner;
          const credentials = { keyId, organizationId, requestsPerMinute };
          // Counted here because hapi reads the body next, and a refused request must not cost that.
          const refused = await countRequest(request, credentials);
          return refused ? h.unauthenticated(refused, { credentials }) : h.authenticated({ credentials });
        }
        case 'revoked':
        case 'inactive':
          throw problem(`api_key_${owner.kind}`);
        case 'unknown':
          throw floods.countFailure(request.info.remoteAddress) ?? unauthorized(presented);
        default:
          return owner satisfies never;
      }
    },
  }));
  server.auth.strategy('api-key', 'api-key');
  server.auth.default('api-key');
}

/**
 * What a request that waits is to be told: null as long as its key is good. Such a request was let in long ago, and
 * answers nobody whose key has been revoked or whose organization was suspended meanwhile.
 * @throws {DatabaseError}
 */
export async function keyRefusal(request: Request, db: Database): Promise<ApiError | null> {
  const hash = parseApiKey(presentedKey(request) ?? '');
  const owner = hash ? await authenticate(db, hash) : ({ kind: 'inactive' } as const);
  if (owner.kind === 'active') return null;
  return problem(owner.kind === 'revoked' ? 'api_key_revoked' : 'api_key_inactive');
}

/** `Authorization` wins if both headers are sent (DECISIONS.md, Keys and rate); null if neither is. */
function presentedKey(request: Request): string | null {
  const { authorization, 'x-api-key': apiKey } = request.headers;
  if (typeof authorization === 'string') return /^Bearer +([^ ]+) *$/i.exec(authorization)?.[1] ?? '';
  return typeof apiKey === 'string' ? apiKey.trim() : null;
}

function unauthorized(presented: string | null): ApiError {
  const code = presented === null ? 'api_key_missing' : 'api_key_invalid';
  return problem(code, { headers: { 'www-authenticate': 'Bearer' } });
}
