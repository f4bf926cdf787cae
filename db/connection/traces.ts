import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { channel } from 'node:diagnostics_channel';
import { isId, uuidOf } from './ids.ts';

// Creates tracing spans for the work on a batch. All spans of a batch form one trace. Its ids are
// computed from our ids: the batch id gives the trace id and the id of the root span (the submit),
// and each request id gives the id of a child span. So no trace context passes through Temporal,
// and workflows have no tracing code. Work that is done by a sweep, by another version, or by a
// worker three days later still belongs to the same trace. Without a subscriber to `spans`
// (`sendTraces` of deploy/traces.ts), no span is created.

/** A completed piece of work for a batch. */
export interface Span {
  readonly batchId: string;
  /** By default, a new id is created. */
  readonly spanId?: string;
  /**
   * The id of the parent span. By default, the submit is the parent. Null for the submit itself.
   */
  readonly parentId?: string | null | undefined;
  readonly name: string;
  readonly kind?: 'server' | 'client';
  readonly durationMs: number;
  /**
   * Attributes are ids, codes, and numbers. They never contain an address, a URL, a name, or the
   * text of an error.
   */
  readonly attributes?: Readonly<Record<string, string | number | null | undefined>>;
  readonly isError?: boolean;
  /** The span in the client's own trace from which the client called us. */
  readonly link?:
    | { readonly traceId: string; readonly spanId: string | undefined }
    | undefined;
}

export const spans = channel('npi-email-enrichment:spans');
export const publishSpan = (span: Span) => spans.publish(span);

export const newSpanId = () => randomBytes(8).toString('hex');
/** Returns the span id of a batch or a request: the random half of its id. */
export const spanIdOf = (id: string) => uuidOf(id).slice(16);

/** The span of the work that is running now, and its batch. */
const here = new AsyncLocalStorage<{
  readonly batchId: string;
  readonly spanId: string;
}>();

/**
 * Runs `work`, and records it as a child of the current span. If the work does not belong to a
 * batch, no span is recorded.
 * @param outcomeOf returns the parts of the span that depend on the result
 */
export async function traced<T>(
  span: Pick<Span, 'name'> & Partial<Span>,
  work: () => Promise<T>,
  outcomeOf: (result: T) => Partial<Span> = () => ({}),
): Promise<T> {
  const outer = here.getStore();
  const batchId = span.batchId ?? outer?.batchId;
  if (!spans.hasSubscribers || batchId === undefined) {
    return await work();
  }
  const spanId = newSpanId();
  const begun = performance.now();
  const end = (outcome: Partial<Span>) =>
    publishSpan({
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
    // Records the error's code, never its text. Activities throw an error of the category BENIGN to
    // be called again later. Such an error is not a failure.
    const { type, name, category } = Object(error);
    end({ attributes: { 'error.type': type ?? name }, isError: category !== 'BENIGN' });
    throw error;
  }
}

/**
 * Returns the trace id and the span id to add to a log line. A line without a batch id belongs to
 * the batch of the current span.
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
  const form =
    /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}$/;
  const found = form.exec(String(header));
  if (!found?.[1]) return undefined;
  return { traceId: found[1], spanId: found[2] };
}
