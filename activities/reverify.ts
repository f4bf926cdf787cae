import { Context } from '@temporalio/activity';
import { listFading, recordCheck } from '../db/lookups/candidates.ts';
import { readProvider } from '../db/providers/subject.ts';
import { SERVICE } from '../db/words.ts';
import type { ActivityDeps } from './deps.ts';
import { withHeartbeat } from './heartbeat.ts';
import { buildSubject } from './person/subject.ts';

/** The time before an address goes stale at which it is checked again. */
const LEAD_MS = 5 * 86_400_000;
/**
 * The number of addresses in one round. Together with the Schedule's interval, this keeps us below
 * the verifiers' own limits.
 */
const AT_MOST = 50;

type ReverifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'check' | 'verifiers' | 'rules'>;

/**
 * Returns the activity that keeps used addresses of the directory fresh, so that more requests can
 * be answered from it.
 */
export function createReverifyActivities({ db, log, check, verifiers, rules }: ReverifyDeps) {
  return {
    /** Runs one round. Does nothing if no verifier is configured. */
    async reverifyOnce() {
      const result = { valid: 0, notValid: 0, undecided: 0 };
      if (verifiers.length === 0) return result;
      return await withHeartbeat(Context.current(), async (signal) => {
        const { freshnessMs } = rules;
        for (const fading of await listFading(db, {
          freshnessMs,
          leadMs: LEAD_MS,
          limit: AT_MOST,
        })) {
          const { npi, email } = fading;
          // The candidate claims no earlier check of the mailbox. Otherwise no verifier would be
          // called.
          const claim = { verdict: 'unknown', validatedAt: null, isEcho: false } as const;
          const candidate = { ...fading, ...claim, looked: null, toldNothing: {} };
          const subject = buildSubject(npi, await readProvider(db, npi), 'any');
          const checked = await check(candidate, subject, signal, null);
          const decided =
            checked.kind === 'decided' && checked.verdict !== 'unknown' ? checked : null;
          // An undecided check leaves no record. This entry makes the address wait for a day, so
          // that others have their turn.
          const line = { kind: 'local', source: SERVICE, durationMs: null } as const;
          const told = { ...line, verdict: 'unknown', reason: checked.reason } as const;
          const lines = decided ? checked.evidence : [...checked.evidence, told];
          await recordCheck(db, { npi, email, lookupId: null }, lines, decided);
          result[
            decided === null ? 'undecided' : decided.verdict === 'valid' ? 'valid' : 'notValid'
          ] += 1;
        }
        log.info(result, 're-verified');
        return result;
      });
    },
  };
}
