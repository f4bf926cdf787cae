import { Counter, Histogram } from '@prometheus-io/client';
import { isSandbox } from './accounts/organizations.ts';
import { traced } from './traces.ts';

// What a process counts of what it does, for Prometheus; deploy/metrics.md says what each is good for. Here, because every
// folder may import it. A fact is counted once, where it is known: after the transaction that makes it one. Labels are
// words of ours, routes, and ids of the configuration: nothing that a client, a vendor or a receiver wrote.

/** By the route's template, and without the time that the client asked us to wait. */
export const httpDuration = new Histogram({
  name: 'npe_http_request_duration_seconds',
  help: 'Time to answer an HTTP request, without a wait that the client asked for',
  labelNames: ['route', 'method', 'status'],
  buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
});

export const submits = new Counter({
  name: 'npe_submits_total',
  help: 'Submits that were answered 202; a repeat is of an Idempotency-Key',
  labelNames: ['kind', 'answer'],
});

export const requestsSubmitted = new Counter({
  name: 'npe_requests_submitted_total',
  help: 'Requests that were accepted',
  labelNames: ['wanted_type', 'sandbox'],
});

export const requestsSettled = new Counter({
  name: 'npe_requests_settled_total',
  help: 'Requests that became final',
  labelNames: ['status', 'email_type', 'replayed', 'sandbox'],
});

export const requestDuration = new Histogram({
  name: 'npe_request_duration_seconds',
  help: 'From the submit of a request to its end, without sandboxes',
  labelNames: ['status'],
  buckets: [0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 960],
});

export const creditsMoved = new Counter({
  name: 'npe_credits_total',
  help: 'Credits held, charged and released, without sandboxes',
  labelNames: ['movement'],
});

export const sourceCalls = new Counter({
  name: 'npe_source_calls_total',
  help: 'Calls of vendors, verifiers and the registry, by what was answered',
  labelNames: ['kind', 'source', 'answer'],
});

export const sourceCallDuration = new Histogram({
  name: 'npe_source_call_duration_seconds',
  help: 'Duration of calls of vendors, verifiers and the registry',
  labelNames: ['kind', 'source'],
  buckets: [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 90],
});

export const deliveryAttempts = new Counter({
  name: 'npe_delivery_attempts_total',
  help: 'Attempts of webhook deliveries, by what came of them',
  labelNames: ['outcome'],
});

export const deliveryAttemptDuration = new Histogram({
  name: 'npe_delivery_attempt_duration_seconds',
  help: 'Duration of attempts of webhook deliveries',
  labelNames: ['outcome'],
  buckets: [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15],
});

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
export function countSettled(
  { status, organizationId, cost, replayed, emailType, seconds }: Ended,
  wasHeld = true,
): void {
  const sandbox = isSandbox(organizationId);
  const words = { email_type: emailType ?? 'none', replayed: String(replayed), sandbox: String(sandbox) };
  requestsSettled.inc({ status, ...words });
  if (sandbox) return;
  requestDuration.observe({ status }, seconds);
  if (wasHeld)
    creditsMoved.inc({ movement: status === 'completed' && !replayed ? 'charge' : 'release' }, cost);
}

/**
 * Counts a call of a source and the time it takes, and makes a span of it, by what is answered: the verdict, why there
 * is none, or its kind.
 */
export function countCall<
  T extends { readonly kind: string; readonly why?: string; readonly verdict?: string },
>(kind: 'vendor' | 'verifier' | 'registry', source: string, call: Promise<T>): Promise<T> {
  const end = sourceCallDuration.startTimer({ kind, source });
  // What throws was cut off by us.
  let answer = 'aborted';
  const counted = async () => {
    try {
      const step = await call;
      answer = step.why ?? step.verdict ?? step.kind;
      return step;
    } finally {
      end();
      sourceCalls.inc({ kind, source, answer });
    }
  };
  return traced({ name: source, kind: 'client' }, counted, (step) => ({
    attributes: { answer },
    isError: step.kind === 'retry' || step.kind === 'fatal',
  }));
}
