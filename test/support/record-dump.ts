import { randomUUID } from 'node:crypto';
import { mkdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import { eq } from 'drizzle-orm';
import {
  issueKey,
  KEY_OVERLAP_MS,
  revokeKey,
  rotateKey,
} from '../../db/accounts/keys.ts';
import { openSession } from '../../db/accounts/sessions.ts';
import { beginImport } from '../../db/lookups/imports.ts';
import { storePrices } from '../../db/lookups/spending.ts';
import { newProcessId, noteApi } from '../../db/operations/workers.ts';
import { uploads } from '../../db/schema.ts';
import { createUpload, stopUpload } from '../../db/uploads/uploads.ts';
import { type RequestedType, type StoredVerdict, TEST_OUTCOMES } from '../../db/words.ts';
import { run } from '../../deploy/local/processes.ts';
import {
  PRACTICE_DOMAINS,
  personOf,
  SAMPLE_ENDPOINTS,
  SAMPLE_NPIS,
  type SimPerson,
} from '../../deploy/local/sim/people.ts';
import { main } from '../../deploy/main.ts';
import { startUpload } from '../../workflows/starts.ts';
import {
  openTestDatabase,
  requireOpenWork,
  type TestDatabase,
  temporaryFolder,
} from './database.ts';
import { CLINICIAN_HEADER, clinicianLine, clinicianRow } from './employers.ts';
import { npi, personRow, writeMember } from './nppes.ts';
import { operatorOn, spawnOperator, WHY } from './operator.ts';
import { BY, eventually, type Organization } from './organization.ts';
import { startServers } from './servers.ts';
import {
  type ApiClient,
  type Stack,
  startApi,
  startStack,
  vendorSource,
} from './stack.ts';
import { TOOLS } from './tools.ts';
import { startedUpload, uploadInParts } from './uploads.ts';
import {
  aborted,
  closedUrl,
  createScriptedVendor,
  foundStep,
  ordinaryNpis,
  type Script,
} from './vendors.ts';

// Records a dump of a database of this release, which test/system/db/upgrade.test.ts upgrades to
// later releases. The service itself makes all rows, in every table and with every status.

const HELP = `
Run it once per release whose databases the tests should upgrade. It brings its own servers and
takes three minutes. A dump of a released version never changes.

Exit codes: 0 recorded, 1 failed (one sentence on stderr), 2 wrong usage.`;

/** Long enough that the open requests are still open when the dump is made. */
const LOOKUP_TIMEOUT_MS = 900_000;
const MINUTE = 60_000;
const LISTED = new Set(SAMPLE_ENDPOINTS.map((endpoint) => endpoint.npi));
/** People of the sample without a magic NPI and without an address in NPPES, each used once. */
const PEOPLE = SAMPLE_NPIS.filter(
  (id) => id.startsWith('21') && !LISTED.has(id),
).values();
/** NPIs that are not in NPPES, each used once. */
const STRANGERS = ordinaryNpis('found', 400, 5000).values();

/** A vendor that finds addresses of strangers, unless a scenario scripts another response. */
const finder = createScriptedVendor('finder');
/** A vendor that charges for a repeated request. */
const costly = { ...createScriptedVendor('costly'), repeatIsFree: false };
/** A vendor that allows one call per minute. */
const slow = createScriptedVendor('slow');

/** Returns an NPI for which the finder has a response; by default, a valid address. */
function stranger(script?: Script): string {
  const id = STRANGERS.next().value ?? '';
  finder.script(id, script ?? (() => foundStep(id)));
  return id;
}

/** A database that is being recorded. */
interface World {
  readonly database: TestDatabase;
  readonly operator: ReturnType<typeof operatorOn>;
  /** The polls whose responses are recorded with the dump. */
  readonly polls: { readonly apiKey: string; readonly path: string }[];
}

/** Notes a batch whose poll is recorded. */
function note({ polls }: World, { apiKey }: Organization, batchId: string): string {
  polls.push({ apiKey, path: `/api/v1/batch/${batchId}` });
  return batchId;
}

/** Imports a file of each kind, one of them in a process that dies. */
async function importFiles({ database: { db, url }, operator }: World, folder: string) {
  const download = join(folder, 'download');
  await mkdir(download);
  const id = npi(1);
  const kinds = ['DIRECT', 'CONNECT', 'SOAP', 'FHIR', 'REST', 'OTHERS'];
  const day = '20261115';
  await writeMember(download, 'npidata', day, [personRow(id)]);
  await writeMember(
    download,
    'endpoint',
    day,
    kinds.map((kind) => ({
      NPI: id,
      'Endpoint Type': kind,
      Endpoint: `https://${kind.toLowerCase()}.cedarvalleyclinic-sim.com`,
    })),
  );
  const otherName = 'Provider Other Organization Name';
  await writeMember(download, 'othername', day, [
    { NPI: id, [otherName]: 'CEDAR CLINIC', [`${otherName} Type Code`]: '3' },
  ]);
  const place = 'Provider Secondary Practice Location Address';
  await writeMember(download, 'pl', day, [
    {
      NPI: id,
      [`${place}- Address Line 1`]: '9 OAK AVENUE',
      [`${place} - City Name`]: 'CEDAR VALLEY',
    },
  ]);
  await operator.text('import', 'nppes', download, '--yes', ...WHY);

  const files = {
    clinicians: CLINICIAN_HEADER + clinicianLine(clinicianRow(id)),
    domains: 'organization,domain\nCedar Valley Clinic,cedarvalleyclinic-sim.com\n',
    emails: `npi,email,type\n${id},tamsin.thornbury@cedarvalleyclinic-sim.com,professional\n`,
    suppressions: 'value\nnobody@cedarvalleyclinic-sim.com\nclosedpractice-sim.com\n',
  };
  // The next import of clinicians finds that this one died.
  await beginImport(db, BY, 'clinicians', { name: 'dead.csv', fingerprint: 'dead' });
  for (const [kind, content] of Object.entries(files)) {
    const name =
      kind === 'clinicians' ? 'DAC_NationalDownloadableFile.csv' : `${kind}.csv`;
    await writeFile(join(folder, name), content);
    const args = ['import', kind, join(folder, name), ...WHY];
    const { code, stderr } = await spawnOperator(url, args);
    if (code !== 0) throw new Error(`import ${kind}: ${stderr}`);
  }
  await beginImport(db, BY, 'emails', { name: 'running.csv', fingerprint: 'running' });
}

/** Issues keys in every state, and opens a session. */
async function makeKeys({ database: { db } }: World, client: ApiClient) {
  const { organizationId } = client;
  const issue = (name: string, role?: 'read' | 'member') =>
    issueKey(db, BY, organizationId, name, { role });
  await issue('reader', 'read');
  const member = await issue('member', 'member');
  await openSession(db, member.id);
  await revokeKey(db, BY, (await issue('revoked')).id);
  await revokeKey(db, BY, (await issue('leaked')).id, true);
  await rotateKey(db, BY, (await issue('rotated')).id, KEY_OVERLAP_MS);
}

/** Makes an organization that is suspended, one that is closed, and one that is erased. */
async function endOrganizations(world: World, stack: Stack) {
  const { operator } = world;
  const client = await stack.organization();
  await operator.text('org', 'suspend', client.organizationId, ...WHY);
  for (const isErased of [false, true]) {
    const leaving = await stack.organization();
    const { organizationId } = leaving;
    const { json } = await leaving.bulk({
      npis: [stranger()],
      custom_data: { order: 17 },
      webhook: { url: `${stack.receiver.url}/left` },
    });
    await leaving.completed(json.batch_id);
    await operator.text('org', 'close', organizationId, '--yes', ...WHY);
    if (isErased)
      await operator.text(
        'org',
        'erase',
        organizationId,
        '--yes',
        '--name',
        'Test',
        ...WHY,
      );
  }
}

/** Returns the NPI of a person for whom the finder names one address. */
function personWith(
  verdict: StoredVerdict,
  emailOf: (person: SimPerson) => string = ({ workEmail }) => workEmail,
  id = PEOPLE.next().value ?? '',
): string {
  const one = personOf(id);
  const email = emailOf(one);
  const candidate = {
    email,
    vendorType: email === one.homeEmail ? 'personal' : 'professional',
    verdict,
    validatedAt: new Date(),
    isCurrent: true,
    confidence: 0.9,
  } as const;
  finder.script(id, () => ({
    kind: 'found',
    identity: {
      npi: null,
      name: { kind: 'parts', first: one.first, last: one.last },
      state: null,
      employerDomain: 'riverbendhealth-sim.com',
    },
    repeatsInput: false,
    candidates: [candidate],
  }));
  return id;
}

/** Returns NPIs for which the vendors have a response of each kind. */
function difficultNpis(): string[] {
  const found = (id: string) => foundStep(id);
  const again = stranger();
  finder.script(again, ({ nth }) =>
    nth === 1 ? { kind: 'retry', why: 'upstream', afterMs: 100 } : found(again),
  );
  const other = stranger();
  finder.script(other, () => foundStep('2000000010'));
  const lost = stranger(() => ({ kind: 'miss', reason: 'nobody' }));
  costly.script(lost, () => ({ kind: 'retry', why: 'unanswered', afterMs: null }));
  return [
    again,
    other,
    lost,
    stranger(() => ({ kind: 'skip', missing: ['address'] })),
    stranger(() => ({ kind: 'blocked' })),
    personWith('invalid'),
    // A mailbox at a domain that accepts all mail.
    personWith('catch_all', undefined, '2000000135'),
    personWith('risky'),
    personWith(
      'unknown',
      ({ organization }) => `frontdesk@${organization.domain}`,
      '2000000036',
    ),
    personWith(
      'unknown',
      ({ organization }) => `qzx@${organization.domain}`,
      '2000000028',
    ),
    personWith('valid'),
    personWith('valid', ({ homeEmail }) => homeEmail),
  ];
}

/** Looks up NPIs with each outcome, for each requested type. */
async function lookUp(world: World, stack: Stack, client: ApiClient) {
  const hook = { url: `${stack.receiver.url}/hook`, mode: 'real-time' };
  const again = stranger();
  const bodies = [
    {
      npis: [...difficultNpis(), again, '1234567890'],
      webhook: hook,
      custom_data: { n: 1 },
    },
    { npis: [again], webhook: { ...hook, mode: 'batch' } },
    { npis: [stranger()], enrichment_email_type: 'professional' },
    {
      npis: [personWith('valid', ({ homeEmail }) => homeEmail)],
      enrichment_email_type: 'personal',
    },
  ];
  for (const body of bodies) {
    const { json } = await client.bulk(body, { 'idempotency-key': randomUUID() });
    await client.completed(note(world, client, json.batch_id));
  }
  const { json } = await client.single({ npi: stranger() });
  await client.completed(note(world, client, json.batch_id));
  // The vendor rejects our key, which opens its breaker.
  const rejected = stranger(() => ({ kind: 'miss', reason: 'nobody' }));
  costly.script(rejected, () => ({ kind: 'fatal', why: 'auth' }));
  const failed = (await client.single({ npi: rejected })).json;
  await client.completed(note(world, client, failed.batch_id));
}

/** Sends webhooks to receivers that accept them, fail, refuse connections, and are blocked. */
async function deliver({ operator }: World, stack: Stack, client: ApiClient) {
  const { url } = stack.receiver;
  await operator.text('webhooks', 'block', '192.0.2.0/24', ...WHY);
  const targets = [
    `${url}/fail/1/later`,
    `${url}/status/500`,
    await closedPortUrl(),
    // A public address that no machine has. The attempts to such an address are limited.
    `https://mx.${PRACTICE_DOMAINS[0]}/hook`,
  ];
  for (const target of targets) {
    const webhook = { url: target };
    const { json } = await client.bulk({ npis: [stranger()], webhook });
    await client.completed(json.batch_id);
  }
  const isOver = async () => {
    const pending = await client.get<{ deliveries: object[] }>(
      '/api/v1/deliveries?status=pending',
    );
    return pending.json.deliveries.length === 0 || null;
  };
  await eventually(isOver);
  await operator.text('webhooks', 'suspend', client.organizationId, ...WHY);
  const { json } = await client.bulk({
    npis: [stranger()],
    webhook: { url: `${url}/none` },
  });
  await client.completed(json.batch_id);
  await operator.text('webhooks', 'resume', client.organizationId, ...WHY);
}

async function closedPortUrl(): Promise<string> {
  return (await closedUrl()).replace('http:', 'https:');
}

/** Makes an upload in each state. */
async function upload({ database: { db } }: World, stack: Stack, client: ApiClient) {
  const begin = async (
    organization: Organization,
    count: number,
    requestedType: RequestedType = 'any',
  ) => {
    const npis = Array.from({ length: count }, () => stranger());
    const uploadId = await startedUpload(
      db,
      organization,
      npis,
      'a note',
      null,
      requestedType,
    );
    const { organizationId } = organization;
    const input = { uploadId, organizationId };
    return {
      input,
      start: () => startUpload(stack.client, stack.taskQueue, input),
      ended: () =>
        eventually(async () => {
          const [row] = await stack.db.drizzle
            .select()
            .from(uploads)
            .where(eq(uploads.id, uploadId));
          return row?.submittedAt || row?.stopReason ? true : null;
        }),
    };
  };
  const owner = { organizationId: client.organizationId, apiKeyId: client.keyId };
  const draft = { fileName: 'draft.csv', content: Buffer.from('npi\n2000000010\n') };
  await createUpload(db, owner, draft);
  const finished = await begin(client, 3);
  await finished.start();
  await finished.ended();
  const poor = await begin(await stack.organization(1), 3);
  await poor.start();
  await poor.ended();
  const revoked = await stack.organization(10);
  const keyless = await begin(revoked, 1, 'professional');
  await revokeKey(db, BY, revoked.keyId);
  await keyless.start();
  await keyless.ended();
  await stopUpload(db, (await begin(client, 2, 'personal')).input);
  const cancelled = await begin(await stack.organization(100, 1), 70);
  await cancelled.start();
  await stack.client.workflow.getHandle(cancelled.input.uploadId).cancel();
  await cancelled.ended();
}

/** Sends a request with each test outcome. */
async function useSandbox(world: World, stack: Stack, client: ApiClient) {
  const test = await stack.sandboxOf(client);
  for (const outcome of TEST_OUTCOMES) {
    const headers = { 'test-outcome': outcome };
    const { json } = await test.single({ npi: stranger() }, headers);
    note(world, test, json.batch_id);
  }
}

/** Erases a person, and records the routine work of operators. */
async function operate({ operator, database: { db } }: World, client: ApiClient) {
  const { json } = await client.single({ npi: stranger() });
  const { data } = await client.completed(json.batch_id);
  await operator.text('privacy', 'export', data[0]?.npi ?? '', ...WHY);
  await operator.text('privacy', 'erase', data[0]?.npi ?? '', '--yes', ...WHY);
  await operator.text('suppress', 'add', stranger(), ...WHY);
  await operator.text('credits', 'adjust', client.organizationId, '-5', ...WHY);
  await operator.text('webhook-secret', 'rotate', client.organizationId, ...WHY);
  await operator.text('backups', 'note', ...WHY);
  await storePrices(db, new Map([['finder', 0.1]]));
}

/** Leaves work of each kind open: lookups, deliveries, uploads, and bulks that wait. */
async function leaveOpen(world: World, stack: Stack) {
  const { db } = world.database;
  const client = await stack.organization();
  const vendor = (id: string, script: Script) => {
    slow.script(id, script);
    return id;
  };
  const nobody = (): Script => () => ({ kind: 'miss', reason: 'nobody' });
  const called = vendor(stranger(nobody()), ({ signal }) => aborted(signal));
  const webhook = { url: `${stack.receiver.url}/open` };
  const working = stranger(() => ({
    kind: 'pending',
    jobRef: 'job-17',
    pollAfterMs: 10 * MINUTE,
  }));
  const first = await client.bulk({ npis: [called, working, stranger()], webhook });
  note(world, client, first.json.batch_id);
  await eventually(async () => (slow.asked(called, 'submit') > 0 ? true : null));
  const queued = await client.bulk({ npis: [stranger(nobody()), stranger(nobody())] });
  note(world, client, queued.json.batch_id);
  // The delivery fails once, and its second attempt is due in an hour.
  const failing = { url: `${stack.receiver.url}/fail/1/retried` };
  const told = await client.bulk({ npis: [stranger()], webhook: failing });
  await client.completed(told.json.batch_id);
  await eventually(async () => (stack.receiver.deliveries().length > 1 ? true : null));

  const limited = await stack.organization(1000, 1);
  for (const id of ordinaryNpis('found', 6)) finder.script(id, () => foundStep(id));
  const uploadId = await uploadInParts(db, limited, { parts: 3, size: 2 });
  const { organizationId } = limited;
  await startUpload(stack.client, stack.taskQueue, { uploadId, organizationId });

  // No worker runs these batches, so the second one waits until the first one is planned.
  const taskQueue = 'nobody';
  await using opened = new AsyncDisposableStack();
  const api = await startApi({
    databaseUrl: world.database.url,
    taskQueue,
    lookupTimeoutMs: LOOKUP_TIMEOUT_MS,
  });
  opened.defer(() => api.stop());
  await noteApi(db, { id: newProcessId(), namespace: 'default', taskQueue });
  const crowded = await api.organization();
  for (const count of [40, 5]) {
    const npis = Array.from({ length: count }, () => stranger());
    const { json } = await crowded.bulk({ npis });
    note(world, crowded, json.batch_id);
  }
}

/** Records the responses to the polls in a schema of the dump. */
async function recordPolls({ database: { sql }, polls }: World, baseUrl: string) {
  await sql`create schema recorded`;
  await sql`create table recorded.polls (api_key text, path text, response text)`;
  for (const { apiKey, path } of polls) {
    const response = await fetch(baseUrl + path, { headers: { 'x-api-key': apiKey } });
    if (!response.ok) throw new Error(`${path} had the status ${response.status}`);
    const row = { api_key: apiKey, path, response: await response.text() };
    await sql`insert into recorded.polls ${sql(row)}`;
  }
}

/**
 * Matches commands of psql, which begin with a backslash, and a setting that the oldest supported
 * PostgreSQL does not have.
 */
const NOT_PORTABLE = /^(?:\\|SET transaction_timeout\b).*\n/gm;

/**
 * Returns the dump as statements that any client can run on any supported PostgreSQL. Its first line
 * is the time from which `openDump` moves the times.
 */
async function dumpOf(url: string, folder: string): Promise<string> {
  const program = join(await TOOLS.postgresqlClients(), 'pg_dump');
  const file = join(folder, 'dump.sql');
  const options = [
    '--inserts',
    '--rows-per-insert=1000',
    '--no-owner',
    '--no-privileges',
  ];
  const { code, output } = await run(program, [...options, `--file=${file}`, url], {});
  if (code !== 0) throw new Error(`pg_dump failed: ${output}`);
  const statements = (await readFile(file, 'utf8')).replaceAll(NOT_PORTABLE, '');
  return `-- Recorded at ${new Date().toISOString()}\n${statements}`;
}

/** Fills a database. @returns its dump */
async function record(): Promise<string> {
  await using opened = new AsyncDisposableStack();
  const database = opened.use(await openTestDatabase());
  const folder = temporaryFolder((remove) => opened.defer(remove));
  const world: World = { database, operator: operatorOn(database.url), polls: [] };
  const options = {
    database,
    lookupTimeoutMs: LOOKUP_TIMEOUT_MS,
    sweepIntervalMs: 3_600_000,
  };
  const stack = await startStack({
    ...options,
    allSources: true,
    providers: [finder, costly],
    reacherRates: ['1000/1s'],
  });
  opened.defer(() => stack.stop());
  const client = await stack.organization();
  await importFiles(world, folder);
  await makeKeys(world, client);
  await lookUp(world, stack, client);
  await deliver(world, stack, client);
  await upload(world, stack, client);
  await useSandbox(world, stack, client);
  await endOrganizations(world, stack);
  await operate(world, client);
  await stack.reconcile();
  // Both stacks have the same task queue and Schedule.
  await stack.stop();

  const limits = { rates: [{ calls: 1, perMs: MINUTE }], dailyCredits: 100 };
  const later = await startStack({
    ...options,
    vendors: [vendorSource(finder), vendorSource(slow, { limits })],
    webhookScheduleMs: [0, 60 * MINUTE],
  });
  opened.defer(() => later.stop());
  await leaveOpen(world, later);
  await recordPolls(world, later.baseUrl);
  await requireOpenWork(database.sql);
  return await dumpOf(database.url, folder);
}

await main(
  {
    name: 'dump',
    description: 'Records a dump to upgrade in tests.',
    help: HELP,
    call: 'node test/support/record-dump.ts',
  },
  async (_stopped, file: string) => {
    const stop = await startServers();
    try {
      await writeFile(file, gzipSync(await record(), { level: 9 }));
    } finally {
      await stop();
    }
  },
  (command) => command.argument('<FILE>', 'test/db/VERSION.sql.gz'),
);
