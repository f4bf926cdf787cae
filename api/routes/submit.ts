import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
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
  WEBHOOK_MODES,
} from '../../db/words.ts';
import { keyRefusal } from '../http/auth.ts';
import { canonicalJson, jsonDepth, memberText, parseJson, readBody } from '../http/json-body.ts';
import { applied, holdUntil, preferredWait } from '../http/prefer.ts';
import { check, ignoredFields, PARAMETERS } from '../http/validation.ts';
import { invalid, type Problem, problem } from '../problems.ts';
import { type Starter, startBatch } from '../temporal.ts';

export interface SubmitDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly start: Starter;
  readonly rules: SubmitRules;
  readonly forbids: (url: URL) => boolean;
  /** What an NPI comes to in a sandbox. */
  readonly testOutcomeOf: (npi: string) => TestOutcome;
  readonly changes: Changes;
}

type SubmitBody = Pick<SubmitCommand, 'npis' | 'wantedType' | 'webhook' | 'customData'>;

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
  const { headers, route } = request;
  const { value: header, problems } = check('header', HEADERS, {
    'Idempotency-Key': headers['idempotency-key'],
    // A live key has none.
    'Test-Outcome': isSandbox(organizationId) ? headers['test-outcome'] : undefined,
  });
  const bytes = await readBody(request.raw.req);
  // Quotes around the key are none of it.
  const key = header['Idempotency-Key']?.replace(/^"(.*)"$/, '$1') ?? null;
  const forced = header['Test-Outcome'];
  // Parsed in its turn: of bodies that come all at once, that would keep everybody else waiting.
  const outcome = await request.app.place.inTurn(async () => {
    const body = parseBody(request, bytes, schema, deps.forbids, problems);
    const command: SubmitCommand = {
      ...{ organizationId, apiKeyId, submittedAs, ...body },
      outcomes: isSandbox(organizationId) ? body.npis.map((npi) => forced ?? deps.testOutcomeOf(npi)) : null,
      idempotency:
        key === null
          ? null
          : { key, method: 'POST', path: route.path, fingerprint: fingerprint(body, forced) },
    };
    return await submit(deps.db, command, deps.rules);
  });
  const accepted = (response: string) => h.response(response).code(202).type('application/json');
  switch (outcome.kind) {
    case 'accepted': {
      const { batchId } = outcome.start;
      request.app.batchId = batchId;
      deps.log.info(
        { organization_id: organizationId, batch_id: batchId, total: outcome.start.npis.length },
        'batch accepted',
      );
      await startNow(deps, outcome.start, request.info.received);
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
      return applied(accepted(outcome.response), wait);
    }
    case 'repeated':
      return accepted(outcome.response).header('idempotent-replayed', 'true');
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

/**
 * A 202 comes within two seconds: of a submit that waited for its turn, Temporal has what is left of these. Submits wait
 * for it at all so that they come no faster than it takes them: without that, five times the capacity left a third of it.
 */
const TEMPORAL_MS = 1400;

/** The batch is committed: whatever happens here, the sweep starts what this does not. */
async function startNow(
  { db, log, start }: SubmitDeps,
  batch: BatchStart,
  receivedAt: number,
): Promise<void> {
  const deadline = Math.max(receivedAt + TEMPORAL_MS, Date.now() + 300);
  if (!(await start((...temporal) => startBatch(...temporal, batch), deadline))) return;
  // Nobody waits for it.
  void markStarted(db, batch.batchId).catch((error) => {
    log.warn({ err: error, batch_id: batch.batchId }, 'batch not marked as started, the sweep will');
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
  const context: SubmitContext = { customData: memberText(body.text, 'custom_data'), forbids };
  const { value, problems } = check('body', schema, body.value, context);
  const all = [...problems, ...headerProblems];
  if (all.length > 0) throw invalid(all, hintFor(schema, body.value));
  return {
    // The other name is an unknown field there, which nothing has checked.
    npis: schema === singleBody ? [value.npi] : value.npis,
    wantedType: value.enrichment_email_type,
    webhook: value.webhook ?? null,
    customData: value.custom_data === undefined ? null : context.customData,
  };
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

/** Two submits that mean the same have the same fingerprint, whatever their spelling. */
function fingerprint({ npis, wantedType, webhook, customData }: SubmitBody, forced: string | null): Buffer {
  const meaning = { npis, wantedType, forced, webhook: webhook && { url: webhook.url, mode: webhook.mode } };
  const data = customData === null ? 'null' : canonicalJson(customData);
  return hash('sha256', `${canonicalJson(JSON.stringify(meaning))}${data}`, 'buffer');
}

// The bodies (api/docs/lifecycle.md, Submitting) as joi schemas. The OpenAPI document is made from them:
// `meta({ jsonSchema })` says what a custom rule checks (openapi/schemas.ts).

/** What joi cannot see in the parsed value. */
interface SubmitContext {
  /** The text of `custom_data` as it was sent. */
  readonly customData: string | null;
  /** True for a URL whose literal address or inner name deliveries may not reach. */
  readonly forbids: (url: URL) => boolean;
}

const MAX_NPIS = 60;
const MAX_CUSTOM_DATA_BYTES = 16 * 1024;
const MAX_CUSTOM_DATA_DEPTH = 32;
const MAX_URL_LENGTH = 2048;

const HEADERS = Joi.object<{
  readonly 'Idempotency-Key': string | null;
  /** What a sandbox's submit is to come to, whatever its NPIs are; null if they decide. */
  readonly 'Test-Outcome': TestOutcome | null;
}>({
  'Idempotency-Key': PARAMETERS['Idempotency-Key'],
  'Test-Outcome': Joi.string()
    .valid(...TEST_OUTCOMES)
    .default(null),
});

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
    if (text.length > MAX_URL_LENGTH) return helpers.error('url.too_long', { limit: MAX_URL_LENGTH });
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
    if (Buffer.byteLength(text) > MAX_CUSTOM_DATA_BYTES)
      return helpers.error('dict.too_large', { limit: MAX_CUSTOM_DATA_BYTES });
    return jsonDepth(text) > MAX_CUSTOM_DATA_DEPTH
      ? helpers.error('dict.too_deep', { limit: MAX_CUSTOM_DATA_DEPTH })
      : value;
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

function contextOf(helpers: Joi.CustomHelpers): SubmitContext {
  return helpers.prefs.context as SubmitContext;
}
