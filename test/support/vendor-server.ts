import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingHttpHeaders, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { json } from 'node:stream/consumers';
import type { ExecutionContext } from 'ava';
import type { Organization, Person, Subject } from '../../activities/vendors/vendor.ts';

/** An answer of a vendor as it came, or could have come: `body` is sent as JSON, text as it is. */
export interface Played {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** What a vendor was asked. */
export interface Asked {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  /** Parsed; null if there was none. */
  readonly body: unknown;
}

/** An answer in a vendor's documented form, from vendor-answers/: `hunter/valid`. */
export function recorded(name: string): Played {
  return JSON.parse(readFileSync(new URL(`vendor-answers/${name}.json`, import.meta.url), 'utf8'));
}

/** A vendor's server that gives these answers in turn, the last one again and again. */
export async function playVendor(t: ExecutionContext, ...answers: readonly Played[]) {
  const asked: Asked[] = [];
  const url = await serveVendor(t, async (request, response) => {
    const { method = '', url: path = '', headers } = request;
    const hasBody = method === 'POST';
    const { status, body, ...rest } = answers[Math.min(asked.length, answers.length - 1)] ?? {
      status: 500,
      body: '',
    };
    asked.push({ method, url: path, headers, body: hasBody ? await json(request) : null });
    response.writeHead(status, { 'content-type': 'application/json', ...rest.headers });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  });
  return { url, asked };
}

/** A vendor's server that does what a test wants; ends with the test. */
export async function serveVendor(t: ExecutionContext, handle: RequestListener): Promise<string> {
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return `http://127.0.0.1:${port}`;
}

/** Where nobody listens: a port that was free a moment ago. */
export async function closedUrl(): Promise<string> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, 'close');
  return `http://127.0.0.1:${port}`;
}

const PERSON: Person = {
  first: 'Mary Jo',
  last: "O'Malley",
  middle: null,
  suffix: null,
  credential: 'MD',
  otherNames: [],
  practice: {
    line1: '12 Cedar & Main St',
    city: 'Fargo',
    state: 'ND',
    zip: '58102',
    phone: '7015550123',
  },
  otherStates: [],
};

const ORGANIZATION: Organization = {
  name: 'Cedar Valley Clinic, P.L.L.C.',
  domain: 'cedarvalleyclinic-sim.com',
  source: 'affiliation',
  confidence: 0.9,
};

/** Whom the recorded answers are about. */
export const SUBJECT: Subject = {
  npi: '2000000010',
  wantedType: 'any',
  person: PERSON,
  organization: ORGANIZATION,
};
