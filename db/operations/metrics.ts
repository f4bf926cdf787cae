import { Counter, Histogram } from '@prometheus-io/client';
import { isSandbox } from '../accounts/organizations.ts';
import { traced } from '../connection/traces.ts';
import { EMAIL_TYPES } from '../words.ts';
import METRICS from './metrics.json' with { type: 'json' };

// The metrics of this process for Prometheus (deploy/metrics.md). This file is in db/ because all
// other folders may import db/. Labels are our own terms, routes, and configured ids. They never
// contain text that comes from a client, a vendor, or a receiver.

type Labels = Readonly<Record<string, string | number>>;
type Counted = keyof typeof METRICS.counted;
type Timed = keyof typeof METRICS.timed;
export type StatName = keyof typeof METRICS.stats;

const counters = new Map<string, Counter<string>>();
for (const [name, { labels, help }] of Object.entries(METRICS.counted)) {
  counters.set(name, new Counter({ name, help, labelNames: labels }));
}
const histograms = new Map<string, Histogram<string>>();
for (const [name, { labels, help, buckets }] of Object.entries(METRICS.timed)) {
  histograms.set(name, new Histogram({ name, help, labelNames: labels, buckets }));
}

// Prometheus sees no increase if a counter's first value is above 0. So these counters start at 0.
const SETTLED = 'npe_requests_settled_total';
for (const sandbox of ['true', 'false']) {
  for (const replayed of ['true', 'false']) {
    for (const email_type of EMAIL_TYPES) {
      count(SETTLED, { status: 'completed', email_type, replayed, sandbox }, 0);
    }
  }
  for (const status of ['not_found', 'failed']) {
    count(SETTLED, { status, email_type: 'none', replayed: 'false', sandbox }, 0);
  }
}

for (const what of ['batch', 'request', 'delivery', 'result']) {
  count('npe_lost_work_total', { what }, 0);
}

/** Increases a counter. Call it once per event, after the event's transaction is committed. */
export function count(name: Counted, labels: Labels, by = 1): void {
  counters.get(name)?.inc(labels, by);
}

export function time(name: Timed, labels: Labels, seconds: number): void {
  histograms.get(name)?.observe(labels, seconds);
}

/** A request that became final. */
export type Ended = Readonly<{
  status: string;
  organizationId: string;
  cost: number;
  replayed: boolean;
  emailType?: string | null;
  /** Seconds from the submit until the request became final. */
  seconds: number;
}>;

/**
 * Counts a request that became final in a committed transaction.
 * @param wasHeld true if credits were held for the request, which are now charged or released
 */
export function countSettled(ended: Ended, wasHeld = true): void {
  const { status, organizationId, cost, replayed, emailType, seconds } = ended;
  const sandbox = isSandbox(organizationId);
  count(SETTLED, {
    status,
    email_type: emailType ?? 'none',
    replayed: String(replayed),
    sandbox: String(sandbox),
  });
  if (sandbox) return;
  time('npe_request_duration_seconds', { status }, seconds);
  if (!wasHeld) return;
  const isCharged = status === 'completed' && !replayed;
  count('npe_credits_total', { movement: isCharged ? 'charge' : 'release' }, cost);
}

/**
 * The result of a call to a source. If no connection was made, `cause` says why, with one word of a
 * fixed set.
 */
interface CallResult {
  readonly kind: string;
  readonly why?: string;
  readonly cause?: string;
  readonly verdict?: string;
}

/**
 * Counts and times a call to a source, and records a span. The label `result` is the step's
 * `why`. Without a `why`, the label is its `verdict`, and without a verdict its `kind`.
 */
export async function countCall<T extends CallResult>(
  kind: 'vendor' | 'verifier' | 'registry' | 'dns',
  source: string,
  call: Promise<T>,
): Promise<T> {
  const begun = performance.now();
  const counted = async () => {
    // A call throws only if we aborted it.
    const labels = await call.then(labelsOf, () => ({ result: 'aborted' }));
    const seconds = (performance.now() - begun) / 1000;
    time('npe_source_call_duration_seconds', { kind, source }, seconds);
    count('npe_source_calls_total', { kind, source, ...labels });
    return await call;
  };
  return traced({ name: source, kind: 'client' }, counted, (step) => ({
    attributes: labelsOf(step),
    isError: step.kind === 'retry' || step.kind === 'fatal',
  }));
}

function labelsOf({
  kind,
  why,
  cause,
  verdict,
}: CallResult): Readonly<Record<string, string>> {
  const result = why ?? verdict ?? kind;
  if (cause === undefined) return { result };
  return { result, cause };
}
