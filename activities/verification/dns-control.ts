import type { Logger } from 'pino';
import type { Database } from '../../db/connection/client.ts';
import { admitCall, type CallOutcome, recordOne } from '../../db/lookups/sources.ts';
import { count, countCall } from '../../db/operations/metrics.ts';
import { remember } from '../http/names.ts';
import { type Distrust, type DnsControl, findRoute, type MailResolver } from './mx.ts';

/** Our name servers have a breaker and metrics like any source. This is their source name. */
export const DNS = 'dns';
/**
 * Domains that have taken mail for decades. If our name servers say that one takes no mail, they
 * are broken.
 */
export const CONTROL_DOMAINS: readonly string[] = [
  'gmail.com',
  'outlook.com',
  'yahoo.com',
];
/**
 * The wait before broken name servers are tested again. It is short, so that waiting requests
 * continue soon after a repair.
 */
const TRY_AGAIN_MS = 8000;
/**
 * A passed control is trusted for this many milliseconds. Otherwise, a batch with many dead domains
 * would need a control for each domain.
 */
const PASSED_MS = 30_000;
const NO_LIMITS = { rates: [], dailyCredits: null };

type ControlStep =
  | { readonly kind: 'passed' }
  /**
   * `denied` names a control domain that seems to take no mail and the DNS result, such as
   * `gmail.com: nxdomain`.
   */
  | { readonly kind: 'lies'; readonly denied: string }
  | { readonly kind: 'silent' };

interface DnsControlOptions {
  readonly db: Database;
  readonly log: Logger;
  readonly resolver: MailResolver;
  /** Domains that are known to take mail. */
  readonly domains: readonly string[];
  /** Returns the time in milliseconds; the clock by default. */
  readonly now?: () => number;
}

/**
 * Creates the control that shows whether our name servers can be trusted. It runs whenever a domain
 * seems to take no mail, and looks up domains that are known to take mail. If the name servers deny
 * these too, they are broken, and their responses are not evidence.
 *
 * A passed control counts for 30 s, and concurrent callers share one control. The breaker of `dns`
 * opens at the first failed control. While it is open, a control runs only as a trial of the
 * breaker, one at a time.
 */
export function createDnsControl(options: DnsControlOptions): DnsControl {
  // The counters start at 0, because Prometheus sees no increase if a counter's first value is
  // above 0.
  for (const result of ['passed', 'lies', 'silent']) {
    count('npe_source_calls_total', { kind: DNS, source: DNS, result }, 0);
  }
  const ask = async () => {
    const value = await runControl(options);
    return { value, forMs: value === null ? PASSED_MS : 0 };
  };
  const remembered = remember(ask, { entries: 1, bytes: 10_000 }, options.now);
  return () => remembered(DNS);
}

async function runControl(options: DnsControlOptions): Promise<Distrust | null> {
  const { db, log, resolver, domains } = options;
  try {
    const call = {
      source: DNS,
      limits: NO_LIMITS,
      cost: 0,
      requestId: null,
      patienceMs: 0,
    };
    const admission = await admitCall(db, call);
    if (admission.kind === 'wait') return { afterMs: admission.afterMs };
    const step = await countCall(DNS, DNS, askControls(resolver, domains));
    const change = await recordOne(db, DNS, admission.era, outcomeOf(step));
    if (change === 'opened') logFailure(log, step);
    if (change === 'closed') {
      log.info('name servers can be trusted again');
    }
    return step.kind === 'passed' ? null : { afterMs: TRY_AGAIN_MS };
  } catch {
    // PostgreSQL is not available. The caller gets the same error when it records the result of its
    // check.
    return { afterMs: null };
  }
}

function logFailure(log: Logger, step: ControlStep): void {
  if (step.kind === 'lies') {
    log.error(
      { denied: step.denied },
      'name servers deny a mail domain that exists. Until they recover, no address is rejected because of them',
    );
  }
  if (step.kind === 'silent') {
    log.error('name servers do not respond for mail domains that exist');
  }
}

async function askControls(
  resolver: MailResolver,
  domains: readonly string[],
): Promise<ControlStep> {
  const find = async (domain: string) => ({
    domain,
    route: await findRoute(resolver, domain),
  });
  const found = await Promise.all(domains.map(find));
  for (const { domain, route } of found) {
    if (route.kind === 'refuses') {
      return { kind: 'lies', denied: `${domain}: ${route.reason}` };
    }
  }
  const isKnown = found.some(({ route }) => route.kind === 'accepts');
  return { kind: isKnown ? 'passed' : 'silent' };
}

function outcomeOf(step: ControlStep): CallOutcome {
  if (step.kind === 'passed') return { kind: 'responded' };
  const why = step.kind === 'lies' ? `denied ${step.denied}` : 'silent';
  return { kind: 'refused', why, openMs: TRY_AGAIN_MS };
}
