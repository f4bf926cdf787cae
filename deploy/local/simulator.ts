import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { LOOPBACK, listenOn } from './processes.ts';
import { fullenrich } from './sim/fullenrich.ts';
import { hunter } from './sim/hunter.ts';
import { prospeo } from './sim/prospeo.ts';
import { reacher } from './sim/reacher.ts';
import { registry } from './sim/registry.ts';
import { rocketreach } from './sim/rocketreach.ts';
import { type Answer, createMemory, type Question, type Source } from './sim/wire.ts';

/**
 * The simulated sources: vendors in the order of the waterfall, then the verifier, then the NPI
 * registry.
 */
const SOURCES = { rocketreach, fullenrich, prospeo, hunter, reacher, registry };
const SOURCE_ENTRIES = Object.entries<Source>(SOURCES);

export type SourceUrls = Readonly<Record<keyof typeof SOURCES, string>>;

/** A call to a source. The real source charges for some calls. */
export interface SimulatorCall {
  readonly vendor: string;
  /** The route in the source's table, such as `GET /person/lookup`. */
  readonly route: string;
  /** The subject of the call: an NPI, an address, or a job's id. */
  readonly subject: string;
  /** The status of the response, also before it is sent. Null if the call hangs. */
  readonly status: number | null;
}

/** Delay of a response, before the speed factor. */
const LATENCY_MS = 300;

const NOT_FOUND: Answer = { status: 404, body: { message: 'No simulated source has this path.' } };

export type Simulator = Awaited<ReturnType<typeof createSimulator>>;

/**
 * Starts an HTTP server on loopback that uses the wire formats in sim/, each source below its id.
 * @param port 0 for any free one
 * @param speed divides every delay and every hint when to retry
 * @param apiKey required from callers of every source
 * @throws {OperatorProblem} if the port is taken
 */
export async function createSimulator(options: { port: number; speed: number; apiKey: string }) {
  const { port, speed, apiKey } = options;
  const calls: SimulatorCall[] = [];
  const sources = SOURCE_ENTRIES.map(([id, source]) => ({
    id,
    ...source,
    memory: createMemory(speed),
  }));

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { pathname, searchParams: query } = new URL(request.url ?? '/', 'http://simulator');
    const source = sources.find(({ base }) => pathname.startsWith(`${base}/`));
    if (source === undefined) return send(response, NOT_FOUND);
    const found = findRoute(source, `${request.method} ${pathname.slice(source.base.length)}`);
    if (found === null) return send(response, NOT_FOUND);
    const { name, route, id } = found;
    const body = objectIn(await text(request));
    const question = { headers: request.headers, query, id, body };
    const denied = source.deny(question, apiKey);
    if (denied) return send(response, denied);
    const [subject, reply] = route(question, source.memory);
    const status = reply === 'hang' ? null : reply.status;
    calls.push({ vendor: source.id, route: name, subject, status });
    if (reply === 'hang') return;
    const timer = setTimeout(() => send(response, reply), LATENCY_MS / speed);
    // The response was sent, or the caller hung up, or the simulator was closed.
    response.once('close', () => clearTimeout(timer));
  }

  const server = createServer((request, response) => {
    // A caller that hangs up during its request gets no response.
    handle(request, response).catch(() => response.destroy());
  });
  const listening = await listenOn(server, port, 'the simulator');

  return {
    /** The base URL of each source, in the form that production code uses. */
    urls: baseUrls(`http://${LOOPBACK}:${listening.port}`),
    /** The calls with a valid key, oldest first. */
    calls: (): readonly SimulatorCall[] => calls,
    close: listening.close,
  };
}

/**
 * Finds the route of a request.
 * @param path method and path below the source's base, such as `GET /jobs/17`
 * @returns also the route's name in the table, and the part of the path that matches its `*`
 */
function findRoute({ routes }: Source, path: string) {
  const slash = path.lastIndexOf('/');
  const id = path.slice(slash + 1);
  const pattern = `${path.slice(0, slash + 1)}*`;
  const exact = routes[path];
  if (exact) return { name: path, route: exact, id };
  const route = routes[pattern];
  if (route) return { name: pattern, route, id };
  return null;
}

function send(response: ServerResponse, { status, headers, body }: Answer): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

/** @param origin such as http://127.0.0.1:8090 */
export function baseUrls(origin: string): SourceUrls {
  const urls = SOURCE_ENTRIES.map(([id, { base }]) => [id, origin + base]);
  return Object.fromEntries(urls) as SourceUrls;
}

/**
 * Returns the URL and key of every simulated source, as an operator would configure the real ones.
 * They override the environment, so that no real source is called about people who do not exist.
 */
export function sourceSettings(
  { registry, ...urls }: SourceUrls,
  key: string,
): Record<string, string> {
  const settings: Record<string, string> = { REGISTRY_URL: registry };
  for (const [id, url] of Object.entries(urls)) {
    const name = id.toUpperCase();
    settings[`${name}_URL`] = url;
    settings[`${name}_API_KEY`] = key;
  }
  return settings;
}

/** Content of the sources file: the simulated sources to call, and their order. */
export const SIMULATED = {
  order: ['rocketreach', 'fullenrich', 'prospeo', 'hunter'],
  verifiers: { order: ['reacher'] },
  registry: 'fallback',
};

function objectIn(body: string): Question['body'] {
  try {
    return { ...JSON.parse(body) };
  } catch {
    return {};
  }
}
