import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import Joi from 'joi';
import type { Logger } from 'pino';
import { isSandbox } from '../../db/accounts/organizations.ts';
import { type Changes, endOf } from '../../db/connection/changes.ts';
import type { Database } from '../../db/connection/client.ts';
import {
  envelopeText,
  findEnvelope,
  findEnvelopeState,
} from '../../db/requests/envelope.ts';
import { type BatchStart, markStarted } from '../../db/requests/outbox.ts';
import {
  type SubmitCommand,
  type SubmitOutcome,
  type SubmitRules,
  submit,
} from '../../db/requests/submit.ts';
import type { SubmittedAs, TestOutcome } from '../../db/words.ts';
import { keyRefusal } from '../http/auth.ts';
import { canonicalJson, readBody } from '../http/json-body.ts';
import { applied, holdUntil, preferredWait, prefersResults } from '../http/prefer.ts';
import { bulkBody, parseBody, type SubmitBody, singleBody } from '../http/submit-body.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { check, PARAMETERS, problemAt } from '../http/validation.ts';
import { invalid, problem } from '../problems.ts';
import { type Starter, startNewBatch } from '../temporal.ts';

export interface SubmitDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly starter: Starter;
  readonly rules: SubmitRules;
  readonly forbids: (url: URL) => boolean;
  /** Returns the outcome that an NPI has in a sandbox. */
  readonly testOutcomeOf: (npi: string) => TestOutcome;
  readonly changes: Changes;
}

interface SubmitHeaders {
  readonly 'Idempotency-Key': string | null;
  /** The outcome of all NPIs of a sandbox submit. Null if the outcome depends on each NPI. */
  readonly 'Test-Outcome': TestOutcome | null;
}

const HEADERS = Joi.object<SubmitHeaders>({
  'Idempotency-Key': PARAMETERS['Idempotency-Key'],
  'Test-Outcome': PARAMETERS['Test-Outcome'],
});

/** Returns the handlers of single and bulk submits (api/docs/lifecycle.md, Submitting). */
export function submitHandlers(deps: SubmitDeps) {
  return {
    submitSingle: (request, h) => accept(request, h, 'single', singleBody, deps),
    submitBulk: (request, h) => accept(request, h, 'bulk', bulkBody, deps),
  } satisfies Record<string, Lifecycle.Method>;
}

async function accept(
  request: Request,
  h: ResponseToolkit,
  submittedAs: SubmittedAs,
  schema: Joi.ObjectSchema,
  deps: SubmitDeps,
): Promise<ResponseObject> {
  const { organizationId } = request.auth.credentials;
  const { value: header, problems } = check('header', HEADERS, {
    'Idempotency-Key': request.headers['idempotency-key'],
    'Test-Outcome': request.headers['test-outcome'],
  });
  // With a live key, the submit would buy a real lookup instead of the outcome.
  if (header['Test-Outcome'] !== null && !isSandbox(organizationId))
    throw invalid([problemAt(['header', 'Test-Outcome'], 'Test-Outcome live')]);
  const bytes = await readBody(request.raw.req);
  // The body is parsed only when the request has its turn in the queue. Parsing many bodies that
  // arrive together would block the process and delay all other requests.
  const outcome = await request.app.place.inTurn(async () => {
    const body = parseBody(request, bytes, schema, deps.forbids, problems);
    const command = commandFor(request, submittedAs, body, header, deps.testOutcomeOf);
    return await submit(deps.db, command, deps.rules);
  });
  switch (outcome.kind) {
    case 'accepted':
      await startAccepted(request, outcome, deps);
      return await respond(request, h, outcome.response, deps);
    case 'repeated': {
      const response = await respond(request, h, outcome.response, deps);
      return response.header('idempotent-replayed', 'true');
    }
    case 'mismatch':
      throw invalid([
        problemAt(['header', 'Idempotency-Key'], 'Idempotency-Key mismatch'),
      ]);
    case 'running':
      throw problem('idempotency_in_progress', { wait: 1 });
    case 'closed':
      throw problem('api_key_revoked');
    case 'insufficient': {
      const { required, available, held } = outcome;
      const shortfall = required - available;
      throw problem('insufficient_credits', { required, available, held, shortfall });
    }
    default:
      return outcome satisfies never;
  }
}

function commandFor(
  request: Request,
  submittedAs: SubmittedAs,
  body: SubmitBody,
  header: SubmitHeaders,
  testOutcomeOf: SubmitDeps['testOutcomeOf'],
): SubmitCommand {
  const { organizationId, keyId: apiKeyId } = request.auth.credentials;
  const forced = header['Test-Outcome'];
  const outcomes = body.npis.map((npi) => forced ?? testOutcomeOf(npi));
  return {
    organizationId,
    apiKeyId,
    submittedAs,
    ...body,
    outcomes: isSandbox(organizationId) ? outcomes : null,
    isOutcomeForced: forced !== null,
    idempotency: idempotencyOf(request, body, header),
  };
}

function idempotencyOf(
  { route }: Request,
  body: SubmitBody,
  header: SubmitHeaders,
): SubmitCommand['idempotency'] {
  if (header['Idempotency-Key'] === null) return null;
  return {
    // A key may be sent with or without quotes. The quotes are not part of the key.
    key: header['Idempotency-Key'].replace(/^"(.*)"$/, '$1'),
    method: 'POST',
    path: route.path,
    fingerprint: fingerprint(body, header['Test-Outcome']),
  };
}

/**
 * Returns a hash of the content of a submit. Submits with the same content have the same hash, even
 * if their JSON is formatted differently.
 */
function fingerprint(
  { npis, requestedType, webhook, customData }: SubmitBody,
  forced: string | null,
): Buffer {
  const meaning = {
    npis,
    requestedType,
    forced,
    webhook: webhook && { url: webhook.url, mode: webhook.mode },
  };
  const data = customData === null ? 'null' : canonicalJson(customData);
  return hash('sha256', `${canonicalJson(JSON.stringify(meaning))}${data}`, 'buffer');
}

/** Logs a new batch, and starts its workflow unless the batch waits for its turn. */
async function startAccepted(
  request: Request,
  { start: batch, isAdmitted }: Extract<SubmitOutcome, { kind: 'accepted' }>,
  deps: SubmitDeps,
): Promise<void> {
  request.app.batchId = batch.batchId;
  const line = {
    organization_id: request.auth.credentials.organizationId,
    key_id: request.auth.credentials.keyId,
    batch_id: batch.batchId,
    total: batch.npis.length,
  };
  deps.log.info(line, 'batch accepted');
  if (isAdmitted) await startNow(deps, batch, request.info.received);
}

/**
 * The deadline for starting the workflow of a batch, in milliseconds after the arrival of the
 * submit. The 202 must be sent within two seconds of the arrival, so time in the queue is included.
 * A submit waits for the start because this slows clients down to the speed at which Temporal
 * starts workflows. In a test without this wait, at five times the load that the service can carry,
 * throughput fell to a third.
 */
const TEMPORAL_MS = 1400;

/**
 * Starts the workflow of a batch. The batch is already committed. If the start fails here, the
 * reconciler's sweep starts the workflow later.
 */
async function startNow(
  { db, log, starter }: SubmitDeps,
  batch: BatchStart,
  receivedAt: number,
): Promise<void> {
  const deadline = Math.max(receivedAt + TEMPORAL_MS, Date.now() + 300);
  const isStarted = await starter.start(
    (...temporal) => startNewBatch(...temporal, batch),
    deadline,
  );
  if (!isStarted) return;
  // This is not awaited, so that it doesn't delay the response.
  void markStarted(db, batch.batchId).catch((error) => {
    log.warn(
      { err: error, batch_id: batch.batchId },
      'the batch could not be marked as started; the sweep repeats its start',
    );
  });
}

/**
 * Returns the response to a submit. If the client sent `Prefer: wait`, first waits until the batch
 * is final or the wait is over. With `return=representation`, a final batch is returned as an
 * envelope with status 200. Otherwise the response is the 202, with the status of the batch at the
 * end of the wait.
 * @param text the body of the 202, as it is stored for the Idempotency-Key
 */
async function respond(
  request: Request,
  h: ResponseToolkit,
  text: string,
  { db, log, changes }: SubmitDeps,
): Promise<ResponseObject> {
  const accepted = (body: string) => h.response(body).code(202).type('application/json');
  const wait = preferredWait(request);
  const isAsked = prefersResults(request);
  if (!wait && !isAsked) return accepted(text);
  const body: Accepted = JSON.parse(text);
  const { organizationId } = request.auth.credentials;
  const batch = { organizationId, batchId: body.batch_id };
  let isFinal = body.status === 'completed';
  try {
    // If the key becomes invalid, the wait ends, but the batch is still accepted.
    const look = async () => {
      if ((await keyRefusal(request, db)) !== null) return true;
      isFinal = (await findEnvelopeState(db, batch))?.isFinal === true;
      return isFinal;
    };
    // `until=change` has no meaning for a submit, because the 202 shows nothing that could change
    // before the end.
    const watched = endOf(batch.batchId);
    if (wait) {
      await holdUntil(request, changes, watched, wait.seconds, look);
    }
    if (isFinal && isAsked) {
      const envelope = await readInTurn(request, () => findEnvelope(db, batch));
      if (envelope) {
        const results = h.response(envelopeText(envelope, 'poll'));
        return applied(results.type('application/json'), untilEnd(wait), true);
      }
    }
  } catch (error) {
    // The batch is already accepted, so the response must be 202 even if the wait fails.
    log.warn({ err: error, batch_id: batch.batchId }, 'wait ended early');
  }
  if (isFinal) body.status = 'completed';
  return applied(accepted(JSON.stringify(body)), untilEnd(wait));
}

/** The fields of the 202 that are read here. */
interface Accepted {
  readonly batch_id: string;
  status: 'in-progress' | 'completed';
}

function untilEnd(wait: ReturnType<typeof preferredWait>) {
  return wait && ({ seconds: wait.seconds, until: 'end' } as const);
}
