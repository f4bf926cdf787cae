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

/** How long the NPI Registry is waited for. */
const IDENTIFY_MS = 60_000;
/** Extra time, after the vendor's share, to check the addresses that it returned. */
const VERIFY_MS = 2 * 60_000;
/** A last check and settling need this long. */
const RESERVE_MS = 5000;

/**
 * Finds the email of one NPI and settles its request. If something fails, the credits are given back: by this workflow, or
 * by the reconciler if our code has a bug.
 */
export async function lookUpEmail(request: LookupInput): Promise<LookupResult> {
  try {
    return named(await findEmail(request));
  } catch (error) {
    // A bug fails the workflow task, where people see it. The reconciler gives the credits back at the deadline.
    if (!(error instanceof TemporalFailure)) throw error;
    const reason = isCancellation(error) ? 'cancelled' : 'lookup_failed';
    const result = await CancellationScope.nonCancellable(() => refundCredits({ ...request, reason }));
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

/** Decides which sources are asked. The NPI Registry is asked first about an NPI that no import knows. */
async function makePlan(request: LookupInput): Promise<Exclude<LookupPlan, { kind: 'unidentified' }>> {
  const plan = await db.planLookup({ ...request, registry: null });
  if (plan.kind !== 'unidentified') return plan;
  const trouble = await askRegistry(request);
  const identified = await db.planLookup({ ...request, registry: { trouble } });
  if (identified.kind === 'unidentified') throw new Error('the registry is asked once');
  return identified;
}

/** Returns why the registry could not say who the NPI is; null if its response is stored. */
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
 * Asks one source after the other until one has a usable email. Sources that have not answered in their share of the
 * time are asked again after all the others, with the rest of the time.
 * @returns the last answer of each source that was asked
 */
async function askSources(request: LookupInput, plan: SourcePlan): Promise<VendorAnswer[]> {
  const answers = new Map<PlannedSource, VendorAnswer>();
  const silent: PlannedSource[] = [];
  for (const source of plan.sources) {
    const answer = await ask(request, plan, source, Math.min(source.capMs, timeLeft(request)), false);
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

/** Asks one source. A mail server that greylists an address is asked again after its pause, before any other source. */
async function ask(
  request: LookupInput,
  plan: SourcePlan,
  source: PlannedSource,
  msLeft: number,
  again: boolean,
): Promise<VendorAnswer> {
  // A vendor that is asked after the deadline would be paid for nothing.
  if (msLeft <= 0) return OUT_OF_TIME;
  const answer =
    source.vendor === null
      ? await verify(request, plan, source, msLeft, 'first')
      : await askVendor(request, source.vendor, msLeft, again);
  const pauseMs = Math.min(plan.greylistMs, timeLeft(request) - RESERVE_MS);
  if (answer.kind !== 'later' || pauseMs <= 0) return answer;
  await sleep(pauseMs, { summary: `greylisted: ${nameOf(source)}` });
  const patience = pauseMs < plan.greylistMs ? 'early' : 'over';
  return await verify(request, plan, source, timeLeft(request), patience);
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
  return await activities.verifyEmails({ ...request, lookupId, wantedType, patience }).catch(unresolved);
}

const OUT_OF_TIME: VendorAnswer = { kind: 'unresolved', reason: null };

/** The type of failures that say why a source could not be asked yet. */
const SOURCE = 'Source.';

/**
 * Returns the answer that a failed activity stands for. Retries are unlimited, so an activity fails for two reasons: its time
 * is over, and the failure of its last attempt says what it waited for; or it failed with a non-retryable failure.
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

/** Settles by the answers: `not_found` only if every source said that it has nothing. */
async function settle(
  request: LookupInput,
  { unidentified }: SourcePlan,
  answers: readonly VendorAnswer[],
): Promise<LookupResult> {
  const final = answers.find(({ kind }) => MEANING[kind] === 'final');
  if (final)
    return final.settled ?? (await db.settleRequest({ ...request, reason: final.reason ?? 'no_source' }));
  const missing = answers.find(({ kind }) => MEANING[kind] !== 'definitive');
  if (missing) return await refundCredits({ ...request, reason: reasonOf(missing) });
  if (unidentified !== null) return await refundCredits({ ...request, reason: unidentified });
  return await db.settleRequest({ ...request, reason: answers.at(-1)?.reason ?? 'no_source' });
}

/** Returns the reason of a refund: the failure, or the deadline with what the lookup waited for. */
function reasonOf({ kind, reason }: VendorAnswer): string {
  if (MEANING[kind] === 'failed') return reason ?? kind;
  return reason === null ? 'deadline' : `deadline (${reason})`;
}

/** Lets operators search for lookups without an email, by the reason. */
function named(result: LookupResult): LookupResult {
  const { status, reason } = result;
  if (status !== 'completed') upsertSearchAttributes([{ key: OUTCOME, value: `${status}: ${reason}` }]);
  return result;
}

function nameOf({ vendor }: PlannedSource): string {
  return vendor ?? 'known addresses';
}

function timeLeft({ deadline }: LookupInput): number {
  return deadline - Date.now();
}

/** Shows operators the answer of each source. */
function show(answers: ReadonlyMap<PlannedSource, VendorAnswer>): void {
  const lines = [...answers].map(([source, { kind, reason }]) => {
    return `- **${nameOf(source)}**: ${reason === null ? kind : `${kind} (${reason})`}`;
  });
  setCurrentDetails(lines.join('\n'));
}
