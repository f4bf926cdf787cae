import { Context } from '@temporalio/activity';
import { ApplicationFailure, ApplicationFailureCategory } from '@temporalio/common';
import {
  type AttemptKey,
  beginVendorStep,
  type CheckedEmail,
  type FoundCandidate,
  hasStoredEmail,
  listUnchecked,
  type NextStep,
  recordVendorAnswer,
  recordVendorJob,
  recordVerdict,
} from '../db/directory.ts';
import type { WantedType } from '../db/words.ts';
import type { VendorAnswer } from '../workflows/messages.ts';
import { withHeartbeat } from './heartbeat.ts';
import type { ActivityDeps } from './index.ts';
import type { Provider, Step } from './providers/port.ts';
import { parseAddress } from './verification/syntax.ts';

interface Question {
  readonly requestId: string;
  readonly npi: string;
  readonly vendor: string;
}

/** Asking vendors. Every step is recorded before and after, so that a retry goes on where the last attempt died. */
export function createLookupActivities({ db, check, providers, rules }: ActivityDeps) {
  /** Our own checks on every address that waits for them. A resolver's bad moment is retried, not held against one. */
  const checkAll = async (npi: string): Promise<void> => {
    for (const candidate of await listUnchecked(db, npi)) {
      const checked = await check(candidate);
      if (checked.kind === 'transient') throw retryLater('verification', checked.reason, null);
      const verdict: CheckedEmail = checked;
      await recordVerdict(db, npi, candidate.email, verdict);
    }
  };

  const conclude = async (npi: string, wantedType: WantedType): Promise<VendorAnswer> => {
    await checkAll(npi);
    const usable = await hasStoredEmail(db, { npi, wantedType, freshnessMs: rules.freshnessMs });
    return usable ? { kind: 'found', reason: null } : { kind: 'unusable', reason: 'none_valid' };
  };

  const converse = async (question: Question, next: NextStep, provider: Provider, signal: AbortSignal) => {
    switch (next.kind) {
      case 'stored':
        return { kind: 'stored', reason: null } as const;
      case 'over':
        // Found, but the process died before the checks were done.
        if (next.state === 'found') return await conclude(question.npi, next.wantedType);
        return { kind: answerKind(next.state), reason: next.reason } as const;
      case 'submit':
      case 'poll': {
        const { npi } = question;
        const subject = { npi, wantedType: next.wantedType };
        const step = await (next.kind === 'submit'
          ? provider.submit(subject, signal)
          : provider.poll(next.jobRef, subject, signal));
        // The job outlives a poll that got no answer: ended here, it would be bought a second time.
        if (next.kind === 'poll' && step.kind === 'retry')
          throw retryLater(provider.id, step.why, step.afterMs);
        const key = { requestId: question.requestId, vendor: provider.id, n: next.n };
        await record(key, npi, step);
        if (step.kind === 'pending') throw retryLater(provider.id, 'pending', step.pollAfterMs);
        if (step.kind === 'retry') throw retryLater(provider.id, step.why, step.afterMs);
        if (step.kind === 'found') return await conclude(npi, next.wantedType);
        return { kind: step.kind, reason: reasonOf(step) } as const;
      }
      default:
        return next satisfies never;
    }
  };

  const record = async (key: AttemptKey, npi: string, step: Step): Promise<void> => {
    if (step.kind === 'pending') return await recordVendorJob(db, key, step.jobRef);
    const candidates: FoundCandidate[] =
      step.kind === 'found'
        ? step.candidates.map((one) => ({ ...one, email: parseAddress(one.email)?.email ?? one.email }))
        : [];
    await recordVendorAnswer(db, key, { state: step.kind, reason: reasonOf(step), npi, candidates });
  };

  return {
    /**
     * Asks one vendor for one NPI and stores what passes our checks.
     * @returns how it ended; the email itself stays in the directory
     * @throws {ApplicationFailure} retryable, where the vendor works on it, limits us or is away
     */
    async askVendor(question: Question): Promise<VendorAnswer> {
      const provider = providers.find(({ id }) => id === question.vendor);
      if (!provider) return { kind: 'skip', reason: 'not_configured' };
      return await withHeartbeat(Context.current(), async (signal) => {
        const next = await beginVendorStep(db, question.requestId, provider.id, rules);
        return await converse(question, next, provider, signal);
      });
    },
  };
}

/** Waiting for a vendor is no fault: BENIGN keeps it out of error logs and metrics. */
function retryLater(vendor: string, why: string, afterMs: number | null): ApplicationFailure {
  return ApplicationFailure.create({
    message: `${vendor}: ${why}`,
    type: `Vendor.${why}`,
    category: ApplicationFailureCategory.BENIGN,
    ...(afterMs === null ? {} : { nextRetryDelay: Math.max(afterMs, MIN_WAIT_MS) }),
  });
}

/** A vendor that says "at once" again and again is not asked in a loop. */
const MIN_WAIT_MS = 100;

function reasonOf(step: Exclude<Step, { kind: 'pending' }>): string | null {
  switch (step.kind) {
    case 'miss':
      return step.reason;
    case 'skip':
      return `missing ${step.missing.join(', ')}`;
    case 'retry':
    case 'fatal':
      return step.why;
    case 'blocked':
      return 'privacy';
    case 'found':
      return null;
    default:
      return step satisfies never;
  }
}

function answerKind(state: Extract<NextStep, { kind: 'over' }>['state']): VendorAnswer['kind'] {
  switch (state) {
    case 'miss':
    case 'skip':
    case 'blocked':
    case 'fatal':
    case 'lost':
    case 'found':
    case 'settled':
      return state;
    case 'submitting':
    case 'pending':
    case 'retry':
      throw ApplicationFailure.create({
        message: `a vendor attempt cannot be over as ${state}`,
        type: 'Internal',
      });
    default:
      return state satisfies never;
  }
}
