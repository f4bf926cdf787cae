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
import { OperatorProblem } from '../../../db/connection/errors.ts';
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

test('the webhook receiver returns 500 for /fail/N the first N times, then 200', async (t) => {
  const { send } = await start(t);
  const statuses: number[] = [];
  for (const id of ['msg_a', 'msg_a', 'msg_b', 'msg_a', 'msg_b', 'msg_b', 'msg_a']) {
    statuses.push(await send('/fail/2/any', { id }));
  }
  t.deepEqual(statuses, [500, 500, 500, 200, 500, 200, 200]);
});

test('the webhook receiver always returns CODE for /status/CODE, and 200 by default', async (t) => {
  const { send } = await start(t);
  for (const code of [204, 301, 410, 503]) t.is(await send(`/status/${code}`, {}), code);
  for (const path of ['/', '/any', '/status/999', '/status/abc', '/fail/x'])
    t.is(await send(path, {}), 200, path);
});

test('the webhook receiver lists its deliveries as JSON, newest last', async (t) => {
  const { listed, send } = await start(t);
  await send('/first', { id: 'msg_1' });
  await send('/second', { id: 'msg_2' });
  t.deepEqual(
    (await listed()).map(({ id, path, body }) => [id, path, body]),
    [
      ['msg_1', '/first', '{"a":1}'],
      ['msg_2', '/second', '{"a":1}'],
    ],
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

test("the receiver's error about a port that is in use names the port", async (t) => {
  const { receiver, dir } = await start(t);
  const port = Number(new URL(receiver.url).port);
  const error = await t.throwsAsync(startReceiver(port, dir, []), {
    instanceOf: OperatorProblem,
    message: /is in use/,
  });
  t.true(error?.message.includes(String(port)));
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
