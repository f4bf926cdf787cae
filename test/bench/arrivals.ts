import { setTimeout } from 'node:timers/promises';
import { status } from '../support/receiver.ts';
import type { Stack } from '../support/stack.ts';

/**
 * Submits one NPI again and again, and prints the times from each submit to the arrival of its
 * webhook.
 * @param npis one NPI per submit
 */
export async function measureArrivals(
  { receiver }: Pick<Stack, 'receiver'>,
  client: Awaited<ReturnType<Stack['organization']>>,
  what: string,
  npis: readonly string[],
  everyMs: number,
) {
  const waits = await Promise.all(
    npis.map(async (npi, n) => {
      await setTimeout(n * everyMs);
      const path = `/${encodeURIComponent(what)}/${n}`;
      const begun = performance.now();
      const arrived = new Promise<void>((resolve) => {
        receiver.setBehavior(path, (response) => {
          status(200)(response);
          resolve();
        });
      });
      await client.single({ npi, webhook: { url: `${receiver.url}${path}` } });
      await arrived;
      return performance.now() - begun;
    }),
  );
  waits.sort((a, b) => a - b);
  const quantile = (q: number) =>
    Math.round(waits[Math.floor(q * (npis.length - 1))] ?? Number.NaN);
  const [p50, p95, most] = [quantile(0.5), quantile(0.95), quantile(1)];
  console.log(`${what}: p50 ${p50} ms, p95 ${p95} ms, at most ${most} ms`);
  return { p50, p95 };
}
