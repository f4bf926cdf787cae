import { Context } from '@temporalio/activity';
import type { NamedCandidates } from '../db/lookups/candidates.ts';
import type { CallOutcome } from '../db/lookups/sources.ts';
import { inTurn } from '../db/lookups/turns.ts';
import {
  type AttemptKey,
  recordLost,
  recordNotCalled,
  recordVendorJob,
  recordVendorResponse,
} from '../db/lookups/vendor-attempts.ts';
import { beginVendorStep, type NextStep } from '../db/lookups/vendor-steps.ts';
import { countCall } from '../db/operations/metrics.ts';
import { suppressFromVendor } from '../db/privacy/suppressions.ts';
import { accountOf } from '../db/words.ts';
import type { VendorResult } from '../workflows/messages.ts';
import type { ActivityDeps, VendorSource } from './deps.ts';
import { logBreaker, outcomeOf, retryLater } from './failures.ts';
import { type Clock, withHeartbeat } from './heartbeat.ts';
import { wordOf } from './http/client.ts';
import type { Subjects } from './lookup.ts';
import { mismatchOf } from './person/identity.ts';
import { addsTo, profileOf } from './person/profile.ts';
import { resultForSandbox } from './sandbox.ts';
import { type RequestIds, settleFound } from './settle.ts';
import { waitForSlot } from './slots.ts';
import type { Step, Subject, Vendor } from './vendors/vendor.ts';
import { parseAddress } from './verification/syntax.ts';
import { verify } from './verify.ts';

interface VendorRequest extends RequestIds {
  readonly vendor: string;
  /**
   * True if a request whose response was lost may be sent again, even if the vendor charges twice.
   */
  readonly again: boolean;
  /**
   * The time until which the vendor may be called, in milliseconds since the epoch. Our checks of
   * the addresses that it returned may end later.
   */
  readonly until: number;
}

type AskDeps = Pick<
  ActivityDeps,
  | 'db'
  | 'log'
  | 'control'
  | 'vendors'
  | 'spending'
  | 'rules'
  | 'check'
  | 'requiredVerifiers'
> & {
  readonly subjects: Subjects;
};

/** The delay before the next poll if a poll failed and the vendor named no delay. */
const POLL_AGAIN_MS = 3000;

/**
 * Returns the activity that calls vendors. Each call of a vendor is recorded before it is sent and
 * after its response, so a retry continues where the previous attempt stopped.
 */
export function createAskActivities(deps: AskDeps) {
  return {
    /**
     * Calls one vendor for one NPI, checks the addresses it returns, and settles the request if one
     * passes.
     * @returns how the lookup ended at this vendor, without the email, which is only in the
     * database
     * @throws {ApplicationFailure} retryable, if the vendor is still working, is unavailable, or
     * limits our requests
     */
    async askVendor(request: VendorRequest): Promise<VendorResult> {
      const test = resultForSandbox(request.vendor, 'first');
      if (test) return await settleFound(deps, request, test);
      const source = deps.vendors.find(({ vendor }) => vendor.id === request.vendor);
      if (!source) return { kind: 'skip', reason: 'not_configured' };
      const { spending, vendors } = deps;
      if (await spending.skipIfTooExpensive(request.requestId, source, vendors)) {
        return { kind: 'skip', reason: 'max_price_per_lookup' };
      }
      return await withHeartbeat(Context.current(), async (signal, now) => {
        const result = await converse(deps, { request, source, signal, now });
        return await settleFound(deps, request, result);
      });
    },
  };
}

/** The context of one run of `askVendor`. */
interface Conversation {
  readonly request: VendorRequest;
  readonly source: VendorSource;
  readonly signal: AbortSignal;
  readonly now: Clock;
}

async function converse(
  deps: AskDeps,
  conversation: Conversation,
): Promise<VendorResult> {
  const { vendor } = conversation.source;
  const begin = () => beginCall(deps, conversation);
  const next = await waitForSlot(vendor.id, begin, conversation.signal);
  switch (next.kind) {
    case 'settled':
    case 'stored':
      return { kind: next.kind, reason: null };
    case 'wait':
      return await waitForStep(deps, conversation, next);
    case 'over':
      return resultOf(next);
    case 'check':
      // The response is recorded, but its addresses may wait for a check, because a process died or
      // no verifier was available.
      return await inTurn(deps.db, next.turn, () => check(deps, conversation, next));
    case 'ask':
      return await inTurn(deps.db, next.turn, () => call(deps, conversation, next));
    default:
      return next satisfies never;
  }
}

function beginCall(
  { db, rules, requiredVerifiers }: AskDeps,
  { request, source, now }: Conversation,
): Promise<NextStep> {
  const { vendor, limits } = source;
  return beginVendorStep(db, {
    requestId: request.requestId,
    vendor: vendor.id,
    limits,
    cost: (requestedType) => vendor.cost(requestedType),
    mayRepeat: vendor.repeatIsFree || request.again,
    callMs: vendor.callMs,
    freshnessMs: rules.freshnessMs,
    patienceMs: request.until - now(),
    requiredVerifiers: requiredVerifiers.of(vendor),
  });
}

/** The reasons of a wait during which the vendor is not called for this lookup. */
const NOT_CALLED: readonly string[] = ['paused', 'rate_limit', 'breaker_open'];

async function waitForStep(
  { db, requiredVerifiers }: AskDeps,
  conversation: Conversation,
  { why, afterMs }: Extract<NextStep, { kind: 'wait' }>,
): Promise<VendorResult> {
  const { requestId, vendor } = conversation.request;
  if (why === 'verifier_unavailable') {
    const verifierMs = await requiredVerifiers.tryAgain(conversation.signal, requestId);
    return retryOrEnd(conversation, why, verifierMs);
  }
  const result = retryOrEnd(conversation, why, afterMs);
  if (NOT_CALLED.includes(why)) {
    await recordNotCalled(db, { requestId, vendor, why, afterMs });
  }
  return result;
}

/** Returns the result of a call that ended earlier, without addresses to check. */
function resultOf({ state, reason }: Extract<NextStep, { kind: 'over' }>): VendorResult {
  // The response was about another person, or none of its addresses passed our checks.
  if (state === 'found') return { kind: 'unusable', reason };
  return { kind: state, reason };
}

/** Checks the addresses of the lookup for this request. */
async function check(
  deps: AskDeps,
  { request, signal }: Conversation,
  { turn, requestedType }: Pick<CheckStep, 'turn' | 'requestedType'>,
  subject?: Subject,
): Promise<VendorResult> {
  const { npi } = request;
  return await verify(
    deps,
    { npi, turn, requestedType, patience: 'first', subject },
    signal,
  );
}

type CheckStep = Extract<NextStep, { kind: 'check' }>;

/** Sends one request to the vendor, records the response, and checks the addresses in it. */
async function call(
  deps: AskDeps,
  conversation: Conversation,
  { turn, key, jobRef, requestedType }: Extract<NextStep, { kind: 'ask' }>,
): Promise<VendorResult> {
  const { request, source, signal } = conversation;
  const { vendor } = source;
  const { npi } = request;
  const { lookupId } = key;
  const subject = await deps.subjects.of(lookupId, npi, requestedType);
  const sent = send(vendor, jobRef, subject, signal);
  const step = await countCall('vendor', accountOf(vendor.id), sent).catch(
    async (error: unknown) => {
      await recordLost(deps.db, key, 'aborted');
      throw error;
    },
  );
  if (step.kind === 'pending') {
    await recordJob(deps, key, step, { kind: 'responded' });
    return retryOrEnd(conversation, 'pending', step.pollAfterMs);
  }
  const isUnasked =
    step.kind === 'retry' ||
    (step.kind === 'fatal' && (step.why === 'auth' || step.why === 'plan'));
  if (jobRef !== null && isUnasked) {
    return await keepJob(deps, conversation, key, jobRef, step);
  }
  const end = await record(deps, source, subject, key, step);
  if (end !== null) return end;
  if (step.kind === 'retry') return retryOrEnd(conversation, step.why, step.afterMs);
  if (step.kind !== 'found') return { kind: step.kind, reason: reasonOf(step) };
  let known = subject;
  const profile = source.mayStore ? profileIn(step, subject) : null;
  if (profile !== null && addsTo(profile, subject)) {
    known = await deps.subjects.reload(lookupId, npi, requestedType);
  }
  return await check(deps, conversation, { turn, requestedType }, known);
}

function send(
  vendor: Vendor,
  jobRef: string | null,
  subject: Subject,
  signal: AbortSignal,
) {
  if (jobRef === null) return vendor.submit(subject, signal);
  return vendor.poll(jobRef, subject, signal);
}

/**
 * Keeps a vendor's job open after a poll that failed, for example because the vendor did not
 * respond or rejected our API key. If we closed the job, the next request would pay for a second
 * one.
 */
async function keepJob(
  deps: AskDeps,
  conversation: Conversation,
  key: AttemptKey,
  jobRef: string,
  step: Extract<Step, { kind: 'retry' | 'fatal' }>,
): Promise<VendorResult> {
  let pollAfterMs = POLL_AGAIN_MS;
  if (step.kind === 'retry' && step.afterMs !== null) pollAfterMs = step.afterMs;
  await recordJob(deps, key, { jobRef, pollAfterMs }, outcomeOf(step, true));
  if (step.kind === 'fatal') return { kind: 'fatal', reason: wordOf(step) };
  return retryOrEnd(conversation, step.why, pollAfterMs);
}

async function recordJob(
  { db, log }: AskDeps,
  key: AttemptKey,
  { jobRef, pollAfterMs }: { readonly jobRef: string; readonly pollAfterMs: number },
  outcome: CallOutcome,
): Promise<void> {
  const change = await recordVendorJob(db, key, jobRef, pollAfterMs, outcome);
  logBreaker(log, key.vendor, change, outcome);
}

/** A step that ends a vendor's work on a request: any step except `pending`. */
type EndedStep = Exclude<Step, { kind: 'pending' }>;

/**
 * Records the response of a vendor.
 * @returns the result if the response was lost or is about another person; otherwise null
 */
async function record(
  { db, log, rules }: AskDeps,
  { vendor, mayStore }: VendorSource,
  subject: Subject,
  key: AttemptKey,
  step: EndedStep,
): Promise<VendorResult | null> {
  const { npi, person } = subject;
  let mismatch: string | null = null;
  let named: NamedCandidates | null = null;
  if (step.kind === 'found') {
    mismatch = mismatchOf(step.identity, npi, person);
    const profile = profileIn(step, subject);
    named = { ...namedIn(step), npi, mismatch, mayStore, profile };
  }
  // The request may have reached the vendor, but we got no response. If the vendor charges for
  // repeated requests, we assume that it charged for this one.
  const isLost =
    step.kind === 'retry' && step.why === 'unanswered' && !vendor.repeatIsFree;
  if (step.kind === 'blocked') await suppressFromVendor(db, npi, key.vendor);
  const outcome = outcomeOf(step, key.n > 1);
  const change = await recordVendorResponse(db, key, {
    state: isLost ? 'lost' : step.kind,
    reason: mismatch ?? reasonOf(step),
    credits: isLost ? key.cost : creditsOf(step, key.cost),
    outcome,
    named,
    freshnessMs: rules.freshnessMs,
  });
  logBreaker(log, key.vendor, change, outcome);
  if (isLost) return { kind: 'lost', reason: reasonOf(step) };
  if (mismatch !== null) return { kind: 'unusable', reason: 'identity_mismatch' };
  return null;
}

/**
 * Returns the addresses of a response in normalized form. An address that cannot be parsed stays as
 * the vendor wrote it.
 */
function namedIn({ repeatsInput, candidates }: Extract<Step, { kind: 'found' }>) {
  const parsed = candidates.map((candidate) => {
    const email = parseAddress(candidate.email)?.email;
    return email === undefined ? candidate : { ...candidate, email };
  });
  return { repeatsInput, candidates: parsed };
}

/**
 * Returns what the vendor's own profile of the person adds to our record. Null if it adds nothing,
 * or only repeats what we sent.
 */
function profileIn(step: Extract<Step, { kind: 'found' }>, { person }: Subject) {
  if (step.repeatsInput) return null;
  return profileOf(step.identity, person);
}

/** Returns the reason to record for a step, or null if the step has an email. */
function reasonOf(step: EndedStep): string | null {
  switch (step.kind) {
    case 'miss':
      return step.reason;
    case 'skip':
      return `missing ${step.missing.join(', ')}`;
    case 'retry':
    case 'fatal':
      return wordOf(step);
    case 'blocked':
      return 'privacy';
    case 'found':
      return null;
    default:
      return step satisfies never;
  }
}

/**
 * Returns how many of the vendor's credits a step cost. We assume that the vendor charged for a
 * response that we cannot read.
 */
function creditsOf(step: EndedStep, cost: number): number {
  switch (step.kind) {
    case 'found':
      return step.credits ?? cost;
    case 'miss':
      return step.credits ?? 0;
    case 'fatal':
      return step.why === 'protocol' ? cost : 0;
    default:
      return 0;
  }
}

/**
 * Throws a retryable failure if there is time for another attempt at this vendor. Otherwise returns
 * `unresolved`.
 */
function retryOrEnd(
  { request, now }: Conversation,
  why: string,
  afterMs: number | null,
): VendorResult {
  const nextAt = now() + (afterMs ?? 0);
  if (nextAt > request.until) return { kind: 'unresolved', reason: why };
  throw retryLater(request.vendor, why, afterMs);
}
