import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { LOOPBACK, listenOn } from '../ports.ts';
import { fullenrich } from './sim/fullenrich.ts';
import { hunter } from './sim/hunter.ts';
import { prospeo } from './sim/prospeo.ts';
import { reacher } from './sim/reacher.ts';
import { registry } from './sim/registry.ts';
import { rocketreach } from './sim/rocketreach.ts';
import {
  createMemory,
  type SimRequest,
  type SimResponse,
  type Source,
} from './sim/wire.ts';

/**
 * The simulated sources. The vendors come first, in the order in which lookups call them, then the
 * verifier and the NPI Registry.
 */
const SOURCES = { rocketreach, fullenrich, prospeo, hunter, reacher, registry };
const SOURCE_ENTRIES = Object.entries<Source>(SOURCES);

export type SourceUrls = Readonly<Record<keyof typeof SOURCES, string>>;

/** A call that a simulated source got. */
export interface SimulatorCall {
  readonly vendor: string;
  /** The route in the source's table, such as `GET /person/lookup`. */
  readonly route: string;
  /** The subject of the call, such as an NPI, an address, or the id of a job. */
  readonly subject: string;
  /**
   * The HTTP status of the response, which may not have been sent yet. Null if the source never
   * responds.
   */
  readonly status: number | null;
}

/** The delay of each response, before it is divided by the speed. */
const LATENCY_MS = 300;

const NOT_FOUND: SimResponse = {
  status: 404,
  body: { message: 'No simulated source has this path.' },
};

export type Simulator = Awaited<ReturnType<typeof createSimulator>>;

/**
 * Starts an HTTP server on loopback that simulates all sources. The path of each source begins with
 * its id, and its format is defined in sim/.
 * @param port 0 for any free port
 * @param speed divides all delays, and all times after which the caller should retry
 * @param apiKey the key that callers must send to every source except the registry
 * @throws {OperatorProblem} if the port is taken
 */
export async function createSimulator(options: {
  port: number;
  speed: number;
  apiKey: string;
}) {
  const { port, speed, apiKey } = options;
  const calls: SimulatorCall[] = [];
  const sources = SOURCE_ENTRIES.map(([id, source]) => ({
    id,
    ...source,
    memory: createMemory(speed),
  }));

  async function handle(
    request: IncomingMessage,
    response: ServerResponse,
  ): Promise<void> {
    const { pathname, searchParams: query } = new URL(
      request.url ?? '/',
      'http://simulator',
    );
    const source = sources.find(({ base }) => pathname.startsWith(`${base}/`));
    if (source === undefined) return send(response, NOT_FOUND);
    const found = findRoute(
      source,
      `${request.method} ${pathname.slice(source.base.length)}`,
    );
    if (found === null) return send(response, NOT_FOUND);
    const { name, route, id } = found;
    const body = objectIn(await text(request));
    const given = { headers: request.headers, query, id, body };
    const denied = source.deny(given, apiKey);
    if (denied) return send(response, denied);
    const [subject, reply] = route(given, source.memory);
    const status = reply === 'hang' ? null : reply.status;
    calls.push({ vendor: source.id, route: name, subject, status });
    if (reply === 'hang') return;
    const timer = setTimeout(() => send(response, reply), LATENCY_MS / speed);
    // `close` means that the response was sent, the caller closed the connection, or the simulator
    // was closed.
    response.once('close', () => clearTimeout(timer));
  }

  const server = createServer((request, response) => {
    // If the caller closes the connection during its request, there is no response.
    handle(request, response).catch(() => response.destroy());
  });
  const listening = await listenOn(server, port, 'the simulator');

  return {
    /** The base URL of each source, for the settings of the service. */
    urls: baseUrls(`http://${LOOPBACK}:${listening.port}`),
    /** Returns the calls that had a valid key, oldest first. */
    calls: (): readonly SimulatorCall[] => calls,
    close: listening.close,
  };
}

/**
 * Finds the route of a request.
 * @param path the method and the path below the source's base, such as `GET /jobs/17`
 * @returns the route, its name in the table, and the last part of the path. Null if there is no
 * such route.
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

function send(response: ServerResponse, { status, headers, body }: SimResponse): void {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(JSON.stringify(body));
}

/**
 * Returns the base URL of each source.
 * @param origin the origin of the simulator, such as http://127.0.0.1:8090
 */
export function baseUrls(origin: string): SourceUrls {
  const urls = SOURCE_ENTRIES.map(([id, { base }]) => [id, origin + base]);
  return Object.fromEntries(urls) as SourceUrls;
}

/**
 * Returns the settings with the URL and the key of every simulated source. They override the
 * settings of the environment, so that no real source is called about invented people.
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

/** The part of the sources file that lists the sources to call, in order. */
export const SIMULATED = {
  order: ['rocketreach', 'fullenrich', 'prospeo', 'hunter'],
  verifiers: { order: ['reacher'] },
  registry: 'fallback',
};

function objectIn(body: string): SimRequest['body'] {
  try {
    return { ...JSON.parse(body) };
  } catch {
    return {};
  }
}
