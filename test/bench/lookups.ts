import type { EnvelopeResponse } from '../support/organization.ts';
import type { ApiClient } from '../support/stack.ts';

/** How long lookups took, in milliseconds, and how many were not completed. */
export interface LookupTimes {
  readonly median: number;
  readonly longest: number;
  readonly failed: number;
  readonly n: number;
}

/** Looks NPIs up one after the other. */
export async function timeLookups(
  client: ApiClient,
  npis: Iterable<string>,
): Promise<LookupTimes> {
  const times: number[] = [];
  let failed = 0;
  for (const npi of npis) {
    const begun = performance.now();
    const { json } = await client.single({ npi });
    const { data } = await batchCompleted(client, json.batch_id);
    times.push(performance.now() - begun);
    if (data[0]?.status !== 'completed') failed += 1;
  }
  times.sort((a, b) => a - b);
  const median = Math.round(times[Math.floor(times.length / 2)] ?? Number.NaN);
  return {
    median,
    longest: Math.round(times.at(-1) ?? Number.NaN),
    failed,
    n: times.length,
  };
}

/** Waits for a batch by polls that wait, which cost next to nothing. */
async function batchCompleted(
  client: ApiClient,
  batchId: string,
): Promise<EnvelopeResponse> {
  for (;;) {
    const path = `/api/v1/batch/${batchId}`;
    const { json } = await client.call<EnvelopeResponse>('GET', path, undefined, {
      prefer: 'wait=60',
    });
    if (json.batch.status === 'completed') return json;
  }
}
