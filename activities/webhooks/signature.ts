import { createHmac } from 'node:crypto';

interface Signed {
  /** The `webhook-id` header. */
  readonly id: string;
  /** The `webhook-timestamp` header in whole seconds since 1970. */
  readonly timestamp: number;
  /** The body exactly as sent. */
  readonly body: string;
  /** The signing secrets, each as `whsec_` and base64. The current one comes first. */
  readonly secrets: readonly string[];
}

/** Returns the headers of an attempt at a time by PostgreSQL's clock. */
export function signedHeaders(message: Omit<Signed, 'timestamp'>, at: Date) {
  const timestamp = Math.floor(at.getTime() / 1000);
  return {
    'content-type': 'application/json',
    'webhook-id': message.id,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': sign({ ...message, timestamp }),
  };
}

/**
 * Returns the `webhook-signature` header of one delivery attempt. It has one `v1` signature per
 * secret, separated by spaces. A receiver can check it with any of the secrets while a new one
 * replaces the old one (Standard Webhooks 1.0, "Signature scheme"; DECISIONS.md, Webhooks).
 * @throws {Error} code `bad_webhook_secret` for a secret in any other form
 */
export function sign({ id, timestamp, body, secrets }: Signed): string {
  const content = `${id}.${timestamp}.${body}`;
  const signatures = secrets.map((secret) => {
    const hmac = createHmac('sha256', keyOf(secret)).update(content);
    return `v1,${hmac.digest('base64')}`;
  });
  return signatures.join(' ');
}

function keyOf(secret: string): Buffer {
  const encoded = /^whsec_([A-Za-z0-9+/]+={0,2})$/.exec(secret)?.[1];
  if (encoded !== undefined) return Buffer.from(encoded, 'base64');
  const message =
    "a webhook secret is not whsec_ followed by base64. Rotate the organization's webhook secret.";
  throw Object.assign(new Error(message), { code: 'bad_webhook_secret' });
}
