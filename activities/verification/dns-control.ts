import type { Logger } from 'pino';
import type { Database } from '../../db/client.ts';
import { admitCall, type CallOutcome, recordOne } from '../../db/lookups/sources.ts';
import { count, countCall } from '../../db/metrics.ts';
import { remember } from '../http/names.ts';
import { type Distrust, type DnsControl, findRoute, type MailResolver } from './mx.ts';

/** The source that breaker and metrics know name servers by. */
export const DNS = 'dns';
/** These domains have taken mail for decades. Name servers that say otherwise are broken. */
export const CONTROL_DOMAINS: readonly string[] = ['gmail.com', 'outlook.com', 'yahoo.com'];
/**
 * A broken resolver is asked again after this time, so that waiting requests go on soon after it is
 * repaired.
 */
const TRY_AGAIN_MS = 8000;
/**
 * A control that passed stands for this time, so that a list of dead domains does not cost one for
 * each.
 */
const PASSED_MS = 30_000;
const NO_LIMITS = { rates: [], dailyCredits: null };

type ControlStep =
  | { readonly kind: 'passed' }
  /** `denied` is a control domain and why it should take no mail, such as `gmail.com: nxdomain`. */
  | { readonly kind: 'lies'; readonly denied: string }
  | { readonly kind: 'silent' };

interface DnsControlOptions {
  readonly db: Database;
  readonly log: Logger;
  readonly resolver: MailResolver;
  /** Domains that take mail for sure. */
  readonly domains: readonly string[];
  /** Milliseconds. The clock by default. */
  readonly now?: () => number;
}

/**
 * Makes the control that asks our name servers about domains that take mail for sure. It is asked
 * before a domain counts as one that takes no mail: a resolver that denies the control domains too
 * is broken, and its word is no evidence. A control that passed stands for 30 s, and callers at the
 * same time share one. The breaker of `dns` opens at the first control that fails, and then one
 * control at a time is the trial.
 */
export function createDnsControl({
  db,
  log,
  resolver,
  domains,
  now,
}: DnsControlOptions): DnsControl {
  // Prometheus sees no increase in a counter that begins at more than 0.
  for (const answer of ['passed', 'lies', 'silent']) {
    count('npe_source_calls_total', { kind: DNS, source: DNS, answer }, 0);
  }
  const control = async (): Promise<Distrust | null> => {
    try {
      const call = { source: DNS, limits: NO_LIMITS, cost: 0, requestId: null, patienceMs: 0 };
      const admission = await admitCall(db, call);
      if (admission.kind === 'wait') return { afterMs: admission.afterMs };
      const step = await countCall(DNS, DNS, askControls(resolver, domains));
      const change = await recordOne(db, DNS, admission.era, outcomeOf(step));
      if (change === 'closed') log.info('name servers can be believed again');
      if (change === 'opened' && step.kind === 'lies') {
        log.error(
          { denied: step.denied },
          'name servers deny a mail domain that exists: until that ends no domain counts as one without mail',
        );
      }
      if (change === 'opened' && step.kind === 'silent') {
        log.error('name servers do not answer about mail domains that exist');
      }
      return step.kind === 'passed' ? null : { afterMs: TRY_AGAIN_MS };
    } catch {
      // PostgreSQL is away. The caller finds out by itself when it writes down its check.
      return { afterMs: null };
    }
  };
  const ask = async () => {
    const value = await control();
    return { value, forMs: value === null ? PASSED_MS : 0 };
  };
  const remembered = remember(ask, { entries: 1, bytes: 10_000 }, now);
  return () => remembered(DNS);
}

async function askControls(
  resolver: MailResolver,
  domains: readonly string[],
): Promise<ControlStep> {
  const found = await Promise.all(
    domains.map(async (domain) => ({ domain, route: await findRoute(resolver, domain) })),
  );
  for (const { domain, route } of found) {
    if (route.kind === 'refuses') return { kind: 'lies', denied: `${domain}: ${route.reason}` };
  }
  const isKnown = found.some(({ route }) => route.kind === 'accepts');
  return { kind: isKnown ? 'passed' : 'silent' };
}

function outcomeOf(step: ControlStep): CallOutcome {
  if (step.kind === 'passed') return { kind: 'answered' };
  const why = step.kind === 'lies' ? `denied ${step.denied}` : 'silent';
  return { kind: 'refused', why, openMs: TRY_AGAIN_MS };
}
