import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { LOOPBACK, portTaken } from './processes.ts';
import { hunter, prospeo } from './sim/finders.ts';
import { fullenrich } from './sim/fullenrich.ts';
import { registry } from './sim/registry.ts';
import { rocketreach } from './sim/rocketreach.ts';
import { neverbounce, reacher, zerobounce } from './sim/verifiers.ts';
import type { Memory, Question, Reply, Source } from './sim/wire.ts';

/** All that is simulated: vendors in the order of the waterfall, then verifiers, then the NPI registry. */
const SOURCES = { rocketreach, fullenrich, prospeo, hunter, reacher, zerobounce, neverbounce, registry };
const SOURCE_ENTRIES = Object.entries<Source>(SOURCES);

export type SourceUrls = Readonly<Record<keyof typeof SOURCES, string>>;

/** One question that a source was asked: the real one charges for some of them. */
export interface SimulatorCall {
  readonly vendor: string;
  /** In the source's words, such as `lookup` and `checkStatus`. */
  readonly operation: string;
  /** An NPI, an address, a job's id: whom or what was asked about. */
  readonly subject: string;
  /** What it was, or will be, answered; null if it never is. */
  readonly status: number | null;
}

export type Simulator = Awaited<ReturnType<typeof createSimulator>>;

const MAX_CALLS = 100_000;

/**
 * An HTTP server on the loopback that speaks the wire formats in sim/, each source below its id: sim/magic.ts for the
 * magic NPIs, an answer derived from its digits for any other.
 * @param port 0 for any free one
 * @param speed what every latency, and every hint when to come back, is divided by
 * @param apiKey what callers must send, whatever the source
 * @throws {LocalProblem} `port_taken`
 */
export async function createSimulator({
  port,
  speed,
  apiKey,
}: {
  port: number;
  speed: number;
  apiKey: string;
}) {
  const calls: SimulatorCall[] = [];
  const memories = new Map<string, Memory>();

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams: query } = new URL(request.url ?? '/', 'http://simulator');
    const body = objectIn(await text(request));
    const reply = replyTo(request, pathname, { headers: request.headers, query, body });
    if (reply === 'hang') return;
    const timer = setTimeout(
      () => {
        const headers = { 'content-type': 'application/json', ...reply.headers };
        response.writeHead(reply.status, headers).end(JSON.stringify(reply.body));
      },
      (reply.latencyMs ?? 0) / speed,
    );
    // Answered, or its caller hung up, or the simulator was closed.
    response.once('close', () => clearTimeout(timer));
  }

  function replyTo({ method }: IncomingMessage, pathname: string, rest: Omit<Question, 'id'>): Reply {
    const [vendor = '', source] =
      SOURCE_ENTRIES.find(([, { base }]) => pathname.startsWith(`${base}/`)) ?? [];
    if (source === undefined) return { status: 404, body: { message: 'No such vendor.' } };
    const path = `${method} ${pathname.slice(source.base.length)}`;
    const [, parent, id = ''] = /^(.*\/)(.*)$/.exec(path) ?? [];
    const question = { ...rest, id };
    const route = source.routes[path] ?? source.routes[`${parent}*`];
    const denied = source.deny(question, apiKey);
    if (denied || route === undefined) return denied ?? source.notFound;

    const memory = memories.get(vendor) ?? createMemory(speed);
    memories.set(vendor, memory);
    const [subject, reply] = route.answer(question, memory);
    const status = reply === 'hang' ? null : reply.status;
    calls.push({ vendor, operation: route.operation, subject, status });
    if (calls.length > MAX_CALLS) calls.shift();
    return reply === 'hang' ? reply : { latencyMs: source.latencyMs, ...reply };
  }

  const server = createServer((request, response) => {
    // A caller that hangs up in the middle of its question gets no answer.
    handle(request, response).catch(() => response.destroy());
  });
  server.listen(port, LOOPBACK);
  await once(server, 'listening').catch((error: NodeJS.ErrnoException) => {
    throw error.code === 'EADDRINUSE' ? portTaken(port, 'the simulator') : error;
  });
  const urls = baseUrls(`http://${LOOPBACK}:${(server.address() as AddressInfo).port}`);

  return {
    /** For ROCKETREACH_URL. */
    url: urls.rocketreach,
    /** The base URL of each source, as production code takes it. */
    urls,
    /** The last 100,000 questions with a right key, oldest first. */
    calls: (): readonly SimulatorCall[] => calls,
    /** Forgets the calls and how far each conversation is. */
    reset() {
      calls.length = 0;
      memories.clear();
    },
    async close(): Promise<void> {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

/** @param origin such as http://127.0.0.1:8090 */
export function baseUrls(origin: string): SourceUrls {
  return Object.fromEntries(SOURCE_ENTRIES.map(([id, { base }]) => [id, origin + base])) as SourceUrls;
}

/**
 * The URL and key of every simulated source, as an operator would configure the real ones. No real source is asked
 * about people who do not exist, whatever keys the environment has.
 */
export function sourceSettings({ registry, ...urls }: SourceUrls, key: string): Record<string, string> {
  const access = Object.entries(urls).flatMap(([id, url]) => {
    const name = id.toUpperCase();
    return [
      [`${name}_URL`, url],
      [`${name}_API_KEY`, key],
    ];
  });
  return { ...Object.fromEntries(access), REGISTRY_URL: registry };
}

/** For the sources file: who of the simulated sources is asked, and in which order. */
export const SIMULATED = {
  order: ['rocketreach', 'fullenrich', 'prospeo', 'hunter'],
  verifiers: { order: ['reacher'] },
  registry: 'fallback',
};

function createMemory(speed: number): Memory {
  const counts = new Map<string, number>();
  return {
    speed,
    jobs: new Map(),
    times(key) {
      const times = counts.get(key) ?? 0;
      counts.set(key, times + 1);
      return times;
    },
  };
}

function objectIn(body: string): Question['body'] {
  try {
    return { ...JSON.parse(body) };
  } catch {
    return {};
  }
}
