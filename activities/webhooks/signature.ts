import { createHmac, type KeyObject, sign as signAsymmetric } from 'node:crypto';

/** What one attempt's signatures are made over. */
export interface Signable {
  /** The `webhook-id` header. */
  readonly id: string;
  /** The `webhook-timestamp` header, whole seconds since 1970. */
  readonly timestamp: number;
  /** The body exactly as sent. */
  readonly body: string;
}

/**
 * The `webhook-signature` header of one delivery attempt: one `v1` signature per secret, then one `v1a` signature per
 * key, separated by spaces, so that a receiver that knows any of them accepts the delivery while one replaces another
 * (Standard Webhooks 1.0, "Signature scheme"; DECISIONS.md, Webhooks). Receivers skip versions that they do not know.
 * @param secrets `whsec_` + base64 each, the current one first
 * @param keys private ed25519 keys, the current one first; none where the deployment has none
 * @throws {Error} code `bad_webhook_secret` for a secret of any other form
 */
export function sign({
  secrets,
  keys = [],
  ...signable
}: Signable & { readonly secrets: readonly string[]; readonly keys?: readonly KeyObject[] }): string {
  return [
    ...secrets.map((secret) => signatureWith(secret, signable)),
    ...keys.map((key) => `v1a,${signAsymmetric(null, signedContent(signable), key).toString('base64')}`),
  ].join(' ');
}

/** What is signed, for whoever checks a `v1a` signature. */
export function signedContent({ id, timestamp, body }: Signable): Buffer {
  return Buffer.from(`${id}.${timestamp}.${body}`, 'utf8');
}

function signatureWith(secret: string, signable: Signable): string {
  return `v1,${createHmac('sha256', keyOf(secret)).update(signedContent(signable)).digest('base64')}`;
}

function keyOf(secret: string): Buffer {
  const encoded = /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(secret)?.[1];
  if (encoded !== undefined) return Buffer.from(encoded, 'base64');
  const message =
    "a webhook secret is not whsec_ followed by base64: rotate the organization's webhook secret";
  throw Object.assign(new Error(message), { code: 'bad_webhook_secret' });
}
