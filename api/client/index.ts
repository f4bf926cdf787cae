import { setTimeout as sleep } from 'node:timers/promises';
import { Webhook } from 'standardwebhooks';
import { type Call, type Connection, createCaller, EnrichmentError, PATIENCE_MS } from './http.ts';
import { BATCH, lockState, openState, type State } from './state.ts';
import type { Accepted, Envelope } from './types.ts';

export { EnrichmentError } from './http.ts';
export type { Envelope } from './types.ts';

/** Credits per email found, by requested type. */
export const PRICES = { any: 1, professional: 1, personal: 3 } as const;

type Outcome = 'completed' | 'not_found' | 'failed';

/**
 * The number of NPIs per outcome, and the credits used. Only `completed` NPIs have an email and
 * cost credits.
 */
export type Totals = Readonly<Record<Outcome | 'creditsUsed', number>>;

/**
 * The result of one NPI as the API returns it: `npi`, `status`, `email`, `email_type`, `replayed`
 * and more.
 */
export type Result = Envelope['data'][number] & { readonly status: Outcome };

export interface Progress extends Totals {
  /** Number of different NPIs in the run. */
  readonly total: number;
  /** Number of final NPIs that a resumed run has from before. */
  readonly earlier: number;
  /**
   * New results since the last call. Over all calls, each NPI comes once, including those from
   * before.
   */
  readonly results: readonly Result[];
}

export interface Options extends Connection {
  /** `any` by default. */
  readonly type?: keyof typeof PRICES;
  /**
   * Limit on the credits of the run. No batch is submitted that could exceed it. Credits used
   * before a kill count. If the kill lost the response of a batch, its credits count only if the
   * run is resumed within 24 hours.
   */
  readonly maxCredits?: number;
  /**
   * File with the state that the run needs to resume after a kill. Delete it when you have saved
   * the results.
   */
  readonly stateFile?: string;
  readonly onProgress?: (progress: Progress) => void;
  readonly signal?: AbortSignal;
}

/**
 * Maximum number of open NPIs. The service looks up 100 NPIs of an organization at once, and gives
 * each 15 minutes from its submit.
 */
const MAX_OPEN = 180;
/**
 * Maximum number of running batches. A batch that waits for its slowest NPI costs a request a
 * minute.
 */
const MAX_BATCHES = 16;

interface Chunk {
  readonly index: number;
  readonly npis: readonly string[];
  /** Null if no earlier run has sent it; empty if the response was lost. */
  batchId: string | null;
  /** NPIs that are not final yet, and the credits used by the others. */
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
  /**
   * The last error about missing credits; null once a batch has ended since then, because it may
   * have released some.
   */
  shortage: EnrichmentError | null;
  /** Called when another batch may be submitted. */
  wake(): void;
}

export function isNpi(text: string): boolean {
  return /^[0-9]{10}$/.test(text);
}

/** Returns true if the run lacks credits. Nothing is wrong, and it can resume with more credits. */
export function isShortage(error: unknown): error is EnrichmentError {
  return error instanceof EnrichmentError && /^(insufficient|max)_credits$/.test(error.code);
}

/**
 * Finds the emails of any number of NPIs, and returns when all have ended. Equal NPIs are looked up
 * once, and each batch is submitted once, even after a kill.
 * @returns `results` has one entry for each NPI as given, in that order
 * @throws {EnrichmentError} if trying again does not help; with a state file the run can resume
 * later. A lack of credits (`insufficient_credits`, `max_credits`) is thrown only after all
 * submitted batches have ended
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
  const signal = options.signal ? AbortSignal.any([ending.signal, options.signal]) : ending.signal;
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
    type,
    maxCredits,
    patienceMs: options.patienceMs ?? PATIENCE_MS,
    onProgress: options.onProgress,
    signal,
    call,
    state,
    chunks,
    results,
    total: asked.length,
    running: new Set(),
    earlier: 0,
    shortage: null,
    wake: () => {},
  };
  // These calls check whether the key is valid and belongs to this run, and read how much of its
  // rate limit is left.
  const submitted = chunks.filter(({ batchId }) => batchId);
  if (submitted.length === 0) await call('/api/v1/credits');
  for (const chunk of submitted) await look(run, chunk);
  // The state is not saved earlier, so that a wrong address or key leaves no file. It is not saved
  // later, because keys must be on disk before they are sent.
  state.save();
  await finish(run, ending);
  return { ...totals(run), results: npis.flatMap((npi) => results.get(npi) ?? []) };
}

/** Submits the remaining batches, and waits for all. */
async function finish(run: Run, ending: AbortController): Promise<void> {
  const open = run.chunks.filter((chunk) => chunk.open > 0);
  const waiting = open.toSorted((a, b) => Number(!a.batchId) - Number(!b.batchId));
  const begin = async (chunk: Chunk) => {
    run.running.add(chunk);
    try {
      await follow(run, chunk);
      run.shortage = null;
    } catch (error) {
      if (isShortage(error)) {
        run.shortage = error;
        waiting.unshift(chunk);
      } else {
        ending.abort(error);
      }
    }
    run.running.delete(chunk);
    run.wake();
  };
  for (;;) {
    let obstacle = run.shortage;
    while (waiting[0] && !obstacle && hasSlot(run)) {
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

/** Returns true if another batch may be submitted now. */
function hasSlot({ running, signal }: Run): boolean {
  const open = sum([...running].map((chunk) => chunk.open));
  return !signal.aborted && running.size < MAX_BATCHES && open < MAX_OPEN;
}

/** Returns the error if the next batch could exceed the limit on credits, or null. */

function aboveMaximum(
  { chunks, running, type, maxCredits }: Run,
  next: Chunk,
): EnrichmentError | null {
  const begun = chunks.filter(
    (chunk) => chunk.batchId !== null || running.has(chunk) || chunk === next,
  );
  const most = sum(begun.map(({ creditsUsed, open }) => creditsUsed + open * PRICES[type]));
  if (next.batchId || !(most > maxCredits)) return null;
  const text = `With the next ${next.npis.length} NPIs, the run could cost ${most} credits, more than ${maxCredits}.`;
  return new EnrichmentError('max_credits', text);
}

/** Runs one batch from its submit to its end. */
async function follow(run: Run, chunk: Chunk): Promise<void> {
  if (!chunk.batchId) {
    run.state.note(chunk.index, '');
    const headers = { 'idempotency-key': `${run.state.saved.run}-${chunk.index}` };
    const body = { npis: chunk.npis, enrichment_email_type: run.type };
    const answer = await run.call<Accepted>('/api/v1/email/bulk', headers, body).catch((error) => {
      // The submit was rejected, so this batch does not exist. If an earlier run also sent it, that
      // is still unknown.
      if (isShortage(error) && chunk.batchId === null) run.state.note(chunk.index, null);
      throw error;
    });
    chunk.batchId = answer.body.batch_id;
    run.state.note(chunk.index, chunk.batchId);
  }
  let { open } = chunk;
  let changedAt = Date.now();
  while (chunk.open > 0) {
    const { headers } = await look(run, chunk, 'wait=55');
    if (chunk.open < open) {
      open = chunk.open;
      changedAt = Date.now();
    }
    if (Date.now() - changedAt > run.patienceMs) {
      throw new EnrichmentError(
        'timed_out',
        `Batch ${chunk.batchId} has had no new results for too long.`,
      );
    }
    // The service did not wait: too many requests are waiting, or a proxy dropped the header.
    const pauseS = headers.has('preference-applied') ? 0 : Number(headers.get('retry-after') ?? 1);
    if (chunk.open > 0) await sleep(pauseS * 1000, undefined, { signal: run.signal });
  }
}

/**
 * Polls a batch and reports new results. Without `prefer`, this is the first poll of a batch from
 * an earlier run.
 */
async function look(run: Run, chunk: Chunk, prefer?: string): Promise<Response> {
  const { call, results, onProgress } = run;
  const headers: Record<string, string> = prefer ? { prefer } : {};
  const { body, response } = await call<Envelope>(`/api/v1/batch/${chunk.batchId}`, headers);
  const isFinal = (item: Envelope['data'][number]): item is Result =>
    item.status !== 'accepted' && item.status !== 'in-progress';
  const news = body.data.filter(isFinal).filter(({ npi }) => !results.has(npi));
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
 * Returns the envelope of a delivery if it is signed with the secret and at most 5 minutes old.
 * @param body the bytes as received, before any JSON parser
 * @param secret `whsec_…`
 * @throws {EnrichmentError} `webhook_unverified`: respond with 400
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
