import { Agent, request } from 'node:http';
import { newId } from '../../db/connection/ids.ts';
import { startServers } from '../support/servers.ts';
import { type ApiClient, startApi } from '../support/stack.ts';

// The time of a response must not reveal another organization's IDs. For each kind of path this
// prints by how much the median times of a 404 differ between an ID of another organization and an
// unknown one. Run it on a quiet machine. A true difference shows in every round, a random one does
// not.
//
// node test/bench/tenancy-timing.ts [PAIRS]

const PAIRS = Number(process.argv[2] ?? 5000);
const ROUNDS = 3;

const stopServers = await startServers();
// A short window, because the bookkeeping of thousands of requests in one window would dominate the
// times.
const api = await startApi({ rateWindowMs: 100 });
const agent = new Agent({ keepAlive: true, maxSockets: 1 });
try {
  const ours = await api.organization();
  for (const [method, theirs, anybodys] of await paths(ours)) {
    const differences: number[] = [];
    for (let round = 0; round < ROUNDS; round += 1) {
      differences.push(await differenceOf(ours.apiKey, method, theirs, anybodys));
    }
    const figures = differences.map((us) => us.toFixed(1)).join(', ');
    console.log(
      `${method} ${theirs}: the medians of ${PAIRS} pairs differ by ${figures} µs`,
    );
  }
} finally {
  agent.destroy();
  await api.stop();
  await stopServers();
}
process.exit();

/**
 * Returns for each kind of path one with an ID of another organization and one with an unknown ID.
 */
async function paths(ours: ApiClient) {
  const theirs = await api.organization();
  const body = {
    npis: Array(60).fill('2000000010'),
    webhook: { url: 'https://receiver.example/hook' },
  };
  const { json } = await theirs.bulk(body);
  const log = await theirs.get<{ deliveries: { id: string }[] }>(
    `/api/v1/batch/${json.batch_id}/deliveries`,
  );
  const delivery = log.json.deliveries[0]?.id ?? '';
  const ownBatch = (await ours.bulk(body)).json.batch_id;
  const batch = (id: string) => `/api/v1/batch/${id}`;
  const resend = (batchId: string, id: string) =>
    `${batch(batchId)}/deliveries/${id}/resend`;
  return [
    ['GET', batch(json.batch_id), () => batch(newId('bat'))],
    [
      'GET',
      `/api/v1/email/${json.requests[0]?.request_id}`,
      () => `/api/v1/email/${newId('req')}`,
    ],
    [
      'GET',
      `${batch(json.batch_id)}/deliveries`,
      () => `${batch(newId('bat'))}/deliveries`,
    ],
    ['POST', resend(json.batch_id, delivery), () => resend(newId('bat'), newId('msg'))],
    ['POST', resend(ownBatch, delivery), () => resend(ownBatch, newId('msg'))],
  ] as const;
}

/**
 * Returns the difference of the median times in microseconds. It is positive if the other
 * organization's ID takes longer.
 */
async function differenceOf(
  apiKey: string,
  method: string,
  theirs: string,
  anybodys: () => string,
) {
  const unknownTimes: number[] = [];
  const foreignTimes: number[] = [];
  for (let i = 0; i < PAIRS; i += 1) {
    const unknown = anybodys();
    const pair = [
      async () => unknownTimes.push(await time(apiKey, method, unknown)),
      async () => foreignTimes.push(await time(apiKey, method, theirs)),
    ];
    // Measures both in turns, so that neither is always the second one.
    for (const ask of i % 2 === 0 ? pair : pair.reverse()) await ask();
  }
  return median(foreignTimes) - median(unknownTimes);
}

/**
 * Returns the microseconds from the request to the end of its 404, over one persistent connection.
 */
function time(apiKey: string, method: string, path: string): Promise<number> {
  return new Promise((resolve, reject) => {
    const begun = process.hrtime.bigint();
    const headers = { authorization: `Bearer ${apiKey}` };
    request(
      { agent, method, host: '127.0.0.1', port: api.port, path, headers },
      (response) => {
        if (response.statusCode !== 404)
          reject(new Error(`${method} ${path}: ${response.statusCode}`));
        response
          .resume()
          .on('end', () => resolve(Number(process.hrtime.bigint() - begun) / 1000));
      },
    )
      .on('error', reject)
      .end();
  });
}

function median(values: number[]): number {
  return values.sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}
