import { once } from 'node:events';
import { connect, createServer } from 'node:net';
import { LOOPBACK } from '../../deploy/ports.ts';

/**
 * Starts a proxy to PostgreSQL. It counts executed statements, statements that admit a call to a
 * source, and round trips, where one side sends after the other.
 */
export async function countingProxy(url: string) {
  const seen = { statements: 0, roundTrips: 0, admissions: 0 };
  const { hostname, port } = new URL(url);
  const server = createServer((near) => {
    const far = connect(Number(port), hostname);
    let rest = Buffer.alloc(0);
    let isStarted = false;
    let hasResponded = true;
    const texts = new Map<string, string>();
    const read = (type: string, [first = '', second = '']: readonly string[]) => {
      if (type === 'P') texts.set(first, second);
      if (type !== 'B' && type !== 'Q') return;
      seen.statements += 1;
      if (type === 'B' && /admit_call|into source_health/.test(texts.get(second) ?? ''))
        seen.admissions += 1;
    };
    near.on('data', (chunk) => {
      if (hasResponded) seen.roundTrips += 1;
      hasResponded = false;
      rest = Buffer.concat([rest, chunk]);
      // A message consists of its type, its length, and its content. Only the first message has no
      // type.
      for (let head = isStarted ? 1 : 0; rest.length >= head + 4; head = 1) {
        const size = head + rest.readUInt32BE(head);
        if (rest.length < size) break;
        if (isStarted)
          read(
            String.fromCharCode(rest[0] ?? 0),
            rest.toString('utf8', 5, size).split('\0'),
          );
        isStarted = true;
        rest = rest.subarray(size);
      }
      far.write(chunk);
    });
    far.on('data', (chunk) => {
      hasResponded = true;
      near.write(chunk);
    });
    for (const [one, other] of [
      [near, far],
      [far, near],
    ] as const) {
      one.on('error', () => {});
      one.once('close', () => other.destroy());
    }
  });
  server.listen(0, LOOPBACK);
  await once(server, 'listening');
  const address = server.address();
  return {
    seen,
    /** Returns the URL of the same database through this proxy. */
    through(direct: string): string {
      const there = new URL(direct);
      there.port = String(typeof address === 'object' ? address?.port : 0);
      return there.href;
    },
  };
}
