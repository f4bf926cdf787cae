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
  type VendorResult,
} from './messages.ts';
import { activitiesOfSource, local, refundCredits } from './options.ts';

/** The longest time that a lookup waits for the NPI Registry. */
const IDENTIFY_MS = 60_000;
/**
 * Extra time for checking the addresses that a vendor returned. It begins when the vendor's share
 * of the lookup's time has ended.
 */
const VERIFY_MS = 2 * 60_000;
/**
 * The last part of the time before the deadline. It is reserved for a last check and for settling
 * the request.
 */
const RESERVE_MS = 5000;
/**
 * The longest wait between two attempts of an activity, by its retry policy. Temporal makes no
 * attempt that would begin after the deadline, so a lookup may end this long before it.
 */
const LAST_WAIT_MS = 30_000;

/**
 * Finds the email of one NPI and settles its request. If an activity fails or the workflow is
 * canceled, it refunds the credits. If a bug in our code stops the workflow, the reconciler refunds
 * them.
 */
export async function lookUpEmail(request: LookupInput): Promise<LookupResult> {
  try {
    return named(await findEmail(request));
  } catch (error) {
    // Any other error is a bug. It fails the workflow task, and operators see that. The reconciler
    // refunds the credits at the deadline.
    if (!(error instanceof TemporalFailure)) throw error;
    const reason = isCancellation(error) ? 'cancelled' : 'lookup_failed';
    const result = await CancellationScope.nonCancellable(() =>
      refundCredits({ ...request, reason }),
    );
    named(result);
    // The request may have been final before the cancellation. Then the lookup ends with its result.
    if (isCancellation(error) && result.reason === reason) throw error;
    return result;
  }
}

async function findEmail(request: LookupInput): Promise<LookupResult> {
  const plan = await makePlan(request);
  if (plan.kind === 'settled') return plan.result;
  return await settle(request, plan, await callSources(request, plan));
}

/**
 * Decides which sources to ask. If the imported NPPES files do not contain the NPI, the NPI
 * Registry is asked first.
 */
async function makePlan(
  request: LookupInput,
): Promise<Exclude<LookupPlan, { kind: 'unidentified' }>> {
  const plan = await local.planLookup({ ...request, registry: null });
  if (plan.kind !== 'unidentified') return plan;
  const trouble = await callRegistry(request);
  const identified = await local.planLookup({ ...request, registry: { trouble } });
  if (identified.kind === 'unidentified') {
    throw new Error('the registry is asked once');
  }
  return identified;
}

/**
 * Asks the NPI Registry who the NPI belongs to. Returns null if its response is stored, or the
 * reason why the registry did not respond.
 */
async function callRegistry(request: LookupInput): Promise<string | null> {
  const msLeft = Math.min(IDENTIFY_MS, timeLeft(request) - RESERVE_MS);
  const { identify } = activitiesOfSource(
    msLeft,
    'registry',
    `registry for NPI ${request.npi}`,
  );
  try {
    return await identify({ ...request, until: Date.now() + msLeft });
  } catch (error) {
    return unresolved(error).reason ?? 'deadline';
  }
}

/**
 * Asks one source after the other until one has a usable email. Each source has a share of the time
 * until the deadline. Sources that did not respond within their share are asked again at the end.
 * A source may have to wait for longer than its share then, for example for a trial call of its
 * breaker. If another source responds sooner, the rest of the time is shared again.
 * @returns the last response of each source that was asked
 */
async function callSources(
  request: LookupInput,
  plan: SourcePlan,
): Promise<VendorResult[]> {
  const results = new Map<PlannedSource, VendorResult>();
  const isSilent = (source: PlannedSource) => {
    const result = results.get(source);
    return result !== undefined && MEANING[result.kind] === 'open';
  };
  for (const source of plan.sources) {
    const share = Math.min(source.capMs, timeLeft(request));
    const result = await callSource(request, plan, source, share, false);
    results.set(source, result);
    show(results);
    if (MEANING[result.kind] === 'final') return [result];
  }
  let silent = plan.sources.filter(isSilent);
  let before = Number.POSITIVE_INFINITY;
  while (silent.length > 0 && silent.length < before) {
    for (const [index, source] of silent.entries()) {
      const share = Math.floor(timeLeft(request) / (silent.length - index));
      const result = await callSource(request, plan, source, share, true);
      results.set(source, result);
      show(results);
      if (MEANING[result.kind] === 'final') return [result];
    }
    before = silent.length;
    silent = silent.filter(isSilent);
  }
  return [...results.values()];
}

/**
 * Asks one source. If a mail server greylists an address of this source, the address is checked
 * again after a pause. No other source is asked during the pause.
 */
async function callSource(
  request: LookupInput,
  plan: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  again: boolean,
): Promise<VendorResult> {
  // We would pay for a response after the deadline, but could not use it.
  if (msLeft <= 0) return OUT_OF_TIME;
  const result = await tryOnce(request, plan, source, msLeft, again);
  const pauseMs = Math.min(plan.greylistMs, timeLeft(request) - RESERVE_MS);
  if (result.kind !== 'later' || pauseMs <= 0) return result;
  await sleep(pauseMs, { summary: `greylisted: ${nameOf(source)}` });
  const patience = pauseMs < plan.greylistMs ? 'early' : 'over';
  return await verify(request, plan, source, timeLeft(request), patience);
}

async function tryOnce(
  request: LookupInput,
  plan: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  again: boolean,
): Promise<VendorResult> {
  if (source.vendor === null) {
    return await verify(request, plan, source, msLeft, 'first');
  }
  return await callVendor(request, source.vendor, msLeft, again);
}

async function callVendor(
  request: LookupInput,
  vendor: string,
  msLeft: number,
  again: boolean,
): Promise<VendorResult> {
  const activityMs = Math.min(msLeft + VERIFY_MS, timeLeft(request));
  const activityId = again ? `${vendor}-again` : vendor;
  const activities = activitiesOfSource(
    activityMs,
    activityId,
    `${vendor} for NPI ${request.npi}`,
  );
  const until = Date.now() + msLeft;
  const call = { ...request, vendor, again, until };
  return await activities.askVendor(call).then(understood, unresolved);
}

/** Checks addresses that are already known, or checks greylisted addresses again. */
async function verify(
  request: LookupInput,
  { lookupId, requestedType }: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  patience: 'first' | 'early' | 'over',
): Promise<VendorResult> {
  const activityId = `${source.vendor ?? 'known'}-${patience}`;
  const activities = activitiesOfSource(
    msLeft,
    activityId,
    `${nameOf(source)} of NPI ${request.npi}`,
  );
  return await activities
    .verifyEmails({ ...request, lookupId, requestedType, patience })
    .then(understood, unresolved);
}

const OUT_OF_TIME: VendorResult = { kind: 'unresolved', reason: null };
const FAILED: VendorResult = { kind: 'fatal', reason: 'lookup_failed' };

/**
 * Returns a source's response, or a failure if its kind is unknown. A newer worker may return such
 * a response, and so may an operator who completes an activity by hand.
 */
function understood(result: VendorResult): VendorResult {
  const { kind, reason }: Record<string, unknown> = Object(result);
  if (typeof kind !== 'string' || !Object.hasOwn(MEANING, kind)) {
    return FAILED;
  }
  return { ...result, reason: typeof reason === 'string' ? reason : null };
}

/**
 * Prefix of the failure types with which `retryLater` reports why a source has not responded yet.
 * For example, `Source.rate_limit` means that the source's rate limit is used up.
 */
const SOURCE = 'Source.';

/**
 * Returns the result for a source whose activity failed. Retries are unlimited, so an activity
 * fails for one of two reasons. Either it ran out of time, and the failure of its last attempt says
 * what it was waiting for. Or it threw a failure that must not be retried.
 */
function unresolved(error: unknown): VendorResult {
  if (!(error instanceof ActivityFailure) || isCancellation(error)) {
    throw error;
  }
  const { cause } = error;
  const last = cause instanceof TimeoutFailure ? cause.cause : cause;
  const type = last instanceof ApplicationFailure ? last.type : null;
  if (type?.startsWith(SOURCE))
    return { kind: 'unresolved', reason: type.slice(SOURCE.length) };
  if (cause instanceof ApplicationFailure && cause.nonRetryable) {
    return FAILED;
  }
  return OUT_OF_TIME;
}

/** The reason of a result if no source could be asked. */
const NO_SOURCE = 'no_source';

/**
 * Settles the request after the sources were asked. It ends as `not_found` only if every source
 * responded that it has no usable email. If a response is missing, the request fails and its
 * credits are refunded.
 */
async function settle(
  request: LookupInput,
  { unidentified }: SourcePlan,
  results: readonly VendorResult[],
): Promise<LookupResult> {
  const final = results.find(({ kind }) => MEANING[kind] === 'final');
  if (final?.settled) return final.settled;
  if (final)
    return await local.settleRequest({ ...request, reason: final.reason ?? NO_SOURCE });
  const missing = results.find(({ kind }) => MEANING[kind] !== 'definitive');
  if (missing)
    return await refundCredits({ ...request, reason: reasonOf(request, missing) });
  if (unidentified !== null)
    return await refundCredits({ ...request, reason: unidentified });
  return await local.settleRequest({
    ...request,
    reason: results.at(-1)?.reason ?? NO_SOURCE,
  });
}

/**
 * Returns the reason for a refund. It is the failure of a source, or what the lookup was waiting
 * for. At the deadline it is `deadline` with what the lookup was waiting for, such as `deadline
 * (rate_limit)`. A lookup ends earlier if no source can be called again before the deadline.
 */
function reasonOf(request: LookupInput, { kind, reason }: VendorResult): string {
  if (MEANING[kind] === 'failed') return reason ?? 'lookup_failed';
  // A call whose response was lost twice is not repeated, however much time is left.
  if (kind === 'lost' || timeLeft(request) > LAST_WAIT_MS) {
    return reason ?? kind;
  }
  return reason === null ? 'deadline' : `deadline (${reason})`;
}

/** If a lookup found no email, adds its status and reason to its search attributes. */
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

/** Shows the response of each source in the Temporal UI. */
function show(results: ReadonlyMap<PlannedSource, VendorResult>): void {
  const lines = [...results].map(([source, { kind, reason }]) => {
    const result = reason === null ? kind : `${kind} (${reason})`;
    return `- **${nameOf(source)}**: ${result}`;
  });
  setCurrentDetails(lines.join('\n'));
}
