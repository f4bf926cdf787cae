import test from 'ava';
import { testSetting } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { status } from '../../support/receiver.ts';
import { startRelay } from '../../support/relay.ts';
import { startStack } from '../../support/stack.ts';
import { ordinaryNpis } from '../../support/vendors.ts';

test('while Temporal is down, only one submit at a time waits for a workflow to start', async (t) => {
  const [host = '', port] = testSetting('TEST_TEMPORAL_ADDRESS').split(':');
  const relay = await startRelay({ host, port: Number(port) });
  t.teardown(() => relay.close());
  const lines: string[] = [];
  const stack = await startStack({
    apiTemporalAddress: `${relay.host}:${relay.port}`,
    sweepIntervalMs: 1000,
    onLog: (line) => lines.push(line),
  });
  t.teardown(() => stack.stop());
  const client = await stack.organization();
  const batches: string[] = [];
  // NPIs that were found before would be completed at the submit, without Temporal.
  const npis = ordinaryNpis('found', 1000, 800_000);
  const submit = async () => {
    const begun = performance.now();
    const { status, json } = await client.single({ npi: npis.pop() });
    t.is(status, 202);
    batches.push(json.batch_id);
    return performance.now() - begun;
  };
  const said = (text: string) =>
    lines.map((line) => JSON.parse(line)).filter(({ msg }) => msg === text);

  relay.cut();
  const first = await submit();
  const others: number[] = [];
  for (let n = 0; n < 5; n += 1) others.push(await submit());
  // A submit that waits for Temporal responds after 1.4 s. One of the others may take that long on
  // a busy machine.
  t.true(
    first >= 1300 && others.filter((ms) => ms >= 1300).length <= 1,
    `${first}: ${others}`,
  );
  // Some seconds later one submit tries Temporal again.
  await eventually(async () => (await submit()) >= 1300 || null);
  const told = await eventually(
    async () =>
      said('workflows cannot be started; the sweep starts them later')[0] ?? null,
  );
  t.regex(told.why, /^Temporal at .*; .*TEMPORAL_/);

  relay.mend();
  await eventually(async () => {
    await submit();
    return said('workflows can be started again')[0] ?? null;
  });
  t.is(said('workflows cannot be started; the sweep starts them later').length, 1);
  for (const id of batches) await client.completed(id);

  // The start of this workflow continues after the response. It must end when the stack stops, or
  // the SDK throws an uncaught error.
  relay.cut();
  await submit();
});

interface DeliveryView {
  readonly id: string;
  readonly status: string;
  readonly decided_at: string | null;
  readonly next_attempt_at: string | null;
  readonly attempts: readonly object[];
}

test("resending a waiting webhook sends it now, even if the API can't reach Temporal", async (t) => {
  const lonely = await startStack({
    apiTemporalAddress: '127.0.0.1:1',
    sweepIntervalMs: 1000,
    webhookScheduleMs: [0, 3_600_000],
  });
  try {
    const client = await lonely.organization();
    lonely.receiver.setBehavior('/hook', status(500));
    const webhook = { url: `${lonely.receiver.url}/hook` };
    // A wrong check digit, so that no vendor has to be called.
    const { json } = await client.single({ npi: '1000000010', webhook });
    const path = `/api/v1/batch/${json.batch_id}/deliveries`;
    const delivery = async () => {
      const { json } = await client.get<{ deliveries: DeliveryView[] }>(path);
      return json.deliveries[0];
    };
    const waiting = await eventually(async () => {
      const one = await delivery();
      return one?.attempts.length === 1 && one.next_attempt_at !== null ? one : null;
    });
    t.like(waiting, { status: 'pending', decided_at: null });
    const inMs = Date.parse(String(waiting.next_attempt_at)) - Date.now();
    t.true(inMs > 0.75 * 3_600_000 && inMs < 1.25 * 3_600_000, `${inMs} ms`);

    lonely.receiver.setBehavior('/hook', null);
    const { status: code, json: resent } = await client.call(
      'POST',
      `${path}/${waiting.id}/resend`,
    );
    t.is(code, 202);
    t.like(resent, { status: 'pending', next_attempt_at: null });
    const over = await eventually(async () => {
      const one = await delivery();
      return one?.status === 'pending' ? null : one;
    });
    t.deepEqual(
      [over?.status, over?.attempts.length, over?.next_attempt_at],
      ['delivered', 2, null],
    );
  } finally {
    await lonely.stop();
  }
});
