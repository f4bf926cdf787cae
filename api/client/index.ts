import { setTimeout as sleep } from 'node:timers/promises';
import { Webhook } from 'standardwebhooks';
import { type Call, type Connection, createCaller, EnrichmentError, PATIENCE_MS } from './http.ts';
import { BATCH, lockState, openState, type State } from './state.ts';
import type { Accepted, Envelope } from './types.ts';

export { EnrichmentError } from './http.ts';
export type { Envelope } from './types.ts';

/** Credits per email found, by wanted type. */
export const PRICES = { any: 1, professional: 1, personal: 3 } as const;

type Outcome = 'completed' | 'not_found' | 'failed';

/** How many NPIs have ended so, and what that has cost: `completed` ones alone have an email and cost credits. */
export type Totals = Readonly<Record<Outcome | 'creditsUsed', number>>;

/** What became of one NPI, as the API has it: `npi`, `status`, `email`, `email_type`, `replayed` and more. */
export type Result = Envelope['data'][number] & { readonly status: Outcome };

export interface Progress extends Totals {
  /** Different NPIs of the run. */
  readonly total: number;
  /** Of those that have ended, how many a run that goes on had from before. */
  readonly earlier: number;
  /** New since the last call: over all calls each NPI comes once, those from before included. */
  readonly results: readonly Result[];
}

export interface Options extends Connection {
  /** `any` if not given. */
  readonly type?: keyof typeof PRICES;
  /**
   * No batch is submitted that could take the run above it, what was used before a kill included; of a batch whose answer
   * the kill lost, if the run goes on within 24 hours.
   */
  readonly maxCredits?: number;
  /** Where the run keeps what it needs to go on after a kill. Delete it when you have kept the results. */
  readonly stateFile?: string;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
}

/** The service looks up 100 of an organization at once, and gives each 15 minutes from its submit. */
const OPEN_AT_MOST = 180;
/** A batch that waits for its slowest NPI costs a request a minute. */
const BATCHES_AT_ONCE = 16;

interface Chunk {
  readonly index: number;
  readonly npis: readonly string[];
  /** Null if no earlier run has sent it, empty if the answer was lost. */
  batchId: string | null;
  /** How many of its NPIs have not ended, and what the others have cost. */
  open: number;
  creditsUsed: number;
}

interface Run extends Required<Pick<Options, 'type' | 'maxCredits' | 'patienceMs' | 'signal'>> {
  readonly onProgress: Options['onProgress'];
  readonly call: Call;
  readonly state: State;
  readonly total: number;
  readonly chunks: readonly Chunk[];
  readonly running: Set<Chunk>;
  readonly results: Map<string, Result>;
  earlier: number;
  /** Too few credits, and no batch has given any back since. */
  shortage: EnrichmentError | null;
  /** Called when more may be begun. */
  wake(): void;
}

export function isNpi(text: string): boolean {
  return /^[0-9]{10}$/.test(text);
}

/** For want of credits: nothing is wrong, and the run can go on with more. */
export function isShortage(error: unknown): error is EnrichmentError {
  return error instanceof EnrichmentError && /^(insufficient|max)_credits$/.test(error.code);
}

/**
 * Finds the emails of any number of NPIs, and returns when all have ended. Equal ones are asked for once, and each batch
 * is submitted once, whatever happens.
 * @returns `results` has one for each NPI as given, in that order
 * @throws {EnrichmentError} what trying again does not mend; with a state file the run can go on later. For want of
 *   credits (`insufficient_credits`, `max_credits`) not before all that was submitted has ended
 * @throws the reason of the signal
 */
export async function enrich(
  npis: readonly string[],
  options: Options,
): Promise<Totals & { readonly results: readonly Result[] }> {
  const wrong = npis.findIndex((npi) => !isNpi(npi));
  if (wrong !== -1) throw new EnrichmentError('npi_invalid', `NPI ${wrong + 1} is not 10 digits.`);
  const { type = 'any', stateFile, maxCredits = Number.POSITIVE_INFINITY } = options;
  if (Number.isNaN(maxCredits))
    throw new EnrichmentError('max_credits_invalid', 'maxCredits is not a number.');
  const baseUrl = options.baseUrl.replace(/\/+$/, '');
  const ending = new AbortController();
  const signal = AbortSignal.any([ending.signal, ...(options.signal ? [options.signal] : [])]);
  const call = createCaller({ ...options, baseUrl }, signal);
  const asked = [...new Set(npis)];
  await using _lock = await lockState(stateFile);
  const state = openState(stateFile, baseUrl, type, asked);
  const chunks = state.saved.batches.map((batchId, index) => {
    const part = asked.slice(index * BATCH, (index + 1) * BATCH);
    return { index, npis: part, batchId, open: part.length, creditsUsed: 0 };
  });
  const results = new Map<string, Result>();
  const run: Run = {
    ...{ patienceMs: PATIENCE_MS, onProgress: undefined, ...options },
    ...{ type, maxCredits, signal, call, state, chunks, results, total: asked.length, running: new Set() },
    ...{ earlier: 0, shortage: null, wake: () => {} },
  };
  // A look at what is there already, which shows too whether the key is good, is the run's, and what is left of its rate.
  const submitted = chunks.filter(({ batchId }) => batchId);
  if (submitted.length === 0) await call('/api/v1/credits');
  for (const chunk of submitted) await look(run, chunk);
  // Not before: a wrong address or key leaves nothing behind. Not later: keys are on the disk before they are sent.
  state.save();
  await finish(run, ending);
  return { ...totals(run), results: npis.flatMap((npi) => results.get(npi) ?? []) };
}

/** Submits what is not submitted, and waits for all. */
async function finish(run: Run, ending: AbortController): Promise<void> {
  const open = run.chunks.filter((chunk) => chunk.open > 0);
  const waiting = open.toSorted((a, b) => Number(!a.batchId) - Number(!b.batchId));
  const begin = async (chunk: Chunk) => {
    run.running.add(chunk);
    try {
      await follow(run, chunk);
      run.shortage = null;
    } catch (error) {
      if (!isShortage(error)) ending.abort(error);
      else {
        run.shortage = error;
        waiting.unshift(chunk);
      }
    }
    run.running.delete(chunk);
    run.wake();
  };
  for (;;) {
    let obstacle = run.shortage;
    while (waiting[0] && !obstacle && hasRoom(run)) {
      obstacle = aboveMaximum(run, waiting[0]);
      const next = obstacle ? null : waiting.shift();
      if (next) void begin(next);
    }
    if (run.running.size === 0) {
      run.signal.throwIfAborted();
      if (obstacle) throw obstacle;
      return;
    }
    await new Promise<void>((resolve) => {
      run.wake = resolve;
    });
  }
}

function hasRoom({ running, signal }: Run): boolean {
  const open = sum([...running].map((chunk) => chunk.open));
  return !signal.aborted && running.size < BATCHES_AT_ONCE && open < OPEN_AT_MOST;
}

function aboveMaximum({ chunks, running, type, maxCredits }: Run, next: Chunk): EnrichmentError | null {
  const begun = chunks.filter((chunk) => chunk.batchId !== null || running.has(chunk) || chunk === next);
  const most = sum(begun.map(({ creditsUsed, open }) => creditsUsed + open * PRICES[type]));
  if (next.batchId || !(most > maxCredits)) return null;
  const text = `The next ${next.npis.length} NPIs could take the run to ${most} credits, above its ${maxCredits}.`;
  return new EnrichmentError('max_credits', text);
}

/** One batch, from its submit to its end. */
async function follow(run: Run, chunk: Chunk): Promise<void> {
  if (!chunk.batchId) {
    run.state.note(chunk.index, '');
    const headers = { 'idempotency-key': `${run.state.saved.run}-${chunk.index}` };
    const body = { npis: chunk.npis, enrichment_email_type: run.type };
    const answer = await run.call<Accepted>('/api/v1/email/bulk', headers, body).catch((error) => {
      // It was refused. If an earlier run has sent it too, that is still not known to have been.
      if (isShortage(error) && chunk.batchId === null) run.state.note(chunk.index, null);
      throw error;
    });
    chunk.batchId = answer.body.batch_id;
    run.state.note(chunk.index, chunk.batchId);
  }
  let [open, since] = [chunk.open, Date.now()];
  while (chunk.open > 0) {
    const { headers } = await look(run, chunk, 'wait=55');
    if (chunk.open < open) [open, since] = [chunk.open, Date.now()];
    if (Date.now() - since > run.patienceMs) {
      throw new EnrichmentError('timed_out', `Batch ${chunk.batchId} has had no news for too long.`);
    }
    // Not held: there are too many waits, or something between does not pass the header on.
    const pauseS = headers.has('preference-applied') ? 0 : Number(headers.get('retry-after') ?? 1);
    if (chunk.open > 0) await sleep(pauseS * 1000, undefined, { signal: run.signal });
  }
}

/** Polls a batch and tells what is new. Without a wait it is the first look at a batch from before. */
async function look(run: Run, chunk: Chunk, prefer?: string): Promise<Response> {
  const { call, results, onProgress } = run;
  const { body, response } = await call<Envelope>(`/api/v1/batch/${chunk.batchId}`, prefer ? { prefer } : {});
  const ended = body.data.filter(({ status }) => !/^(accepted|in-progress)$/.test(status)) as Result[];
  const news = ended.filter(({ npi }) => !results.has(npi));
  for (const result of news) results.set(result.npi, result);
  chunk.open = body.batch.total - body.batch.completed_count;
  chunk.creditsUsed = body.usage?.credits_used ?? 0;
  if (!prefer) run.earlier = results.size;
  onProgress?.({ ...totals(run), total: run.total, earlier: run.earlier, results: news });
  run.wake();
  return response;
}

function totals({ results, chunks }: Run): Totals {
  const count = { completed: 0, not_found: 0, failed: 0 };
  for (const { status } of results.values()) count[status] += 1;
  return { ...count, creditsUsed: sum(chunks.map(({ creditsUsed }) => creditsUsed)) };
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

/**
 * The envelope of a delivery, if it is signed with the secret and no older than 5 minutes.
 * @param body the bytes as they came, not what a JSON parser made of them
 * @param secret `whsec_…`
 * @throws {EnrichmentError} `webhook_unverified`: answer 400
 */
export function verifyWebhook(
  body: Uint8Array | string,
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>,
  secret: string,
): Envelope {
  try {
    const pairs = headers instanceof Headers ? [...headers] : Object.entries(headers);
    const given = Object.fromEntries(pairs.map(([name, value]) => [name, String(value)]));
    return new Webhook(secret).verify(Buffer.from(body as string), given) as Envelope;
  } catch (cause) {
    throw new EnrichmentError('webhook_unverified', (cause as Error).message, { cause });
  }
}
