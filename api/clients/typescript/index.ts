import { setTimeout as sleep } from 'node:timers/promises';
import {
  type Connection,
  checkConnection,
  checkList,
  checkOption,
  usableBaseUrl,
} from './connection.ts';
import { EnrichmentError } from './errors.ts';
import { type Call, createCaller, PATIENCE_MS } from './http.ts';
import pacing from './pacing.json' with { type: 'json' };
import prices from './prices.json' with { type: 'json' };
import { lockState, openState, type Part, type State } from './state.ts';
import type {
  Accepted,
  BulkSubmit,
  Envelope,
  RequestedType,
  WebhookTarget,
} from './types.ts';

export { EnrichmentClient } from './client.ts';
export { EnrichmentError, type ErrorCode } from './errors.ts';
export type * from './types.ts';
export { verifyWebhook } from './webhook.ts';

/**
 * Credits per email found, by requested type. The type names no file, because the package has
 * `prices.json` only inside its code.
 */
export const PRICES: Readonly<Record<RequestedType, number>> = prices;

type Outcome = Exclude<Envelope['data'][number]['status'], 'accepted' | 'in-progress'>;

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
  /** Number of NPIs that were already final when this run resumed. */
  readonly earlier: number;
  /**
   * The results that are new since the last call. Each NPI is passed exactly once. A resumed run
   * also passes the results of the earlier run.
   */
  readonly results: readonly Result[];
}

export interface Options extends Connection {
  /** The requested type of email, `any` by default. */
  readonly type?: keyof typeof PRICES | undefined;
  /** The receiver that also gets the results. */
  readonly webhook?: WebhookTarget | undefined;
  /** A JSON object that webhooks contain. At most 16 KiB. */
  readonly customData?: Readonly<Record<string, unknown>> | undefined;
  /**
   * Limit on the credits of the run. If the next batch could exceed it, only a part of its NPIs is
   * submitted. If the run was killed and resumed, the credits used before also count. There is one
   * exception: if the response to a submit was lost, the credits of that batch count only if the
   * run resumes within 24 hours.
   */
  readonly maxCredits?: number | undefined;
  /**
   * Path of a file in which the run saves its state. A killed run resumes if it is started again
   * with the same file. Delete the file when you have saved the results.
   */
  readonly stateFile?: string | undefined;
  readonly onProgress?: ((progress: Progress) => void) | undefined;
}

/**
 * A batch is submitted only while fewer NPIs than this are open. Each NPI must end within 15 minutes
 * of its submit, and vendors limit how many are looked up at the same time. With many more open
 * NPIs, some would not be looked up in time and would fail.
 */
const MAX_OPEN = pacing.openNpis;
/**
 * Maximum number of running batches. Each running batch is polled about once a minute, and these
 * polls count toward the rate limit of the key.
 */
const MAX_BATCHES = pacing.runningBatches;

interface Chunk {
  /** The part of the state. */
  readonly part: Part;
  readonly npis: readonly string[];
  /**
   * The id of the chunk's batch. Null if the chunk was never submitted. Empty if it was submitted
   * and the response was lost.
   */
  batchId: string | null;
  /** Number of NPIs that are not final. */
  open: number;
  creditsUsed: number;
}

interface Run {
  readonly type: keyof typeof PRICES;
  readonly maxCredits: number;
  readonly patienceMs: number;
  readonly signal: AbortSignal;
  /** The fields of every submit except its NPIs. */
  readonly fields: Omit<BulkSubmit, 'npis'>;
  readonly onProgress: Options['onProgress'];
  readonly call: Call;
  readonly state: State;
  readonly npis: readonly string[];
  readonly chunks: Chunk[];
  readonly running: Set<Chunk>;
  readonly results: Map<string, Result>;
  earlier: number;
  /**
   * The last error about missing credits. It is reset to null when a batch ends, because that batch
   * may have released credits.
   */
  shortage: EnrichmentError | null;
  /** Wakes the loop that submits batches, because another batch may now be submitted. */
  wake(): void;
}

export function isNpi(text: unknown): boolean {
  return typeof text === 'string' && /^[0-9]{10}$/.test(text);
}

/**
 * Returns true if the error means that the run stopped for lack of credits. The run can resume with
 * more credits.
 */
export function isShortage(error: unknown): error is EnrichmentError {
  return (
    error instanceof EnrichmentError && /^(insufficient|max)_credits$/.test(error.code)
  );
}

/**
 * Finds the emails of any number of NPIs, and returns when all NPIs are final. An NPI that occurs
 * several times is looked up once. With a state file, a run that was killed and started again
 * submits no batch twice.
 * @returns `results` has one entry for each given NPI, in the given order
 * @throws {EnrichmentError} if retries do not help. With a state file, the run can resume later. A
 * lack of credits (`insufficient_credits`, `max_credits`) is thrown only after all submitted
 * batches have ended
 * @throws the `reason` of `options.signal` if that signal is aborted
 */
export async function enrich(
  npis: readonly string[],
  options: Options,
): Promise<Totals & { readonly results: readonly Result[] }> {
  checkNpis(npis);
  checkOptions(options);
  const { type = 'any', stateFile, maxCredits = Number.POSITIVE_INFINITY } = options;
  const baseUrl = usableBaseUrl(options.baseUrl);
  const ending = new AbortController();
  const signal = options.signal
    ? AbortSignal.any([ending.signal, options.signal])
    : ending.signal;
  const call = createCaller({ ...options, signal });
  const asked = [...new Set(npis)];
  const fields = {
    enrichment_email_type: type,
    webhook: options.webhook ?? null,
    custom_data: options.customData ?? null,
  };
  await using _lock = await lockState(stateFile);
  const state = openState(stateFile, baseUrl, asked, fields);
  const chunks = state.saved.parts.map((part) => chunkOf(asked, part));
  const results = new Map<string, Result>();
  const run: Run = {
    type,
    fields,
    maxCredits,
    patienceMs: options.patienceMs ?? PATIENCE_MS,
    onProgress: options.onProgress,
    signal,
    call,
    state,
    chunks,
    results,
    npis: asked,
    running: new Set(),
    earlier: 0,
    shortage: null,
    wake: () => {},
  };
  // These first calls check the key. They fail if it is not valid or belongs to another
  // organization. Their responses also show how much of the key's rate limit is left.
  const submitted = chunks.filter(({ batchId }) => batchId);
  if (submitted.length === 0) await call('/api/v1/credits');
  for (const chunk of submitted) await look(run, chunk);
  // The state is not saved before these calls, so that a wrong address or API key leaves no file.
  // It is saved before the first submit, because the Idempotency-Keys must be on disk before they
  // are sent.
  state.save();
  await finish(run, ending);
  return { ...totals(run), results: npis.flatMap((npi) => results.get(npi) ?? []) };
}

/** @throws {EnrichmentError} `npi_invalid` */
function checkNpis(npis: readonly string[]): void {
  checkList(npis);
  const wrong = npis.findIndex((npi) => !isNpi(npi));
  if (wrong !== -1) {
    const text = `NPI ${wrong + 1} is not a string of 10 digits.`;
    throw new EnrichmentError('npi_invalid', text);
  }
}

/** @throws {EnrichmentError} `option_invalid`, `max_credits_invalid` */
function checkOptions(options: Options): void {
  checkConnection(options);
  const { type = 'any', maxCredits = 0, stateFile = '', onProgress = Boolean } = options;
  if (typeof maxCredits !== 'number' || Number.isNaN(maxCredits)) {
    const text = 'maxCredits must be a number.';
    throw new EnrichmentError('max_credits_invalid', text);
  }
  // Without a price, `maxCredits` would limit nothing.
  const types = Object.keys(PRICES).join(', ');
  checkOption(Object.hasOwn(PRICES, type), `type must be one of ${types}.`);
  const isPath = typeof stateFile === 'string';
  checkOption(isPath, 'stateFile must be the path of a file.');
  const isFunction = typeof onProgress === 'function';
  checkOption(isFunction, 'onProgress must be a function.');
}

function chunkOf(npis: readonly string[], part: Part): Chunk {
  const { first, size, batchId } = part;
  const own = npis.slice(first, first + size);
  return { part, npis: own, batchId, open: size, creditsUsed: 0 };
}

/** Submits the remaining chunks as batches, and waits until all batches have ended. */
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
        waiting.push(chunk);
        waiting.sort((a, b) => a.part.first - b.part.first);
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
      if (!obstacle) return;
      const [rejected] = waiting;
      const parts = rejected ? split(run, rejected, obstacle) : [];
      if (parts.length === 0) throw obstacle;
      waiting.splice(0, 1, ...parts);
      run.shortage = null;
      continue;
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

/** Returns the most credits that the submitted batches can cost. */
function maxCost({ chunks, running, type }: Run): number {
  const begun = chunks.filter((chunk) => chunk.batchId !== null || running.has(chunk));
  return sum(begun.map(({ creditsUsed, open }) => creditsUsed + open * PRICES[type]));
}

/** Returns the error if the next batch could exceed the limit on credits, or null. */
function aboveMaximum(run: Run, next: Chunk): EnrichmentError | null {
  const { type, maxCredits } = run;
  const cost = next.batchId === null ? next.open * PRICES[type] : 0;
  const most = maxCost(run) + cost;
  if (next.batchId || !(most > maxCredits)) return null;
  const text = `With the next submit, the run could cost ${most} credits, more than ${maxCredits}.`;
  return new EnrichmentError('max_credits', text);
}

/**
 * Splits a chunk that needs more credits than there are, if they suffice for some of its NPIs. The
 * first part has the same Idempotency-Key, because the service stores no key of a rejected submit.
 * The parts are saved before they are submitted, so a resumed run submits the same ones.
 * @returns the two parts, or nothing if the credits suffice for no NPI
 */
function split(run: Run, chunk: Chunk, { code, problem }: EnrichmentError): Chunk[] {
  const { state, type, chunks } = run;
  let available = problem && 'available' in problem ? problem.available : 0;
  if (code === 'max_credits') {
    // If the response to its submit was lost, the batch may exist under this key.
    if (chunk.batchId === '') return [];
    available = run.maxCredits - maxCost(run);
  }
  const { first, size, batchId } = chunk.part;
  const payable = Math.floor(available / PRICES[type]);
  if (!(payable >= 1 && payable < size)) return [];
  const parts: Part[] = [
    { first, size: payable, batchId },
    { first: first + payable, size: size - payable, batchId },
  ];
  const { parts: saved } = state.saved;
  saved.splice(saved.indexOf(chunk.part), 1, ...parts);
  state.save();
  const both = parts.map((part) => chunkOf(run.npis, part));
  chunks.splice(chunks.indexOf(chunk), 1, ...both);
  return both;
}

/** Notes the batch id of a chunk in the state. */
function note({ state }: Run, { part }: Chunk, batchId: string | null): void {
  part.batchId = batchId;
  state.save();
}

/** Runs one batch from its submit to its end. */
async function follow(run: Run, chunk: Chunk): Promise<void> {
  if (!chunk.batchId) {
    note(run, chunk, '');
    const headers = { 'idempotency-key': `${run.state.saved.run}-${chunk.part.first}` };
    const body = { ...run.fields, npis: chunk.npis };
    const accepted = await run
      .call<Accepted>('/api/v1/email/bulk', { method: 'POST', headers, body })
      .catch((error) => {
        // The submit was rejected for lack of credits, so this batch does not exist. If an earlier
        // run submitted the same chunk and lost the response, `batchId` is empty, and the batch may
        // exist.
        if (isShortage(error) && chunk.batchId === null) {
          note(run, chunk, null);
        }
        throw error;
      });
    chunk.batchId = accepted.body.batch_id;
    note(run, chunk, chunk.batchId);
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
    // Without `Preference-Applied`, the service did not hold the poll. Either too many requests are
    // waiting, or a proxy dropped the `Prefer` header. So we wait here.
    const pauseS = headers.has('preference-applied')
      ? 0
      : Number(headers.get('retry-after') ?? 1);
    if (chunk.open > 0) {
      await sleep(pauseS * 1000, undefined, { signal: run.signal });
    }
  }
}

/** Polls a batch and reports its new results. */
async function look(run: Run, chunk: Chunk, prefer?: string): Promise<Response> {
  const { call, results, onProgress } = run;
  const headers: Record<string, string> = prefer ? { prefer } : {};
  const { body, response } = await call<Envelope>(`/api/v1/batch/${chunk.batchId}`, {
    headers,
  });
  const isFinal = (item: Envelope['data'][number]): item is Result =>
    item.status !== 'accepted' && item.status !== 'in-progress';
  const news = body.data.filter(isFinal).filter(({ npi }) => !results.has(npi));
  for (const result of news) results.set(result.npi, result);
  chunk.open = body.batch.total - body.batch.completed_count;
  chunk.creditsUsed = body.usage?.credits_used ?? 0;
  if (!prefer) run.earlier = results.size;
  const total = run.npis.length;
  onProgress?.({ ...totals(run), total, earlier: run.earlier, results: news });
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
