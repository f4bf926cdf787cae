import { setTimeout } from 'node:timers/promises';
import {
  DiagLogLevel,
  diag,
  type Link,
  type SpanContext,
  SpanKind,
  SpanStatusCode,
  TraceFlags,
} from '@opentelemetry/api';
import { millisToHrTime, setGlobalErrorHandler } from '@opentelemetry/core';
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http';
import { type Resource, resourceFromAttributes } from '@opentelemetry/resources';
import { BatchSpanProcessor, type ReadableSpan } from '@opentelemetry/sdk-trace';
import type { Logger } from 'pino';
import { uuidOf } from '../db/connection/ids.ts';
import { newSpanId, type Span, spanIdOf, spans } from '../db/connection/traces.ts';
import { type Config, serviceVersion } from './config/config.ts';

// Sends spans to an OpenTelemetry collector by OTLP/HTTP as JSON. OpenTelemetry's SDK queues,
// retries, and sends them. It doesn't create them, because it would generate random span ids. Ours
// are derived from the id of the batch or request that the span describes.

const EVERY_MS = 1000;
/**
 * Maximum number of unsent spans in the queue. So many spans take a few megabytes. Spans that do
 * not fit are dropped, and the log says how many.
 */
const MAX_WAITING_SPANS = 10_000;
/** Time limit for sending the last spans before the process exits. */
const CLOSE_MS = 2000;

const SCOPE = { name: 'npi-email-enrichment' };
const LOST = 'spans were lost: the collector was unavailable, or it rejected them';

/**
 * Starts to send the spans of this process to a collector, if one is configured. Spans are sent in
 * the background, so a slow collector delays no other work.
 * @param service the service name in the traces, unless OTEL_SERVICE_NAME is set
 * @returns null if no collector is configured. `close` sends the remaining spans
 */
export function sendTraces(config: Config, service: string, log: Logger) {
  const url = urlOf(config);
  if (url === null) return null;
  logFailures(log);
  const headers = Object.fromEntries(config.otlpHeaders);
  const processor = new BatchSpanProcessor({
    exporter: new OTLPTraceExporter({ url, headers }),
    scheduledDelayMillis: EVERY_MS,
    maxQueueSize: MAX_WAITING_SPANS,
  });
  const resource = resourceOf(config, service);
  const add = (message: unknown) => {
    const span = message as Span;
    if (isSampled(span, config.tracesShare)) {
      processor.onEnd(finished(span, resource));
    }
  };
  spans.subscribe(add);
  return {
    async close(): Promise<void> {
      spans.unsubscribe(add);
      const last = processor.shutdown().catch((err) => log.warn({ err }, LOST));
      await Promise.race([last, setTimeout(CLOSE_MS)]);
    },
  };
}

function urlOf({ tracesUrl, otlpUrl }: Config): string | null {
  if (tracesUrl !== null) return tracesUrl;
  if (otlpUrl === null) return null;
  return `${otlpUrl}/v1/traces`;
}

/** Logs what OpenTelemetry reports: failed exports, dropped spans, and wrong settings. */
function logFailures(log: Logger): void {
  setGlobalErrorHandler((err) => log.warn({ err }, LOST));
  const ignore = () => {};
  const warn = (...parts: unknown[]) =>
    // Other parts than texts may be responses of the collector.
    log.warn(parts.filter((part) => typeof part === 'string').join(': '));
  const logger = { error: warn, warn, info: ignore, debug: ignore, verbose: ignore };
  const options = { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true };
  diag.setLogger(logger, options);
}

function resourceOf(
  { resourceAttributes, serviceName }: Config,
  service: string,
): Resource {
  return resourceFromAttributes({
    'service.version': serviceVersion(),
    ...Object.fromEntries(resourceAttributes),
    'service.name': serviceName ?? service,
  });
}

/**
 * Returns true if the trace of the span is sampled. The decision depends only on the random part of
 * the trace id, so every process decides the same (W3C Trace Context, level 2).
 */
function isSampled({ batchId }: Span, share: number): boolean {
  return Number.parseInt(uuidOf(batchId).slice(18), 16) / 2 ** 56 < share;
}

const KINDS = {
  internal: SpanKind.INTERNAL,
  server: SpanKind.SERVER,
  client: SpanKind.CLIENT,
};

/** Converts a span to OpenTelemetry's format. The span ends at the current time. */
function finished(span: Span, resource: Resource): ReadableSpan {
  const { batchId, spanId, name, kind = 'internal', durationMs, attributes = {} } = span;
  const now = Date.now();
  const traceId = uuidOf(batchId);
  const context = contextOf(traceId, spanId ?? newSpanId());
  const root: ReadableSpan = {
    name,
    kind: KINDS[kind],
    spanContext: () => context,
    startTime: millisToHrTime(now - durationMs),
    endTime: millisToHrTime(now),
    duration: millisToHrTime(durationMs),
    ended: true,
    attributes: withoutEmpty(attributes),
    links: linksOf(span),
    status: { code: span.isError ? SpanStatusCode.ERROR : SpanStatusCode.UNSET },
    events: [],
    droppedAttributesCount: 0,
    droppedEventsCount: 0,
    droppedLinksCount: 0,
    resource,
    instrumentationScope: SCOPE,
  };
  const parentId = parentOf(span);
  if (parentId === null) return root;
  return { ...root, parentSpanContext: contextOf(traceId, parentId) };
}

function contextOf(traceId: string, spanId: string): SpanContext {
  return { traceId, spanId, traceFlags: TraceFlags.SAMPLED };
}

/** Returns the id of the parent span, or null for a root span. */
function parentOf({ batchId, parentId }: Span): string | null {
  if (parentId === null) return null;
  return parentId ?? spanIdOf(batchId);
}

function linksOf({ link }: Span): Link[] {
  if (link?.spanId === undefined) return [];
  return [{ context: contextOf(link.traceId, link.spanId) }];
}

/** Leaves out attributes without a value. */
function withoutEmpty(attributes: NonNullable<Span['attributes']>) {
  const given: Record<string, string | number> = {};
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) given[key] = value;
  }
  return given;
}
