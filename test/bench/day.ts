import { loadavg } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { Books, type Customer } from './day/books.ts';
import { Market, openCustomers } from './day/customers.ts';
import { END, NORMAL, Phases, START } from './day/phases.ts';
import { checkPromises, untilQuiet } from './day/promises.ts';
import {
  callsOf,
  printDisk,
  printErrors,
  printFairness,
  printLatencies,
  printLoad,
  printMemory,
  printMoney,
  printPromises,
  resultsOf,
  sizesOf,
  webhooksOf,
} from './day/report.ts';
import { PeakMemory } from './day/usage.ts';
import { startWorld, type World } from './day/world.ts';

const HELP = `
Simulates an hour of production in 15 minutes, and reports whether all promises were kept.

The world: PostgreSQL with a synchronous standby, Temporal's dev server, two APIs behind a load
balancer, and two workers, each as a process. Two vendors, four receivers, and 200 customers are in
this process, over real sockets. The traffic of the customers follows Zipf's law. They send single
submits, bulks, and uploads, poll or get webhooks, and repeat earlier submits.

The events: one customer floods us, the first vendor fails, a release replaces APIs and workers,
and the primary of PostgreSQL is killed and its standby promoted.

Time-outs and the vendors' latencies are a quarter of those in production. Runs only on Linux, and
starts its own servers.

  --minutes N  the length (15). Two minutes are enough to try a change
  --rate N     NPIs per second (6), which should be about 40 % of what the machine can do: the
               report shows the busy cores of the normal time, and the lookups per second of the
               flood
  --seed N     the seed of the random numbers (1)

Exit codes: 0 all promises were kept, 1 some were broken.`;

const { values } = parseArgs({
  options: {
    minutes: { type: 'string', default: '15' },
    rate: { type: 'string', default: '6' },
    seed: { type: 'string', default: '1' },
    help: { type: 'boolean', default: false },
  },
});
if (values.help) {
  console.log(HELP.trim());
  process.exit();
}
const dayMs = 60_000 * Number(values.minutes);
const rate = Number(values.rate);

/** The times and the lengths of the events, as shares of the day. The rest is normal time. */
const EVENTS: readonly Event[] = [
  { name: 'flood', at: 0.2, length: 0.08, run: flood },
  { name: 'vendor outage', at: 0.45, length: 0.1, run: failVendor },
  { name: 'release', at: 0.65, length: 0.04, run: ({ world }) => world.release() },
  { name: 'promotion', at: 0.82, length: 0.08, run: ({ world }) => promote(world) },
];

interface Event {
  readonly name: string;
  readonly at: number;
  /** The least length, so that the phase has enough requests to measure. */
  readonly length: number;
  run(day: Day, length: number): Promise<void>;
}

interface Day {
  readonly world: World;
  readonly market: Market;
  readonly flooder: Customer;
}

/** The rank of the customer that floods us. */
const FLOODER = 100;
/** Its traffic in the event, as a multiple of that of all others. */
const FLOOD = 4;
const PROGRESS_MS = 30_000;
const MEMORY_MS = 5000;

/** Lets a small customer send a multiple of all traffic. Resolves when its requests are final. */
async function flood({ world, market, flooder }: Day, lengthMs: number): Promise<void> {
  await market.flood(flooder, (FLOOD * rate * lengthMs) / 1000);
  const { stack } = world;
  while ((await stack.openRequests(flooder.organizationId)).length > 0)
    await setTimeout(500);
}

async function failVendor({ world }: Day, lengthMs: number): Promise<void> {
  world.vendors.fail();
  await setTimeout(lengthMs);
  await world.vendors.repair();
}

async function promote(world: World): Promise<void> {
  await world.promote();
  await world.areReady();
}

/** Returns a function that returns the same numbers from 0 to 1 for the same seed (mulberry32). */
function randomNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const begun = Date.now();
function say(line: string): void {
  const seconds = Math.round((Date.now() - begun) / 1000);
  console.error(`${String(seconds).padStart(5)} s  ${line}`);
}

/** In seconds: a quarter of the usual 15 minutes, in a day of 15 minutes. */
const lookupTimeout = Math.max(60, dayMs / 4000);
say(`load of the machine before the day: ${loadavg()[0]?.toFixed(1)}`);
const world = await startWorld(lookupTimeout);
let broken = 1;
try {
  broken = await live();
} finally {
  await world.stop();
}
process.exit(broken > 0 ? 1 : 0);

/** @returns the number of broken promises */
async function live(): Promise<number> {
  const customers = await openCustomers(world.stack);
  const flooder = customers[FLOODER - 1] as Customer;
  const others = customers.filter((customer) => customer !== flooder);
  const books = new Books();
  const market = new Market(world, books, others, randomNumbers(Number(values.seed)));
  const before = await sizesOf(world);
  const memory = new PeakMemory();
  const measuring = setInterval(() => memory.sample(world.pids()), MEMORY_MS);
  const progress = setInterval(
    () => say(`${books.accepted.length} batches`),
    PROGRESS_MS,
  );
  const phases = await playDay({ world, market, flooder });
  clearInterval(measuring);
  clearInterval(progress);

  say('all requests and webhooks have ended; checking the promises');
  const after = await sizesOf(world);
  const promises = await checkPromises(books, world, market, customers);
  const npis = books.accepted.reduce((sum, { ids }) => sum + ids.length, 0);
  console.log(
    `${values.minutes} minutes, ${rate} NPIs per second, seed ${values.seed}: ${books.accepted.length} batches, ${npis} NPIs`,
  );
  const broken = printPromises(promises);
  const results = await resultsOf(world, others);
  const webhooks = await webhooksOf(world, books);
  printLatencies([...callsOf(books), ...results, ...webhooks], phases);
  await printFairness(world, phases, flooder, others);
  printErrors(world, books, phases);
  await printLoad(world, phases);
  await printMoney(world);
  printMemory(memory);
  printDisk(before, after, npis);
  return broken;
}

/** Lets customers trade for a day with all its events, and waits until everything has ended. */
async function playDay(day: Day): Promise<Phases> {
  const phases = new Phases();
  const begin = (phase: string) => {
    phases.begin(phase);
    say(phase);
  };
  const dayBegun = Date.now();
  const until = (share: number) =>
    setTimeout(Math.max(0, dayBegun + share * dayMs - Date.now()));
  const ending = new AbortController();
  const trading = day.market.trade(rate, ending.signal);
  begin(START);
  await until(0.06);
  begin(NORMAL);
  for (const { name, at, length, run } of EVENTS) {
    await until(at);
    begin(name);
    await Promise.all([run(day, length * dayMs), setTimeout(length * dayMs)]);
    begin(NORMAL);
  }
  await until(1);
  begin(END);
  ending.abort();
  await trading;
  await day.market.finish();
  await untilQuiet(world, 1000 * lookupTimeout + 300_000);
  begin(END);
  return phases;
}
