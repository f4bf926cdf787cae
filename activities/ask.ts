import { Context } from '@temporalio/activity';
import type { NamedCandidates } from '../db/lookups/candidates.ts';
import type { CallOutcome } from '../db/lookups/sources.ts';
import {
  type AttemptKey,
  beginVendorStep,
  type NextStep,
  recordLost,
  recordVendorAnswer,
  recordVendorJob,
} from '../db/lookups/vendor-attempts.ts';
import { countCall } from '../db/metrics.ts';
import { suppressFromVendor } from '../db/privacy/suppressions.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import type { ActivityDeps, VendorSource } from './deps.ts';
import { logBreaker, outcomeOf, retryLater } from './failures.ts';
import { type Clock, withHeartbeat } from './heartbeat.ts';
import { wordOf } from './http/client.ts';
import type { Subjects } from './lookup.ts';
import { mismatchOf } from './person/identity.ts';
import { answerForSandbox } from './sandbox.ts';
import { type RequestIds, settleFound } from './settle.ts';
import { waitForSlot } from './slots.ts';
import type { Step, Subject, Vendor } from './vendors/vendor.ts';
import { parseAddress } from './verification/syntax.ts';
import { verify } from './verify.ts';

interface VendorQuestion extends RequestIds {
  readonly vendor: string;
  /** True if a request whose response was lost may be sent again, even if that costs twice. */
  readonly again: boolean;
  /**
   * The end of the vendor's share of the time, in milliseconds since the epoch. Our own checks may
   * take longer.
   */
  readonly until: number;
}

type AskDeps = Pick<
  ActivityDeps,
  'db' | 'log' | 'control' | 'vendors' | 'rules' | 'check' | 'requiredVerifiers'
> & {
  readonly subjects: Subjects;
};

/** Delay before the next poll after one that failed. */
const POLL_AGAIN_MS = 3000;

/**
 * Returns the activity that calls vendors. Every step is recorded before and after the call, so
 * that a retry continues at the point where the last attempt died.
 */
export function createAskActivities(deps: AskDeps) {
  return {
    /**
     * Calls one vendor for one NPI, checks the addresses it returns, and settles the request if one
     * passes.
     * @returns how the lookup ended at this vendor; the email itself stays in the directory
     * @throws {ApplicationFailure} retryable, if the vendor is still working, limits us, or is
     * unavailable
     */
    async askVendor(question: VendorQuestion): Promise<VendorAnswer> {
      const test = answerForSandbox(question.vendor, 'first');
      if (test) return await settleFound(deps, question, test);
      const source = deps.vendors.find(({ vendor }) => vendor.id === question.vendor);
      if (!source) return { kind: 'skip', reason: 'not_configured' };
      return await withHeartbeat(Context.current(), async (signal, now) => {
        const answer = await converse(deps, { question, source, signal, now });
        return await settleFound(deps, question, answer);
      });
    },
  };
}

/** A call of `askVendor` at work. */
interface Conversation {
  readonly question: VendorQuestion;
  readonly source: VendorSource;
  readonly signal: AbortSignal;
  readonly now: Clock;
}

async function converse(deps: AskDeps, conversation: Conversation): Promise<VendorAnswer> {
  const { vendor } = conversation.source;
  const begin = () => beginStep(deps, conversation);
  const next = await waitForSlot(vendor.id, begin, conversation.signal);
  switch (next.kind) {
    case 'settled':
    case 'stored':
      return { kind: next.kind, reason: null };
    case 'wait':
      return await waitForStep(deps, conversation, next);
    case 'over':
      return await resume(deps, conversation, next);
    case 'ask':
      return await call(deps, conversation, next);
    default:
      return next satisfies never;
  }
}

function beginStep(
  { db, rules, requiredVerifiers }: AskDeps,
  { question, source, now }: Conversation,
): Promise<NextStep> {
  const { vendor, limits } = source;
  return beginVendorStep(db, {
    requestId: question.requestId,
    vendor: vendor.id,
    limits,
    cost: (wantedType) => vendor.cost(wantedType),
    mayRepeat: vendor.repeatIsFree || question.again,
    callMs: vendor.callMs,
    freshnessMs: rules.freshnessMs,
    patienceMs: question.until - now(),
    requiredVerifiers: requiredVerifiers.of(vendor),
  });
}

async function waitForStep(
  { requiredVerifiers }: AskDeps,
  conversation: Conversation,
  { why, afterMs }: Extract<NextStep, { kind: 'wait' }>,
): Promise<VendorAnswer> {
  if (why !== 'verifier_unavailable') return wait(conversation, why, afterMs);
  const { requestId } = conversation.question;
  const verifierMs = await requiredVerifiers.tryAgain(conversation.signal, requestId);
  return wait(conversation, why, verifierMs);
}

/** Returns the result of an attempt that is already recorded, after checks that are still open. */
async function resume(
  deps: AskDeps,
  { question, signal }: Conversation,
  { state, reason, lookupId, wantedType }: Extract<NextStep, { kind: 'over' }>,
): Promise<VendorAnswer> {
  if (state !== 'found') return { kind: state, reason };
  // Either the response was about another person, or the process died after the response and
  // before the checks were done.
  if (reason !== null) return { kind: 'unusable', reason };
  const { requestId, npi } = question;
  return await verify(deps, { requestId, npi, lookupId, wantedType, patience: 'first' }, signal);
}

/** Sends one request to the vendor, records the response, and checks the addresses in it. */
async function call(
  deps: AskDeps,
  conversation: Conversation,
  { key, jobRef, wantedType }: Extract<NextStep, { kind: 'ask' }>,
): Promise<VendorAnswer> {
  const { question, source, signal } = conversation;
  const { vendor } = source;
  const { requestId, npi } = question;
  const { lookupId } = key;
  const subject = await deps.subjects.of(lookupId, npi, wantedType);
  const sent = send(vendor, jobRef, subject, signal);
  const step = await countCall('vendor', vendor.id, sent).catch(async (error: unknown) => {
    await recordLost(deps.db, key, 'aborted');
    throw error;
  });
  if (step.kind === 'pending') {
    await recordJob(deps, key, step, { kind: 'answered' });
    return wait(conversation, 'pending', step.pollAfterMs);
  }
  const isUnasked =
    step.kind === 'retry' ||
    (step.kind === 'fatal' && (step.why === 'auth' || step.why === 'plan'));
  if (jobRef !== null && isUnasked) return await keepJob(deps, conversation, key, jobRef, step);
  const end = await record(deps, source, subject, key, step);
  if (end !== null) return end;
  if (step.kind === 'retry') return wait(conversation, step.why, step.afterMs);
  if (step.kind !== 'found') return { kind: step.kind, reason: reasonOf(step) };
  const found = { requestId, npi, lookupId, wantedType, subject };
  return await verify(deps, { ...found, patience: 'first' }, signal);
}

function send(vendor: Vendor, jobRef: string | null, subject: Subject, signal: AbortSignal) {
  if (jobRef === null) return vendor.submit(subject, signal);
  return vendor.poll(jobRef, subject, signal);
}

/**
 * Keeps a job open after a poll that got no response, or after a rejected API key. If we ended the
 * job here, we would buy it a second time.
 */
async function keepJob(
  deps: AskDeps,
  conversation: Conversation,
  key: AttemptKey,
  jobRef: string,
  step: Extract<Step, { kind: 'retry' | 'fatal' }>,
): Promise<VendorAnswer> {
  let pollAfterMs = POLL_AGAIN_MS;
  if (step.kind === 'retry' && step.afterMs !== null) pollAfterMs = step.afterMs;
  await recordJob(deps, key, { jobRef, pollAfterMs }, outcomeOf(step, true));
  if (step.kind === 'fatal') return { kind: 'fatal', reason: wordOf(step) };
  return wait(conversation, step.why, pollAfterMs);
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

/** A step that ends an attempt: any step but `pending`. */
type Answered = Exclude<Step, { kind: 'pending' }>;

/**
 * Records the response of a vendor.
 * @returns the result if it is already clear: the response was lost, or is about another person;
 * otherwise null
 */
async function record(
  { db, log, rules }: AskDeps,
  { vendor, mayStore }: VendorSource,
  { npi, person }: Subject,
  key: AttemptKey,
  step: Answered,
): Promise<VendorAnswer | null> {
  let mismatch: string | null = null;
  let named: NamedCandidates | null = null;
  if (step.kind === 'found') {
    mismatch = mismatchOf(step.identity, npi, person);
    named = { ...namedIn(step), npi, mismatch, mayStore };
  }
  // The request was sent and got no response. If repeating it costs, we count it as paid and lost.
  const isLost = step.kind === 'retry' && step.why === 'unanswered' && !vendor.repeatIsFree;
  if (step.kind === 'blocked') await suppressFromVendor(db, npi, key.vendor);
  const outcome = outcomeOf(step, key.n > 1);
  const change = await recordVendorAnswer(db, key, {
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

/** Returns the addresses of a response. An unreadable address stays as the vendor writes it. */
function namedIn({ isEcho, candidates }: Extract<Step, { kind: 'found' }>) {
  const parsed = candidates.map((candidate) => {
    const email = parseAddress(candidate.email)?.email;
    return email === undefined ? candidate : { ...candidate, email };
  });
  return { isEcho, candidates: parsed };
}

/** Returns the reason in one or a few words, or null if the kind says everything. */
function reasonOf(step: Answered): string | null {
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
 * Returns the cost in the vendor's credits. A response that we cannot read was probably charged.
 */
function creditsOf(step: Answered, cost: number): number {
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
 * Throws a retryable failure if the next attempt is within the vendor's share of the time.
 * Otherwise returns `unresolved`.
 */
function wait({ question, now }: Conversation, why: string, afterMs: number | null): VendorAnswer {
  const nextAt = now() + (afterMs ?? 0);
  if (nextAt > question.until) return { kind: 'unresolved', reason: why };
  throw retryLater(question.vendor, why, afterMs);
}
