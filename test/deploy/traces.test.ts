import test from 'ava';
import { newId } from '../../db/connection/ids.ts';
import { publishSpan } from '../../db/connection/traces.ts';
import { loadConfig } from '../../deploy/config/config.ts';
import { createLog } from '../../deploy/log.ts';
import { sendTraces } from '../../deploy/traces.ts';
import { startCollector } from '../support/collector.ts';
import { eventually } from '../support/organization.ts';

// Tests the export of spans to a collector that is unavailable, slow, or strict.
// test/system/traces.test.ts covers the content of spans.

/** Sends the spans of this process, and returns the lines of its log. */
function sender(url: string, environment: Readonly<Record<string, string>> = {}) {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => lines.push(line) });
  const OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = `${url}/v1/traces`;
  const given = {
    DATABASE_URL: 'postgres://db/x',
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT,
    ...environment,
  };
  const traces = sendTraces(loadConfig(given), 'test', log);
  return {
    said: () => lines.map((line) => JSON.parse(line)),
    close: async () => void (await traces?.close()),
  };
}

const tell = (batchId = newId('bat')) =>
  publishSpan({ batchId, name: 'test', durationMs: 1 });

test.serial(
  'at most 10,000 spans wait for an unreachable collector, and losses are logged',
  async (t) => {
    const away = await startCollector(503);
    const { said, close } = sender(away.url);
    // The first export takes 512 spans from the queue.
    for (let n = 0; n < 11_012; n += 1) tell();
    await eventually(async () => away.exports[0] ?? null);
    away.respond(200);
    await eventually(async () => (away.spans().length === 10_512 ? true : null));
    tell();
    await close();
    t.like(said(), [{ msg: 'Dropped 500 spans because maxQueueSize reached' }]);
    const taken = new Set(away.spans().map(({ spanId }) => spanId));
    t.is(taken.size, 10_513);
    await away.stop();
  },
);

test.serial(
  'spans that the collector rejects permanently are not sent again',
  async (t) => {
    const refusing = await startCollector(401, 200);
    const { said, close } = sender(refusing.url);
    tell();
    await eventually(async () => said().find(({ err }) => err?.code === 401) ?? null);
    t.true(said()[0].msg.startsWith('spans were lost'));
    tell();
    await close();
    t.deepEqual(
      refusing.exports.map(({ spans }) => spans.length),
      [1, 1],
    );
    await refusing.stop();
  },
);

test.serial(
  'trace sampling keeps all or no spans of a batch, and all processes agree which',
  async (t) => {
    const sampled = async () => {
      const sampling = await startCollector();
      const { close } = sender(sampling.url, { OTEL_TRACES_SAMPLER_ARG: '0.25' });
      for (const id of ids) {
        tell(id);
        tell(id);
      }
      await close();
      await sampling.stop();
      return sampling.spans().map(({ traceId }) => traceId);
    };
    const ids = Array.from({ length: 400 }, () => newId('bat'));
    const chosen = await sampled();
    const traces = new Set(chosen);
    t.is(chosen.length, 2 * traces.size);
    t.true(traces.size > 40 && traces.size < 160, String(traces.size));
    t.deepEqual(await sampled(), chosen);
  },
);

test.serial(
  'a process sends its last spans as it ends, without waiting for a response',
  async (t) => {
    const silent = await startCollector(200, 'silence');
    const first = sender(silent.url);
    tell();
    await first.close();
    t.is(silent.spans().length, 1);
    const second = sender(silent.url);
    tell();
    await second.close();
    // By now the server knows of every client that gave up earlier.
    t.is((await fetch(silent.url)).status, 404);
    t.is(silent.hungUp(), 0);
    await silent.stop();
  },
);

test.serial('without a collector no spans are created', async (t) => {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => lines.push(line) });
  t.is(sendTraces(loadConfig({ DATABASE_URL: 'postgres://db/x' }), 'test', log), null);
  log.info({ batch_id: newId('bat') }, 'told');
  t.false(lines.join('').includes('trace_id'));
});
