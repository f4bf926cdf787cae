import type { Request, Server } from '@hapi/hapi';
import type { Database } from '../db/client.ts';
import { authenticate, parseApiKey } from '../db/keys.ts';
import { type ApiError, problem } from './errors.ts';

declare module '@hapi/hapi' {
  interface AuthCredentials {
    /** Whose key it is. */
    readonly organizationId: string;
    readonly keyId: string;
    readonly requestsPerMinute: number;
  }
}

/** The scheme `api-key`, applied to every route that does not opt out (spec.md, Authentication). */
export function registerAuth(server: Server, db: Database): void {
  server.auth.scheme('api-key', () => ({
    async authenticate(request, h) {
      // The key is looked up on every request: a revocation takes effect with the next one, on every instance.
      const hash = parseApiKey(presentedKey(request));
      const owner = hash ? await authenticate(db, hash) : ({ kind: 'unknown' } as const);
      switch (owner.kind) {
        case 'active': {
          const { keyId, organizationId, requestsPerMinute } = owner;
          return h.authenticated({ credentials: { keyId, organizationId, requestsPerMinute } });
        }
        case 'revoked':
          throw problem(403, 'api_key_revoked', 'This API key was revoked. Use another one, or ask support.');
        case 'inactive':
          throw problem(
            403,
            'api_key_inactive',
            'This API key is no longer active. Use its successor, or ask support.',
          );
        case 'unknown':
          throw unauthorized('api_key_invalid', 'The API key is not valid. Check it for missing characters.');
        default:
          return owner satisfies never;
      }
    },
  }));
  server.auth.strategy('api-key', 'api-key');
  server.auth.default('api-key');
}

/** `Authorization` wins where both headers are sent (decisions.md, Keys and rate). */
function presentedKey(request: Request): string {
  const { authorization, 'x-api-key': apiKey } = request.headers;
  if (typeof authorization === 'string') return /^Bearer +([^ ]+) *$/i.exec(authorization)?.[1] ?? '';
  if (typeof apiKey === 'string') return apiKey.trim();
  throw unauthorized(
    'api_key_missing',
    'Send your API key as "Authorization: Bearer <API_KEY>" or "X-API-Key: <API_KEY>".',
  );
}

function unauthorized(code: string, detail: string): ApiError {
  return problem(401, code, detail, { headers: { 'www-authenticate': 'Bearer' } });
}
