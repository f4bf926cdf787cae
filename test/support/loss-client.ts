import { randomUUID } from 'node:crypto';
import type postgresType from 'postgres';

/**
 * A process that keeps a pool of 8 busy until told to stop, and counts what becomes of it. Started by fork with
 * the path of postgres.js and a database URL; any message is answered with `LossCounts`, `stop` ends it first.
 */
export interface LossCounts {
  readonly fulfilled: number;
  readonly rejected: number;
  /** What would have ended a process that does not count. */
  readonly uncaught: number;
  /** Callers whose query got no answer within a minute of the stop. */
  readonly hanging: number;
}

const CALLERS = 24;
/** Bounds a hang and nothing else. */
const ANSWER_MS = 60_000;

const [modulePath, url] = process.argv.slice(2);
if (modulePath === undefined || url === undefined) throw new Error('usage: loss-client.ts MODULE URL');
const { default: postgres } = (await import(modulePath)) as { default: typeof postgresType };

let fulfilled = 0;
let rejected = 0;
let uncaught = 0;
let hanging = CALLERS;
let stopping = false;

process.on('uncaughtException', () => {
  uncaught += 1;
});

const sql = postgres(url, {
  max: 8,
  connect_timeout: 5,
  backoff: (retries: number) => Math.min(1, 0.05 * 2 ** retries),
  onnotice: () => {},
});
const callers = Array.from({ length: CALLERS }, async (_, caller) => {
  while (!stopping) {
    try {
      await (caller % 2 === 0 ? sql`select ${caller}::int` : writePair());
      fulfilled += 1;
    } catch {
      rejected += 1;
    }
    // A turn of the event loop, as a server would have between two calls.
    await new Promise((resolve) => setImmediate(resolve));
  }
  hanging -= 1;
});

process.on('message', (message) => {
  void answer(message === 'stop');
});

async function answer(stop: boolean): Promise<void> {
  if (stop) {
    stopping = true;
    await Promise.race([Promise.all(callers), new Promise((resolve) => setTimeout(resolve, ANSWER_MS))]);
  }
  const counts: LossCounts = { fulfilled, rejected, uncaught, hanging: stop ? hanging : 0 };
  process.send?.(counts, () => {
    if (stop) process.exit();
  });
}

/** Two rows or none, even though the second is sent whatever became of the first. */
async function writePair(): Promise<void> {
  const pair = randomUUID();
  await sql.begin(async (tx) => {
    await tx`insert into pairs values (${pair})`.catch(() => {});
    await tx`insert into pairs values (${pair})`;
  });
}
