import { Context } from '@temporalio/activity';
import {
  recordAborted,
  recordFailedPoll,
  recordVendorAnswer,
  recordVendorJob,
} from '../db/lookups/answers.ts';
import { type AttemptKey, beginVendorStep } from '../db/lookups/vendor-attempts.ts';
import { suppressFromVendor } from '../db/privacy/suppressions.ts';
import { readProvider } from '../db/providers/subject.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { ActivityDeps, VendorSource } from './index.ts';
import { agrees } from './person/identity.ts';
import { buildSubject } from './person/subject.ts';
import { type Answered, creditsOf, outcomeOf, reasonOf } from './vendors/step-record.ts';
import type { Step, Subject } from './vendors/vendor.ts';
import { parseAddress } from './verification/syntax.ts';
import type { Verify } from './verify.ts';

interface VendorQuestion {
  readonly requestId: string;
  readonly npi: string;
  readonly vendor: string;
  /** Whether a question whose answer was lost may be put again although that may cost twice. */
  readonly again: boolean;
  /** The end of the vendor's share of the time, in milliseconds since the epoch; our checks may take longer. */
  readonly until: number;
}

type AskDeps = Pick<ActivityDeps, 'db' | 'vendors' | 'rules'>;

/** A vendor's server that failed a poll is asked again after this. */
const POLL_AGAIN_MS = 3000;

/** Asking vendors. Every step is recorded before and after, so that a retry goes on where the last attempt died. */
export function createAskActivities({ db, vendors, rules }: AskDeps, verify: Verify) {
  /** One call within its time; `retry` where it took longer. */
  const call = async (
    { provider }: VendorSource,
    subject: Subject,
    jobRef: string | null,
    signal: AbortSignal,
  ): Promise<Step> => {
    const timeout = AbortSignal.timeout(rules.callTimeoutMs);
    const bounded = AbortSignal.any([signal, timeout]);
    try {
      return await (jobRef === null
        ? provider.submit(subject, bounded)
        : provider.poll(jobRef, subject, bounded));
    } catch (error) {
      signal.throwIfAborted();
      if (timeout.aborted) return { kind: 'retry', why: 'unanswered', afterMs: null };
      throw error;
    }
  };

  /** @returns what the step comes to: `lost` and a mismatch are for us to say, everything else is the vendor's word */
  const record = async (
    { provider, mayStore }: VendorSource,
    { npi, person }: Subject,
    key: AttemptKey,
    step: Answered,
  ): Promise<'lost' | 'mismatch' | 'as_it_is'> => {
    const found = step.kind === 'found' ? step : null;
    const verdict = found && agrees(found.identity, npi, person);
    const mismatch = verdict && !verdict.ok ? verdict.reason : null;
    const candidates = (found?.candidates ?? []).map((one) => ({
      ...one,
      email: parseAddress(one.email)?.email ?? one.email,
    }));
    // Sent and not answered: where repeating costs, that is an answer that was paid for and lost.
    const isLost = step.kind === 'retry' && step.why === 'unanswered' && !provider.repeatIsFree;
    if (step.kind === 'blocked') await suppressFromVendor(db, npi, key.vendor);
    await recordVendorAnswer(db, key, {
      state: isLost ? 'lost' : step.kind,
      reason: mismatch ?? reasonOf(step),
      credits: isLost ? key.cost : creditsOf(step, key.cost),
      outcome: outcomeOf(step, key.n > 1),
      named: found && { npi, mismatch, mayStore, candidates },
      freshnessMs: rules.freshnessMs,
    });
    if (isLost) return 'lost';
    return mismatch === null ? 'as_it_is' : 'mismatch';
  };

  /** Comes back later, if that is within the vendor's share of the time. */
  const wait = (question: VendorQuestion, why: string, afterMs: number | null): VendorAnswer => {
    if (Date.now() + (afterMs ?? 0) > question.until) return { kind: 'unresolved', reason: why };
    throw retryLater(question.vendor, why, afterMs);
  };

  const converse = async (
    question: VendorQuestion,
    source: VendorSource,
    signal: AbortSignal,
  ): Promise<VendorAnswer> => {
    const { requestId, npi } = question;
    const { provider, limits } = source;
    const next = await beginVendorStep(db, {
      ...{ requestId, vendor: provider.id, limits, freshnessMs: rules.freshnessMs },
      cost: (wantedType) => provider.cost(wantedType),
      mayRepeat: provider.repeatIsFree || question.again,
      callMs: rules.callTimeoutMs,
    });
    switch (next.kind) {
      case 'settled':
      case 'stored':
        return { kind: next.kind, reason: null };
      case 'wait':
        return wait(question, next.why, spread(next.why, next.afterMs));
      case 'over': {
        const { state, reason, lookupId, wantedType } = next;
        if (state !== 'found') return { kind: state, reason };
        // Of somebody else, or found before the process died and not checked to the end.
        if (reason !== null) return { kind: 'unusable', reason };
        return await verify({ npi, lookupId, wantedType, patience: 'first' }, signal);
      }
      case 'submit':
      case 'poll': {
        const { key, wantedType } = next;
        const subject = buildSubject(npi, await readProvider(db, npi), wantedType);
        const jobRef = next.kind === 'poll' ? next.jobRef : null;
        const step = await call(source, subject, jobRef, signal).catch(async (error: unknown) => {
          await recordAborted(db, key);
          throw error;
        });
        if (step.kind === 'pending') {
          await recordVendorJob(db, key, step.jobRef, step.pollAfterMs);
          return wait(question, 'pending', step.pollAfterMs);
        }
        // The job outlives a poll that got no answer: ended here, it would be bought a second time.
        if (step.kind === 'retry' && next.kind === 'poll') {
          const afterMs = step.afterMs ?? POLL_AGAIN_MS;
          await recordFailedPoll(db, key, outcomeOf(step, true), afterMs);
          return wait(question, step.why, afterMs);
        }
        const outcome = await record(source, subject, key, step);
        if (outcome === 'lost') return { kind: 'lost', reason: reasonOf(step) };
        if (outcome === 'mismatch') return { kind: 'unusable', reason: 'identity_mismatch' };
        if (step.kind === 'retry') return wait(question, step.why, step.afterMs);
        if (step.kind !== 'found') return { kind: step.kind, reason: reasonOf(step) };
        return await verify({ npi, lookupId: key.lookupId, wantedType, patience: 'first' }, signal);
      }
      default:
        return next satisfies never;
    }
  };

  return {
    /**
     * Asks one vendor for one NPI, and puts what it names through our checks.
     * @returns how it ended; the email itself stays in the directory
     * @throws {ApplicationFailure} retryable, where the vendor works on it, limits us or is away
     */
    async askVendor(question: VendorQuestion): Promise<VendorAnswer> {
      const source = vendors.find(({ provider }) => provider.id === question.vendor);
      if (!source) return { kind: 'skip', reason: 'not_configured' };
      return await withHeartbeat(Context.current(), (signal) => converse(question, source, signal));
    },
  };
}

/** Hundreds who wait for one rate limit and come back together would be sent away together. */
function spread(why: string, afterMs: number): number {
  if (why !== 'rate_limit') return afterMs;
  const { attempt } = Context.current().info;
  return Math.round(afterMs + Math.random() * Math.min(SPREAD_AT_MOST_MS, 250 * 2 ** Math.min(attempt, 10)));
}

const SPREAD_AT_MOST_MS = 10_000;
