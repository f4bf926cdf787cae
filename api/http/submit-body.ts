import type { Request } from '@hapi/hapi';
import Joi from 'joi';
import pacing from '../../db/requests/pacing.json' with { type: 'json' };
import type { SubmitCommand } from '../../db/requests/submit.ts';
import { REQUESTED_TYPES, WEBHOOK_MODES } from '../../db/words.ts';
import { invalid, type Problem } from '../problems.ts';
import { jsonDepth, memberText, parseJson } from './json-body.ts';
import { hasUnknownPreference, isStrict } from './prefer.ts';
import {
  boundedList,
  check,
  ignoredFields,
  problemAt,
  unknownFields,
} from './validation.ts';
import { faultOfUrl, MAX_URL_LENGTH, URL_START } from './webhook-url.ts';

// Joi schemas of the request bodies (api/docs/lifecycle.md, Submitting). The OpenAPI document is
// generated from them. `meta({ jsonSchema })` describes a custom rule in that document
// (openapi/json-schema.ts).

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

/** A valid body, the same for single and bulk submits. */
export type SubmitBody = Pick<
  SubmitCommand,
  'npis' | 'requestedType' | 'webhook' | 'customData'
>;

/** The number of NPIs that one submit can have. */
export const MAX_NPIS = pacing.npisPerBatch;
const MAX_CUSTOM_DATA_BYTES = 16 * 1024;
const MAX_CUSTOM_DATA_DEPTH = 32;

const npi = Joi.string()
  .pattern(/^[0-9]{10}$/)
  .description('National Provider Identifier: 10 ASCII digits.')
  .example('1234567893');

const url = Joi.string()
  .description(
    'The address of your receiver: https, without user name or password, at a public address.',
  )
  .example('https://receiver.example/hooks/email')
  // JSON Schema can express only a part of the rule below.
  .meta({
    jsonSchema: { format: 'uri', pattern: URL_START.source, maxLength: MAX_URL_LENGTH },
  })
  .custom((text: string, helpers) => {
    const fault = faultOfUrl(text, contextOf(helpers).forbids);
    if (fault !== null) {
      return helpers.error(fault, { limit: MAX_URL_LENGTH });
    }
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

export const requestedType = Joi.string()
  .valid(...REQUESTED_TYPES)
  .description(
    'The requested type. An email of another type is not returned. `any` (the default) prefers professional.',
  )
  .meta({ name: 'RequestedType' });

const common = {
  enrichment_email_type: requestedType.empty(null).default('any'),
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

/** The body of `POST /api/v1/email/bulk`. */
export const bulkBody = Joi.object({
  npis: boundedList(
    npi,
    MAX_NPIS,
    'Each entry becomes a request, even if an NPI occurs twice.',
  ),
  ...common,
})
  .unknown()
  .meta({ name: 'BulkSubmit' });

function contextOf(helpers: Joi.CustomHelpers): SubmitContext {
  return helpers.prefs.context as SubmitContext;
}

/**
 * Parses and validates the body of a submit. Also notes the unknown fields for the response.
 * @throws {ApiError} 422 with every problem at once
 */
export function parseBody(
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
  if (all.length > 0) throw invalid(all);
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
 * preferences.
 */
function strictProblems(
  request: Request,
  schema: Joi.ObjectSchema,
  body: unknown,
): Problem[] {
  if (!isStrict(request)) return [];
  const problems = unknownFields(schema, body).slice(0, MAX_UNKNOWN);
  if (hasUnknownPreference(request))
    problems.push(problemAt(['header', 'Prefer'], 'Prefer unknown'));
  return problems;
}
