import { SecretUnreadable } from '../db/accounts/secrets.ts';
import { admitToAddresses } from '../db/webhooks/networks.ts';
import {
  type AdmittedTest,
  admitTestEvent,
  noteTestEvent,
  uncountTestEvent,
} from '../db/webhooks/test-events.ts';
import type {
  TestEventInput,
  TestEventResult,
  UnsentReason,
} from '../workflows/messages.ts';
import { countAttempt, healthOf, type WebhookDeps } from './deliver.ts';
import { CountedTooLate } from './webhooks/attempt.ts';
import { type AttemptResult, reasonOf } from './webhooks/post.ts';
import { isDelivered } from './webhooks/retry.ts';
import { signedHeaders } from './webhooks/signature.ts';

/** Returns the activity that sends test events of the console. */
export function createTestEventActivities(deps: WebhookDeps) {
  return {
    /** Makes the only attempt of a test event, by the rules of deliveries. */
    postTestEvent: (input: TestEventInput) => postTestEvent(deps, input),
  };
}

async function postTestEvent(
  deps: WebhookDeps,
  input: TestEventInput,
): Promise<TestEventResult> {
  const { db, log, rules } = deps;
  const ids = {
    delivery_id: input.testId,
    organization_id: input.organizationId,
  };
  try {
    const admitted = await admitTestEvent(db, input, rules);
    if (admitted.kind === 'wait') return unsent(admitted.why);
    const { event } = admitted;
    const result = await send(deps, input.testId, event);
    log.info({ ...ids, ...result }, 'webhook test event');
    return result;
  } catch (error) {
    if (!(error instanceof SecretUnreadable)) throw error;
    log.error(ids, error.message);
    return unsent('secret_unreadable');
  }
}

function unsent(why: UnsentReason): TestEventResult {
  return { kind: 'unsent', why };
}

type Event = Extract<AdmittedTest, { kind: 'go' }>['event'];

async function send(
  { db, post, rules }: WebhookDeps,
  id: string,
  { host, url, body, secrets, blocked, at }: Event,
): Promise<TestEventResult> {
  const { organizationId } = host;
  let counted: readonly string[] = [];
  // A test event counts even for a proven host. Otherwise nothing would limit test events to it.
  const admit = async (addresses: readonly string[]) => {
    counted = await admitToAddresses(db, organizationId, addresses);
    return counted;
  };
  const headers = signedHeaders({ id, body, secrets }, at);
  const begun = performance.now();
  try {
    const result = await post({ url, headers, body, blocked, admit });
    const ms = Math.round(performance.now() - begun);
    const health = healthOf(result, rules.webhookScheduleMs);
    if (health) await noteTestEvent(db, host, health);
    return report(result, ms);
  } catch (error) {
    if (!(error instanceof CountedTooLate)) throw error;
    await uncountTestEvent(db, organizationId, counted);
    return unsent('counted_too_late');
  }
}

/** Counts an attempt as one of a delivery, and returns its result. */
function report(result: AttemptResult, durationMs: number): TestEventResult {
  const reason = reasonOf(result);
  const statusCode = result.kind === 'responded' ? result.status : null;
  const isAccepted = statusCode !== null && isDelivered(statusCode);
  countAttempt(isAccepted ? 'delivered' : (reason ?? 'none'), durationMs);
  return { kind: 'sent', statusCode, reason, durationMs };
}
