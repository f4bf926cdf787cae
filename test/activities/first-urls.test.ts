import test from 'ava';
import { openDatabase } from '../../db/client.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createSources } from '../../deploy/config/create-sources.ts';
import { SOURCE_VARIABLES } from '../../deploy/config/sources.ts';
import { SUBJECT } from '../support/vendor-server.ts';

// Where every source is asked first if nothing but its key is configured: real configuration and adapters, and in the
// place of the network something that notes each URL and carries nothing.

const DATABASE_URL = 'postgres://user:password@127.0.0.1:1/none';
const NEVER = new AbortController().signal;

/** As each vendor's own document writes it; what is in its query is the business of the adapter's tests. */
const DOCUMENTED: Readonly<Record<string, string>> = {
  // docs.rocketreach.co, "People Lookup API"
  rocketreach: 'GET https://api.rocketreach.co/api/v2/person/lookup',
  // docs.fullenrich.com, "Start Bulk Enrichment", version 2
  fullenrich: 'POST https://app.fullenrich.com/api/v2/contact/enrich/bulk',
  // prospeo.io/api-docs/enrich-person
  prospeo: 'POST https://api.prospeo.io/enrich-person',
  // hunter.io/api-documentation/v2#email-finder
  hunter: 'GET https://api.hunter.io/v2/email-finder',
  // zerobounce.net/docs/email-validation-api-quickstart/v2-validate-emails, "API U.S.A. URL"
  zerobounce: 'GET https://api-us.zerobounce.net/v2/validate',
  // developers.neverbounce.com/reference/single-check, whose definition's server is …/v4.2
  neverbounce: 'GET https://api.neverbounce.com/v4.2/single/check',
  // npiregistry.cms.hhs.gov/api-page
  registry: 'GET https://npiregistry.cms.hhs.gov/api/',
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

/** By source, its first URL under an environment of a database and these variables. */
async function firstUrls(environment: Readonly<Record<string, string>>): Promise<Record<string, string[]>> {
  const db = openDatabase({ url: DATABASE_URL, poolSize: 1, applicationName: 'test' });
  try {
    const config = loadConfig({ DATABASE_URL, ...environment });
    const { vendors, verifiers, registry } = createSources(config, { db, dnsServers: [] });
    const urls: Record<string, string[]> = {};
    for (const { provider } of vendors)
      urls[provider.id] = await askedBy(() => provider.submit(SUBJECT, NEVER));
    for (const verifier of verifiers)
      urls[verifier.id] = await askedBy(() => verifier.check('jo@clinic.com', NEVER));
    if (registry !== null) urls.registry = await askedBy(() => registry.find(SUBJECT.npi, NEVER));
    return urls;
  } finally {
    await db.close();
  }
}

/** So that a source that is new here is asked as well. */
const EVERY_KEY = Object.fromEntries(
  Object.keys(SOURCE_VARIABLES)
    .filter((name) => name.endsWith('_API_KEY'))
    .map((name) => [name, 'key-of-a-test']),
);

test.serial(
  'each source that has its key and nothing else is asked at the URL of its document',
  async (t) => {
    const documented = Object.entries(DOCUMENTED).map(([id, url]) => [id, [url]]);
    t.deepEqual(await firstUrls({ ...EVERY_KEY, NPPES_API: 'fallback' }), Object.fromEntries(documented));
  },
);

test.serial('an account of RocketReach with universal credits is asked at the URL of that API', async (t) => {
  const { rocketreach } = await firstUrls({ ...EVERY_KEY, ROCKETREACH_API: 'universal' });
  // docs.rocketreach.co, "Universal People Lookup API"
  t.deepEqual(rocketreach, ['GET https://api.rocketreach.co/api/v2/universal/person/lookup']);
});

test.serial('Reacher is asked where its server is: docs.reacher.email has the path', async (t) => {
  const { reacher } = await firstUrls({ REACHER_URL: 'https://api.reacher.email' });
  t.deepEqual(reacher, ['POST https://api.reacher.email/v1/check_email']);
});
