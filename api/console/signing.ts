import { randomUUID } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Logger } from 'pino';
import { requireRightKey } from '../../db/accounts/secret-keys.ts';
import { encryptSecret, SecretUnreadable } from '../../db/accounts/secrets.ts';
import {
  rotateWebhookSecret,
  showWebhookSecret,
  type WebhookSecret,
} from '../../db/accounts/webhook-secrets.ts';
import type { Database } from '../../db/connection/client.ts';
import { Refusal } from '../../db/connection/errors.ts';
import { inventedId } from '../../db/connection/ids.ts';
import { type ChangedBy, recordReading } from '../../db/operations/audit.ts';
import type { TestEventResult } from '../../workflows/messages.ts';
import { TurnQueue } from '../http/turn-queue.ts';
import { faultOfUrl } from '../http/webhook-url.ts';
import { type Starter, startNewTestEvent } from '../temporal.ts';
import { attemptText } from './deliveries.ts';
import { page, timeElement } from './page.ts';
import { fieldsOf } from './session.ts';
import OUTCOMES from './test-outcomes.json' with { type: 'json' };

// The secret that signs deliveries, and test events. The forms are on the page of webhooks, and each
// response has the forms again, with what happened.

export interface SigningDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly starter: Starter;
  /** Returns true if deliveries to the URL are forbidden, because its host is a private one. */
  readonly forbids: (url: URL) => boolean;
  /** The page of a test event responds within this time. */
  readonly testEventMs: number;
}

/**
 * A customer can wait for one test event at a time. Test events do not take the slots that limit
 * deliveries, and each can keep a worker busy for the time of a whole attempt.
 */
const TESTS = {
  maxRunning: 20,
  maxRunningPerClient: 1,
  maxPerClient: 3,
  maxTotal: 100,
} as const;

/** The workflow of a test event ends this long before its page, so that the page has its result. */
const MARGIN_MS = 1000;

/** The status and the content of the page that a form leads to. */
interface Outcome {
  readonly status: number;
  readonly shown: object;
}

/** Returns the handlers of the forms. */
export function signingHandlers(deps: SigningDeps) {
  const tests = new TurnQueue(TESTS);
  return {
    show: (request, h) => respond(deps, request, h, showSecret(deps, request)),
    rotate: (request, h) => respond(deps, request, h, rotateSecret(deps, request)),
    test: async (request, h) => {
      // The place is for a short write, and a test event waits for a receiver.
      request.app.place.leave();
      const { customerId } = request.app.caller;
      const begun = Date.now();
      const outcome = tests.inTurn(customerId, () => sendTest(deps, request));
      const shown = await respond(deps, request, h, outcome);
      request.app.waitedMs = Date.now() - begun;
      return shown;
    },
  } satisfies Record<string, Lifecycle.Method>;
}

async function respond(
  { log }: SigningDeps,
  request: Request,
  h: ResponseToolkit,
  outcome: Promise<Outcome>,
): Promise<ResponseObject> {
  const { status, shown } = await orUnreadable(log, outcome);
  return page(request, h, 'signing', {
    title: 'Webhooks',
    testForm: randomUUID(),
    ...shown,
  }).code(status);
}

/**
 * Returns the actor for the audit log. It has no name of a key, because the log stays when an
 * organization is erased.
 */
function changedBy(request: Request): ChangedBy {
  return { actor: request.app.caller.keyId, reason: 'console' };
}

/** Makes the page say that SECRETS_KEY of this process is wrong. */
async function orUnreadable(log: Logger, work: Promise<Outcome>): Promise<Outcome> {
  try {
    return await work;
  } catch (error) {
    if (!(error instanceof SecretUnreadable)) throw error;
    const { message } = error;
    log.error(`the console cannot use webhook secrets: ${message}`);
    return { status: 500, shown: { isUnreadable: true } };
  }
}

async function showSecret({ db }: SigningDeps, request: Request): Promise<Outcome> {
  const { organizationId } = request.app.caller;
  const secret = await request.app.place.inTurn(async () => {
    const found = await showWebhookSecret(db, organizationId);
    await recordReading(db, changedBy(request), {
      action: 'webhook-secret.show',
      organizationId,
      subject: organizationId,
    });
    return found;
  });
  return { status: 200, shown: shownSecret(secret) };
}

async function rotateSecret({ db }: SigningDeps, request: Request): Promise<Outcome> {
  const { organizationId } = request.app.caller;
  // The form that rotates again names the overlap that it ends. So sent twice, it rotates once.
  const end = new Date(Number(fieldsOf(request).ends));
  const force = !Number.isNaN(end.getTime()) && end;
  try {
    const secret = await request.app.place.inTurn(() =>
      rotateWebhookSecret(db, changedBy(request), organizationId, force),
    );
    const shown = { ...shownSecret(secret), isRotated: true };
    return { status: 200, shown };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (error.code !== 'rotation_too_soon') throw error;
    const tooSoon = timeElement(error.until);
    return { status: 409, shown: { tooSoon, ends: error.until?.getTime() } };
  }
}

function shownSecret(secret: WebhookSecret) {
  return {
    secret: secret.webhookSecret,
    previousUntil: timeElement(secret.previousSecretValidUntil),
  };
}

async function sendTest(
  { db, forbids, starter, testEventMs }: SigningDeps,
  request: Request,
): Promise<Outcome> {
  const { organizationId } = request.app.caller;
  const form = fieldsOf(request);
  const url = String(form.url ?? '').trim();
  // A worker also checks where a public name leads.
  const fault = faultOfUrl(url, forbids);
  if (fault !== null) {
    const isPrivate = fault === 'url.forbidden';
    return { status: 422, shown: { url, isWrongUrl: true, isPrivate } };
  }
  const { secretKeys } = db;
  await requireRightKey(db, secretKeys);
  // The same form has the same id, so it sends one test event.
  const seed = [organizationId, form.test_form, url];
  const testId = inventedId('msg', JSON.stringify(seed));
  const target = encryptSecret(secretKeys, testId, url);
  const event = { testId, organizationId, target };
  const workMs = testEventMs - MARGIN_MS;
  const result = await starter.execute<TestEventResult>(
    (client, queue) => startNewTestEvent(client, queue, event, workMs),
    testId,
    Date.now() + testEventMs,
  );
  const test = { id: testId, ...shownResult(result) };
  return { status: 200, shown: { url, test } };
}

/** Returns the words for the result of a test event. */
function shownResult(result: TestEventResult | 'away' | 'late') {
  if (typeof result === 'string') {
    return { text: OUTCOMES[result] };
  }
  if (result.kind === 'unsent') {
    return { text: OUTCOMES[result.why] };
  }
  const { statusCode, durationMs, reason } = result;
  return {
    // Also a proven receiver reaches this limit by test events.
    text: reason === 'unproven_host' ? OUTCOMES.unproven_host : attemptText(reason),
    statusCode,
    durationMs,
    hasDuration: true,
    isDelivered: /^2/.test(String(statusCode)),
  };
}
