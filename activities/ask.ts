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
  /** Whether a question whose answer was lost may be put again although that may cost twice. */
  readonly again: boolean;
  /**
   * The end of the vendor's share of the time, in milliseconds since the epoch; our checks may take
   * longer.
   */
  readonly until: number;
}

type AskDeps = Pick<
  ActivityDeps,
  'db' | 'log' | 'control' | 'vendors' | 'rules' | 'check' | 'requiredVerifiers'
> & {
  readonly subjects: Subjects;
};

/** A vendor's server that failed a poll is asked again after this. */
const POLL_AGAIN_MS = 3000;

/**
 * Asking vendors. Every step is recorded before and after, so that a retry goes on where the last
 * attempt died.
 */
export function createAskActivities(deps: AskDeps) {
  return {
    /**
     * Asks one vendor for one NPI, puts what it names through our checks, and settles with an email
     * that passes.
     * @returns how it ended; the email itself stays in the directory
     * @throws {ApplicationFailure} retryable, if the vendor works on it, limits us or is away
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
      // About somebody else, or found before the process died and not checked to the end.
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
      // The job outlives a poll that got no answer, or our key: ended here, it would be bought a
      // second time.
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

/** A step that ends an attempt. */
type Answered = Exclude<Step, { kind: 'pending' }>;

/**
 * @returns what the answer comes to if that is ours to say: it is lost, or about somebody else;
 * else null
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
  // Sent and not answered: if repeating costs, that is an answer that was paid for and lost.
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

/** In one or a few words; null if the kind says it all. */
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
 * In the vendor's credits. An answer that cannot be read was an answer, and so probably charged.
 */
function creditsOf(step: Answered, cost: number): number {
  if (step.kind === 'found') return step.credits ?? cost;
  if (step.kind === 'miss') return step.credits ?? 0;
  return step.kind === 'fatal' && step.why === 'protocol' ? cost : 0;
}

/** Comes back later, if that is within the vendor's share of the time. */
function wait(
  { vendor, until, now }: VendorQuestion & { readonly now: Clock },
  why: string,
  afterMs: number | null,
): VendorAnswer {
  if (now() + (afterMs ?? 0) > until) return { kind: 'unresolved', reason: why };
  throw retryLater(vendor, why, afterMs);
}
