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
  t.deepEqual(verifyWebhook(bytes.buffer, headers, SECRET), envelope);
  t.deepEqual(
    verifyWebhook(bytes, { ...headers, accept: ['a', 'b'], host: undefined }, SECRET),
    envelope,
  );
});

test('verifyWebhook throws webhook_unverified if the signature is not correct', (t) => {
  const parsed =
    /^The body is not the text or the bytes that arrived\. Pass the body before /;
  const unsigned = /^The webhook is not from us\. Its signature does not match /;
  const cases: Record<string, readonly [unknown, object, RegExp, string?]> = {
    'another secret': [
      BODY,
      headersOf(BODY, { secrets: [`whsec_${randomBytes(32).toString('base64')}`] }),
      unsigned,
    ],
    'another body': [BODY.replace('zoë', 'zoe'), headersOf(BODY), unsigned],
    'an old one': [BODY, headersOf(BODY, { ageS: 600 }), /timestamp too old\.$/],
    'no headers': [BODY, {}, /^The webhook is not from us\. Missing required headers\.$/],
    'a body that was parsed': [JSON.parse(BODY), headersOf(BODY), parsed],
    'a list of bytes': [[...Buffer.from(BODY)], headersOf(BODY), parsed],
    'no body': [undefined, headersOf(BODY), parsed],
    'no secret': [BODY, headersOf(BODY), /^The secret is not complete\. /, ''],
    'half a secret': [BODY, headersOf(BODY), /^The secret is not complete\. /, 'whsec_='],
  };
  for (const [what, [body, headers, words, secret = SECRET]] of Object.entries(cases)) {
    const error = t.throws(
      () => verifyWebhook(body as string, headers as Record<string, string>, secret),
      {
        instanceOf: EnrichmentError,
      },
    );
    t.is(error?.code, 'webhook_unverified', what);
    t.regex(error?.message ?? '', words, what);
  }
});
