import {
  ActivityFailure,
  ApplicationFailure,
  CancellationScope,
  isCancellation,
  setCurrentDetails,
  sleep,
  TemporalFailure,
  TimeoutFailure,
  upsertSearchAttributes,
} from '@temporalio/workflow';
import {
  type LookupInput,
  type LookupPlan,
  type LookupResult,
  MEANING,
  OUTCOME,
  type PlannedSource,
  type SourcePlan,
  type VendorAnswer,
} from './messages.ts';
import { askFor, db, refundCredits } from './options.ts';

/** Time limit for the NPI Registry. */
const IDENTIFY_MS = 60_000;
/** Extra time, after the vendor's share, to check the addresses that it returned. */
const VERIFY_MS = 2 * 60_000;
/** Time reserved for a last check and for settling. */
const RESERVE_MS = 5000;

/**
 * Finds the email of one NPI and settles its request. If something fails, this workflow refunds the
 * credits. If our code has a bug, the reconciler does.
 */
export async function lookUpEmail(request: LookupInput): Promise<LookupResult> {
  try {
    return named(await findEmail(request));
  } catch (error) {
    // A bug fails the workflow task, which operators see. The reconciler refunds the credits at the
    // deadline.
    if (!(error instanceof TemporalFailure)) throw error;
    const reason = isCancellation(error) ? 'cancelled' : 'lookup_failed';
    const result = await CancellationScope.nonCancellable(() =>
      refundCredits({ ...request, reason }),
    );
    named(result);
    if (isCancellation(error)) throw error;
    return result;
  }
}

async function findEmail(request: LookupInput): Promise<LookupResult> {
  const plan = await makePlan(request);
  if (plan.kind === 'settled') return plan.result;
  return await settle(request, plan, await askSources(request, plan));
}

/** Decides which sources to ask. The NPI Registry is asked first if no import knows the NPI. */
async function makePlan(
  request: LookupInput,
): Promise<Exclude<LookupPlan, { kind: 'unidentified' }>> {
  const plan = await db.planLookup({ ...request, registry: null });
  if (plan.kind !== 'unidentified') return plan;
  const trouble = await askRegistry(request);
  const identified = await db.planLookup({ ...request, registry: { trouble } });
  if (identified.kind === 'unidentified') throw new Error('the registry is asked once');
  return identified;
}

/**
 * Returns the reason why the registry could not identify the NPI, or null if its response is
 * stored.
 */
async function askRegistry(request: LookupInput): Promise<string | null> {
  const msLeft = Math.min(IDENTIFY_MS, timeLeft(request) - RESERVE_MS);
  const { identify } = askFor(msLeft, 'registry', `registry for NPI ${request.npi}`);
  try {
    return await identify({ ...request, until: Date.now() + msLeft });
  } catch (error) {
    return unresolved(error).reason ?? 'deadline';
  }
}

/**
 * Asks one source after the other until one has a usable email. Sources that have not responded in
 * their share of the time are asked again after all the others, with the rest of the time.
 * @returns the last response of each source that was asked
 */
async function askSources(request: LookupInput, plan: SourcePlan): Promise<VendorAnswer[]> {
  const answers = new Map<PlannedSource, VendorAnswer>();
  const silent: PlannedSource[] = [];
  for (const source of plan.sources) {
    const share = Math.min(source.capMs, timeLeft(request));
    const answer = await ask(request, plan, source, share, false);
    answers.set(source, answer);
    show(answers);
    if (MEANING[answer.kind] === 'final') return [answer];
    if (MEANING[answer.kind] === 'open') silent.push(source);
  }
  for (const [index, source] of silent.entries()) {
    const share = Math.floor(timeLeft(request) / (silent.length - index));
    const answer = await ask(request, plan, source, share, true);
    answers.set(source, answer);
    show(answers);
    if (MEANING[answer.kind] === 'final') return [answer];
  }
  return [...answers.values()];
}

/**
 * Asks one source. If a mail server greylists an address, it is asked again after a pause, before
 * any other source.
 */
async function ask(
  request: LookupInput,
  plan: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  again: boolean,
): Promise<VendorAnswer> {
  // A response after the deadline would cost money for nothing.
  if (msLeft <= 0) return OUT_OF_TIME;
  const answer = await askOnce(request, plan, source, msLeft, again);
  const pauseMs = Math.min(plan.greylistMs, timeLeft(request) - RESERVE_MS);
  if (answer.kind !== 'later' || pauseMs <= 0) return answer;
  await sleep(pauseMs, { summary: `greylisted: ${nameOf(source)}` });
  const patience = pauseMs < plan.greylistMs ? 'early' : 'over';
  return await verify(request, plan, source, timeLeft(request), patience);
}

async function askOnce(
  request: LookupInput,
  plan: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  again: boolean,
): Promise<VendorAnswer> {
  if (source.vendor === null) return await verify(request, plan, source, msLeft, 'first');
  return await askVendor(request, source.vendor, msLeft, again);
}

async function askVendor(
  request: LookupInput,
  vendor: string,
  msLeft: number,
  again: boolean,
): Promise<VendorAnswer> {
  const activityMs = Math.min(msLeft + VERIFY_MS, timeLeft(request));
  const activityId = again ? `${vendor}-again` : vendor;
  const activities = askFor(activityMs, activityId, `${vendor} for NPI ${request.npi}`);
  const until = Date.now() + msLeft;
  return await activities.askVendor({ ...request, vendor, again, until }).catch(unresolved);
}

/** Checks known addresses, or checks greylisted ones again. */
async function verify(
  request: LookupInput,
  { lookupId, wantedType }: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  patience: 'first' | 'early' | 'over',
): Promise<VendorAnswer> {
  const activityId = `${source.vendor ?? 'known'}-${patience}`;
  const activities = askFor(msLeft, activityId, `${nameOf(source)} of NPI ${request.npi}`);
  return await activities
    .verifyEmails({ ...request, lookupId, wantedType, patience })
    .catch(unresolved);
}

const OUT_OF_TIME: VendorAnswer = { kind: 'unresolved', reason: null };

/** Prefix of the failure types that say why a source could not be asked yet. */
const SOURCE = 'Source.';

/**
 * Returns the response that stands for a failed activity. Retries are unlimited, so an activity
 * fails in only two ways. Either it ran out of time, and the failure of its last attempt says what
 * it was waiting for, or it threw a non-retryable failure.
 */
function unresolved(error: unknown): VendorAnswer {
  if (!(error instanceof ActivityFailure) || isCancellation(error)) throw error;
  const { cause } = error;
  const last = cause instanceof TimeoutFailure ? cause.cause : cause;
  const type = last instanceof ApplicationFailure ? last.type : null;
  if (type?.startsWith(SOURCE)) return { kind: 'unresolved', reason: type.slice(SOURCE.length) };
  if (cause instanceof ApplicationFailure && cause.nonRetryable) {
    return { kind: 'fatal', reason: 'lookup_failed' };
  }
  return OUT_OF_TIME;
}

/** The reason if the plan has no source. */
const NO_SOURCE = 'no_source';

/** Settles the request: as `not_found` only if every source has nothing for it. */
async function settle(
  request: LookupInput,
  { unidentified }: SourcePlan,
  answers: readonly VendorAnswer[],
): Promise<LookupResult> {
  const final = answers.find(({ kind }) => MEANING[kind] === 'final');
  if (final?.settled) return final.settled;
  if (final) return await db.settleRequest({ ...request, reason: final.reason ?? NO_SOURCE });
  const missing = answers.find(({ kind }) => MEANING[kind] !== 'definitive');
  if (missing) return await refundCredits({ ...request, reason: reasonOf(missing) });
  if (unidentified !== null) return await refundCredits({ ...request, reason: unidentified });
  return await db.settleRequest({ ...request, reason: answers.at(-1)?.reason ?? NO_SOURCE });
}

/**
 * Returns the reason for a refund: the failure, or the deadline and what the lookup was waiting
 * for.
 */
function reasonOf({ kind, reason }: VendorAnswer): string {
  if (MEANING[kind] === 'failed') return reason ?? kind;
  return reason === null ? 'deadline' : `deadline (${reason})`;
}

/** Makes lookups without an email searchable by their reason. */
function named(result: LookupResult): LookupResult {
  const { status, reason } = result;
  if (status !== 'completed') {
    upsertSearchAttributes([{ key: OUTCOME, value: `${status}: ${reason}` }]);
  }
  return result;
}

function nameOf({ vendor }: PlannedSource): string {
  return vendor ?? 'known addresses';
}

function timeLeft({ deadline }: LookupInput): number {
  return deadline - Date.now();
}

/** Shows operators the response of each source. */
function show(answers: ReadonlyMap<PlannedSource, VendorAnswer>): void {
  const lines = [...answers].map(([source, { kind, reason }]) => {
    const result = reason === null ? kind : `${kind} (${reason})`;
    return `- **${nameOf(source)}**: ${result}`;
  });
  setCurrentDetails(lines.join('\n'));
}
