import { setTimeout } from 'node:timers/promises';
import type { Logger } from 'pino';
import { Agent, request } from 'undici';
import { uuidOf } from '../db/ids.ts';
import { newSpanId, type Span, spanIdOf, spans } from '../db/traces.ts';
import type { Config } from './config/config.ts';
import { repeat } from './main.ts';

// Sends spans to an OpenTelemetry collector by OTLP/HTTP as JSON
// (opentelemetry.io/docs/specs/otlp). OpenTelemetry's SDK can't be used because it generates the
// ids of spans. We derive ours from the work that a span describes.

const [EVERY_MS, TIMEOUT_MS] = [1000, 10_000];
/** A few megabytes. Spans that do not fit are lost, and the log says how many. */
const [SPANS_AT_MOST, SPANS_AT_ONCE] = [10_000, 1000];
/** Limit for sending the last spans before the process exits. */
const CLOSE_MS = 2000;

/**
 * Starts to send the spans of this process, if a collector is configured. No other work waits for
 * the collector, and the queue of unsent spans is bounded.
 * @param service the service's name if no setting gives one
 * @returns null if no collector is configured; `close` sends the spans that are left
 */
export function sendTraces(config: Config, service: string, log: Logger) {
  const { otlpUrl, tracesUrl, serviceName, tracesShare } = config;
  const url = tracesUrl ?? (otlpUrl && `${otlpUrl}/v1/traces`);
  if (url === null) return null;
  const headers = { ...Object.fromEntries(config.otlpHeaders), 'content-type': 'application/json' };
  const about = {
    ...Object.fromEntries(config.resourceAttributes),
    'service.name': serviceName ?? service,
  };
  const resource = { attributes: attributesOf(about) };
  const scope = { name: 'npi-email-enrichment' };
  // A separate agent, because this process's global one resolves hosts without the system's search
  // list.
  const dispatcher = new Agent();
  const queue: object[] = [];
  let lost = 0;

  const take = (message: unknown) => {
    const span = message as Span;
    // Samples by the random end of the trace id, so that every process decides the same (W3C Trace
    // Context, level 2).
    if (Number.parseInt(uuidOf(span.batchId).slice(18), 16) / 2 ** 56 >= tracesShare) return;
    if (queue.length < SPANS_AT_MOST) queue.push(otlp(span));
    else lost += 1;
  };
  const send = async () => {
    while (queue.length > 0) {
      const some = queue.slice(0, SPANS_AT_ONCE);
      const body = JSON.stringify({
        resourceSpans: [{ resource, scopeSpans: [{ scope, spans: some }] }],
      });
      const signal = AbortSignal.timeout(TIMEOUT_MS);
      const answer = await request(url, { method: 'POST', headers, body, signal, dispatcher });
      await answer.body.dump();
      const { statusCode } = answer;
      // Drops spans that the collector rejects for good. Sending them again would not help.
      if (statusCode < 500 && statusCode !== 429) queue.splice(0, some.length);
      if (statusCode >= 300) throw Object.assign(new Error(), { code: `HTTP_${statusCode}` });
      if (lost > 0) log.warn({ lost }, 'spans were lost: the collector was away or too slow');
      lost = 0;
    }
  };
  const ending = new AbortController();
  spans.subscribe(take);
  const sending = repeat('sending traces', EVERY_MS, { signal: ending.signal, log }, send);
  return {
    async close(): Promise<void> {
      ending.abort();
      spans.unsubscribe(take);
      const last = sending.then(send).catch(() => {});
      await Promise.race([last, setTimeout(CLOSE_MS)]);
    },
  };
}

/** Returns a span in OTLP's format. The span ends now. */
function otlp({
  batchId,
  spanId,
  parentId,
  name,
  kind,
  durationMs,
  attributes,
  isError,
  link,
}: Span) {
  const now = Date.now();
  return {
    traceId: uuidOf(batchId),
    spanId: spanId ?? newSpanId(),
    ...(parentId !== null && { parentSpanId: parentId ?? spanIdOf(batchId) }),
    name,
    kind: { internal: 1, server: 2, client: 3 }[kind ?? 'internal'],
    startTimeUnixNano: nanos(now - durationMs),
    endTimeUnixNano: nanos(now),
    attributes: attributesOf(attributes ?? {}),
    links: link ? [link] : [],
    status: isError ? { code: 2 } : {},
  };
}

/** Returns nanoseconds as text, because a number has too few digits. */
const nanos = (ms: number) => `${Math.round(ms * 1000)}000`;

function attributesOf(attributes: NonNullable<Span['attributes']>) {
  const given = Object.entries(attributes).filter(
    ([, value]) => value !== null && value !== undefined,
  );
  return given.map(([key, value]) => ({
    key,
    value: typeof value === 'number' ? { intValue: String(value) } : { stringValue: value },
  }));
}
