import { setTimeout as sleep } from 'node:timers/promises';
import { OperatorProblem } from '../../db/connection/errors.ts';
import type { StackFacts } from '../config/stack-facts.ts';
import { outputWidth, table } from '../operator/print.ts';

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

/** The fields of an envelope that the demonstration uses. */
interface Envelope {
  readonly batch: {
    readonly status: string;
    readonly total: number;
    readonly completed_count: number;
  };
  readonly usage: { readonly credits_used: number } | null;
  readonly webhook: { readonly status: string } | null;
  readonly data: readonly {
    readonly request_id: string;
    readonly npi: string;
    readonly status: string;
    readonly email: string | null;
    readonly email_type: string | null;
    readonly replayed: boolean;
  }[];
}

/** An error response of the API. */
class Refusal extends OperatorProblem {
  readonly code: string;

  constructor({ code, detail }: { readonly code: string; readonly detail: string }) {
    super(`The demonstration failed: ${detail}`);
    this.code = code;
  }
}

/** Calls the API, with a body as POST. */
type Call = <T>(path: string, body?: object) => Promise<T>;

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
  try {
    return await submitAndFollow(createCall(facts, signal), facts, say);
  } catch (error) {
    const isPoor = error instanceof Refusal && error.code === 'insufficient_credits';
    if (!isPoor) throw error;
    say(NO_CREDITS);
    return null;
  }
}

/** Returns a function that calls the API. While the rate limit is reached, it waits. */
function createCall({ base_url, api_key }: StackFacts, signal: AbortSignal): Call {
  const headers = {
    authorization: `Bearer ${api_key}`,
    'content-type': 'application/json',
  };
  return async (path, body) => {
    const init: RequestInit = { headers, signal };
    if (body !== undefined) {
      init.method = 'POST';
      init.body = JSON.stringify(body);
    }
    for (;;) {
      const response = await fetch(new URL(path, base_url), init);
      const json = await response.json();
      if (response.ok) return json;
      if (response.status !== 429) throw new Refusal(json);
      const seconds = Number(response.headers.get('retry-after') ?? 1);
      await sleep(seconds * 1000, undefined, { signal });
    }
  };
}

async function submitAndFollow(
  call: Call,
  facts: StackFacts,
  say: (line: string) => void,
): Promise<string> {
  const before = await call<{ balance: number }>('/api/v1/credits');
  say(
    `\nSubmitting ${NPIS.length} NPIs in one bulk, with a real-time webhook and custom_data:\n`,
  );
  const { batch_id: batchId } = await call<{ batch_id: string }>('/api/v1/email/bulk', {
    npis: NPIS,
    webhook: { url: `${facts.receiver_url}/demo`, mode: 'real-time' },
    custom_data: { campaign: 'demonstration', note: 'comes back exactly as sent' },
  });
  const envelope = await follow(call, batchId, say);
  const rows = await readRows(call, envelope);
  const after = await call<{ balance: number }>('/api/v1/credits');
  say(`\n${table(rows)(outputWidth())}`);
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
  call: Call,
  batchId: string,
  say: (line: string) => void,
): Promise<Envelope> {
  let printed = '';
  for (;;) {
    const envelope = await call<Envelope>(`/api/v1/batch/${batchId}`);
    const { batch, webhook } = envelope;
    const webhooks = webhook?.status ?? 'none';
    const line = `  ${batch.completed_count} of ${batch.total} results, webhooks ${webhooks}`;
    if (line !== printed) say(line);
    printed = line;
    if (batch.status === 'completed' && webhook?.status !== 'pending') {
      return envelope;
    }
    await sleep(1000);
  }
}

/** Returns a row of the printed table for each result. */
async function readRows(call: Call, { data }: Envelope) {
  const rows = [];
  for (const result of data) {
    const path = `/api/v1/email/${result.request_id}`;
    const { usage, webhook } = await call<Envelope>(path);
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
