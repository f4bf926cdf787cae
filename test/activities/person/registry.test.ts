import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import {
  createServer,
  type IncomingHttpHeaders,
  type RequestListener,
  type ServerResponse,
} from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';
import test from 'ava';
import { eq, sql } from 'drizzle-orm';
import { mismatchOf } from '../../../activities/person/identity.ts';
import {
  createRegistry,
  type RegistryStep,
} from '../../../activities/person/registry.ts';
import { buildSubject } from '../../../activities/person/subject.ts';
import { query } from '../../../db/connection/client.ts';
import {
  isRegistryDue,
  type RegistryProvider,
  storeRegistryResponse,
} from '../../../db/providers/providers.ts';
import { readProvider, refusalOf } from '../../../db/providers/subject.ts';
import { providers } from '../../../db/schema.ts';
import { DEACTIVATED_NPIS } from '../../../deploy/local/sim/magic.ts';
import { personOf } from '../../../deploy/local/sim/people.ts';
import { createSimulator } from '../../../deploy/local/simulator.ts';
import { freshDatabase } from '../../support/database.ts';
import { closedUrl } from '../../support/vendors.ts';

const NPI = '2000000010';
const NEVER = new AbortController().signal;

const { db } = freshDatabase(test);

async function registryAt(
  t: ExecutionContext,
  handle: RequestListener,
  timeoutMs?: number,
) {
  const server = createServer(handle).listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const baseUrl = `http://127.0.0.1:${port}/api/`;
  return createRegistry({ baseUrl, ...(timeoutMs === undefined ? {} : { timeoutMs }) });
}

function reply(response: ServerResponse, status: number, body: unknown, headers = {}) {
  response.writeHead(status, { 'content-type': 'application/json', ...headers });
  response.end(typeof body === 'string' ? body : JSON.stringify(body));
}

async function stepFor(
  t: ExecutionContext,
  status: number,
  body: unknown,
  headers = {},
  npi = NPI,
) {
  const registry = await registryAt(t, (_request, response) =>
    reply(response, status, body, headers),
  );
  return await registry.find(npi, NEVER);
}

async function recorded(name: string): Promise<string> {
  return await readFile(
    new URL(`../../support/registry-responses/${name}.json`, import.meta.url),
    'utf8',
  );
}

function providerOf(t: ExecutionContext, step: RegistryStep): RegistryProvider {
  if (step.kind !== 'found') return t.fail(JSON.stringify(step)) as never;
  return step.provider;
}

/** Returns a recorded response for a person with replaced fields in the result or in `basic`. */
async function personWith(
  fields: Record<string, unknown>,
  basic: Record<string, unknown> = {},
) {
  const body = JSON.parse(await recorded('person'));
  Object.assign(body.results[0].basic, basic);
  Object.assign(body.results[0], fields);
  return body;
}

test('a lookup sends the documented request to the NPI Registry, with a User-Agent', async (t) => {
  const seen: { url: string | undefined; headers: IncomingHttpHeaders }[] = [];
  const empty = await recorded('empty');
  const registry = await registryAt(t, ({ url, headers }, response) => {
    seen.push({ url, headers });
    reply(response, 200, empty);
  });
  await registry.find(NPI, NEVER);
  t.is(seen[0]?.url, `/api/?version=2.1&number=${NPI}`);
  t.regex(seen[0]?.headers['user-agent'] ?? '', /^npi-email-enrichment\//);
});

test("the NPI Registry's current response format for a person is read completely", async (t) => {
  const provider = providerOf(t, await stepFor(t, 200, await recorded('person')));
  t.deepEqual(provider, {
    npi: NPI,
    entityType: 1,
    lastName: 'ASHDOWN',
    firstName: 'ROWAN',
    middleName: null,
    nameSuffix: 'Jr.',
    credential: 'M.D.',
    otherLastName: 'BIRCHWOOD',
    otherFirstName: 'ROWAN',
    organizationName: null,
    parentName: null,
    practice: {
      line1: '100 MAIN STREET',
      line2: 'STE 4',
      city: 'CEDAR VALLEY',
      state: 'CO',
      postalCode: '802000001',
      phone: '3035550100',
    },
    endpoints: [
      {
        kind: 'DIRECT',
        endpoint: 'rowan.ashdown@direct.cedarvalleyclinic-sim.com',
        affiliationName: 'CEDAR VALLEY CLINIC PLLC',
      },
      {
        kind: 'OTHERS',
        endpoint: 'frontdesk@cedarvalleyclinic-sim.com',
        affiliationName: null,
      },
    ],
    otherNames: [],
    locations: [
      {
        line1: '7 SECOND AVE',
        line2: null,
        city: 'CHEYENNE',
        state: 'WY',
        postalCode: '82001',
        phone: '3075550107',
      },
    ],
  });
});

test("the NPI Registry's old response format, with unquoted numbers, is read too", async (t) => {
  const provider = providerOf(t, await stepFor(t, 200, await recorded('person-2019')));
  t.like(provider, { npi: NPI, lastName: 'ASHDOWN', endpoints: [], locations: [] });
});

test("the NPI Registry's response about an organization is read with all its names", async (t) => {
  const provider = providerOf(
    t,
    await stepFor(t, 200, await recorded('organization'), {}, '2000000093'),
  );
  t.like(provider, {
    entityType: 2,
    organizationName: 'DENVER PROVIDERS 2 PLLC',
    lastName: null,
  });
  t.deepEqual(provider.otherNames.at(-1), { name: 'OLD NAME LLC', typeCode: '4' });

  const body = JSON.parse(await recorded('organization'));
  Object.assign(body.results[0].basic, {
    parent_organization_legal_business_name: 'CEDAR HEALTH SYSTEM',
  });
  t.is(
    providerOf(t, await stepFor(t, 200, body, {}, '2000000093')).parentName,
    'CEDAR HEALTH SYSTEM',
  );
});

test("the NPI Registry's response can say in three ways that an NPI is inactive", async (t) => {
  const absent = { kind: 'inactive_or_unknown' } as const;
  t.deepEqual(await stepFor(t, 200, await recorded('empty')), absent);
  t.deepEqual(await stepFor(t, 200, await recorded('deactivated')), absent);
  t.deepEqual(await stepFor(t, 200, await personWith({}, { status: 'D' })), absent);
});

test('an error in a response with status 200 from the NPI Registry is fatal', async (t) => {
  const fatal = { kind: 'fatal', why: 'protocol', field: 'Errors[0]' } as const;
  t.deepEqual(await stepFor(t, 200, await recorded('error-version')), fatal);
  t.deepEqual(await stepFor(t, 200, await recorded('error-number')), fatal);
});

test('the error about a malformed NPI Registry response names the field, not its value', async (t) => {
  const fieldOf = async (body: unknown) => {
    const step = await stepFor(t, 200, body);
    return step.kind === 'fatal' && step.why === 'protocol' ? step.field : step;
  };
  t.is(await fieldOf('<html>'), 'body');
  t.is(await fieldOf(''), 'body');
  t.is(await fieldOf(' '.repeat(2_000_000)), 'body');
  t.is(await fieldOf([]), 'body');
  t.is(await fieldOf({ result_count: 1 }), 'results');
  t.is(await fieldOf(await personWith({ number: '2000000028' })), 'results');
  t.is(await fieldOf(await personWith({ basic: null })), 'results[0].basic');
  t.is(await fieldOf(await personWith({}, { status: '' })), 'results[0].basic.status');
  t.is(
    await fieldOf(await personWith({ enumeration_type: 'NPI-3' })),
    'results[0].enumeration_type',
  );
  t.is(
    await fieldOf(await personWith({}, { last_name: ['A'] })),
    'results[0].basic.last_name',
  );
  t.is(await fieldOf(await personWith({ endpoints: 'none' })), 'results[0].endpoints');
  t.is(await fieldOf(await personWith({ addresses: ['?'] })), 'results[0].addresses[0]');
});

test('server errors of the NPI Registry are retried, and unexpected statuses are not', async (t) => {
  t.deepEqual(await stepFor(t, 429, '', { 'retry-after': '7' }), {
    kind: 'retry',
    why: 'rate_limit',
    afterMs: 7000,
  });
  for (const [status, why] of [
    [500, 'upstream'],
    [503, 'upstream'],
    [408, 'upstream'],
    [502, 'unanswered'],
    [504, 'unanswered'],
  ] as const) {
    t.deepEqual(await stepFor(t, status, '<html>'), {
      kind: 'retry',
      why,
      afterMs: null,
    });
  }
  for (const status of [301, 401, 402, 403, 404]) {
    t.deepEqual(await stepFor(t, status, ''), {
      kind: 'fatal',
      why: 'protocol',
      field: 'status',
    });
  }
});

test('a call to the NPI Registry that gets no response is retried', async (t) => {
  const unanswered = { kind: 'retry', why: 'unanswered', afterMs: null } as const;
  const silent = await registryAt(t, () => {}, 50);
  t.deepEqual(await silent.find(NPI, NEVER), unanswered);
  const broken = await registryAt(t, (_request, response) => response.destroy());
  t.deepEqual(await broken.find(NPI, NEVER), unanswered);
  const away = createRegistry({ baseUrl: await closedUrl() });
  t.deepEqual(await away.find(NPI, NEVER), {
    kind: 'retry',
    why: 'unsent',
    cause: 'ECONNREFUSED',
    afterMs: null,
  });
  const gone = new AbortController();
  const patient = await registryAt(t, () => gone.abort(new Error('over')));
  await t.throwsAsync(patient.find(NPI, gone.signal), { message: 'over' });
});

async function stored(t: ExecutionContext, body: unknown, npi: string) {
  await storeRegistryResponse(
    db,
    npi,
    providerOf(t, await stepFor(t, 200, body, {}, npi)),
  );
}

async function personAs(npi: string, basic: Record<string, unknown> = {}) {
  return await personWith({ number: npi }, basic);
}

/** Sets the age of the registry's response to `hours`. */
async function age(npi: string, hours: number) {
  await query(db, (tx) =>
    tx
      .update(providers)
      .set({ importedAt: sql`clock_timestamp() - make_interval(hours => ${hours})` })
      .where(eq(providers.npi, npi)),
  );
}

test('a stored NPI Registry response is used like an imported provider', async (t) => {
  const npi = '2000000119';
  await stored(t, await recorded('organization'), '2000000093');
  await stored(t, await personAs(npi), npi);
  const facts = await readProvider(db, npi);
  t.like(facts, {
    entityType: 1,
    active: true,
    lastName: 'ASHDOWN',
    phoneKey: '3035550100',
  });
  t.deepEqual(facts?.otherStates, ['WY']);
  t.deepEqual(
    facts?.endpoints.map(({ kind }) => kind),
    ['DIRECT', 'OTHERS'],
  );
  t.deepEqual(
    facts?.places[0]?.neighbors?.map(({ npi, otherNames }) => [npi, otherNames]),
    [['2000000093', ['CEDAR VALLEY CLINIC']]],
  );
  t.is(await refusalOf(db, npi), null);
  t.is(await refusalOf(db, '2000000093'), 'organization_npi');
});

test('a newer NPI Registry response replaces an older one, except its surname', async (t) => {
  const npi = '2000000127';
  await stored(t, await personAs(npi), npi);
  const second = await personWith(
    { number: npi, endpoints: [], practiceLocations: [] },
    { last_name: 'NEW' },
  );
  await stored(t, second, npi);
  await stored(t, second, npi);
  t.like(await readProvider(db, npi), {
    lastName: 'NEW',
    formerLastNames: ['ASHDOWN'],
    endpoints: [],
    otherStates: [],
  });
});

test('an imported provider has priority over the NPI Registry', async (t) => {
  const npi = '2000000135';
  const imported = {
    npi,
    origin: 'nppes' as const,
    rowHash: 5,
    entityType: 1,
    lastName: 'IMPORTED',
  };
  await query(db, (tx) => tx.insert(providers).values(imported));
  await stored(t, await personAs(npi), npi);
  await storeRegistryResponse(db, npi, null);
  t.like(await readProvider(db, npi), {
    lastName: 'IMPORTED',
    active: true,
    endpoints: [],
    otherStates: [],
  });
  await age(npi, 9999);
  t.false(await isRegistryDue(db, npi));
});

test('an NPI that is missing from the NPI Registry counts as inactive for a day', async (t) => {
  const npi = '2000000143';
  t.true(await isRegistryDue(db, npi));
  await stored(t, await personAs(npi), npi);
  t.false(await isRegistryDue(db, npi));

  await storeRegistryResponse(db, npi, null);
  t.is(await refusalOf(db, npi), 'deactivated');
  t.like(await readProvider(db, npi), {
    active: false,
    lastName: null,
    endpoints: [],
    otherStates: [],
  });
  t.false(await isRegistryDue(db, npi));

  await age(npi, 25);
  t.is(await refusalOf(db, npi), null);
  t.true(await isRegistryDue(db, npi));

  await stored(t, await personAs(npi), npi);
  t.like(await readProvider(db, npi), { active: true, lastName: 'ASHDOWN' });
  t.false(await isRegistryDue(db, npi));
});

test('NPI Registry text that the database cannot store causes no error', async (t) => {
  const npi = '2000000150';
  // Repetitive text would be compressed until it fits an index.
  const long = randomBytes(5000).toString('hex');
  const body = await personWith(
    {
      number: npi,
      endpoints: [
        { endpointType: 'OTHERS', endpoint: long },
        { endpointType: 'OTHERS', endpoint: long },
      ],
      practiceLocations: [
        { address_1: long, address_2: long, city: long, state: long, postal_code: long },
      ],
    },
    { last_name: 'ASH\u0000DOWN', first_name: long },
  );
  await stored(t, body, npi);
  t.like(await readProvider(db, npi), { lastName: 'ASH DOWN' });
});

test("the simulator's NPI Registry knows the people of the simulated vendors", async (t) => {
  const simulator = await createSimulator({
    port: 0,
    speed: 1000,
    apiKey: 'none needed',
  });
  t.teardown(() => simulator.close());
  const baseUrl = simulator.urls.registry;
  const registry = createRegistry({ baseUrl });
  const { first, last } = personOf(NPI);
  const provider = providerOf(t, await registry.find(NPI, NEVER));
  await storeRegistryResponse(db, provider.npi, provider);
  const { person } = buildSubject(NPI, await readProvider(db, NPI), 'any');
  const identity = {
    npi: null,
    name: { kind: 'parts', first, last },
    state: null,
    employerDomain: null,
  } as const;
  t.is(mismatchOf(identity, NPI, person), null);

  t.is(
    (await registry.find(DEACTIVATED_NPIS[0] ?? '', NEVER)).kind,
    'inactive_or_unknown',
  );
  t.is((await registry.find('2000000011', NEVER)).kind, 'inactive_or_unknown');
  t.like(await registry.find('123', NEVER), { kind: 'fatal', field: 'Errors[0]' });
  const unversioned = await (await fetch(`${baseUrl}/?number=${NPI}`)).json();
  t.like(unversioned, { Errors: [{ field: 'version', number: '17' }] });
});
