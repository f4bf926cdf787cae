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

/** One export as it arrived, and the status that it was answered with. */
export interface Export {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly text: string;
  readonly spans: readonly ReceivedSpan[];
  readonly answer: number | 'silence';
}

interface KeyValue {
  readonly key: string;
  readonly value: { readonly stringValue?: string; readonly intValue?: string };
}

const objectOf = (attributes: readonly KeyValue[]) =>
  Object.fromEntries(
    attributes.map(({ key, value }) => [key, value.stringValue ?? Number(value.intValue)] as const),
  );

/**
 * An OpenTelemetry collector, as far as OTLP/HTTP with JSON goes: `POST /v1/traces`.
 * @param answers what exports are answered with, the last of them again and again; 200 if there is none
 */
export async function startCollector(...answers: Export['answer'][]) {
  const exports: Export[] = [];
  let hungUp = 0;
  const server = createServer(async (request, response) => {
    response.once('close', () => {
      if (!response.writableEnded) hungUp += 1;
    });
    if (`${request.method} ${request.url} ${request.headers['content-type']}` !== EXPECTED) {
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
    const answer = (answers.length > 1 ? answers.shift() : answers[0]) ?? 200;
    exports.push({ headers: request.headers, text: JSON.stringify(resourceSpans), spans, answer });
    return answer === 'silence' ? response : response.writeHead(answer).end('{}');
  });
  const { port, close } = await listenOn(server, 0, 'the collector');
  return {
    url: `http://${LOOPBACK}:${port}`,
    exports,
    /** What it took. */
    spans: () => exports.flatMap(({ answer, spans }) => (answer === 200 ? spans : [])),
    /** How many senders gave up. */
    hungUp: () => hungUp,
    /** From now on. */
    answer: (...others: Export['answer'][]) => void answers.splice(0, answers.length, ...others),
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
