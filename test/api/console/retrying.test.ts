import test from 'ava';
import { fresh } from '../../support/database.ts';
import { eventually } from '../../support/organization.ts';
import { status } from '../../support/receiver.ts';
import { startStack } from '../../support/stack.ts';
import { Visitor } from '../../support/visitor.ts';

// Tests the console's page about a batch whose delivery waits an hour for its next attempt.

const stack = fresh(test, () => startStack({ webhookScheduleMs: [0, 3_600_000] }));

test('a delivery that waits for its next attempt can be sent at once', async (t) => {
  const client = await stack.organization(10);
  const path = '/waiting';
  stack.receiver.setBehavior(path, status(503));
  const webhook = { url: `${stack.receiver.url}${path}` };
  const { json } = await client.bulk({ npis: ['2000000010'], webhook });
  const visitor = new Visitor(stack.baseUrl);
  await visitor.signIn(client.apiKey);
  const look = () => visitor.get(`/console/batches/${json.batch_id}`);
  const { text, token } = await eventually(async () => {
    const page = await look();
    return page.text.includes('Next attempt: ') ? page : null;
  });
  stack.receiver.setBehavior(path, null);
  const resend = /action="([^"]+\/resend)"/.exec(text)?.[1] ?? '';
  await visitor.post(resend, { form_token: token });
  const page = await eventually(async () => {
    const { text } = await look();
    return text.includes('Your receiver accepted it.') ? text : null;
  });
  t.regex(page, /data-label="Attempts">2</);
});
