import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import Joi from 'joi';
import type { Logger } from 'pino';
import { isSandbox } from '../../db/accounts/organizations.ts';
import { type Changes, endOf } from '../../db/changes.ts';
import type { Database } from '../../db/client.ts';
import {
  envelopeText,
  findEnvelope,
  findEnvelopeState,
} from '../../db/requests/envelope.ts';
import { type BatchStart, markStarted } from '../../db/requests/outbox.ts';
import {
  type SubmitCommand,
  type SubmitRules,
  submit,
} from '../../db/requests/submit.ts';
import {
  REQUESTED_TYPES,
  type SubmittedAs,
  type TestOutcome,
  WEBHOOK_MODES,
} from '../../db/words.ts';
import { keyRefusal } from '../http/auth.ts';
import {
  canonicalJson,
  jsonDepth,
  memberText,
  parseJson,
  readBody,
} from '../http/json-body.ts';
import {
  applied,
  hasUnknownPreference,
  holdUntil,
  isStrict,
  preferredWait,
  prefersResults,
} from '../http/prefer.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { check, ignoredFields, PARAMETERS, unknownFields } from '../http/validation.ts';
import { faultOfUrl, MAX_URL_LENGTH, URL_START } from '../http/webhook-url.ts';
import { invalid, type Problem, problem } from '../problems.ts';
import { type Starter, startBatch } from '../temporal.ts';

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

const TEST_OUTCOME_OF_LIVE_KEY: Problem = {
  loc: ['header', 'Test-Outcome'],
  msg: 'Test-Outcome needs a test key. Remove the header, or use a key that begins with npe_test_',
  type: 'test_outcome_needs_test_key',
};

type SubmitBody = Pick<
  SubmitCommand,
  'npis' | 'requestedType' | 'webhook' | 'customData'
>;

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
    throw invalid([TEST_OUTCOME_OF_LIVE_KEY]);
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
      await startAccepted(request, outcome.start, deps);
      return await respond(request, h, outcome.response, deps);
    case 'repeated': {
      const response = await respond(request, h, outcome.response, deps);
      return response.header('idempotent-replayed', 'true');
    }
    case 'mismatch':
      throw invalid([
        {
          loc: ['header', 'Idempotency-Key'],
          msg: 'Idempotency-Key was already used with a different body',
          type: 'idempotency_key_mismatch',
        },
      ]);
    case 'running':
      throw problem('idempotency_in_progress', { wait: 1 });
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

/** Logs a new batch and starts its workflow. */
async function startAccepted(
  request: Request,
  batch: BatchStart,
  deps: SubmitDeps,
): Promise<void> {
  request.app.batchId = batch.batchId;
  const line = {
    organization_id: request.auth.credentials.organizationId,
    batch_id: batch.batchId,
    total: batch.npis.length,
  };
  deps.log.info(line, 'batch accepted');
  await startNow(deps, batch, request.info.received);
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
    if (wait) await holdUntil(request, changes, watched, wait.seconds, look);
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
    (...temporal) => startBatch(...temporal, batch),
    deadline,
  );
  if (!isStarted) return;
  // This is not awaited, so that it doesn't delay the response.
  void markStarted(db, batch.batchId).catch((error) => {
    log.warn(
      { err: error, batch_id: batch.batchId },
      'batch not marked as started, the sweep will',
    );
  });
}

function parseBody(
  request: Request,
  bytes: Buffer,
  schema: Joi.ObjectSchema,
  forbids: SubmitContext['forbids'],
  headerProblems: readonly Problem[],
): SubmitBody {
  const body = parseJson(bytes);
  if ('loc' in body) throw invalid([body, ...headerProblems]);
  request.app.ignoredFields = ignoredFields(schema, body.value);
  const context: SubmitContext = {
    customData: memberText(body.text, 'custom_data'),
    forbids,
  };
  const { value, problems } = check('body', schema, body.value, context);
  const all = [
    ...problems,
    ...strictProblems(request, schema, body.value),
    ...headerProblems,
  ];
  if (all.length > 0) throw invalid(all, hintFor(schema, body.value));
  return {
    // Only one of `npi` and `npis` is a field of the schema. The value of the other one was not
    // checked.
    npis: schema === singleBody ? [value.npi] : value.npis,
    requestedType: value.enrichment_email_type,
    webhook: value.webhook ?? null,
    customData: value.custom_data === undefined ? null : context.customData,
  };
}

/** The number of unknown fields that are reported. A body can have thousands. */
const MAX_UNKNOWN = 20;

/**
 * Returns the problems that only a client with `Prefer: handling=strict` gets: unknown fields and
 * unknown preferences.
 */
function strictProblems(
  request: Request,
  schema: Joi.ObjectSchema,
  body: unknown,
): Problem[] {
  if (!isStrict(request)) return [];
  const problems = unknownFields(schema, body).slice(0, MAX_UNKNOWN);
  if (hasUnknownPreference(request)) {
    const msg = 'Prefer should have wait, until, return or handling. Remove the others';
    problems.push({ loc: ['header', 'Prefer'], msg, type: 'preference_unknown' });
  }
  return problems;
}

/** Returns advice that is not in the messages of the problems, or null. */
function hintFor(schema: Joi.ObjectSchema, body: unknown): string | null {
  const { npi, npis }: Readonly<Record<string, unknown>> = Object(body);
  if (schema === singleBody && npi === undefined && npis !== undefined)
    return 'npis is a field of POST /api/v1/email/bulk. Use npi here, one string';
  if (schema === bulkBody && npis === undefined && npi !== undefined)
    return 'npi is a field of POST /api/v1/email. Use npis here, a list of strings';
  if ([npi, npis].flat().some(isPadded)) return 'Remove the spaces around the NPI';
  return null;
}

function isPadded(npi: unknown): boolean {
  return typeof npi === 'string' && npi.trim() !== npi && /^[0-9]{10}$/.test(npi.trim());
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

// Joi schemas of the request bodies (api/docs/lifecycle.md, Submitting). The OpenAPI document is
// generated from them. `meta({ jsonSchema })` describes a custom rule in that document
// (openapi/schemas.ts).

/** Values that the custom rules need in addition to the parsed body. */
interface SubmitContext {
  /** The text of `custom_data` as it was sent. */
  readonly customData: string | null;
  /**
   * Returns true if deliveries to the URL are forbidden, because its host is a forbidden IP address
   * or an internal name.
   */
  readonly forbids: (url: URL) => boolean;
}

const MAX_NPIS = 60;
const MAX_CUSTOM_DATA_BYTES = 16 * 1024;
const MAX_CUSTOM_DATA_DEPTH = 32;

interface SubmitHeaders {
  readonly 'Idempotency-Key': string | null;
  /** The outcome of all NPIs of a sandbox submit. Null if the outcome depends on each NPI. */
  readonly 'Test-Outcome': TestOutcome | null;
}

const HEADERS = Joi.object<SubmitHeaders>({
  'Idempotency-Key': PARAMETERS['Idempotency-Key'],
  'Test-Outcome': PARAMETERS['Test-Outcome'],
});

const npi = Joi.string()
  .pattern(/^[0-9]{10}$/)
  .description('National Provider Identifier: 10 ASCII digits.')
  .example('1234567893');

const url = Joi.string()
  .description(
    'The address of your receiver: https, without user name or password, at a public address.',
  )
  .example('https://example.com/hooks/email')
  // JSON Schema can express only a part of the rule below.
  .meta({
    jsonSchema: { format: 'uri', pattern: URL_START.source, maxLength: MAX_URL_LENGTH },
  })
  .custom((text: string, helpers) => {
    const fault = faultOfUrl(text, contextOf(helpers).forbids);
    if (fault !== null) return helpers.error(fault, { limit: MAX_URL_LENGTH });
    return text;
  });

export const webhookMode = Joi.string()
  .valid(...WEBHOOK_MODES)
  .description(
    '`real-time` (the default) sends one delivery per NPI as it finishes, `batch` one when the whole batch is final.',
  )
  .meta({ name: 'WebhookMode' });

const webhook = Joi.object({
  url: url.required(),
  mode: webhookMode.empty(null).default('real-time'),
})
  .unknown()
  .description('The receiver of the results. Without it, poll for them.')
  .meta({ name: 'WebhookTarget' });

export const customData = Joi.object()
  .unknown()
  .description(
    `Any JSON object of at most ${MAX_CUSTOM_DATA_BYTES} bytes as sent and ${MAX_CUSTOM_DATA_DEPTH} levels. Polls and deliveries return it exactly as sent.`,
  )
  .example({ order: 17 })
  .meta({ name: 'CustomData', jsonSchema: { additionalProperties: true } });

const common = {
  enrichment_email_type: Joi.string()
    .valid(...REQUESTED_TYPES)
    .empty(null)
    .default('any')
    .description(
      'The requested type. An email of another type is not returned. `any` (the default) prefers professional.',
    )
    .meta({ name: 'RequestedType' }),
  webhook: webhook.empty(null),
  custom_data: customData.empty(null).custom((value: object, helpers) => {
    const text = contextOf(helpers).customData ?? '';
    if (Buffer.byteLength(text) > MAX_CUSTOM_DATA_BYTES)
      return helpers.error('dict.too_large', { limit: MAX_CUSTOM_DATA_BYTES });
    if (jsonDepth(text) > MAX_CUSTOM_DATA_DEPTH)
      return helpers.error('dict.too_deep', { limit: MAX_CUSTOM_DATA_DEPTH });
    return value;
  }),
};

/** The body of `POST /api/v1/email`. */
export const singleBody = Joi.object({ npi: npi.required(), ...common })
  .unknown()
  .meta({ name: 'SingleSubmit' });

const npis = Joi.array()
  .items(npi)
  .min(1)
  .max(MAX_NPIS)
  .description('Each entry becomes a request, even if an NPI occurs twice.');

/**
 * The body of `POST /api/v1/email/bulk`. If the list is too long, its items are not checked,
 * because reporting many invalid items would block the process.
 */
export const bulkBody = Joi.object({
  npis: Joi.array()
    .when('.', {
      is: Joi.array().max(MAX_NPIS),
      then: npis,
      otherwise: Joi.array().max(MAX_NPIS),
    })
    .required()
    .meta({ accepts: npis }),
  ...common,
})
  .unknown()
  .meta({ name: 'BulkSubmit' });

function contextOf(helpers: Joi.CustomHelpers): SubmitContext {
  return helpers.prefs.context as SubmitContext;
}
