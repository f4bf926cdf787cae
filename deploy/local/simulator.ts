import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { LOOPBACK, portTaken } from './ports.ts';
import { createRocketReachSim, problem, type Reply } from './rocketreach-sim.ts';

export interface SimulatorOptions {
  /** 0 for any free one. */
  readonly port: number;
  /** What every latency is divided by. */
  readonly speed: number;
  /** The key that callers must send. */
  readonly apiKey: string;
}

/** One question the vendor was asked: each `lookup` costs money at the real one. */
export interface SimulatorCall {
  readonly operation: 'lookup' | 'checkStatus';
  /** `npi_number` or `ids`, as asked. */
  readonly subject: string;
  /** What it was, or will be, answered; null where it never is. */
  readonly status: number | null;
}

export interface Simulator {
  /** For ROCKETREACH_URL. */
  readonly url: string;
  /** The last 100,000 questions with a right key, oldest first. */
  calls(): readonly SimulatorCall[];
  /** Forgets the calls and how far each lookup is. */
  reset(): void;
  close(): Promise<void>;
}

const PREFIX = '/api/v2';
const MAX_CALLS = 100_000;

/**
 * An HTTP server on the loopback that speaks RocketReach's wire format: magic.ts for the magic NPIs, an answer
 * derived from its digits for any other.
 * @throws {LocalProblem} `port_taken`
 */
export async function createSimulator({ port, speed, apiKey }: SimulatorOptions): Promise<Simulator> {
  const vendor = createRocketReachSim(speed);
  const calls: SimulatorCall[] = [];
  const timers = new Set<NodeJS.Timeout>();

  function handle(request: IncomingMessage, response: ServerResponse): void {
    const reply = route(request, URL.parse(request.url ?? '/', 'http://simulator'));
    if (reply.kind === 'hang') return;
    const timer = setTimeout(() => {
      timers.delete(timer);
      const headers = { 'content-type': 'application/json', ...reply.headers };
      response.writeHead(reply.status, headers).end(JSON.stringify(reply.body));
    }, reply.latencyMs / speed);
    timers.add(timer);
    response.once('close', () => {
      clearTimeout(timer);
      timers.delete(timer);
    });
  }

  function route(request: IncomingMessage, url: URL | null): Reply {
    if (request.headers['api-key'] !== apiKey) return problem(401, 'Invalid API Key');
    if (request.method !== 'GET') return problem(405, 'Method not allowed.');
    switch (url?.pathname) {
      case `${PREFIX}/person/lookup`:
        return record('lookup', url.searchParams.get('npi_number'), vendor.lookup(url.searchParams));
      case `${PREFIX}/person/checkStatus`:
        return record('checkStatus', url.searchParams.get('ids'), vendor.checkStatus(url.searchParams));
      default:
        return problem(404, 'Not found.');
    }
  }

  function record(operation: SimulatorCall['operation'], subject: string | null, reply: Reply): Reply {
    calls.push({ operation, subject: subject ?? '', status: reply.kind === 'hang' ? null : reply.status });
    if (calls.length > MAX_CALLS) calls.shift();
    return reply;
  }

  const server = createServer(handle);
  const listeningOn = await listen(server, port);

  return {
    url: `http://${LOOPBACK}:${listeningOn}${PREFIX}`,
    calls: () => calls,
    reset() {
      calls.length = 0;
      vendor.reset();
    },
    async close() {
      for (const timer of timers) clearTimeout(timer);
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

function listen(server: Server, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) =>
      reject(error.code === 'EADDRINUSE' ? portTaken(port, 'the simulator') : error),
    );
    server.listen(port, LOOPBACK, () => {
      const address = server.address();
      if (typeof address === 'object' && address !== null) resolve(address.port);
    });
  });
}
