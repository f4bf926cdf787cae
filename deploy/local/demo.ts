import { setTimeout as sleep } from 'node:timers/promises';
import { EnrichmentClient } from '../../api/client/client.ts';
import { EnrichmentError } from '../../api/client/errors.ts';
import type { Envelope } from '../../api/client/types.ts';
import { OperatorProblem } from '../../db/errors.ts';
import { pageOf, table } from '../operator/print.ts';
import type { StackFacts } from './facts.ts';

// Demonstrates the service: submits a bulk batch and waits for its results. It only uses the public
// API, as a customer would.

/**
 * The NPIs of the demonstration. Together they have every kind of outcome except time-outs, which
 * would take too long.
 */
const NPIS = [
  '2000000010',
  '2000000028',
  '2000000044',
  '2000000051',
  '2000000069',
  '2000000077',
  '2000000085',
  '2000000119',
  '2000000127',
  '2000000135',
  '2000000143',
  '2000000176',
  '2000000192',
  '2000000200',
  '2000000218',
  '2000000226',
  '2000000010',
  '1234567890',
];

/** An NPI that only the last vendor knows, so its lookup calls all vendors. */
const ALL_VENDORS = '2000000218';

const NO_CREDITS = `There are too few credits for the demonstration. To add some:
npm run operator -- credits grant Demonstration 1000 --reference "$(date)" --reason "demonstration"`;

/**
 * Submits a bulk batch, waits for its results and webhooks, and prints them.
 * @returns the batch id, or null if there are too few credits
 * @throws {OperatorProblem} if a call fails
 */
export async function demonstrate(
  facts: StackFacts,
  say: (line: string) => void,
  signal: AbortSignal,
): Promise<string | null> {
  const connection = { apiKey: facts.api_key, baseUrl: facts.base_url, signal };
  try {
    return await submitAndFollow(new EnrichmentClient(connection), facts, say);
  } catch (error) {
    if (!(error instanceof EnrichmentError)) throw error;
    if (error.code === 'insufficient_credits') {
      say(NO_CREDITS);
      return null;
    }
    throw new OperatorProblem(`The demonstration failed: ${error.message}`);
  }
}

async function submitAndFollow(
  client: EnrichmentClient,
  facts: StackFacts,
  say: (line: string) => void,
): Promise<string> {
  const before = await client.getCredits();
  say(
    `\nSubmitting ${NPIS.length} NPIs in one bulk, with a real-time webhook and custom_data:\n`,
  );
  const { batch_id: batchId } = await client.submitBulk({
    npis: NPIS,
    webhook: { url: `${facts.receiver_url}/demo`, mode: 'real-time' },
    custom_data: { campaign: 'demonstration', note: 'comes back exactly as sent' },
  });
  const envelope = await follow(client, batchId, say);
  const rows = await readRows(client, envelope);
  const after = await client.getCredits();
  say(`\n${table(rows)(pageOf())}`);
  say(`\nBalance: ${before.balance} before, ${after.balance} after.`);
  if (facts.temporal_ui) {
    const workflow = `${facts.temporal_ui}/namespaces/${facts.temporal_namespace}/workflows`;
    const waterfall = envelope.data.find(({ npi }) => npi === ALL_VENDORS);
    say(`In the Temporal UI: ${workflow}/${batchId}`);
    say(`  one NPI, vendor by vendor: ${workflow}/${waterfall?.request_id}`);
  }
  return batchId;
}

/**
 * Polls the batch once per second, which the rate limit allows. Prints the progress when it
 * changes. Returns when all requests are final and all webhooks have succeeded or failed.
 */
async function follow(
  client: EnrichmentClient,
  batchId: string,
  say: (line: string) => void,
): Promise<Envelope> {
  let printed = '';
  for (;;) {
    const envelope = await client.getBatch(batchId);
    const { batch, webhook } = envelope;
    const webhooks = webhook?.status ?? 'none';
    const line = `  ${batch.completed_count} of ${batch.total} results, webhooks ${webhooks}`;
    if (line !== printed) say(line);
    printed = line;
    if (batch.status === 'completed' && webhook?.status !== 'pending') return envelope;
    await sleep(1000);
  }
}

/** Returns a row of the printed table for each result. */
async function readRows(client: EnrichmentClient, { data }: Envelope) {
  const rows = [];
  for (const result of data) {
    const { usage, webhook } = await client.getRequest(result.request_id);
    rows.push({
      npi: result.npi,
      status: result.status,
      type: result.email_type,
      email: result.email,
      replayed: result.replayed,
      credits: usage?.credits_used,
      webhook: webhook?.status,
    });
  }
  return rows;
}
