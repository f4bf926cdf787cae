import { Counter, Histogram } from '@prometheus-io/client';
import { isSandbox } from './accounts/organizations.ts';
import METRICS from './metrics.json' with { type: 'json' };
import { traced } from './traces.ts';
import { EMAIL_TYPES } from './words.ts';

// What a process counts of what it does, for Prometheus (deploy/metrics.md); here, because every
// folder may import it. Labels are words of ours, routes, and ids of the configuration: nothing
// that a client, a vendor or a receiver wrote.

type Labels = Readonly<Record<string, string | number>>;
type Counted = keyof typeof METRICS.counted;
type Timed = keyof typeof METRICS.timed;
export type FigureName = keyof typeof METRICS.figures;

const counters = new Map<string, Counter<string>>();
for (const [name, { labels, help }] of Object.entries(METRICS.counted))
  counters.set(name, new Counter({ name, help, labelNames: labels }));
const histograms = new Map<string, Histogram<string>>();
for (const [name, { labels, help, buckets }] of Object.entries(METRICS.timed))
  histograms.set(name, new Histogram({ name, help, labelNames: labels, buckets }));

// What begins at more than 0 has not risen, for Prometheus: these are there before the first
// request ends.
for (const sandbox of ['true', 'false']) {
  for (const replayed of ['true', 'false']) {
    for (const email_type of EMAIL_TYPES)
      count(
        'npe_requests_settled_total',
        { status: 'completed', email_type, replayed, sandbox },
        0,
      );
  }
  for (const status of ['not_found', 'failed'])
    count(
      'npe_requests_settled_total',
      { status, email_type: 'none', replayed: 'false', sandbox },
      0,
    );
}

/** Counts a fact, once, where it is known: after the transaction that makes it one. */
export function count(name: Counted, labels: Labels, by = 1): void {
  counters.get(name)?.inc(labels, by);
}

export function time(name: Timed, labels: Labels, seconds: number): void {
  histograms.get(name)?.observe(labels, seconds);
}

/** How a request ended. */
export type Ended = Readonly<{
  status: string;
  organizationId: string;
  cost: number;
  replayed: boolean;
  emailType?: string | null;
  /** Since its submit. */
  seconds: number;
}>;

/**
 * Counts a request that has become final by a transaction that is committed.
 * @param wasHeld whether credits were held for it, and are charged or released now
 */
export function countSettled(ended: Ended, wasHeld = true): void {
  const { status, organizationId, cost, replayed, emailType, seconds } = ended;
  const sandbox = isSandbox(organizationId);
  const words = {
    email_type: emailType ?? 'none',
    replayed: String(replayed),
    sandbox: String(sandbox),
  };
  count('npe_requests_settled_total', { status, ...words });
  if (sandbox) return;
  time('npe_request_duration_seconds', { status }, seconds);
  const movement = status === 'completed' && !replayed ? 'charge' : 'release';
  if (wasHeld) count('npe_credits_total', { movement }, cost);
}

/**
 * What a call of a source came to. `cause`: why no connection was made, a word of a bounded set.
 */
interface CallAnswer {
  readonly kind: string;
  readonly why?: string;
  readonly cause?: string;
  readonly verdict?: string;
}

/**
 * Counts a call of a source and the time it takes, and makes a span of it, by what is answered: the
 * verdict, why there is none, or its kind.
 */
export async function countCall<T extends CallAnswer>(
  kind: 'vendor' | 'verifier' | 'registry' | 'dns',
  source: string,
  call: Promise<T>,
): Promise<T> {
  const begun = performance.now();
  // What throws was cut off by us.
  const counted = async () => {
    const labels = await call.then(labelsOf, () => ({ answer: 'aborted' }));
    time('npe_source_call_duration_seconds', { kind, source }, (performance.now() - begun) / 1000);
    count('npe_source_calls_total', { kind, source, ...labels });
    return await call;
  };
  return traced({ name: source, kind: 'client' }, counted, (step) => ({
    attributes: labelsOf(step),
    isError: step.kind === 'retry' || step.kind === 'fatal',
  }));
}

function labelsOf({ kind, why, cause, verdict }: CallAnswer): Readonly<Record<string, string>> {
  const answer = why ?? verdict ?? kind;
  return cause === undefined ? { answer } : { answer, cause };
}
