import { createHash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Client } from '@temporalio/client';
import Joi from 'joi';
import type { Logger } from 'pino';
import { isSandbox } from '../../db/accounts/organizations.ts';
import { type Changes, endOf } from '../../db/changes.ts';
import type { Database } from '../../db/client.ts';
import { findEnvelopeState } from '../../db/requests/envelope.ts';
import { type BatchStart, markStarted } from '../../db/requests/outbox.ts';
import { type SubmitCommand, type SubmitRules, submit } from '../../db/requests/submit.ts';
import {
  type SubmittedAs,
  TEST_OUTCOMES,
  type TestOutcome,
  WANTED_TYPES,
  type WantedType,
  WEBHOOK_MODES,
  type WebhookMode,
} from '../../db/words.ts';
import { keyRefusal } from '../http/auth.ts';
import { ignoredFields } from '../http/ignored-fields.ts';
import { canonicalJson, jsonDepth, memberText, readJson } from '../http/json-body.ts';
import { choices, type Parsed, valuesOf } from '../http/parameters.ts';
import { applied, holdUntil, preferredWait } from '../http/prefer.ts';
import { invalid, type Problem, problem } from '../problems.ts';
import { startBatch } from '../start.ts';
import type { Starter } from '../temporal.ts';

export interface SubmitDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly client: Client;
  readonly taskQueue: string;
  readonly start: Starter;
  readonly rules: SubmitRules;
  readonly forbids: (url: URL) => boolean;
  /** What an NPI comes to in a sandbox. */
  readonly testOutcomeOf: (npi: string) => TestOutcome;
  readonly changes: Changes;
}

/** Both submits (api/docs/lifecycle.md, Submitting). */
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
  const { organizationId, keyId: apiKeyId } = request.auth.credentials;
  const headers = { key: idempotencyKey(request), forced: testOutcome(request) };
  const headerProblems = Object.values(headers).flatMap((one) => ('problem' in one ? [one.problem] : []));
  const body = await parseBody(request, schema, deps.forbids, headerProblems);
  const { key, forced } = valuesOf(headers);
  const command: SubmitCommand = {
    organizationId,
    apiKeyId,
    submittedAs,
    ...body,
    outcomes: isSandbox(organizationId) ? body.npis.map((npi) => forced ?? deps.testOutcomeOf(npi)) : null,
    idempotency:
      key === null
        ? null
        : { key, method: 'POST', path: request.route.path, fingerprint: fingerprint(body, forced) },
  };
  const outcome = await request.app.place.inTurn(() => submit(deps.db, command, deps.rules));
  switch (outcome.kind) {
    case 'accepted': {
      const { batchId } = outcome.start;
      request.app.batchId = batchId;
      deps.log.info(
        { organization_id: organizationId, batch_id: batchId, total: body.npis.length },
        'batch accepted',
      );
      if (outcome.start.wakeAt) await start(deps, outcome.start, request.info.received);
      const preferred = preferredWait(request);
      // Of a submit every change is known but the end.
      const wait = preferred && { ...preferred, until: 'end' as const };
      // A key that ends meanwhile ends the wait; what was accepted with it stays accepted.
      const look = async () =>
        (await keyRefusal(request, deps.db)) !== null ||
        (await findEnvelopeState(deps.db, { organizationId, batchId }))?.isFinal === true;
      if (wait) {
        // It is accepted, and an answer other than 202 would deny it: a wait that fails is over.
        await holdUntil(request, deps.changes, endOf(batchId), wait.seconds, look).catch((error) => {
          deps.log.warn({ err: error, batch_id: batchId }, 'wait ended early');
        });
      }
      // Byte for byte what a repeated Idempotency-Key gets, waited for or not.
      return applied(h.response(outcome.response).code(202).type('application/json'), wait);
    }
    case 'repeated':
      return h
        .response(outcome.response)
        .code(202)
        .type('application/json')
        .header('idempotent-replayed', 'true');
    case 'mismatch':
      throw invalid([
        {
          loc: ['header', 'Idempotency-Key'],
          msg: 'Idempotency-Key was already used with a different body',
          type: 'idempotency_key_mismatch',
        },
      ]);
    case 'running':
      throw problem('idempotency_in_progress', { headers: { 'retry-after': '1' } });
    case 'insufficient': {
      const { required, available, held } = outcome;
      const values = { required, available, held, shortfall: required - available };
      throw problem('insufficient_credits', { values });
    }
    default:
      return outcome satisfies never;
  }
}

/** The batch is committed: whatever happens here, the sweep starts what this does not. */
async function start(deps: SubmitDeps, batch: BatchStart, receivedAt: number): Promise<void> {
  // A 202 comes within two seconds: of a submit that waited for its turn, Temporal has what is left of them.
  const deadline = Math.max(receivedAt + 1400, Date.now() + 300);
  try {
    const isStarted = await deps.start(() => startBatch(deps.client, deps.taskQueue, batch, { deadline }));
    if (isStarted) await markStarted(deps.db, batch);
  } catch (error) {
    deps.log.warn({ err: error, batch_id: batch.batchId }, 'batch not marked as started, the sweep will');
  }
}

async function parseBody(
  request: Request,
  schema: Joi.ObjectSchema,
  forbids: (url: URL) => boolean,
  headerProblems: readonly Problem[],
): Promise<SubmitBody> {
  const body = await readJson(request.raw.req);
  if ('loc' in body) throw invalid([body, ...headerProblems]);
  const { text, value } = body;
  request.app.ignoredFields = ignoredFields(schema, value);
  const customData =
    isObject(value) && Object.hasOwn(value, 'custom_data') ? memberText(text, 'custom_data') : null;
  const result = validateSubmit(schema, value, { customData, forbids });
  const problems = 'problems' in result ? result.problems : [];
  if ('problems' in result || headerProblems.length > 0)
    throw invalid([...problems, ...headerProblems], hintFor(schema, value));
  return result.value;
}

/** What the catalogue's words leave unsaid; null if nothing. */
function hintFor(schema: Joi.ObjectSchema, body: unknown): string | null {
  const { npi, npis }: Readonly<Record<string, unknown>> = Object(body);
  if (schema === singleBody && npi === undefined && npis !== undefined)
    return 'npis is a field of POST /api/v1/email/bulk; here it is npi, one string';
  if (schema === bulkBody && npis === undefined && npi !== undefined)
    return 'npi is a field of POST /api/v1/email; here it is npis, a list of strings';
  const isPadded = (one: unknown) =>
    typeof one === 'string' && one.trim() !== one && /^[0-9]{10}$/.test(one.trim());
  return [npi, npis].flat().some(isPadded) ? 'leave out the blanks around the NPI' : null;
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function idempotencyKey(request: Request): Parsed<string | null> {
  const header: unknown = request.headers['idempotency-key'];
  if (header === undefined) return { value: null };
  if (typeof header === 'string' && IDEMPOTENCY_KEY.test(header))
    return { value: header.replace(/^"(.*)"$/, '$1') };
  const msg = 'Idempotency-Key should have 1 to 255 visible ASCII characters';
  return { problem: { loc: ['header', 'Idempotency-Key'], msg, type: 'idempotency_key_invalid' } };
}

/** What a sandbox's submit is to come to, whatever its NPIs are; null if they decide. A live key has none. */
function testOutcome({ headers, auth }: Request): Parsed<TestOutcome | null> {
  const header: unknown = headers['test-outcome'];
  if (header === undefined || !isSandbox(auth.credentials.organizationId)) return { value: null };
  const value = TEST_OUTCOMES.find((one) => one === header);
  if (value) return { value };
  const msg = `Input should be ${choices(TEST_OUTCOMES)}`;
  return { problem: { loc: ['header', 'Test-Outcome'], msg, type: 'literal_error' } };
}

/** Two submits that mean the same have the same fingerprint, whatever their spelling. */
function fingerprint({ npis, wantedType, webhook, customData }: SubmitBody, forced: string | null): Buffer {
  const meaning = { npis, wantedType, forced, webhook: webhook && { url: webhook.url, mode: webhook.mode } };
  const data = customData === null ? 'null' : canonicalJson(customData);
  return createHash('sha256')
    .update(`${canonicalJson(JSON.stringify(meaning))}${data}`)
    .digest();
}

// The bodies (api/docs/lifecycle.md, Submitting) as joi schemas, and the translation of joi's findings into the 422
// catalogue (api/docs/errors.md, Errors). The OpenAPI document is made from them: `meta({ jsonSchema })` says what a custom
// rule checks (openapi/schemas.ts).

export interface SubmitBody {
  readonly npis: readonly string[];
  readonly wantedType: WantedType;
  readonly webhook: { readonly url: string; readonly mode: WebhookMode } | null;
  readonly customData: string | null;
}

/** What joi cannot see in the parsed value. */
export interface SubmitContext {
  /** The text of `custom_data` as it was sent. */
  readonly customData: string | null;
  /** True for a URL whose literal address or inner name deliveries may not reach. */
  readonly forbids: (url: URL) => boolean;
}

const MAX_NPIS = 60;
const MAX_CUSTOM_DATA_BYTES = 16 * 1024;
const MAX_CUSTOM_DATA_DEPTH = 32;
const MAX_URL_LENGTH = 2048;

/** 1 to 255 visible ASCII characters, quotes around them allowed (DECISIONS.md, Idempotency-Key). */
export const IDEMPOTENCY_KEY = /^(?:"[!-~]{1,255}"|(?!""$)[!-~]{1,255})$/;

const npi = Joi.string()
  .pattern(/^[0-9]{10}$/)
  .description('National Provider Identifier: 10 ASCII digits.')
  .example('1234567893');

const URL_START = /^[Hh][Tt][Tt][Pp][Ss]:\/\/[^/\\]/;

const url = Joi.string()
  .description(
    'Where deliveries go: https, without user name or password, and not to an address or a name that is not public.',
  )
  .example('https://example.com/hooks/email')
  // The rest of the rule cannot be said in JSON Schema.
  .meta({ jsonSchema: { format: 'uri', pattern: URL_START.source, maxLength: MAX_URL_LENGTH } })
  .custom((text: string, helpers) => {
    if (text.length > MAX_URL_LENGTH) return helpers.error('url.too_long');
    // A parser as lenient as URL drops white space and control characters; what is stored must be what is checked.
    if (!URL.canParse(text) || !text.isWellFormed() || /[\s\p{Cc}]/u.test(text))
      return helpers.error('url.parsing');
    const parsed = new URL(text);
    if (parsed.protocol !== 'https:') return helpers.error('url.scheme');
    // Such a parser also takes `https:///x` for a host x.
    if (!URL_START.test(text)) return helpers.error('url.parsing');
    if (parsed.username !== '' || parsed.password !== '') return helpers.error('url.userinfo');
    return contextOf(helpers).forbids(parsed) ? helpers.error('url.forbidden') : text;
  });

export const webhookMode = Joi.string()
  .valid(...WEBHOOK_MODES)
  .description(
    '`real-time`, if none is named: one delivery per NPI as it finishes. `batch`: one when the whole batch completes.',
  )
  .meta({ name: 'WebhookMode' });

const webhook = Joi.object({ url: url.required(), mode: webhookMode.empty(null).default('real-time') })
  .unknown()
  .description('Where results are sent; without it they are polled for.')
  .meta({ name: 'WebhookTarget' });

export const customData = Joi.object()
  .unknown()
  .description(
    `Any JSON object of at most ${MAX_CUSTOM_DATA_BYTES} bytes as sent and ${MAX_CUSTOM_DATA_DEPTH} levels; echoed in polls and deliveries exactly as submitted, number for number.`,
  )
  .example({ order: 17 })
  .meta({ name: 'CustomData', jsonSchema: { additionalProperties: true } });

const common = {
  enrichment_email_type: Joi.string()
    .valid(...WANTED_TYPES)
    .empty(null)
    .default('any')
    .description(
      'A filter: an email of another type is not returned. `any`, if none is named, prefers professional.',
    )
    .meta({ name: 'WantedType' }),
  webhook: webhook.empty(null),
  custom_data: customData.empty(null).custom((value: object, helpers) => {
    const text = contextOf(helpers).customData ?? '';
    if (Buffer.byteLength(text) > MAX_CUSTOM_DATA_BYTES) return helpers.error('dict.too_large');
    return jsonDepth(text) > MAX_CUSTOM_DATA_DEPTH ? helpers.error('dict.too_deep') : value;
  }),
};

/** `POST /api/v1/email` */
export const singleBody = Joi.object({ npi: npi.required(), ...common })
  .unknown()
  .meta({ name: 'SingleSubmit' });

const npis = Joi.array()
  .items(npi)
  .min(1)
  .max(MAX_NPIS)
  .description('One request each, also if an NPI occurs twice.');

/** `POST /api/v1/email/bulk`. Items of a list that is too long are not looked at: reporting them all would stall. */
export const bulkBody = Joi.object({
  npis: Joi.array()
    .when('.', { is: Joi.array().max(MAX_NPIS), then: npis, otherwise: Joi.array().max(MAX_NPIS) })
    .required()
    .meta({ accepts: npis }),
  ...common,
})
  .unknown()
  .meta({ name: 'BulkSubmit' });

/**
 * Validates a parsed body.
 * @returns the body in our own terms, or every problem in field order
 */
export function validateSubmit(
  schema: Joi.ObjectSchema,
  body: unknown,
  context: SubmitContext,
): { readonly value: SubmitBody } | { readonly problems: readonly Problem[] } {
  const { value, error } = schema.validate(body, { abortEarly: false, convert: false, context });
  if (error) return { problems: firstPerField(error.details).map(toProblem) };
  return {
    value: {
      // The other name is an unknown field there, which nothing has checked.
      npis: schema === singleBody ? [value.npi] : value.npis,
      wantedType: value.enrichment_email_type,
      webhook: value.webhook ?? null,
      customData: value.custom_data === undefined ? null : context.customData,
    },
  };
}

/** One entry per invalid field (api/docs/errors.md, Errors): of a wrong choice joi also says that it isn't a string. */
function firstPerField(details: readonly Joi.ValidationErrorItem[]): Joi.ValidationErrorItem[] {
  const fields = details.map(({ path }) => JSON.stringify(path));
  return details.filter((_, i) => fields.indexOf(fields[i] ?? '') === i);
}

function toProblem({ path, type, context }: Joi.ValidationErrorItem): Problem {
  const [ours, msg] = FINDINGS[`${path.at(-1)} ${type}`] ??
    FINDINGS[type] ?? ['value_error', 'Input is not valid'];
  return { loc: ['body', ...path], msg: msg.replace('{length}', String(context?.value?.length)), type: ours };
}

/** What joi finds, in the catalogue's words; with a field's name in front, for that field alone. */
const FINDINGS: Readonly<Record<string, readonly [type: string, msg: string]>> = {
  'any.required': ['missing', 'Field required'],
  'any.only': ['literal_error', `Input should be ${choices(WANTED_TYPES)}`],
  'mode any.only': ['literal_error', `Input should be ${choices(WEBHOOK_MODES)}`],
  'string.base': ['string_type', 'Input should be a valid string'],
  'string.empty': ['string_pattern_mismatch', "String should match pattern '^[0-9]{10}$'"],
  'string.pattern.base': ['string_pattern_mismatch', "String should match pattern '^[0-9]{10}$'"],
  'url string.empty': ['url_parsing', 'Input should be a valid URL'],
  'url.parsing': ['url_parsing', 'Input should be a valid URL'],
  'url.too_long': ['url_too_long', `URL should have at most ${MAX_URL_LENGTH} characters`],
  'url.scheme': ['url_scheme', "URL scheme should be 'https'"],
  'url.userinfo': ['url_userinfo', 'URL should not contain a user name or password'],
  'url.forbidden': ['url_forbidden', 'URL points to an address that deliveries may not reach'],
  'object.base': [
    'model_attributes_type',
    'Input should be a valid dictionary or object to extract fields from',
  ],
  'custom_data object.base': ['dict_type', 'Input should be a valid dictionary'],
  'dict.too_large': [
    'dict_too_large',
    `Dictionary should have at most ${MAX_CUSTOM_DATA_BYTES} bytes as JSON`,
  ],
  'dict.too_deep': ['dict_too_deep', `Dictionary should have at most ${MAX_CUSTOM_DATA_DEPTH} levels`],
  'array.base': ['list_type', 'Input should be a valid list'],
  'array.min': ['too_short', 'List should have at least 1 item after validation, not 0'],
  'array.max': ['too_long', `List should have at most ${MAX_NPIS} items after validation, not {length}`],
  'array.sparse': ['string_type', 'Input should be a valid string'],
};

function contextOf(helpers: Joi.CustomHelpers): SubmitContext {
  return helpers.prefs.context as SubmitContext;
}
