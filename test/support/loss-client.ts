import { randomUUID } from 'node:crypto';
import type postgresType from 'postgres';

/**
 * The counts of a process that keeps a pool of 8 busy until it is stopped. The process is forked
 * with the path of postgres.js and a database URL. It responds to each message with `LossCounts`,
 * and ends the work first if the message is `stop`.
 */
export interface LossCounts {
  readonly fulfilled: number;
  readonly rejected: number;
  /** Errors that would end a process without these counts. */
  readonly uncaught: number;
  /** Callers whose query got no response within a minute after the stop. */
  readonly hanging: number;
}

const CALLERS = 24;
/** This limit only ends a hanging test. */
const RESPONSE_MS = 60_000;

const [modulePath, url] = process.argv.slice(2);
if (modulePath === undefined || url === undefined)
  throw new Error('usage: loss-client.ts MODULE URL');
const { default: postgres } = (await import(modulePath)) as {
  default: typeof postgresType;
};

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
    // Waits for one turn of the event loop, as a server does between two calls.
    await new Promise((resolve) => setImmediate(resolve));
  }
  hanging -= 1;
});

process.on('message', (message) => {
  void reply(message === 'stop');
});

async function reply(stop: boolean): Promise<void> {
  if (stop) {
    stopping = true;
    await Promise.race([
      Promise.all(callers),
      new Promise((resolve) => setTimeout(resolve, RESPONSE_MS)),
    ]);
  }
  const counts: LossCounts = {
    fulfilled,
    rejected,
    uncaught,
    hanging: stop ? hanging : 0,
  };
  process.send?.(counts, () => {
    if (stop) process.exit();
  });
}

/**
 * Writes two rows or no row, although it sends the second insert even after an error of the first.
 */
async function writePair(): Promise<void> {
  const pair = randomUUID();
  await sql.begin(async (tx) => {
    await tx`insert into pairs values (${pair})`.catch(() => {});
    await tx`insert into pairs values (${pair})`;
  });
}
