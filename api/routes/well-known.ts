import { createHash } from 'node:crypto';
import type { Server } from '@hapi/hapi';
import { isId } from '../../db/ids.ts';
import { notFound } from '../http/errors.ts';

/** A public ed25519 key: a JSON Web Key (RFC 8037) that also spells itself `whpk_…`, as Standard Webhooks does. */
export interface WebhookKey {
  readonly kty: 'OKP';
  readonly crv: 'Ed25519';
  readonly use: 'sig';
  readonly kid: string;
  readonly x: string;
  readonly whpk: string;
}

/**
 * `GET /.well-known/webhook-keys/{organization_id}`: the public keys that the organization's deliveries are signed with
 * (`v1a`), as a JSON Web Key Set, without a key and uncounted. Every well-formed id has keys, because they are derived
 * from it: the answer tells nobody whether an organization exists.
 * @param keysOf none where the deployment signs with secrets alone
 */
export function registerWellKnown(
  server: Server,
  keysOf: (organizationId: string) => readonly WebhookKey[],
): void {
  server.route({
    method: 'GET',
    path: '/.well-known/webhook-keys/{organization_id}',
    options: { auth: false },
    handler: (request, h) => {
      const organizationId = String(request.params.organization_id);
      if (!isId('org', organizationId)) throw notFound();
      const text = JSON.stringify({ keys: keysOf(organizationId) });
      const etag = createHash('sha256').update(text).digest('base64url').slice(0, 27);
      return h
        .response(text)
        .type('application/json')
        .etag(etag)
        .header('cache-control', 'public, max-age=300');
    },
  });
}
