import { isAnyArrayBuffer, isUint8Array } from 'node:util/types';
import { Webhook } from 'standardwebhooks';
import { EnrichmentError } from './errors.ts';
import type { Envelope } from './types.ts';

const NOT_RAW = [
  'The body is not the text or the bytes that arrived.',
  'Pass the body before your framework parses it,',
  'because its signature is over the unparsed body.',
].join(' ');

/**
 * Returns the body of a webhook delivery, after checking that it is signed with the secret and at
 * most 5 minutes old.
 * @param body the body exactly as received, not parsed
 * @param secret `whsec_…`
 * @throws {EnrichmentError} `webhook_unverified` if the check fails. Respond with 400
 */
export function verifyWebhook(
  body: Uint8Array | ArrayBuffer | string,
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>,
  secret: string,
): Envelope {
  const webhook = webhookOf(secret);
  if (!isRaw(body)) {
    throw unverified(NOT_RAW);
  }
  try {
    const pairs = headers instanceof Headers ? [...headers] : Object.entries(headers);
    const given = Object.fromEntries(pairs.map(([name, value]) => [name, String(value)]));
    return webhook.verify(Buffer.from(body as string), given) as Envelope;
  } catch (cause) {
    let { message } = cause as Error;
    if (message === 'No matching signature found') {
      message = 'Its signature does not match the secret and the unparsed body';
    }
    throw unverified(`The webhook is not from us. ${message}.`, cause);
  }
}

function isRaw(body: unknown): boolean {
  if (typeof body === 'string') {
    return true;
  }
  return isUint8Array(body) || isAnyArrayBuffer(body);
}

function webhookOf(secret: string): Webhook {
  try {
    return new Webhook(secret);
  } catch (cause) {
    throw unverified('The secret is not complete. Copy it again, with whsec_.', cause);
  }
}

function unverified(text: string, cause?: unknown): EnrichmentError {
  return new EnrichmentError('webhook_unverified', text, { cause });
}
