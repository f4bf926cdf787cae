import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import { LOOPBACK, portTaken } from './ports.ts';
import { answer } from './sim/answer.ts';
import type { SimRequest, VendorSim } from './sim/reply.ts';
import { baseUrls, createVendors, type SimulatedVendor } from './sim/vendors.ts';

export interface SimulatorOptions {
  /** 0 for any free one. */
  readonly port: number;
  /** What every latency, and every hint when to come back, is divided by. */
  readonly speed: number;
  /** The key that callers must send, whatever the vendor. */
  readonly apiKey: string;
}

/** One question that a vendor was asked: the real one charges for some of them. */
export interface SimulatorCall {
  readonly vendor: string;
  /** In the vendor's words, such as `lookup` and `checkStatus`. */
  readonly operation: string;
  /** An NPI, an address, a job's id: whom or what was asked about. */
  readonly subject: string;
  /** What it was, or will be, answered; null where it never is. */
  readonly status: number | null;
}

export interface Simulator {
  /** For ROCKETREACH_URL. */
  readonly url: string;
  /** The base URL of each vendor, as its adapter takes it. */
  readonly urls: Readonly<Record<SimulatedVendor, string>>;
  /** The last 100,000 questions with a right key, oldest first. */
  calls(): readonly SimulatorCall[];
  /** Forgets the calls and how far each conversation is. */
  reset(): void;
  close(): Promise<void>;
}

const MAX_CALLS = 100_000;

/**
 * An HTTP server on the loopback that speaks the wire formats of sim/vendors.ts, each vendor below its id: magic.ts
 * for the magic NPIs, an answer derived from its digits for any other.
 * @throws {LocalProblem} `port_taken`
 */
export async function createSimulator({ port, speed, apiKey }: SimulatorOptions): Promise<Simulator> {
  const vendors = createVendors({ apiKey, speed });
  const calls: SimulatorCall[] = [];
  const timers = new Set<NodeJS.Timeout>();

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = URL.parse(request.url ?? '/', 'http://simulator');
    const body = await text(request);
    const reply = ask(url, (path, query) => ({
      method: request.method ?? '',
      path,
      query,
      headers: request.headers,
      body,
    }));
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

  function ask(url: URL | null, requestTo: (path: string, query: URLSearchParams) => SimRequest) {
    const vendor = vendors.find(({ base }) => url?.pathname.startsWith(`${base}/`));
    if (url === null || vendor === undefined) return answer(404, { message: 'No such vendor.' });
    const request = requestTo(url.pathname.slice(vendor.base.length), url.searchParams);
    return record(vendor.sim, request);
  }

  function record(sim: VendorSim, request: SimRequest) {
    const { operation, subject, reply } = sim.answer(request);
    const status = reply.kind === 'hang' ? null : reply.status;
    if (operation !== '' && status !== 401) calls.push({ vendor: sim.id, operation, subject, status });
    if (calls.length > MAX_CALLS) calls.shift();
    return reply;
  }

  const server = createServer((request, response) => {
    // A caller that hangs up in the middle of its question gets no answer.
    handle(request, response).catch(() => response.destroy());
  });
  const urls = baseUrls(`http://${LOOPBACK}:${await listen(server, port)}`);

  return {
    url: urls.rocketreach,
    urls,
    calls: () => calls,
    reset() {
      calls.length = 0;
      for (const { sim } of vendors) sim.reset();
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
