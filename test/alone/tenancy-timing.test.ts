import { Agent, request } from 'node:http';
import test from 'ava';
import { newId } from '../../db/ids.ts';
import { type Api, type ApiClient, startApi } from '../support/api.ts';

// The clock is a side channel too: nothing in the time of an answer tells one organization about another's ids.

let api: Api;
let ours: ApiClient;
let foreign: { readonly batch: string; readonly request: string };

test.before(async () => {
  // A short window: the times of thousands of requests in one would be what the test measures.
  api = await startApi({ rateWindowMs: 100 });
  ours = await api.organization();
  const theirs = await api.organization();
  const { json } = await theirs.bulk({ npis: Array(60).fill('2000000010') });
  foreign = { batch: json.batch_id, request: json.requests[0]?.request_id ?? '' };
});

test.after.always(async () => {
  await api?.stop();
});

/** Microseconds from the request to the end of its answer, over one kept connection. */
function time(agent: Agent, path: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const begun = process.hrtime.bigint();
    const headers = { authorization: `Bearer ${ours.apiKey}` };
    request({ agent, host: '127.0.0.1', port: api.port, path, headers }, (response) => {
      response.resume().on('end', () => resolve(Number(process.hrtime.bigint() - begun) / 1000));
    })
      .on('error', reject)
      .end();
  });
}

const median = (values: number[]) => values.sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;

test('the time of a 404 does not tell a foreign id from an unknown one', async (t) => {
  t.timeout(600_000);
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  for (const [path, id] of [
    ['batch', foreign.batch],
    ['email', foreign.request],
  ] as const) {
    // A true difference shows in every round; a busy machine's does not.
    const differences: number[] = [];
    do {
      const unknownTimes: number[] = [];
      const foreignTimes: number[] = [];
      for (let i = 0; i < 5000; i += 1) {
        const unknown = `/api/v1/${path}/${newId(path === 'batch' ? 'bat' : 'req')}`;
        const pair = [
          async () => unknownTimes.push(await time(agent, unknown)),
          async () => foreignTimes.push(await time(agent, `/api/v1/${path}/${id}`)),
        ];
        // In turns, so that neither is always the second.
        for (const ask of i % 2 === 0 ? pair : pair.reverse()) await ask();
      }
      differences.push(Math.abs(median(foreignTimes) - median(unknownTimes)));
    } while (differences.length < 3 && Math.min(...differences) > 25);
    t.log(
      `${path}: medians of 5,000 pairs differ by ${differences.map((us) => us.toFixed(1)).join(', ')} µs`,
    );
    t.true(Math.min(...differences) <= 25);
  }
  agent.destroy();
});
