import { randomBytes } from 'node:crypto';
import test from 'ava';
import { sign } from '../../../activities/webhooks/signature.ts';
import { EnrichmentError, verifyWebhook } from '../../../api/clients/typescript/index.ts';

const SECRET = `whsec_${randomBytes(32).toString('base64')}`;
const BODY = JSON.stringify({
  batch: { id: 'bat_1' },
  data: [{ request_id: 'req_1', email: 'zoë@example.com' }],
});

function headersOf(body: string, { secrets = [SECRET], ageS = 0 } = {}) {
  const timestamp = Math.floor(Date.now() / 1000) - ageS;
  const id = 'msg_1';
  return {
    'webhook-id': id,
    'webhook-timestamp': String(timestamp),
    'webhook-signature': sign({ id, timestamp, body, secrets }),
  };
}

test('verifyWebhook returns the content of a webhook for all types of body and headers', (t) => {
  const headers = headersOf(BODY);
  const envelope = JSON.parse(BODY);
  t.deepEqual(verifyWebhook(BODY, headers, SECRET), envelope);
  t.deepEqual(verifyWebhook(Buffer.from(BODY), new Headers(headers), SECRET), envelope);
  const bytes = new TextEncoder().encode(BODY);
  t.deepEqual(
    verifyWebhook(bytes, { ...headers, accept: ['a', 'b'], host: undefined }, SECRET),
    envelope,
  );
});

test('verifyWebhook throws webhook_unverified if the signature is not correct', (t) => {
  const cases: Record<string, readonly [unknown, object, string?]> = {
    'another secret': [
      BODY,
      headersOf(BODY, { secrets: [`whsec_${randomBytes(32).toString('base64')}`] }),
    ],
    'another body': [BODY.replace('zoë', 'zoe'), headersOf(BODY)],
    'an old one': [BODY, headersOf(BODY, { ageS: 600 })],
    'no headers': [BODY, {}],
    'a body that was parsed': [JSON.parse(BODY), headersOf(BODY)],
    'no secret': [BODY, headersOf(BODY), ''],
  };
  for (const [what, [body, headers, secret = SECRET]] of Object.entries(cases)) {
    const error = t.throws(
      () => verifyWebhook(body as string, headers as Record<string, string>, secret),
      {
        instanceOf: EnrichmentError,
      },
    );
    t.is(error?.code, 'webhook_unverified', what);
  }
});
