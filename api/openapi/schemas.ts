import Joi from 'joi';
import { idPattern } from '../../db/ids.ts';
import {
  ATTEMPT_REASONS,
  BATCH_STATUSES,
  DELIVERY_STATES,
  EMAIL_TYPES,
  LEDGER_KINDS,
  type RequestStatus,
  WEBHOOK_MODES,
} from '../../db/words.ts';
import { CURSOR, LEDGER_PAGE, PAGE } from '../http/parameters.ts';

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

/** What a joi schema may say of itself with `meta()`, because joi's own translation cannot know it. */
interface Meta {
  /** Keywords for what a custom rule checks. */
  readonly jsonSchema?: JsonObject;
  /** For a schema that picks with `when` which problems to report: the schema of what passes. */
  readonly accepts?: Joi.Schema;
}

/**
 * A joi schema as JSON Schema 2020-12: joi's own translation (Standard JSON Schema), with four things set right:
 *
 * - `null` if joi takes it: joi's translation does not know `empty(null)`, and leaves `null` out of an `enum`;
 * - `meta({ jsonSchema })` and `meta({ accepts })`, see above;
 * - `example()`, which joi does not translate;
 * - no `additionalProperties: false`: answers may gain fields at any time (DECISIONS.md, Versioning), so clients must
 *   not take a list of fields as complete.
 */
export function jsonSchema(schema: Joi.Schema): JsonObject {
  const meta: Meta = Object.assign({}, ...(schema.$_terms.metas ?? []));
  if (meta.accepts) return jsonSchema(meta.accepts);
  const translated = schema['~standard'].jsonSchema.input({ target: 'draft-2020-12' }) as JsonObject;
  const { additionalProperties, ...kept } = translated;
  const examples: readonly Json[] | null = schema.$_terms.examples;
  return {
    ...withNull(schema, { ...kept, ...meta.jsonSchema }),
    ...children(schema, kept),
    ...(additionalProperties === false || additionalProperties === undefined ? {} : { additionalProperties }),
    ...(examples ? { examples } : {}),
  };
}

/** The validator itself is asked: whatever makes it take `null` is translated. */
function withNull(schema: Joi.Schema, { type, ...kept }: JsonObject): JsonObject {
  if (typeof type !== 'string') return type === undefined ? kept : { type, ...withNullChoice(kept) };
  if (schema.validate(null).error) return { type, ...kept };
  return { type: [type, 'null'], ...withNullChoice(kept) };
}

function withNullChoice({ enum: choices, ...kept }: JsonObject): JsonObject {
  return Array.isArray(choices) ? { enum: [...choices, null], ...kept } : kept;
}

/** Members and items, translated one by one. */
function children(schema: Joi.Schema, { properties, items }: JsonObject): JsonObject {
  const [item, ...others]: readonly Joi.Schema[] = schema.$_terms.items ?? [];
  return {
    ...(properties
      ? {
          properties: Object.fromEntries(
            Object.keys(properties).map((name) => [name, jsonSchema(schema.extract(name))]),
          ),
        }
      : {}),
    ...(items && item && others.length === 0 ? { items: jsonSchema(item) } : {}),
  };
}

// The bodies of answers (api/README.md, The envelope) as joi schemas: the OpenAPI document is made from them,
// and tests hold live answers against them: there a field too many is a failure.

const REQUEST_STATUSES = [
  'accepted',
  'in-progress',
  'completed',
  'not_found',
  'failed',
] as const satisfies readonly RequestStatus[];

const text = Joi.string().required();
const credits = Joi.number().integer().required();
const npi = text.pattern(/^[0-9]{10}$/).description('As submitted.');
export const requestId = text.pattern(new RegExp(idPattern('req'))).example('req_01jd9x6k2vfr8at0z5q7w4m1hb');
export const batchId = text.pattern(new RegExp(idPattern('bat'))).example('bat_01jd9x6k2tf3r8t0z5q7w4m1ha');
export const deliveryId = text
  .pattern(new RegExp(idPattern('msg')))
  .example('msg_01jd9x6k2wf3r8t0z5q7w4m1hd');
const nextCursor = (pattern = CURSOR) =>
  text.pattern(new RegExp(pattern)).allow(null).description('For the next page; null on the last one.');
const batchStatus = text.valid(...BATCH_STATUSES);
const timestamp = text
  .isoDate()
  .pattern(/^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$/)
  .description('RFC 3339, UTC, milliseconds.');

/** 202 of both submits. */
export const submitAnswer = Joi.object({
  batch_id: batchId,
  status: batchStatus.description('`completed` if every request is final at once.'),
  requests: Joi.array()
    .items(
      Joi.object({
        npi,
        request_id: requestId,
        poll_url: text.pattern(new RegExp(idPattern('req').replace('^', '^/api/v1/email/'))),
      }),
    )
    .min(1)
    .required()
    .description('One per submitted NPI, in the order of the submit.'),
});

const item = Joi.object({
  request_id: requestId,
  npi,
  status: text.valid(...REQUEST_STATUSES).description('`completed`, `not_found` and `failed` are final.'),
  replayed: Joi.boolean().required().description('A free replay of a result charged within 30 days.'),
  email_type: text
    .valid(...EMAIL_TYPES)
    .allow(null)
    .description('Null without an email, as are the three below.'),
  email: text.email({ tlds: false }).allow(null),
  email_last_validated: timestamp.allow(null),
  email_status: text.valid('valid').allow(null),
});

const batch = Joi.object({
  id: batchId,
  status: batchStatus,
  total: credits.min(1).description('Requests in the batch.'),
  completed_count: credits.min(0).description('Requests that are final.'),
  created_at: timestamp.allow(null),
  updated_at: timestamp.allow(null),
}).required();

/** The response envelope: both polls and every delivery. */
export const envelope = Joi.object({
  batch,
  webhook: Joi.object({
    url: text.allow(null),
    mode: text.valid(...WEBHOOK_MODES).allow(null),
    status: text
      .valid(...DELIVERY_STATES)
      .allow(null)
      .description('`none`: deliveries are suspended by the operator.'),
  })
    .required()
    .allow(null)
    .description('Null if the submit named none.'),
  custom_data: Joi.object()
    .required()
    .allow(null)
    .description('Exactly what was submitted, number for number.'),
  usage: Joi.object({
    credits_used: credits.min(0).allow(null).description('Charged so far: for this batch, or this request.'),
    balance: credits.allow(null).description('Available now.'),
  })
    .required()
    .allow(null),
  data: Joi.array()
    .items(item)
    .min(1)
    .required()
    .description('One item in a single poll and a real-time delivery, else every request of the batch.'),
});

const attempt = Joi.object({
  n: credits.min(1).description('Counted over all of the delivery, resends included.'),
  started_at: timestamp,
  duration_ms: credits.min(0),
  status_code: credits.min(100).max(599).allow(null).description('Null if no answer came.'),
  reason: text
    .valid(...ATTEMPT_REASONS)
    .allow(null)
    .description('Stable: what was wrong; null for a 2xx. With `body_…` a 2xx counts all the same.'),
  response_excerpt: Joi.string()
    .required()
    .allow(null, '')
    .description('The first 1024 bytes of what your receiver answered, as text; null if no answer came.'),
});

/** 202 of a resend. */
export const deliveryAnswer = Joi.object({
  id: deliveryId.description('The `webhook-id` of every attempt.'),
  request_id: requestId.allow(null).description('What it reports; null for the whole batch.'),
  status: text
    .valid(...DELIVERY_STATES)
    .description('As `webhook.status` has it: `pending` until it is decided.'),
  created_at: timestamp,
  decided_at: timestamp.allow(null).description('Null until it is decided.'),
  next_attempt_at: timestamp
    .allow(null)
    .description('Not before then; null if none is to come, or not yet known.'),
  attempts: Joi.array()
    .items(attempt)
    .required()
    .description('The newest 50, oldest first; kept for 30 days.'),
});

/** 200 of `GET /api/v1/batch/{batch_id}/deliveries`. */
export const deliveriesAnswer = Joi.object({
  deliveries: Joi.array()
    .items(deliveryAnswer)
    .max(PAGE.most)
    .required()
    .description('In the order of the submit; none if it named no webhook.'),
  next_cursor: nextCursor(),
});

/** 200 of `GET /api/v1/batches`. */
export const batchesAnswer = Joi.object({
  batches: Joi.array().items(batch).max(PAGE.most).required().description('The newest first.'),
  next_cursor: nextCursor(),
});

/** 200 of `GET /api/v1/credits`. */
export const creditsAnswer = Joi.object({
  balance: credits.description('Available: total − used − held.'),
  total: credits.description('Granted.'),
  used: credits.description('Charged.'),
});

/** 200 of `GET /api/v1/credits/ledger`. */
export const ledgerAnswer = Joi.object({
  entries: Joi.array()
    .items(
      Joi.object({
        created_at: timestamp,
        reason: text.valid(...LEDGER_KINDS),
        amount: credits.description('Credits moved; negative only for an adjustment that takes away.'),
        request_id: requestId.allow(null).description('What they were moved for; null for the first two.'),
        balance_after: credits.description('Available right after it.'),
      }),
    )
    .max(PAGE.most)
    .required()
    .description('The newest first.'),
  next_cursor: nextCursor(LEDGER_PAGE),
});

/** Every error but 422: RFC 9457. */
export const problemAnswer = Joi.object({
  type: text.valid('about:blank'),
  title: text,
  status: credits,
  code: text.description('Stable: for programs.'),
  detail: text.description('For people.'),
});

/** 402. */
export const insufficientAnswer = problemAnswer.keys({
  required: credits.min(1),
  available: credits,
  held: credits.description('Held for requests that are not final.'),
  shortfall: credits.min(1),
});

/** 422: every problem at once, in field order. */
export const invalidAnswer = Joi.object({
  detail: Joi.array()
    .items(
      Joi.object({
        loc: Joi.array()
          .items(Joi.string().allow(''), Joi.number().integer())
          .min(1)
          .required()
          .description('`body`, `path` or `header`, then the field, then the position in a list.'),
        msg: text,
        type: text.description('Stable: for programs.'),
      }),
    )
    .min(1)
    .required(),
});

/** `/healthz`, `/readyz`. */
export const healthAnswer = Joi.object({ status: text });
