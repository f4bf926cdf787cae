import { Agent, request } from 'node:http';
import test from 'ava';
import { newId } from '../../db/ids.ts';
import { type Api, type ApiClient, startApi } from '../support/api.ts';

// The clock is a side channel too: nothing in the time of an answer tells one organization about another's ids.

let api: Api;
let ours: ApiClient;
let foreign: { readonly batch: string; readonly request: string; readonly delivery: string };
let ownBatch: string;

test.before(async () => {
  // A short window: the times of thousands of requests in one would be what the test measures.
  api = await startApi({ rateWindowMs: 100 });
  ours = await api.organization();
  const theirs = await api.organization();
  const submit = { npis: Array(60).fill('2000000010'), webhook: { url: 'https://example.com/hook' } };
  const { json } = await theirs.bulk(submit);
  const log = await theirs.get<{ deliveries: { id: string }[] }>(`/api/v1/batch/${json.batch_id}/deliveries`);
  foreign = {
    batch: json.batch_id,
    request: json.requests[0]?.request_id ?? '',
    delivery: log.json.deliveries[0]?.id ?? '',
  };
  ownBatch = (await ours.bulk(submit)).json.batch_id;
});

test.after.always(async () => {
  await api?.stop();
});

/** Microseconds from the request to the end of its answer, over one kept connection. */
function time(agent: Agent, method: 'GET' | 'POST', path: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const begun = process.hrtime.bigint();
    const headers = { authorization: `Bearer ${ours.apiKey}` };
    request({ agent, method, host: '127.0.0.1', port: api.port, path, headers }, (response) => {
      response.resume().on('end', () => resolve(Number(process.hrtime.bigint() - begun) / 1000));
    })
      .on('error', reject)
      .end();
  });
}

const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;

/** For each kind of path: one with an id of theirs, and one with an id that nobody has. */
function paths() {
  const batch = (id: string) => `/api/v1/batch/${id}`;
  const resend = (batchId: string, id: string) => `${batch(batchId)}/deliveries/${id}/resend`;
  return [
    ['GET', batch(foreign.batch), () => batch(newId('bat'))],
    ['GET', `/api/v1/email/${foreign.request}`, () => `/api/v1/email/${newId('req')}`],
    ['GET', `${batch(foreign.batch)}/deliveries`, () => `${batch(newId('bat'))}/deliveries`],
    ['POST', resend(foreign.batch, foreign.delivery), () => resend(newId('bat'), newId('msg'))],
    ['POST', resend(ownBatch, foreign.delivery), () => resend(ownBatch, newId('msg'))],
  ] as const;
}

test('the time of a 404 does not tell a foreign id from an unknown one', async (t) => {
  t.timeout(600_000);
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  for (const [method, theirs, anybodys] of paths()) {
    // A true difference shows in every round; a busy machine's does not.
    const differences: number[] = [];
    do {
      const unknownTimes: number[] = [];
      const foreignTimes: number[] = [];
      for (let i = 0; i < 5000; i += 1) {
        const unknown = anybodys();
        const pair = [
          async () => unknownTimes.push(await time(agent, method, unknown)),
          async () => foreignTimes.push(await time(agent, method, theirs)),
        ];
        // In turns, so that neither is always the second.
        for (const ask of i % 2 === 0 ? pair : pair.reverse()) await ask();
      }
      differences.push(Math.abs(median(foreignTimes) - median(unknownTimes)));
    } while (differences.length < 3 && Math.min(...differences) > 25);
    t.log(
      `${method} ${theirs}: medians of 5,000 pairs differ by ${differences.map((us) => us.toFixed(1)).join(', ')} µs`,
    );
    t.true(Math.min(...differences) <= 25);
  }
  agent.destroy();
});
