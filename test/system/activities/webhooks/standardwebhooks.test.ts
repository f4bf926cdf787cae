import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { Webhook } from 'standardwebhooks';
import { sign } from '../../../../activities/webhooks/signature.ts';
import { signatureVector } from '../../../../api/openapi/document.ts';
import examples from '../../../../api/openapi/examples.json' with { type: 'json' };
import { examplesOf } from '../../../support/conformance.ts';
import { documentedPython } from '../../../support/python.ts';
import { openapi } from '../../../support/site.ts';

// Tests our signatures, and the test vector of the OpenAPI document, with the public Standard
// Webhooks libraries of two languages.

const VERIFY = fileURLToPath(new URL('./standardwebhooks/verify.py', import.meta.url));
const interpreter = await documentedPython();
const pythonTest = interpreter === null ? test.skip : test;

const newSecret = () => `whsec_${randomBytes(32).toString('base64')}`;
const { body, secret } = signatureVector;
const id = signatureVector['webhook-id'];
const timestamp = Number(signatureVector['webhook-timestamp']);
const signature: string = signatureVector['webhook-signature'];

interface Given {
  readonly secret: string;
  readonly body: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly sign?: { readonly id: string; readonly timestamp: number };
}

/** Verifies deliveries with the library from PyPI. */
async function python(deliveries: readonly Given[]): Promise<string[]> {
  const child = spawn(interpreter ?? '', [VERIFY], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  child.stdin.end(deliveries.map((delivery) => JSON.stringify(delivery)).join('\n'));
  const [said] = await Promise.all([text(child.stdout), once(child, 'close')]);
  return said.trimEnd().split('\n');
}

/** Verifies a delivery with the library from npm. */
function node({ secret, body, headers = {} }: Given): string {
  try {
    new Webhook(secret).verify(body, { ...headers }, { jsonParse: false });
    return 'right';
  } catch (error) {
    return error instanceof Error ? error.message : '';
  }
}

function signed(secrets: readonly string[], { ageSeconds = 0 } = {}) {
  const at = Math.floor(Date.now() / 1000) - ageSeconds;
  return {
    'webhook-id': id,
    'webhook-timestamp': String(at),
    'webhook-signature': sign({ id, timestamp: at, body, secrets }),
  };
}

/** Returns deliveries with their expected results. */
function cases(): readonly (readonly [Given, RegExp])[] {
  const [current, previous] = [newSecret(), newSecret()];
  const right = signed([current]);
  return [
    [{ secret: current, body, headers: right }, /^right$/],
    [{ secret: current, body, headers: signed([current, previous]) }, /^right$/],
    [{ secret: previous, body, headers: signed([current, previous]) }, /^right$/],
    [{ secret: newSecret(), body, headers: signed([current, previous]) }, /No matching/],
    [{ secret: current, body: body.replace('17', '18'), headers: right }, /No matching/],
    [
      { secret: current, body, headers: { ...right, 'webhook-id': 'msg_2' } },
      /No matching/,
    ],
    [
      { secret: current, body, headers: { ...right, 'webhook-signature': 'v2,AA==' } },
      /No matching/,
    ],
    [
      { secret: current, body, headers: signed([current], { ageSeconds: 600 }) },
      /too old/,
    ],
    [
      { secret: current, body, headers: signed([current], { ageSeconds: -600 }) },
      /too new/,
    ],
  ];
}

test('the npm package standardwebhooks accepts only webhooks that we signed', (t) => {
  for (const [given, said] of cases()) t.regex(node(given), said);
});

pythonTest(
  'the PyPI package standardwebhooks accepts only webhooks that we signed',
  async (t) => {
    const all = cases();
    const said = await python(all.map(([given]) => given));
    t.is(said.length, all.length);
    for (const [n, [, expected]] of all.entries()) t.regex(said[n] ?? '', expected);
  },
);

test('we and the npm package standardwebhooks compute the documented signature', (t) => {
  t.is(body, JSON.stringify(examples.delivery['real-time'].value));
  t.is(signature, sign({ id, timestamp, body, secrets: [secret] }));
  t.is(signature, new Webhook(secret).sign(id, new Date(timestamp * 1000), body));
});

pythonTest(
  'the PyPI package standardwebhooks also computes the documented signature',
  async (t) => {
    t.deepEqual(await python([{ secret, body, sign: { id, timestamp } }]), [signature]);
  },
);

test('the OpenAPI document shows the webhook headers of the documented test vector', (t) => {
  const examples = examplesOf(openapi);
  for (const name of ['webhook-id', 'webhook-timestamp', 'webhook-signature'] as const) {
    const shows = (place: string, expected: string) =>
      examples.some(({ at, value }) => at.includes(place) && value === expected);
    t.true(shows('/callbacks/result/', signatureVector[name]), name);
  }
});
