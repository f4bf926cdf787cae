import { Context } from '@temporalio/activity';
import { listFading, recordCheck } from '../db/lookups/candidates.ts';
import { readProvider } from '../db/providers/subject.ts';
import { SERVICE } from '../db/words.ts';
import type { ActivityDeps } from './deps.ts';
import { withHeartbeat } from './heartbeat.ts';
import { buildSubject } from './person/subject.ts';

/** How long before it goes stale an address is checked again. */
const LEAD_MS = 5 * 86_400_000;
/**
 * Addresses in one round; with the Schedule's interval this is the throttle, below the verifiers'
 * own limits.
 */
const AT_MOST = 50;

type ReverifyDeps = Pick<ActivityDeps, 'db' | 'log' | 'check' | 'verifiers' | 'rules'>;

/** Keeps the directory fresh where it is used, so that submits find more in it. */
export function createReverifyActivities({ db, log, check, verifiers, rules }: ReverifyDeps) {
  return {
    /** One round. Without a verifier there is nobody to ask. */
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
          // Asked as if nobody had seen the mailbox answer: that is what makes a verifier look.
          const claim = { verdict: 'unknown', validatedAt: null, isEcho: false } as const;
          const candidate = { ...fading, ...claim, looked: null, toldNothing: {} };
          const subject = buildSubject(npi, await readProvider(db, npi), 'any');
          const checked = await check(candidate, subject, signal, null);
          const decided =
            checked.kind === 'decided' && checked.verdict !== 'unknown' ? checked : null;
          // Who could not tell has nothing on record; by this line it waits for a day, and others
          // have their turn.
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
