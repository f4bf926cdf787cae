import { Context } from '@temporalio/activity';
import { listFading, recordRecheck } from '../db/lookups/checks.ts';
import { SERVICE } from '../db/words.ts';
import type { ActivityDeps } from './deps.ts';
import { withHeartbeat } from './heartbeat.ts';
import { readSubject } from './person/subject.ts';

/** An address is checked again this long before its verdict becomes too old to use. */
const LEAD_MS = 5 * 86_400_000;
/**
 * The number of addresses that one run checks. This limit and the interval of the Temporal Schedule
 * keep our calls below the verifiers' rate limits.
 */
const MAX_ADDRESSES = 50;

type ReverifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'check' | 'verifiers' | 'rules'>;

type Fading = Awaited<ReturnType<typeof listFading>>[number];

/**
 * Returns the activity that rechecks stored addresses that customers use. Fresh verdicts let us
 * fulfill more requests from the directory, without calling vendors.
 */
export function createReverifyActivities(deps: ReverifyDeps) {
  return {
    /** Rechecks up to `MAX_ADDRESSES` addresses. Does nothing if no verifier is configured. */
    async reverifyOnce() {
      const { db, log, verifiers, rules } = deps;
      const result = { valid: 0, notValid: 0, undecided: 0 };
      if (verifiers.length === 0) return result;
      return await withHeartbeat(Context.current(), async (signal) => {
        const { freshnessMs } = rules;
        const due = await listFading(db, {
          freshnessMs,
          leadMs: LEAD_MS,
          limit: MAX_ADDRESSES,
        });
        for (const fading of due) {
          result[await recheck(deps, fading, signal)] += 1;
        }
        log.info(result, 're-verified');
        return result;
      });
    },
  };
}

/** Checks one address again, and records the result. */
async function recheck(
  { db, check }: ReverifyDeps,
  fading: Fading,
  signal: AbortSignal,
): Promise<'valid' | 'notValid' | 'undecided'> {
  const { npi, email } = fading;
  const id = { npi, email };
  // We leave out the earlier verdict of the address. If `check` saw it, it would not call a
  // verifier.
  const unseen = { verdict: 'unknown', validatedAt: null, repeatsInput: false } as const;
  const candidate = { ...fading, ...unseen, lastVerdict: null, undecided: {} };
  const subject = await readSubject(db, npi, 'any');
  const work = { signal, requestId: null, renewTurn: null };
  const checked = await check(candidate, subject, work);
  if (checked.kind === 'decided' && checked.verdict !== 'unknown') {
    await recordRecheck(db, id, checked.evidence, checked);
    return checked.verdict === 'valid' ? 'valid' : 'notValid';
  }
  // A check without a verdict would leave no record, and the next run would choose the same address
  // again. This entry postpones the address for a day, so that other addresses are checked first.
  const entry = {
    kind: 'local',
    source: SERVICE,
    verdict: 'unknown',
    reason: checked.reason,
    durationMs: null,
  } as const;
  await recordRecheck(db, id, [...checked.evidence, entry], null);
  return 'undecided';
}
