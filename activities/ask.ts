import { Context } from '@temporalio/activity';
import {
  type AttemptKey,
  beginVendorStep,
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
import type { Step, Subject } from './vendors/vendor.ts';
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
      return await withHeartbeat(Context.current(), async (signal, now) =>
        settleFound(deps, question, await converse(deps, { ...question, now }, source, signal)),
      );
    },
  };
}

async function converse(
  deps: AskDeps,
  question: VendorQuestion & { readonly now: Clock },
  source: VendorSource,
  signal: AbortSignal,
): Promise<VendorAnswer> {
  const { db, log, rules, subjects, requiredVerifiers } = deps;
  const { requestId, npi } = question;
  const { vendor, limits } = source;
  const ask = () =>
    beginVendorStep(db, {
      requestId,
      vendor: vendor.id,
      limits,
      cost: (wantedType) => vendor.cost(wantedType),
      mayRepeat: vendor.repeatIsFree || question.again,
      callMs: vendor.callMs,
      freshnessMs: rules.freshnessMs,
      patienceMs: question.until - question.now(),
      requiredVerifiers: requiredVerifiers.of(vendor),
    });
  const next = await waitForSlot(vendor.id, ask, signal);
  switch (next.kind) {
    case 'settled':
    case 'stored':
      return { kind: next.kind, reason: null };
    case 'wait':
      if (next.why === 'verifier_unavailable') {
        return wait(question, next.why, await requiredVerifiers.tryAgain(signal, requestId));
      }
      return wait(question, next.why, next.afterMs);
    case 'over': {
      const { state, reason, lookupId, wantedType } = next;
      if (state !== 'found') return { kind: state, reason };
      // Either the response was about another person, or the process died after the response and
      // before the checks were done.
      if (reason !== null) return { kind: 'unusable', reason };
      return await verify(
        deps,
        { requestId, npi, lookupId, wantedType, patience: 'first' },
        signal,
      );
    }
    case 'ask': {
      const { key, jobRef, wantedType } = next;
      const { lookupId } = key;
      const subject = await subjects.of(lookupId, npi, wantedType);
      const asked =
        jobRef === null ? vendor.submit(subject, signal) : vendor.poll(jobRef, subject, signal);
      const step = await countCall('vendor', vendor.id, asked).catch(async (error: unknown) => {
        await recordLost(db, key, 'aborted');
        throw error;
      });
      if (step.kind === 'pending') {
        const outcome = { kind: 'answered' } as const;
        const change = await recordVendorJob(db, key, step.jobRef, step.pollAfterMs, outcome);
        logBreaker(log, vendor.id, change, outcome);
        return wait(question, 'pending', step.pollAfterMs);
      }
      // A job survives a poll that got no response, and a rejected API key. If we ended the job
      // here, we would buy it a second time.
      const isUnasked =
        step.kind === 'retry' || (step.kind === 'fatal' && ['auth', 'plan'].includes(step.why));
      if (jobRef !== null && isUnasked) {
        const afterMs = (step.kind === 'retry' ? step.afterMs : null) ?? POLL_AGAIN_MS;
        const outcome = outcomeOf(step, true);
        logBreaker(
          log,
          vendor.id,
          await recordVendorJob(db, key, jobRef, afterMs, outcome),
          outcome,
        );
        if (step.kind === 'fatal') return { kind: 'fatal', reason: wordOf(step) };
        return wait(question, step.why, afterMs);
      }
      const end = await record(deps, source, subject, key, step);
      if (end !== null) return end;
      if (step.kind === 'retry') return wait(question, step.why, step.afterMs);
      if (step.kind !== 'found') return { kind: step.kind, reason: reasonOf(step) };
      return await verify(
        deps,
        { requestId, npi, lookupId, wantedType, patience: 'first', subject },
        signal,
      );
    }
    default:
      return next satisfies never;
  }
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
  const mismatch = step.kind === 'found' ? mismatchOf(step.identity, npi, person) : null;
  const named = step.kind === 'found' && {
    npi,
    mismatch,
    mayStore,
    isEcho: step.isEcho,
    candidates: step.candidates.map((one) => ({
      ...one,
      email: parseAddress(one.email)?.email ?? one.email,
    })),
  };
  // The request was sent and got no response. If repeating it costs, we count it as paid and lost.
  const isLost = step.kind === 'retry' && step.why === 'unanswered' && !vendor.repeatIsFree;
  if (step.kind === 'blocked') await suppressFromVendor(db, npi, key.vendor);
  const outcome = outcomeOf(step, key.n > 1);
  const change = await recordVendorAnswer(db, key, {
    state: isLost ? 'lost' : step.kind,
    reason: mismatch ?? reasonOf(step),
    credits: isLost ? key.cost : creditsOf(step, key.cost),
    outcome,
    named: named || null,
    freshnessMs: rules.freshnessMs,
  });
  logBreaker(log, key.vendor, change, outcome);
  if (isLost) return { kind: 'lost', reason: reasonOf(step) };
  return mismatch === null ? null : { kind: 'unusable', reason: 'identity_mismatch' };
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
  if (step.kind === 'found') return step.credits ?? cost;
  if (step.kind === 'miss') return step.credits ?? 0;
  return step.kind === 'fatal' && step.why === 'protocol' ? cost : 0;
}

/**
 * Throws a retryable failure if the next attempt is within the vendor's share of the time.
 * Otherwise returns `unresolved`.
 */
function wait(
  { vendor, until, now }: VendorQuestion & { readonly now: Clock },
  why: string,
  afterMs: number | null,
): VendorAnswer {
  if (now() + (afterMs ?? 0) > until) return { kind: 'unresolved', reason: why };
  throw retryLater(vendor, why, afterMs);
}
