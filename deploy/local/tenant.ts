import { randomBytes } from 'node:crypto';
import { grantCredits } from '../../db/accounts/credits.ts';
import { authenticate, issueKey, parseApiKey } from '../../db/accounts/keys.ts';
import { createOrganization } from '../../db/accounts/organizations.ts';
import { showWebhookSecret } from '../../db/accounts/webhook-secrets.ts';
import { type Database, openDatabase } from '../../db/connection/client.ts';
import { storeOwnEmails } from '../../db/lookups/imports.ts';
import { forgetStored } from '../../db/operations/local-stack.ts';
import { addSuppression } from '../../db/privacy/suppressions.ts';
import type { OperatorConfig } from '../config/config.ts';
import type { StackFacts } from '../config/stack-facts.ts';
import { STORED_EMAILS, SUPPRESSED_NPIS } from './sim/magic.ts';

const BY = { actor: 'npm start', reason: 'local stack' };
const CREDITS = 1000;

export type Tenant = Awaited<ReturnType<typeof openTenant>>;

/**
 * Returns the organization of the local stack and its sandbox. If an earlier start created them,
 * they are found by its API keys. Otherwise a new organization with 1,000 credits is created. The
 * API keys are stored only in `stack.json`, so a new organization is created if that file is lost.
 * @returns also `vendorKey`, the key that the simulated vendors require
 * @throws {DatabaseError}
 */
export async function openTenant(
  { databaseUrl: url, secretKeys }: OperatorConfig,
  keys: Partial<Pick<StackFacts, 'api_key' | 'test_api_key'>> | null,
) {
  const db = openDatabase({
    url,
    poolSize: 2,
    applicationName: 'local-stack',
    secretKeys,
  });
  try {
    const earlier = await findByKey(db, keys?.api_key);
    const { organizationId, apiKey } = earlier ?? (await create(db));
    const earlierSandbox = await findByKey(db, keys?.test_api_key);
    const sandbox =
      earlierSandbox ??
      (await issueKey(db, BY, organizationId, 'npm start', { forSandbox: true }));
    await storeSample(db);
    for (const value of SUPPRESSED_NPIS) {
      await addSuppression(db, BY, { kind: 'npi', value });
    }
    const own = await showWebhookSecret(db, organizationId);
    const ofSandbox = await showWebhookSecret(db, sandbox.organizationId);
    return {
      organizationId,
      apiKey,
      sandbox,
      webhookSecrets: [own.webhookSecret, ofSandbox.webhookSecret],
      vendorKey: randomBytes(16).toString('hex'),
    };
  } finally {
    await db.close();
  }
}

/** Stores the addresses of the sample again, so that they have the same age at each start. */
async function storeSample(db: Database): Promise<void> {
  const stored = STORED_EMAILS.map(({ npi, email, type, validatedAgoMs }) => {
    return {
      npi,
      email,
      emailType: type,
      validatedAt: new Date(Date.now() - validatedAgoMs),
      source: 'local-stack',
      checked: true,
    };
  });
  const npis = stored.map(({ npi }) => npi);
  await forgetStored(db, npis);
  await storeOwnEmails(db, stored);
}

/**
 * Returns the organization of an API key from an earlier start, or null if the key is not valid.
 */
async function findByKey(db: Database, apiKey = '') {
  const hash = parseApiKey(apiKey);
  if (hash === null) return null;
  const owner = await authenticate(db, hash);
  if (owner.kind !== 'active') return null;
  return { organizationId: owner.organizationId, apiKey };
}

async function create(db: Database) {
  const { id: organizationId } = await createOrganization(db, BY, 'Demonstration');
  await grantCredits(db, BY, organizationId, CREDITS, 'npm start');
  const { apiKey } = await issueKey(db, BY, organizationId, 'npm start');
  return { organizationId, apiKey };
}
