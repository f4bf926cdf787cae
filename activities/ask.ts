import { Context } from '@temporalio/activity';
import {
  type AttemptKey,
  beginVendorStep,
  recordAborted,
  recordFailedPoll,
  recordVendorAnswer,
  recordVendorJob,
} from '../db/attempts.ts';
import type { CallOutcome } from '../db/sources.ts';
import { readProvider } from '../db/subject.ts';
import { suppressFromVendor } from '../db/suppressions.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import { retryLater } from './failures.ts';
import { withHeartbeat } from './heartbeat.ts';
import { agrees } from './identity.ts';
import type { ActivityDeps, VendorSource } from './index.ts';
import type { Step, Subject } from './providers/port.ts';
import { buildSubject } from './subject.ts';
import { parseAddress } from './verification/syntax.ts';
import type { Verify } from './verify.ts';

interface VendorQuestion {
  readonly requestId: string;
  readonly npi: string;
  readonly vendor: string;
  /** Whether a question whose answer was lost may be put again although that may cost twice. */
  readonly again: boolean;
}

type AskDeps = Pick<ActivityDeps, 'db' | 'vendors' | 'rules'>;
type Answered = Exclude<Step, { kind: 'pending' }>;

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
      if (timeout.aborted) return { kind: 'retry', why: 'network', afterMs: null };
      throw error;
    }
  };

  /** @returns why the addresses are not of who was asked for; null where they are, or there are none */
  const record = async (
    { mayStore }: VendorSource,
    { npi, person }: Subject,
    key: AttemptKey,
    step: Answered,
  ): Promise<string | null> => {
    const found = step.kind === 'found' ? step : null;
    const verdict = found && agrees(found.identity, npi, person);
    const mismatch = verdict && !verdict.ok ? verdict.reason : null;
    const candidates = (found?.candidates ?? []).map((one) => ({
      ...one,
      email: parseAddress(one.email)?.email ?? one.email,
    }));
    if (step.kind === 'blocked') await suppressFromVendor(db, npi, key.vendor);
    await recordVendorAnswer(db, key, {
      state: step.kind,
      reason: mismatch ?? reasonOf(step),
      credits: creditsOf(step, key.cost),
      outcome: outcomeOf(step, key.n > 1),
      named: found && { npi, mismatch, mayStore, candidates },
    });
    return mismatch;
  };

  const converse = async (question: VendorQuestion, source: VendorSource, signal: AbortSignal) => {
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
        throw retryLater(provider.id, next.why, next.afterMs);
      case 'over': {
        const { state, reason, lookupId, wantedType } = next;
        if (state !== 'found') return { kind: state, reason };
        // Of somebody else, or found before the process died and not checked to the end.
        if (reason !== null) return { kind: 'unusable', reason } as const;
        return await verify({ npi, lookupId, wantedType, last: false }, signal);
      }
      case 'submit':
      case 'poll': {
        const { key, wantedType } = next;
        const { lookupId } = key;
        const subject = buildSubject(npi, await readProvider(db, npi), wantedType);
        const jobRef = next.kind === 'poll' ? next.jobRef : null;
        const step = await call(source, subject, jobRef, signal).catch(async (error: unknown) => {
          await recordAborted(db, key);
          throw error;
        });
        if (step.kind === 'pending') {
          await recordVendorJob(db, key, step.jobRef, step.pollAfterMs);
          throw retryLater(provider.id, 'pending', step.pollAfterMs);
        }
        // The job outlives a poll that got no answer: ended here, it would be bought a second time.
        if (step.kind === 'retry' && next.kind === 'poll') {
          const afterMs = step.afterMs ?? POLL_AGAIN_MS;
          await recordFailedPoll(db, key, outcomeOf(step, true), afterMs);
          throw retryLater(provider.id, step.why, afterMs);
        }
        const mismatch = await record(source, subject, key, step);
        if (step.kind === 'retry') throw retryLater(provider.id, step.why, step.afterMs);
        if (mismatch !== null) return { kind: 'unusable', reason: mismatch } as const;
        if (step.kind === 'found') return await verify({ npi, lookupId, wantedType, last: false }, signal);
        return { kind: step.kind, reason: reasonOf(step) };
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

function reasonOf(step: Answered): string | null {
  switch (step.kind) {
    case 'miss':
      return step.reason;
    case 'skip':
      return `missing ${step.missing.join(', ')}`;
    case 'retry':
      return step.why;
    case 'fatal':
      return step.why === 'protocol' ? `protocol: ${step.field}` : step.why;
    case 'blocked':
      return 'privacy';
    case 'found':
      return null;
    default:
      return step satisfies never;
  }
}

/** In the vendor's credits. Vendors of this kind charge for what they find. */
function creditsOf(step: Answered, cost: number): number {
  switch (step.kind) {
    case 'found':
      return step.credits ?? cost;
    case 'miss':
      return step.credits ?? 0;
    case 'skip':
    case 'retry':
    case 'fatal':
    case 'blocked':
      return 0;
    default:
      return step satisfies never;
  }
}

/** @param again whether the vendor has had the same question before */
function outcomeOf(step: Answered, again: boolean): CallOutcome {
  switch (step.kind) {
    case 'found':
    case 'miss':
    case 'skip':
    case 'blocked':
      return { kind: 'answered' };
    case 'retry':
      return step.why === 'rate_limit'
        ? { kind: 'rate_limit', afterMs: step.afterMs }
        : { kind: again ? 'failed_again' : 'failed', why: step.why };
    case 'fatal':
      // One record that cannot be read says little about the vendor; many in a row open the breaker.
      return step.why === 'protocol'
        ? { kind: 'failed', why: `protocol: ${step.field}` }
        : { kind: 'refused', why: step.why };
    default:
      return step satisfies never;
  }
}
