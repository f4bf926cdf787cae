import { createServer } from 'node:http';
import { json } from 'node:stream/consumers';
import { LOOPBACK, listenOn } from '../../deploy/ports.ts';

/**
 * A span as in OTLP's JSON (opentelemetry-proto, trace.proto), with its attributes as one object.
 */
export interface ReceivedSpan {
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId?: string;
  readonly name: string;
  readonly kind: number;
  readonly startTimeUnixNano: string;
  readonly endTimeUnixNano: string;
  readonly attributes: Readonly<Record<string, string | number>>;
  readonly links: readonly object[];
  readonly status: { readonly code?: number };
  /** The resource of the process that sent the span. */
  readonly resource: Readonly<Record<string, string | number>>;
}

/** One export as it arrived, and the status of its response. */
export interface Export {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
  readonly spans: readonly ReceivedSpan[];
  readonly reply: number | 'silence';
}

interface KeyValue {
  readonly key: string;
  readonly value: { readonly stringValue?: string; readonly intValue?: string };
}

const objectOf = (attributes: readonly KeyValue[]) =>
  Object.fromEntries(
    attributes.map(
      ({ key, value }) => [key, value.stringValue ?? Number(value.intValue)] as const,
    ),
  );

/**
 * Starts an OpenTelemetry collector for OTLP/HTTP with JSON: `POST /v1/traces`.
 * @param replies statuses of the responses in turn, of which the last one repeats; 200 by default
 */
export async function startCollector(...replies: Export['reply'][]) {
  const exports: Export[] = [];
  let hungUp = 0;
  const server = createServer(async (request, response) => {
    response.once('close', () => {
      if (!response.writableEnded) hungUp += 1;
    });
    if (
      `${request.method} ${request.url} ${request.headers['content-type']}` !== EXPECTED
    ) {
      return response.writeHead(404).end();
    }
    const { resourceSpans } = (await json(request)) as { resourceSpans: RawResource[] };
    const spans = resourceSpans.flatMap(({ resource, scopeSpans }) =>
      scopeSpans.flatMap((scope) =>
        scope.spans.map((span) => ({
          ...span,
          attributes: objectOf(span.attributes),
          resource: objectOf(resource.attributes),
        })),
      ),
    );
    const reply = (replies.length > 1 ? replies.shift() : replies[0]) ?? 200;
    exports.push({
      headers: request.headers,
      text: JSON.stringify(resourceSpans),
      spans,
      reply,
    });
    return reply === 'silence' ? response : response.writeHead(reply).end('{}');
  });
  const { port, close } = await listenOn(server, 0, 'the collector');
  return {
    url: `http://${LOOPBACK}:${port}`,
    exports,
    /** Returns the spans that the collector accepted. */
    spans: () => exports.flatMap(({ reply, spans }) => (reply === 200 ? spans : [])),
    /** Returns the number of senders that gave up. */
    hungUp: () => hungUp,
    /** Replaces the statuses of all further responses. */
    respond: (...others: Export['reply'][]) =>
      void replies.splice(0, replies.length, ...others),
    stop: close,
  };
}

interface RawResource {
  readonly resource: { readonly attributes: readonly KeyValue[] };
  readonly scopeSpans: readonly {
    readonly spans: readonly (Omit<ReceivedSpan, 'attributes' | 'resource'> & {
      readonly attributes: readonly KeyValue[];
    })[];
  }[];
}

const EXPECTED = 'POST /v1/traces application/json';
