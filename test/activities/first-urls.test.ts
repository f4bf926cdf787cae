import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { createNames } from '../../activities/http/names.ts';
import { VENDORS } from '../../activities/vendors/catalogue.ts';
import {
  VERIFIER_IDS,
  VERIFIERS,
} from '../../activities/verification/verifiers/catalogue.ts';
import { createVerifier } from '../../activities/verification/verifiers/verifier.ts';
import { openDatabase } from '../../db/connection/client.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createSources } from '../../deploy/config/sources.ts';
import { SUBJECT } from '../support/vendors.ts';

// Tests the first URL that each source requests if only its key is configured. Configuration and
// adapters are real. A recorder of URLs replaces the network.

const DATABASE_URL = 'postgres://user:password@127.0.0.1:1/none';
const NEVER = new AbortController().signal;

const CATALOGUE = [...Object.values(VENDORS), ...Object.values(VERIFIERS)];

/** The documented URL of each source, without the query, which the tests of the adapters cover. */
const DOCUMENTED: Readonly<Record<string, string>> = {
  rocketreach: 'GET https://api.rocketreach.co/api/v2/person/lookup',
  fullenrich: 'POST https://app.fullenrich.com/api/v2/contact/enrich/bulk',
  prospeo: 'POST https://api.prospeo.io/enrich-person',
  hunter: 'GET https://api.hunter.io/v2/email-finder',
  reacher: 'POST https://own.example/v1/check_email',
  // The server in the United States; https://api.zerobounce.net is in Europe.
  zerobounce: 'GET https://api-us.zerobounce.net/v2/validate',
  neverbounce: 'GET https://api.neverbounce.com/v4.2/single/check',
  'hunter-verifier': 'GET https://api.hunter.io/v2/email-verifier',
};

/** Node's fetch sends everything through the dispatcher under this symbol. */
const DISPATCHER = Symbol.for('undici.globalDispatcher.1');

/** Returns the requests that `ask` would have sent. */
async function askedBy(ask: () => Promise<unknown>): Promise<string[]> {
  const asked: string[] = [];
  const real = Reflect.get(globalThis, DISPATCHER);
  Reflect.set(globalThis, DISPATCHER, {
    dispatch({
      method,
      origin,
      path,
    }: {
      method: string;
      origin: string | URL;
      path: string;
    }) {
      const url = new URL(path, origin);
      asked.push(`${method} ${url.origin}${url.pathname}`);
      throw new Error('this test has no network');
    },
  });
  try {
    await ask();
  } finally {
    Reflect.set(globalThis, DISPATCHER, real);
  }
  return asked;
}

/** Returns the first URL of each source for a worker with all keys and this sources file. */
async function firstUrls(
  t: ExecutionContext,
  file: object,
): Promise<Record<string, string[]>> {
  const folder = await mkdtemp(join(tmpdir(), 'sources-'));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const path = join(folder, 'sources.json');
  await writeFile(path, JSON.stringify(file));
  const db = openDatabase({ url: DATABASE_URL, poolSize: 1, applicationName: 'test' });
  try {
    const config = loadConfig({ DATABASE_URL, ...NEEDED, SOURCES_FILE: path });
    const { vendors, registry } = createSources(
      config,
      db,
      createNames([]),
      pino({ level: 'silent' }),
    );
    const urls: Record<string, string[]> = {};
    for (const { vendor } of vendors)
      urls[vendor.id] = await askedBy(() => vendor.submit(SUBJECT, NEVER));
    for (const id of VERIFIER_IDS) {
      const access = config.access[id];
      if (access)
        urls[id] = await askedBy(() =>
          createVerifier(VERIFIERS[id], access).check('jo@clinic.com', NEVER),
        );
    }
    if (registry !== null)
      urls.registry = await askedBy(() => registry.find(SUBJECT.npi, NEVER));
    return urls;
  } finally {
    await db.close();
  }
}

/**
 * The settings that every source of the catalogs needs: its key, and a URL if it has no default.
 */
const NEEDED = Object.fromEntries(
  CATALOGUE.flatMap(({ id, url }) => {
    const name = id.toUpperCase();
    return [
      [`${name}_API_KEY`, 'key-of-a-test'],
      ...(url === null ? [[`${name}_URL`, 'https://own.example']] : []),
    ];
  }),
);

test('the tables of vendors and verifiers use the id of each entry as its key', (t) => {
  for (const catalogue of [VENDORS, VERIFIERS])
    t.deepEqual(
      Object.values(catalogue).map(({ id }) => id),
      Object.keys(catalogue),
    );
});

test.serial(
  'each vendor and verifier is called at its documented URL by default',
  async (t) => {
    const urls = await firstUrls(t, { registry: 'fallback' });
    for (const { id } of CATALOGUE) {
      t.truthy(DOCUMENTED[id], `${id} is missing here: take its URL from its document`);
      t.deepEqual(urls[id], [DOCUMENTED[id] ?? ''], `${id} is documented at another URL`);
    }
    // npiregistry.cms.hhs.gov/api-page
    t.deepEqual(urls.registry, ['GET https://npiregistry.cms.hhs.gov/api/']);
  },
);

test.serial("RocketReach's universal API is called at its documented URL", async (t) => {
  const { rocketreach } = await firstUrls(t, {
    vendors: { rocketreach: { api: 'universal' } },
  });
  // docs.rocketreach.co, "Universal People Lookup API"
  t.deepEqual(rocketreach, [
    'GET https://api.rocketreach.co/api/v2/universal/person/lookup',
  ]);
});
