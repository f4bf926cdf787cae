import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile, writeFile } from 'node:fs/promises';
import { request } from 'node:https';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import { createNames } from '../../../activities/http/names.ts';
import { createAddressPolicy } from '../../../activities/webhooks/ip-policy.ts';
import { createPost } from '../../../activities/webhooks/post.ts';
import { sign } from '../../../activities/webhooks/signature.ts';
import {
  ensureCertificate,
  type ReceivedDelivery,
  startReceiver,
} from '../../../deploy/local/receiver.ts';
import { temporaryFolder } from '../../support/database.ts';

const newSecret = () => `whsec_${randomBytes(24).toString('base64')}`;

test('the webhook receiver records each delivery and whether its signature is valid', async (t) => {
  const secret = newSecret();
  const { listed, send } = await start(t, [newSecret(), secret]);
  await send('/', { secret });
  await send('/', { secret: newSecret() });
  await send('/', { secret, tampered: true });
  await send('/', {});
  t.deepEqual(
    (await listed()).map(({ verified }) => verified),
    [true, false, false, false],
  );
});

test("the receiver's certificate is kept between starts, but renewed if unreadable", async (t) => {
  const dir = temporaryFolder(t.teardown);
  const first = await ensureCertificate(dir);
  t.is((await ensureCertificate(dir)).cert, first.cert);
  await writeFile(first.certFile, 'broken');
  const second = await ensureCertificate(dir);
  t.not(second.cert, first.cert);
  t.is(await readFile(second.certFile, 'utf8'), second.cert);
});

async function start(t: ExecutionContext, secrets: readonly string[] = []) {
  const dir = temporaryFolder(t.teardown);
  const receiver = await startReceiver(0, dir, secrets);
  t.teardown(() => receiver.close());
  const ca = await readFile(receiver.caFile, 'utf8');
  const listed = async (): Promise<ReceivedDelivery[]> => {
    const [response] = await once(request(`${receiver.url}/`, { ca }).end(), 'response');
    return JSON.parse(await text(response));
  };
  return { receiver, dir, listed, send: sender(receiver.url, ca) };
}

/**
 * Returns a function that sends a delivery as the product does, and returns the status of the
 * response.
 */
function sender(base: string, ca: string) {
  const post = createPost({
    policy: createAddressPolicy({ openCidrs: ['127.0.0.1/32'] }),
    ca,
    userAgent: 'test',
    lookup: createNames([]).find,
  });
  return async (
    path: string,
    how: { id?: string; secret?: string; tampered?: boolean },
  ): Promise<number> => {
    const { id = 'msg_1', secret, tampered = false } = how;
    const timestamp = Math.floor(Date.now() / 1000);
    const body = '{"a":1}';
    const signature =
      secret === undefined
        ? {}
        : { 'webhook-signature': sign({ id, timestamp, body, secrets: [secret] }) };
    const headers = {
      'webhook-id': id,
      'webhook-timestamp': String(timestamp),
      ...signature,
    };
    const sent = tampered ? '{"a":2}' : body;
    const reply = await post({
      url: `${base}${path}`,
      headers,
      body: sent,
      blocked: [],
    });
    return reply.kind === 'responded' ? reply.status : 0;
  };
}
