import test from 'ava';
import { eq } from 'drizzle-orm';
import fc from 'fast-check';
import { webhookDeliveries } from '../../db/schema.ts';
import { loadDelivery } from '../../db/webhooks/deliveries.ts';
import { fresh } from '../support/database.ts';
import { objectText, valueText } from '../support/json-text.ts';
import type { SubmitResponse } from '../support/organization.ts';
import { startApi } from '../support/stack.ts';

// Tests that polls and deliveries return custom_data unchanged (DECISIONS.md, custom_data).

const NPI = '1234567893';
const MAX_BYTES = 16 * 1024;
const { TEST_SEED } = process.env;

const api = fresh(test, startApi);
const client = fresh(test, () => api.organization(100_000));

const submit = (body: string) =>
  client.call<SubmitResponse>('POST', '/api/v1/email', body);

/**
 * Returns custom_data as both polls and the delivery contain it: the text between the two fields
 * around it.
 */
async function echoesOf(body: string): Promise<string[]> {
  const { status, text, json } = await submit(
    body.replace('{', `{"webhook":{"url":"https://hooks.example/","mode":"batch"},`),
  );
  if (status !== 202) throw new Error(`${status} ${text} for ${body}`);
  const [request] = json.requests;
  const polls = [
    `/api/v1/email/${request?.request_id}`,
    `/api/v1/batch/${json.batch_id}`,
  ];
  const [delivery] = await api.db.drizzle
    .select({ id: webhookDeliveries.id })
    .from(webhookDeliveries)
    .where(eq(webhookDeliveries.batchId, json.batch_id));
  const responses = await Promise.all([
    ...polls.map(async (path) => (await client.get(path)).text),
    loadDelivery(api.db, delivery?.id ?? '').then((loaded) => loaded.body),
  ]);
  return responses.map((response) => {
    const start = response.indexOf(',"custom_data":') + ',"custom_data":'.length;
    return response.slice(start, response.lastIndexOf(',"usage":'));
  });
}

test('random custom_data, first or last in the body, is returned exactly as written', async (t) => {
  let values = 0;
  const seed = Number(TEST_SEED ?? Date.now() % 1_000_000_000);
  t.log(`TEST_SEED=${seed}`);
  // Many values in one object, so that one submit tries them all.
  const many = fc
    .array(valueText, { minLength: 40, maxLength: 100, size: 'max' })
    .map((texts) => ({
      size: texts.length,
      text: `{${texts.map((text, i) => `"${i % 50}":${text}`).join(', ')}}`,
    }));
  const one = objectText.map((text) => ({ size: 1, text }));
  const data = fc
    .oneof({ weight: 4, arbitrary: many }, { weight: 1, arbitrary: one })
    .filter(({ text }) => Buffer.byteLength(text) <= MAX_BYTES);
  await fc.assert(
    fc.asyncProperty(
      data,
      objectText,
      fc.boolean(),
      async ({ size, text }, noise, first) => {
        const rest = `"npi":"${NPI}","unknown":${noise},"x":"\\"custom_data\\":{}"`;
        const member = `"custom_data" :\n${text}\t`;
        const echoes = await echoesOf(
          first ? `{${member},${rest}}` : `{${rest},${member}}`,
        );
        t.deepEqual(echoes, [text, text, text]);
        values += size;
      },
    ),
    // json-text.test.ts tests the reader of such text with many more values.
    { seed, numRuns: 30 },
  );
  t.log(`${values} values`);
});

test('custom_data that parsing and printing would change is returned unchanged', async (t) => {
  for (const text of [
    '{}',
    '{ "a" : [ 1 , 2 ] }',
    '{"n":[12345678901234567890,0.1000000000000000055511151231257827,1.0,-0,-0.0,1e400,1E+2,5e-400]}',
    '{"z":1,"a":2,"10":3,"9":4,"":5}',
    '{"__proto__":{"a":1},"constructor":{"prototype":null},"toString":1}',
    '{"a":"\\u0000\\ud800\\udfff\\/\\u0041\u007f\u2028é😀"}',
    '{"a":1,"a":2,"\\u0061":3}',
    '{"custom_data":{"custom_data":{}},"npi":"x"}',
    '{"$ref":"#","a.b":1,"a\'; drop table batches; --":"$ {x}{{y}}%s"}',
  ]) {
    t.deepEqual(await echoesOf(`{"npi":"${NPI}","custom_data":${text}}`), [
      text,
      text,
      text,
    ]);
  }
});

test('custom_data of 16 KiB is accepted, and one byte more is rejected', async (t) => {
  const sized = (bytes: number, char: string) => {
    const n = (bytes - 8) / Buffer.byteLength(char);
    return `{"a":"${char.repeat(n)}"}`;
  };
  const tooLarge = JSON.stringify({
    detail: [
      {
        loc: ['body', 'custom_data'],
        msg: 'Dictionary should have at most 16384 bytes as JSON. Store the data yourself, and send an id for it',
        type: 'dict_too_large',
      },
    ],
  });
  for (const char of ['x', 'é', '😀', '\\u0041']) {
    const width = Buffer.byteLength(char);
    const largest = MAX_BYTES - ((MAX_BYTES - 8) % width);
    const text = sized(largest, char);
    t.is(Buffer.byteLength(text), largest);
    t.deepEqual(await echoesOf(`{"npi":"${NPI}","custom_data":${text}}`), [
      text,
      text,
      text,
    ]);
    const response = await submit(
      `{"npi":"${NPI}","custom_data":${sized(largest + width, char)}}`,
    );
    t.deepEqual([response.status, response.text], [422, tooLarge], char);
  }
  const spaced = `{"npi":"${NPI}","custom_data":${' '.repeat(20_000)}{"a":1}${' '.repeat(20_000)}}`;
  t.deepEqual(await echoesOf(spaced), Array(3).fill('{"a":1}'));
  t.is(
    (await submit(`{"npi":"${NPI}","custom_data":{${' '.repeat(MAX_BYTES)}}}`)).text,
    tooLarge,
  );
});

test('custom_data with 32 levels of nesting is accepted, and 33 levels are rejected', async (t) => {
  const deep = (levels: number, [open, close]: readonly [string, string]) =>
    `{"a":${open.repeat(levels - 1)}1${close.repeat(levels - 1)}}`;
  const tooDeep = JSON.stringify({
    detail: [
      {
        loc: ['body', 'custom_data'],
        msg: 'Dictionary should have at most 32 levels. Flatten it, or put it into a string',
        type: 'dict_too_deep',
      },
    ],
  });
  for (const shape of [['[', ']'] as const, ['{"[":', '}'] as const]) {
    const text = deep(32, shape);
    t.deepEqual(await echoesOf(`{"npi":"${NPI}","custom_data":${text}}`), [
      text,
      text,
      text,
    ]);
    t.is(
      (await submit(`{"npi":"${NPI}","custom_data":${deep(33, shape)}}`)).text,
      tooDeep,
    );
  }
});
