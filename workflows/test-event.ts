import type { TestEventInput, TestEventResult } from './messages.ts';
import { postTestEvent } from './options.ts';

/** Sends one test event from the console. Runs on the webhooks queue. */
export async function sendTestEvent(event: TestEventInput): Promise<TestEventResult> {
  return await postTestEvent(event);
}
