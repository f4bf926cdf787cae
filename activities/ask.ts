import { Context } from '@temporalio/activity';
import type { CallOutcome } from '../db/lookups/sources.ts';
import { inTurn } from '../db/lookups/turns.ts';
import {
  type AttemptKey,
  recordLost,
  recordNotCalled,
  recordVendorJob,
  recordVendorResponse,
  type VendorResponseRecord,
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
import { mismatchOf, ownAddresses } from './person/identity.ts';
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

/**
 * Checks the addresses of the lookup for this request.
 * @param subject the subject of the lookup, if the caller has already built it
 */
async function check(
  deps: AskDeps,
  { request, signal }: Conversation,
  { turn, requestedType }: Extract<NextStep, { kind: 'check' | 'ask' }>,
  subject?: Subject,
): Promise<VendorResult> {
  const { npi } = request;
  const toVerify = { npi, turn, requestedType, patience: 'first', subject } as const;
  return await verify(deps, toVerify, signal);
}

/** A call that may be made now. */
type AllowedCall = Extract<NextStep, { kind: 'ask' }>;

/** Sends one request to the vendor, records the response, and checks the addresses in it. */
async function call(
  deps: AskDeps,
  conversation: Conversation,
  allowed: AllowedCall,
): Promise<VendorResult> {
  const { request, source } = conversation;
  const { key, jobRef, requestedType } = allowed;
  const subject = await deps.subjects.of(key.lookupId, request.npi, requestedType);
  const step = await send(deps, conversation, allowed, subject);
  switch (step.kind) {
    case 'pending':
      await recordJob(deps, key, step, { kind: 'responded' });
      return retryOrEnd(conversation, 'pending', step.pollAfterMs);
    case 'found':
      return await checkFound(deps, conversation, allowed, subject, step);
    case 'blocked':
      await suppressFromVendor(deps.db, request.npi, key.vendor);
      return { kind: 'blocked', reason: await recordEmpty(deps, key, step) };
    case 'miss':
    case 'skip':
      return { kind: step.kind, reason: await recordEmpty(deps, key, step) };
    case 'fatal':
      if (jobRef !== null && isOurAccount(step)) {
        return await keepJob(deps, conversation, key, jobRef, step);
      }
      return { kind: 'fatal', reason: await recordEmpty(deps, key, step) };
    case 'retry':
      if (jobRef !== null) {
        return await keepJob(deps, conversation, key, jobRef, step);
      }
      if (step.why === 'unanswered' && !source.vendor.repeatIsFree) {
        return { kind: 'lost', reason: await recordLostResponse(deps, key, step) };
      }
      await recordEmpty(deps, key, step);
      return retryOrEnd(conversation, step.why, step.afterMs);
    default:
      return step satisfies never;
  }
}

/** Sends the request and counts it. If it is aborted, the response is recorded as lost. */
async function send(
  { db }: AskDeps,
  { source: { vendor }, signal }: Conversation,
  { key, jobRef }: AllowedCall,
  subject: Subject,
): Promise<Step> {
  const sent = submitOrPoll(vendor, jobRef, subject, signal);
  try {
    return await countCall('vendor', accountOf(vendor.id), sent);
  } catch (error) {
    await recordLost(db, key, 'aborted');
    throw error;
  }
}

function submitOrPoll(
  vendor: Vendor,
  jobRef: string | null,
  subject: Subject,
  signal: AbortSignal,
): Promise<Step> {
  if (jobRef === null) return vendor.submit(subject, signal);
  return vendor.poll(jobRef, subject, signal);
}

/** Returns true if the vendor rejects our account, and did not look at the job. */
function isOurAccount({ why }: Extract<Step, { kind: 'fatal' }>): boolean {
  return why === 'auth' || why === 'plan';
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
  if (step.kind === 'retry' && step.afterMs !== null) {
    pollAfterMs = step.afterMs;
  }
  await recordJob(deps, key, { jobRef, pollAfterMs }, outcomeOf(step, true));
  if (step.kind === 'fatal') {
    return { kind: 'fatal', reason: wordOf(step) };
  }
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

type FoundStep = Extract<Step, { kind: 'found' }>;

/** Records the addresses of a response, and checks them if they are about the right person. */
async function checkFound(
  deps: AskDeps,
  conversation: Conversation,
  allowed: AllowedCall,
  subject: Subject,
  step: FoundStep,
): Promise<VendorResult> {
  const { request, source } = conversation;
  const { key, requestedType } = allowed;
  const { npi } = request;
  const { identity, repeatsInput } = step;
  const { person } = subject;
  const own = ownAddresses(step.candidates, identity, person);
  let mismatch = mismatchOf(identity, npi, person);
  if (own.length === 0) mismatch = 'identity_mismatch';
  // A rejected response is recorded with all its addresses, as evidence.
  const candidates = mismatch === null ? own : step.candidates;
  const profile = repeatsInput ? null : profileOf(identity, person);
  await recordResponse(deps, key, step, {
    state: 'found',
    reason: mismatch,
    credits: step.credits ?? key.cost,
    named: {
      ...namedIn({ repeatsInput, candidates }),
      npi,
      mismatch,
      mayStore: source.mayStore,
      profile,
    },
  });
  if (mismatch !== null) {
    return { kind: 'unusable', reason: 'identity_mismatch' };
  }
  let known = subject;
  if (source.mayStore && profile !== null && addsTo(profile, subject)) {
    known = await deps.subjects.reload(key.lookupId, npi, requestedType);
  }
  return await check(deps, conversation, allowed, known);
}

/** A step without an address, after which the vendor has no more work for us. */
type EmptyStep = Exclude<Step, { kind: 'pending' | 'found' }>;

/** Records a response without an address, and returns the recorded reason. */
async function recordEmpty(
  deps: AskDeps,
  key: AttemptKey,
  step: EmptyStep,
): Promise<string> {
  const reason = reasonOf(step);
  const credits = creditsOf(step, key.cost);
  await recordResponse(deps, key, step, {
    state: step.kind,
    reason,
    credits,
    named: null,
  });
  return reason;
}

/**
 * Records that we got no response to a request that may have reached the vendor, and returns the
 * recorded reason. We assume that the vendor charged for the request, because it charges for
 * repeated ones.
 */
async function recordLostResponse(
  deps: AskDeps,
  key: AttemptKey,
  step: Extract<Step, { kind: 'retry' }>,
): Promise<string> {
  const reason = wordOf(step);
  const lost = { state: 'lost', reason, credits: key.cost, named: null } as const;
  await recordResponse(deps, key, step, lost);
  return reason;
}

async function recordResponse(
  { db, log, rules }: AskDeps,
  key: AttemptKey,
  step: Step,
  response: Omit<VendorResponseRecord, 'outcome' | 'freshnessMs'>,
): Promise<void> {
  const outcome = outcomeOf(step, key.n > 1);
  const { freshnessMs } = rules;
  const change = await recordVendorResponse(db, key, {
    ...response,
    outcome,
    freshnessMs,
  });
  logBreaker(log, key.vendor, change, outcome);
}

/**
 * Returns the addresses of a response in normalized form. An address that cannot be parsed stays as
 * the vendor wrote it.
 */
function namedIn({
  repeatsInput,
  candidates,
}: Pick<FoundStep, 'repeatsInput' | 'candidates'>) {
  const parsed = candidates.map((candidate) => {
    const email = parseAddress(candidate.email)?.email;
    return email === undefined ? candidate : { ...candidate, email };
  });
  return { repeatsInput, candidates: parsed };
}

/** Returns the reason to record for a step without an address. */
function reasonOf(step: EmptyStep): string {
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
    default:
      return step satisfies never;
  }
}

/**
 * Returns how many of the vendor's credits a step cost. We assume that the vendor charged for a
 * response that we cannot read.
 */
function creditsOf(step: EmptyStep, cost: number): number {
  switch (step.kind) {
    case 'miss':
      return step.credits ?? 0;
    case 'fatal':
      return step.why === 'protocol' ? cost : 0;
    case 'skip':
    case 'blocked':
    case 'retry':
      return 0;
    default:
      return step satisfies never;
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
  if (nextAt > request.until) {
    return { kind: 'unresolved', reason: why };
  }
  throw retryLater(request.vendor, why, afterMs);
}
