import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { pino } from 'pino';
import { createNames } from '../../activities/http/names.ts';
import { VENDORS } from '../../activities/vendors/catalogue.ts';
import { VERIFIER_IDS, VERIFIERS } from '../../activities/verification/verifiers/catalogue.ts';
import { createVerifier } from '../../activities/verification/verifiers/verifier.ts';
import { openDatabase } from '../../db/client.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createSources } from '../../deploy/config/sources.ts';
import { SUBJECT } from '../support/vendors.ts';

// Where every source is asked first if nothing but its key is configured: real configuration and adapters, and in the
// place of the network something that notes each URL and carries nothing.

const DATABASE_URL = 'postgres://user:password@127.0.0.1:1/none';
const NEVER = new AbortController().signal;

const CATALOGUE = [...Object.values(VENDORS), ...Object.values(VERIFIERS)];

/** As the document of each writes it; what is in its query is the business of the adapter's tests. */
const DOCUMENTED: Readonly<Record<string, string>> = {
  rocketreach: 'GET https://api.rocketreach.co/api/v2/person/lookup',
  fullenrich: 'POST https://app.fullenrich.com/api/v2/contact/enrich/bulk',
  prospeo: 'POST https://api.prospeo.io/enrich-person',
  hunter: 'GET https://api.hunter.io/v2/email-finder',
  reacher: 'POST https://own.example/v1/check_email',
  // In the United States; https://api.zerobounce.net is in Europe.
  zerobounce: 'GET https://api-us.zerobounce.net/v2/validate',
  neverbounce: 'GET https://api.neverbounce.com/v4.2/single/check',
  'hunter-verifier': 'GET https://api.hunter.io/v2/email-verifier',
};

/** Node's fetch sends everything through the dispatcher that is kept here. */
const DISPATCHER = Symbol.for('undici.globalDispatcher.1');

/** What `ask` would have asked of the network. */
async function askedBy(ask: () => Promise<unknown>): Promise<string[]> {
  const asked: string[] = [];
  const real = Reflect.get(globalThis, DISPATCHER);
  Reflect.set(globalThis, DISPATCHER, {
    dispatch({ method, origin, path }: { method: string; origin: string | URL; path: string }) {
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

/** By source, its first URL for a worker that has all keys and this sources file. */
async function firstUrls(t: ExecutionContext, file: object): Promise<Record<string, string[]>> {
  const folder = await mkdtemp(join(tmpdir(), 'sources-'));
  t.teardown(() => rm(folder, { recursive: true, force: true }));
  const path = join(folder, 'sources.json');
  await writeFile(path, JSON.stringify(file));
  const db = openDatabase({ url: DATABASE_URL, poolSize: 1, applicationName: 'test' });
  try {
    const config = loadConfig({ DATABASE_URL, ...NEEDED, SOURCES_FILE: path });
    const { vendors, registry } = createSources(config, db, createNames([]), pino({ level: 'silent' }));
    const urls: Record<string, string[]> = {};
    for (const { vendor } of vendors) urls[vendor.id] = await askedBy(() => vendor.submit(SUBJECT, NEVER));
    for (const id of VERIFIER_IDS) {
      const access = config.access[id];
      if (access)
        urls[id] = await askedBy(() => createVerifier(VERIFIERS[id], access).check('jo@clinic.com', NEVER));
    }
    if (registry !== null) urls.registry = await askedBy(() => registry.find(SUBJECT.npi, NEVER));
    return urls;
  } finally {
    await db.close();
  }
}

/** What every source of the catalogues needs, a new one included: its key, and a URL if it has none of its own. */
const NEEDED = Object.fromEntries(
  CATALOGUE.flatMap(({ id, url }) => {
    const name = id.toUpperCase();
    return [
      [`${name}_API_KEY`, 'key-of-a-test'],
      ...(url === null ? [[`${name}_URL`, 'https://own.example']] : []),
    ];
  }),
);

test('a catalogue has each source under its own id', (t) => {
  for (const catalogue of [VENDORS, VERIFIERS])
    t.deepEqual(
      Object.values(catalogue).map(({ id }) => id),
      Object.keys(catalogue),
    );
});

test.serial(
  'each source that has what it needs and nothing else is asked at the URL of its document',
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

test.serial('an account of RocketReach with universal credits is asked at the URL of that API', async (t) => {
  const { rocketreach } = await firstUrls(t, { vendors: { rocketreach: { api: 'universal' } } });
  // docs.rocketreach.co, "Universal People Lookup API"
  t.deepEqual(rocketreach, ['GET https://api.rocketreach.co/api/v2/universal/person/lookup']);
});
