import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { createServer, type IncomingHttpHeaders, type RequestListener } from 'node:http';
import { type AddressInfo, connect, createServer as createTcpServer } from 'node:net';
import { json } from 'node:stream/consumers';
import type { ExecutionContext } from 'ava';
import type { RegistryStep } from '../../activities/person/registry.ts';
import type {
  Organization,
  Person,
  Step,
  Subject,
  Vendor,
} from '../../activities/vendors/vendor.ts';
import type { VerifierId } from '../../activities/verification/verifiers/catalogue.ts';
import { shareOf } from '../../deploy/local/sim/knowledge.ts';
import { PRACTICE_DOMAINS, withCheckDigit } from '../../deploy/local/sim/people.ts';

/** One call of a scripted vendor. */
export interface ScriptedCall {
  readonly operation: 'submit' | 'poll';
  /** Counted from 1, per NPI and operation. */
  readonly nth: number;
  readonly signal: AbortSignal;
}

export type Script = (call: ScriptedCall) => Step | Promise<Step>;

/** A vendor whose responses a test scripts, for cases that no simulator produces on demand. */
export interface ScriptedVendor extends Vendor {
  /** Sets the responses for one NPI. The vendor finds nothing for any other NPI. */
  script(npi: string, reply: Script): void;
  /** Returns the number of calls for an NPI. */
  asked(npi: string, operation: ScriptedCall['operation']): number;
}

/**
 * Creates a scripted vendor.
 * @param id as it is stored and shown. Two vendors of one stack need different IDs
 */
export function createScriptedVendor(id = 'scripted'): ScriptedVendor {
  const scripts = new Map<string, Script>();
  const counts = new Map<string, number>();
  const asked = (npi: string, operation: string) =>
    counts.get(`${operation} ${npi}`) ?? 0;
  const reply = async (
    operation: ScriptedCall['operation'],
    { npi }: Subject,
    signal: AbortSignal,
  ) => {
    const nth = asked(npi, operation) + 1;
    counts.set(`${operation} ${npi}`, nth);
    const script = scripts.get(npi);
    return script
      ? await script({ operation, nth, signal })
      : ({ kind: 'miss', reason: 'nobody' } as const);
  };
  return {
    id,
    needs: ['npi'],
    gives: ['professional', 'personal'],
    isDated: true,
    repeatIsFree: true,
    callMs: 30_000,
    cost: () => 1,
    submit: (subject, signal) => reply('submit', subject, signal),
    poll: (_jobRef, subject, signal) => reply('poll', subject, signal),
    script: (npi, script) => void scripts.set(npi, script),
    asked,
  };
}

/** Returns an address for an NPI whose local part is an employee number, so one source is enough. */
export function employeeEmail(npi: string): string {
  return `n${npi.slice(1)}@${PRACTICE_DOMAINS[0]}`;
}

/** Returns a valid professional address for an NPI, just validated by the vendor. */
export function foundStep(npi: string): Step {
  const email = employeeEmail(npi);
  return {
    kind: 'found',
    identity: { npi, name: null, state: null, employerDomain: null },
    repeatsInput: false,
    candidates: [
      {
        email,
        vendorType: 'professional',
        verdict: 'valid',
        validatedAt: new Date(),
        isCurrent: false,
        confidence: null,
      },
    ],
  };
}

/**
 * Returns a script that holds its response until it is released. Like a real call it gives up when
 * it is aborted.
 */
export function heldScript(step: Step): { readonly script: Script; release(): void } {
  const held = Promise.withResolvers<Step>();
  return {
    script: ({ signal }) => Promise.race([held.promise, aborted(signal)]),
    release: () => held.resolve(step),
  };
}

/** Never resolves; rejects as soon as the signal aborts. */
export function aborted(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) reject(signal.reason);
    signal.addEventListener('abort', () => reject(signal.reason), { once: true });
  });
}

/** Responses of the simulated RocketReach for NPIs that are not magic. */
export type Ordinary = 'found' | 'found_later' | 'not_found';

/**
 * Returns NPIs with a valid check digit for which the simulated RocketReach has one kind of
 * response. Every call returns the same ones. They are in no NPPES file, so vendors that search by
 * name can't be called for them.
 * @param from the first number, up to nine digits. Tests that share a database use numbers far from
 * each other
 */
export function ordinaryNpis(kind: Ordinary, count: number, from = 0): string[] {
  const npis: string[] = [];
  for (let n = 100_000_000 + from; npis.length < count; n += 1) {
    const npi = withCheckDigit(n);
    if (kindOf(npi) === kind) npis.push(npi);
  }
  return npis;
}

function kindOf(npi: string): Ordinary {
  const share = shareOf(npi);
  if (share === 'slow') return 'found_later';
  return share === 'nobody' ? 'not_found' : 'found';
}

/** A vendor's response, real or invented. `body` is sent as JSON, text unchanged. */
export interface Played {
  readonly status: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: unknown;
}

/** A request that a vendor received. */
export interface Asked {
  readonly method: string;
  readonly url: string;
  readonly headers: IncomingHttpHeaders;
  /** Parsed, or null without a body. */
  readonly body: unknown;
}

/** Reads a response in a vendor's documented form from vendor-responses/, such as `hunter/valid`. */
export function recorded(name: string): Played {
  return JSON.parse(
    readFileSync(new URL(`vendor-responses/${name}.json`, import.meta.url), 'utf8'),
  );
}

/** Reads the documented responses of a verifier, by name. */
export function responsesOf(
  id: VerifierId,
): ReadonlyMap<string, Record<string, unknown>> {
  const path = new URL(`verifier-responses/${id}.json`, import.meta.url);
  return new Map(Object.entries(JSON.parse(readFileSync(path, 'utf8'))));
}

/** Starts a vendor's server that returns these responses in turn and repeats the last one. */
export async function playVendor(t: ExecutionContext, ...replies: readonly Played[]) {
  const asked: Asked[] = [];
  const url = await serveVendor(t, async (request, response) => {
    const { method = '', url: path = '', headers } = request;
    const hasBody = method === 'POST';
    const { status, body, ...rest } = replies[
      Math.min(asked.length, replies.length - 1)
    ] ?? {
      status: 500,
      body: '',
    };
    asked.push({
      method,
      url: path,
      headers,
      body: hasBody ? await json(request) : null,
    });
    response.writeHead(status, { 'content-type': 'application/json', ...rest.headers });
    response.end(typeof body === 'string' ? body : JSON.stringify(body));
  });
  return { url, asked };
}

/** Starts a vendor's server with the test's handler. It ends with the test. */
export async function serveVendor(
  t: ExecutionContext,
  handle: RequestListener,
): Promise<string> {
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return `http://127.0.0.1:${port}`;
}

/**
 * Returns a port that refuses connections. No other process can listen on it, because it is the
 * client's end of a connection.
 */
export async function closedPort(): Promise<number> {
  const server = createTcpServer((socket) => socket.unref())
    .listen(0, '127.0.0.1')
    .unref();
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  await once(client, 'connect');
  return client.unref().localPort ?? 0;
}

/** Returns a URL with a `closedPort`. */
export async function closedUrl(): Promise<string> {
  return `http://127.0.0.1:${await closedPort()}`;
}

const PERSON: Person = {
  first: 'Mary Jo',
  last: "O'Malley",
  middle: null,
  generation: null,
  otherNames: [],
  profileNames: [],
  profileSurnames: [],
  practice: {
    line1: '12 Cedar & Main St',
    city: 'Fargo',
    state: 'ND',
    zip: '58102',
  },
  otherStates: [],
};

const ORGANIZATION: Organization = {
  name: 'Cedar Valley Clinic, P.L.L.C.',
  domain: 'cedarvalleyclinic-sim.com',
  source: 'affiliation',
  confidence: 0.9,
};

/** The person in the recorded responses. */
export const SUBJECT: Subject = {
  npi: '2000000010',
  requestedType: 'any',
  person: PERSON,
  organization: ORGANIZATION,
  otherOrganizations: [],
  strangers: [],
  patterns: [],
  writtenEmail: null,
};

/** Returns the registry's response about a person with little more than a name. */
export function person(npi: string, lastName = 'DOE'): RegistryStep {
  const nothing = {
    middleName: null,
    nameSuffix: null,
    credential: null,
    otherLastName: null,
    otherFirstName: null,
    organizationName: null,
    parentName: null,
    practice: null,
  };
  const lists = { endpoints: [], otherNames: [], locations: [] };
  return {
    kind: 'found',
    provider: { npi, entityType: 1, firstName: 'MARY', lastName, ...nothing, ...lists },
  };
}
