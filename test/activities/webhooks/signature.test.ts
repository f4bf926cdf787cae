import { randomBytes } from 'node:crypto';
import test from 'ava';
import { Webhook } from 'standardwebhooks';
import { sign } from '../../../activities/webhooks/signature.ts';

const now = () => Math.floor(Date.now() / 1000);
const newSecret = () => `whsec_${randomBytes(24).toString('base64')}`;
const headersOf = (id: string, timestamp: number, signature: string) => ({
  'webhook-id': id,
  'webhook-timestamp': String(timestamp),
  'webhook-signature': signature,
});

test('our signature of a webhook is the same as that of the Standard Webhooks library', (t) => {
  // The key, id, time and body of the library's own tests.
  const secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw';
  const id = 'msg_p5jXN8AQM9LWM0D4loKWxJek';
  const body = '{"test": 2432232314}';
  const signature = sign({ id, timestamp: 1614265330, body, secrets: [secret] });
  t.is(signature, 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=');
  t.is(signature, new Webhook(secret).sign(id, new Date(1614265330 * 1000), body));
});

test('the Standard Webhooks library accepts our signature of any text', (t) => {
  const secret = newSecret();
  for (const body of [
    '{}',
    '{"name":"Zoë 医師 🩺"}',
    '{"text":"\\u0000 \\ud800"}',
    `"${'x'.repeat(100_000)}"`,
  ]) {
    const timestamp = now();
    const signature = sign({ id: 'msg_1', timestamp, body, secrets: [secret] });
    t.notThrows(() =>
      new Webhook(secret).verify(body, headersOf('msg_1', timestamp, signature)),
    );
  }
});

test('the error about a malformed webhook secret does not contain the secret', (t) => {
  for (const secret of [
    '',
    'whsec_',
    'MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
    'whsec_not base64',
    'whsec_a=b',
  ]) {
    const error = t.throws(
      () => sign({ id: 'msg_1', timestamp: 1, body: '', secrets: [secret] }),
      {
        code: 'bad_webhook_secret',
      },
    );
    if (secret.length > 6) t.false(error?.message.includes(secret.slice(6)));
  }
});
