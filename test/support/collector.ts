import { createServer } from 'node:http';
import { json } from 'node:stream/consumers';
import { LOOPBACK, listenOn } from '../../deploy/local/processes.ts';

/** A span as OTLP spells it in JSON (opentelemetry-proto, trace.proto), its attributes as one object. */
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
  /** The process it is from. */
  readonly resource: Readonly<Record<string, string | number>>;
}

/** One export as it arrived. */
export interface Export {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
  readonly spans: readonly ReceivedSpan[];
}

interface KeyValue {
  readonly key: string;
  readonly value: { readonly stringValue?: string; readonly intValue?: string };
}

const objectOf = (attributes: readonly KeyValue[]) =>
  Object.fromEntries(
    attributes.map(({ key, value }) => [key, value.stringValue ?? Number(value.intValue)] as const),
  );

export type Collector = Awaited<ReturnType<typeof startCollector>>;

/**
 * An OpenTelemetry collector, as far as OTLP/HTTP with JSON goes. `POST /v1/traces` is answered with `answers`, as long
 * as it says so, else with 200.
 * @param answers statuses, the first one first; `silence` is no answer
 */
export async function startCollector(...answers: (number | 'silence')[]) {
  const exports: Export[] = [];
  let hungUp = 0;
  const server = createServer(async (request, response) => {
    response.once('close', () => {
      if (!response.writableEnded) hungUp += 1;
    });
    const body = (await json(request)) as {
      resourceSpans: { resource: { attributes: KeyValue[] }; scopeSpans: { spans: Raw[] }[] }[];
    };
    if (`${request.method} ${request.url} ${request.headers['content-type']}` !== EXPECTED) {
      return response.writeHead(404).end();
    }
    const answer = answers.length > 1 ? answers.shift() : answers[0];
    const spans = body.resourceSpans.flatMap(({ resource, scopeSpans }) =>
      scopeSpans.flatMap((scope) =>
        scope.spans.map((span) => ({
          ...span,
          attributes: objectOf(span.attributes),
          resource: objectOf(resource.attributes),
        })),
      ),
    );
    exports.push({ headers: request.headers, text: JSON.stringify(body), spans });
    if (answer !== 'silence')
      response.writeHead(answer ?? 200, { 'content-type': 'application/json' }).end('{}');
    return response;
  });
  const { port, close } = await listenOn(server, 0, 'the collector');
  return {
    url: `http://${LOOPBACK}:${port}`,
    exports,
    spans: () => exports.flatMap((one) => one.spans),
    /** How many were given up by the sender. */
    hungUp: () => hungUp,
    /** From now on. */
    answer: (...statuses: (number | 'silence')[]) => void answers.splice(0, answers.length, ...statuses),
    stop: close,
  };
}

type Raw = Omit<ReceivedSpan, 'attributes' | 'resource'> & { readonly attributes: KeyValue[] };

const EXPECTED = 'POST /v1/traces application/json';
