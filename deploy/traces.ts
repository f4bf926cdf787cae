import { setTimeout } from 'node:timers/promises';
import type { Logger } from 'pino';
import { Agent, request } from 'undici';
import { uuidOf } from '../db/connection/ids.ts';
import { newSpanId, type Span, spanIdOf, spans } from '../db/connection/traces.ts';
import { type Config, serviceVersion } from './config/config.ts';
import { repeat } from './main.ts';

// Sends spans to an OpenTelemetry collector by OTLP/HTTP as JSON
// (opentelemetry.io/docs/specs/otlp). We don't use OpenTelemetry's SDK, because it generates random
// span ids. Ours are derived from the id of the batch or request that the span describes.

const EVERY_MS = 1000;
const TIMEOUT_MS = 10_000;
/**
 * Maximum number of unsent spans in the queue. So many spans take a few megabytes. Spans that do
 * not fit are dropped, and the log says how many.
 */
const MAX_WAITING_SPANS = 10_000;
const MAX_SPANS_PER_REQUEST = 1000;
/** Time limit for sending the last spans before the process exits. */
const CLOSE_MS = 2000;

const SCOPE = { name: 'npi-email-enrichment' };
const LOST = 'spans were lost: the collector was unavailable or too slow';

/**
 * Starts to send the spans of this process to a collector, if one is configured. Spans are sent in
 * the background, so a slow collector delays no other work.
 * @param service the service name in the traces, unless OTEL_SERVICE_NAME is set
 * @returns null if no collector is configured. `close` sends the remaining spans
 */
export function sendTraces(config: Config, service: string, log: Logger) {
  const url = urlOf(config);
  if (url === null) return null;
  const exporter = new SpanExporter(url, service, config, log);
  const add = (message: unknown) => exporter.add(message as Span);
  const send = () => exporter.send();
  const ending = new AbortController();
  spans.subscribe(add);
  const sending = repeat(
    'sending traces',
    EVERY_MS,
    { signal: ending.signal, log },
    send,
  );
  return {
    async close(): Promise<void> {
      ending.abort();
      spans.unsubscribe(add);
      const last = sending.then(send).catch(() => {});
      await Promise.race([last, setTimeout(CLOSE_MS)]);
    },
  };
}

function urlOf({ tracesUrl, otlpUrl }: Config): string | null {
  if (tracesUrl !== null) return tracesUrl;
  if (otlpUrl === null) return null;
  return `${otlpUrl}/v1/traces`;
}

/** Queues spans and sends them to the collector. */
class SpanExporter {
  readonly #url: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #resource: object;
  readonly #share: number;
  readonly #log: Logger;
  /**
   * A separate HTTP agent, because the host of a collector is often a short name. The global agent
   * of this process can't resolve short names: it ignores the search domains of the system's DNS
   * configuration.
   */
  readonly #dispatcher = new Agent();
  readonly #queue: object[] = [];
  #lost = 0;

  constructor(url: string, service: string, config: Config, log: Logger) {
    const { otlpHeaders, resourceAttributes, serviceName, tracesShare } = config;
    this.#url = url;
    this.#headers = {
      ...Object.fromEntries(otlpHeaders),
      'content-type': 'application/json',
    };
    this.#resource = {
      attributes: attributesOf({
        'service.version': serviceVersion(),
        ...Object.fromEntries(resourceAttributes),
        'service.name': serviceName ?? service,
      }),
    };
    this.#share = tracesShare;
    this.#log = log;
  }

  add(span: Span): void {
    if (!isSampled(span, this.#share)) return;
    if (this.#queue.length < MAX_WAITING_SPANS) this.#queue.push(otlp(span));
    else this.#lost += 1;
  }

  /** Sends the whole queue. @throws if the collector does not accept it */
  async send(): Promise<void> {
    while (this.#queue.length > 0) {
      const some = this.#queue.slice(0, MAX_SPANS_PER_REQUEST);
      const statusCode = await this.#post(some);
      // Removes the spans from the queue if the collector accepted them. Also removes them after an
      // error other than 429 or 5xx, because the collector would reject them again.
      if (statusCode < 500 && statusCode !== 429) this.#queue.splice(0, some.length);
      if (statusCode >= 300) {
        throw Object.assign(new Error(), { code: `HTTP_${statusCode}` });
      }
      if (this.#lost > 0) this.#log.warn({ lost: this.#lost }, LOST);
      this.#lost = 0;
    }
  }

  /** Returns the status of the collector's response. */
  async #post(some: readonly object[]): Promise<number> {
    const scopeSpans = [{ scope: SCOPE, spans: some }];
    const { statusCode, body } = await request(this.#url, {
      method: 'POST',
      headers: this.#headers,
      body: JSON.stringify({ resourceSpans: [{ resource: this.#resource, scopeSpans }] }),
      signal: AbortSignal.timeout(TIMEOUT_MS),
      dispatcher: this.#dispatcher,
    });
    await body.dump();
    return statusCode;
  }
}

/**
 * Returns true if the trace of the span is sampled. The decision depends only on the random part of
 * the trace id, so every process decides the same (W3C Trace Context, level 2).
 */
function isSampled({ batchId }: Span, share: number): boolean {
  return Number.parseInt(uuidOf(batchId).slice(18), 16) / 2 ** 56 < share;
}

const KINDS = { internal: 1, server: 2, client: 3 };

/** Converts a span to OTLP's format. The span ends at the current time. */
function otlp(span: Span) {
  const { batchId, spanId, name, kind = 'internal', durationMs, attributes = {} } = span;
  const now = Date.now();
  return {
    traceId: uuidOf(batchId),
    spanId: spanId ?? newSpanId(),
    parentSpanId: parentOf(span),
    name,
    kind: KINDS[kind],
    startTimeUnixNano: nanos(now - durationMs),
    endTimeUnixNano: nanos(now),
    attributes: attributesOf(attributes),
    links: span.link ? [span.link] : [],
    status: span.isError ? { code: 2 } : {},
  };
}

/** Returns the id of the parent span, or undefined for a root span. */
function parentOf({ batchId, parentId }: Span): string | undefined {
  if (parentId === null) return undefined;
  return parentId ?? spanIdOf(batchId);
}

/**
 * Converts milliseconds to nanoseconds. Returns text, because a double cannot hold so many digits.
 */
const nanos = (ms: number) => `${Math.round(ms * 1000)}000`;

/** Converts attributes to OTLP's format. Attributes without a value are left out. */
function attributesOf(attributes: NonNullable<Span['attributes']>) {
  const given: { key: string; value: { intValue: string } | { stringValue: string } }[] =
    [];
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === 'number') {
      given.push({ key, value: { intValue: String(value) } });
    }
    if (typeof value === 'string') given.push({ key, value: { stringValue: value } });
  }
  return given;
}
