import { AsyncLocalStorage } from 'node:async_hooks';
import { randomBytes } from 'node:crypto';
import { channel } from 'node:diagnostics_channel';
import { isId, uuidOf } from './ids.ts';

// What every folder does for a batch, as spans of one trace. Their places follow from our ids: the
// trace is the batch, its root the submit, and requests are below that. So nothing of it passes
// through Temporal, no workflow knows of it, and what a sweep, another version or a worker of three
// days later does is in the same trace. While nobody listens to `spans` (`sendTraces` of
// deploy/traces.ts does), nothing is made.

/** Something that was done for a batch, and has just ended. */
export interface Span {
  readonly batchId: string;
  /** A new one, if it is left out. */
  readonly spanId?: string;
  /** The submit, if it is left out; null for the submit itself. */
  readonly parentId?: string | null | undefined;
  readonly name: string;
  readonly kind?: 'server' | 'client';
  readonly durationMs: number;
  /** Ids, codes and numbers: never an address, a URL, a name or the text of an error. */
  readonly attributes?: Readonly<Record<string, string | number | null | undefined>>;
  readonly isError?: boolean;
  /** The client's own span, in a trace of its own. */
  readonly link?: { readonly traceId: string; readonly spanId: string | undefined } | undefined;
}

export const spans = channel('npi-email-enrichment:spans');
export const tellSpan = (span: Span) => spans.publish(span);

export const newSpanId = () => randomBytes(8).toString('hex');
/** The span that stands for a batch or a request, by the half of its id that is random. */
export const spanIdOf = (id: string) => uuidOf(id).slice(16);

/** The span in which this runs. */
const here = new AsyncLocalStorage<{ readonly batchId: string; readonly spanId: string }>();

/**
 * Makes a span of what is done for a batch, below the span in which it is done. What is done for
 * none has no span.
 * @param outcomeOf what the span says of the result
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
  const end = (outcome: Partial<Span>) => {
    const durationMs = performance.now() - begun;
    const attributes = { ...span.attributes, ...outcome.attributes };
    tellSpan({
      parentId: outer?.spanId,
      ...span,
      ...outcome,
      batchId,
      spanId,
      durationMs,
      attributes,
    });
  };
  try {
    const result = await here.run({ batchId, spanId }, work);
    end(outcomeOf(result));
    return result;
  } catch (error) {
    // Its code and never its text. What Temporal has as benign is no fault but waiting.
    const { type, name, category } = Object(error);
    end({ attributes: { 'error.type': type ?? name }, isError: category !== 'BENIGN' });
    throw error;
  }
}

/**
 * The trace and the span of a line of the log, by its batch or else by the activity that writes it.
 */
export function traceOfLine(line: { readonly batch_id?: unknown }) {
  if (!spans.hasSubscribers) return {};
  const span = here.getStore();
  const batchId = String(line.batch_id ?? span?.batchId);
  if (!isId('bat', batchId)) return {};
  return { trace_id: uuidOf(batchId), ...(span?.batchId === batchId && { span_id: span.spanId }) };
}

/** The span of a `traceparent` header (W3C Trace Context, 3.2.2), if it can be read. */
export function parseTraceparent(header: unknown) {
  const form = /^[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}$/;
  const [, traceId, spanId] = form.exec(String(header)) ?? [];
  return traceId ? { traceId, spanId } : undefined;
}
