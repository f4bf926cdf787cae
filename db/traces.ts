import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { channel } from 'node:diagnostics_channel';
import { isId, uuidOf } from './ids.ts';

// Spans of the work for a batch. All spans of a batch form one trace. Trace and span ids follow
// from our ids: the batch is the trace, the submit is its root, and the requests are below it. So
// nothing needs to pass through Temporal and workflows know nothing of traces. Work of a sweep, of
// another version, or of a worker three days later still lands in the same trace. Without a
// subscriber to `spans` (`sendTraces` of deploy/traces.ts), no span is made.

/** A completed piece of work for a batch. */
export interface Span {
  readonly batchId: string;
  /** A new id by default. */
  readonly spanId?: string;
  /** The submit by default; null for the submit itself. */
  readonly parentId?: string | null | undefined;
  readonly name: string;
  readonly kind?: 'server' | 'client';
  readonly durationMs: number;
  /** Ids, codes, and numbers. Never an address, a URL, a name, or the text of an error. */
  readonly attributes?: Readonly<Record<string, string | number | null | undefined>>;
  readonly isError?: boolean;
  /** The client's span, which is in the client's trace. */
  readonly link?: { readonly traceId: string; readonly spanId: string | undefined } | undefined;
}

export const spans = channel('npi-email-enrichment:spans');
export const tellSpan = (span: Span) => spans.publish(span);

export const newSpanId = () => randomBytes(8).toString('hex');
/** Returns the span id of a batch or a request: the random half of its id. */
export const spanIdOf = (id: string) => uuidOf(id).slice(16);

/** The current span. */
const here = new AsyncLocalStorage<{ readonly batchId: string; readonly spanId: string }>();

/**
 * Records a span of the work, below the current span. Work that belongs to no batch gets no span.
 * @param outcomeOf returns the parts of the span that depend on the result
 */
export async function traced<T>(
  span: Pick<Span, 'name'> & Partial<Span>,
  work: () => Promise<T>,
  outcomeOf: (result: T) => Partial<Span> = () => ({}),
): Promise<T> {
  const outer = here.getStore();
  const batchId = span.batchId ?? outer?.batchId;
  if (!spans.hasSubscribers || batchId === undefined) return await work();
  const spanId = newSpanId();
  const begun = performance.now();
  const end = (outcome: Partial<Span>) =>
    tellSpan({
      parentId: outer?.spanId,
      ...span,
      ...outcome,
      batchId,
      spanId,
      durationMs: performance.now() - begun,
      attributes: { ...span.attributes, ...outcome.attributes },
    });
  try {
    const result = await here.run({ batchId, spanId }, work);
    end(outcomeOf(result));
    return result;
  } catch (error) {
    // The error's code, never its text. A benign error in Temporal means waiting, not a failure.
    const { type, name, category } = Object(error);
    end({ attributes: { 'error.type': type ?? name }, isError: category !== 'BENIGN' });
    throw error;
  }
}

/**
 * Returns the trace and span ids of a log line, by its batch or else by the activity that writes
 * it.
 */
export function traceOfLine(line: { readonly batch_id?: unknown }) {
  if (!spans.hasSubscribers) return {};
  const span = here.getStore();
  const batchId = String(line.batch_id ?? span?.batchId);
  if (!isId('bat', batchId)) return {};
  const traceId = uuidOf(batchId);
  if (span?.batchId !== batchId) return { trace_id: traceId };
  return { trace_id: traceId, span_id: span.spanId };
}

/**
 * Parses a `traceparent` header (W3C Trace Context, 3.2.2).
 * @returns undefined for a malformed header
 */
export function parseTraceparent(header: unknown) {
  const form = /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}$/;
  const found = form.exec(String(header));
  if (!found?.[1]) return undefined;
  return { traceId: found[1], spanId: found[2] };
}
