import Joi from 'joi';
import { type IdPrefix, idPattern } from '../../db/connection/ids.ts';
import {
  ATTEMPT_REASONS,
  BATCH_STATUSES,
  CHECK_RESULTS,
  DELIVERY_STATES,
  EMAIL_TYPES,
  LEDGER_KINDS,
  REQUEST_STATUSES,
  REQUESTED_TYPES,
} from '../../db/words.ts';
import { customData, requestedType, webhookMode } from '../http/submit-body.ts';
import { CURSOR, LEDGER_PAGE, PAGE } from '../http/validation.ts';
import type { ProblemKind } from '../problems.ts';

// Joi schemas of the response bodies (api/docs/lifecycle.md, The envelope). The OpenAPI document is
// generated from them. Tests validate real responses with them, and fail if a response has a field
// that its schema does not have.

const text = Joi.string().required();
const credits = Joi.number().integer().required();
const npi = text.pattern(/^[0-9]{10}$/).description('As submitted.');
const id = (prefix: IdPrefix) => text.pattern(new RegExp(idPattern(prefix)));
export const requestId = id('req').example('req_01jd9x6k2vfr8at0z5q7w4m1hb');
export const batchId = id('bat').example('bat_01jd9x6k2tf3r8t0z5q7w4m1ha');
export const deliveryId = id('msg').example('msg_01jd9x6k2wf3r8t0z5q7w4m1hd');
const nextCursor = (pattern = CURSOR) =>
  text
    .pattern(new RegExp(pattern))
    .allow(null)
    .description('The cursor of the next page, or null on the last one.');
const batchStatus = text
  .valid(...BATCH_STATUSES)
  .description(
    '`completed` when every request is final. A submit of replays is `completed` at once.',
  )
  .meta({ name: 'BatchStatus' });
const emailType = text.valid(...EMAIL_TYPES).meta({ name: 'EmailType' });
const deliveryStatus = text
  .valid(...DELIVERY_STATES)
  .description(
    '`pending` until the delivery has succeeded or failed for good. `none` means that we have suspended your deliveries.',
  )
  .meta({ name: 'DeliveryStatus' });
/**
 * A timestamp. Its JSON Schema has only `format: date-time`, because some generators reject
 * `pattern` or `minLength` next to that format.
 */
const timestamp = Joi.custom((value, helpers) =>
  new Date(value).toISOString() === value ? value : helpers.error('any.invalid'),
)
  .required()
  .description('RFC 3339 in UTC with milliseconds.')
  .meta({ jsonSchema: { type: 'string', format: 'date-time' } });

/** The 202 response of a single or bulk submit. */
export const submitResponse = Joi.object({
  batch_id: batchId,
  status: batchStatus,
  requests: Joi.array()
    .items(
      Joi.object({
        npi,
        request_id: requestId,
        poll_url: text.pattern(
          new RegExp(idPattern('req').replace('^', '^/api/v1/email/')),
        ),
      }).meta({ name: 'AcceptedRequest' }),
    )
    .min(1)
    .required()
    .description('One entry per submitted NPI, in the order of the submit.'),
}).meta({ name: 'Accepted' });

const result = Joi.object({
  request_id: requestId,
  npi,
  status: text
    .valid(...REQUEST_STATUSES)
    .description('`completed`, `not_found`, and `failed` are final.')
    .meta({ name: 'RequestStatus' }),
  replayed: Joi.boolean()
    .required()
    .description('True for a free replay of a result that was charged within 30 days.'),
  email_type: emailType.allow(null),
  email: text.email({ tlds: false }).allow(null),
  email_last_validated: timestamp.allow(null),
  email_status: text.valid('valid').allow(null).meta({ name: 'EmailStatus' }),
})
  .description(
    'The result of one NPI. The fields that begin with `email` are null without an email.',
  )
  .meta({ name: 'Result' });

const batch = Joi.object({
  id: batchId,
  status: batchStatus,
  total: credits.min(1).description('The number of requests in the batch.'),
  completed_count: credits.min(0).description('The number of final requests.'),
  created_at: timestamp.allow(null),
  updated_at: timestamp.allow(null),
})
  .required()
  .meta({ name: 'Batch' });

/** The body of both polls and of every webhook delivery. */
export const envelope = Joi.object({
  batch,
  webhook: Joi.object({
    url: text.allow(null),
    mode: webhookMode.required().allow(null),
    status: deliveryStatus.allow(null),
  })
    .required()
    .allow(null)
    .description(
      'The webhook with the state of its deliveries, or null if the submit named none.',
    )
    .meta({ name: 'WebhookState' }),
  custom_data: customData.required().allow(null),
  usage: Joi.object({
    credits_used: credits
      .min(0)
      .allow(null)
      .description('Credits charged so far for this batch or request.'),
    balance: credits.allow(null).description('Credits available now.'),
  })
    .required()
    .allow(null)
    .meta({ name: 'Usage' }),
  data: Joi.array()
    .items(result)
    .min(1)
    .required()
    .description(
      'One item in a single poll and in a real-time delivery, otherwise every request of the batch.',
    ),
}).meta({ name: 'Envelope' });

const attempt = Joi.object({
  n: credits.min(1).description('The number of the attempt, counted over all resends.'),
  started_at: timestamp,
  duration_ms: credits.min(0),
  status_code: credits
    .min(100)
    .max(599)
    .allow(null)
    .description('Null if there was no response.'),
  reason: text
    .valid(...ATTEMPT_REASONS)
    .allow(null)
    .description(
      'The reason of a failure, or null for a 2xx. Reasons are stable. After a 2xx, a reason that begins with `body_` is not a failure.',
    )
    .meta({ name: 'AttemptReason' }),
  response_excerpt: Joi.string()
    .required()
    .allow(null, '')
    .description(
      "The first 1024 bytes of your receiver's response as text. Lists show only 200 characters. Every line break becomes a line feed. Other control characters except tabs, and invalid UTF-8, become U+FFFD. Null if there was no response.",
    ),
}).meta({ name: 'DeliveryAttempt' });

/**
 * The response with one delivery: the 202 response of a resend, and the 200 response of `GET
 * /api/v1/batch/{batch_id}/deliveries/{delivery_id}`.
 */
export const deliveryResponse = Joi.object({
  id: deliveryId.description('The `webhook-id` of every attempt.'),
  batch_id: batchId,
  request_id: requestId
    .allow(null)
    .description(
      'The request whose result is delivered, or null if the whole batch is delivered.',
    ),
  npi: npi.allow(null).description('The NPI of the request, or null without one.'),
  status: deliveryStatus,
  created_at: timestamp,
  decided_at: timestamp
    .allow(null)
    .description(
      'The time at which the delivery succeeded or failed for good. Null while it is pending.',
    ),
  next_attempt_at: timestamp
    .allow(null)
    .description(
      'The earliest time of the next attempt. Null if there is no next attempt, or its time is not known.',
    ),
  attempts: Joi.array()
    .items(attempt)
    .required()
    .description(
      'The attempts, oldest first. Lists show the newest 5 attempts, and a single delivery shows up to 50. Attempts are kept for 30 days.',
    ),
}).meta({ name: 'Delivery' });

/**
 * The 200 response of `GET /api/v1/batch/{batch_id}/deliveries` and of `GET /api/v1/deliveries`.
 */
export const deliveriesResponse = Joi.object({
  deliveries: Joi.array()
    .items(deliveryResponse)
    .max(PAGE.most)
    .required()
    .description('Of a batch: in the order of the submit. Of all batches: newest first.'),
  next_cursor: nextCursor(),
}).meta({ name: 'Deliveries' });

/** The 202 response of `POST /api/v1/deliveries/resend`. */
export const resentResponse = Joi.object({
  resent: credits.min(0).description('The number of deliveries that will be sent again.'),
  more: Joi.boolean()
    .required()
    .description(
      'True if more deliveries have failed. Repeat the call to send them, too.',
    ),
}).meta({ name: 'Resent' });

/** The 200 response of `GET /api/v1/batches`. */
export const batchesResponse = Joi.object({
  batches: Joi.array()
    .items(batch)
    .max(PAGE.most)
    .required()
    .description('Newest first.'),
  next_cursor: nextCursor(),
}).meta({ name: 'Batches' });

const counts = (of: readonly string[]) =>
  Object.fromEntries(of.map((name) => [name, credits.min(0)]));

/** The 200 response of `POST /api/v1/check`. */
export const checkResponse = Joi.object({
  data: Joi.array()
    .items(
      Joi.object({
        npi: Joi.string().allow('').required().description('The entry as you sent it.'),
        result: text
          .valid(...CHECK_RESULTS)
          .description(
            '`lookup`: a submit looks it up, and charges you if we find an email. `free_repeat`: you paid for an email within 30 days. `organization`, `deactivated`, and a `not_an_npi` of 10 digits end as `not_found` without a charge. Any other text makes a submit a 422.',
          )
          .meta({ name: 'CheckResult' }),
        free_types: Joi.array()
          .items(requestedType)
          .required()
          .description('The requested types for which a `free_repeat` is free.'),
        name: text.allow(null).description('The name in NPPES, or null if we have none.'),
        city: text.allow(null).description('The city of the practice.'),
        state: text.allow(null).description('The state of the practice.'),
      }).meta({ name: 'Checked' }),
    )
    .min(1)
    .required()
    .description('One item per entry, in the order of the list.'),
  totals: Joi.object(counts(CHECK_RESULTS))
    .required()
    .description('The number of entries with each result.')
    .meta({ name: 'CheckTotals' }),
  max_credits: Joi.object(counts(REQUESTED_TYPES))
    .required()
    .description(
      'The most that the list can cost, by requested type. An NPI that occurs twice is charged once.',
    )
    .meta({ name: 'MaxCredits' }),
}).meta({ name: 'CheckReport' });

/** The 200 response of `GET /api/v1/credits`. */
export const creditsResponse = Joi.object({
  balance: credits.description('Available credits: total − used − held.'),
  total: credits.description('Granted credits.'),
  used: credits.description('Charged credits.'),
}).meta({ name: 'Credits' });

/** The 200 response of `GET /api/v1/credits/ledger`. */
export const ledgerResponse = Joi.object({
  entries: Joi.array()
    .items(
      Joi.object({
        created_at: timestamp,
        reason: text.valid(...LEDGER_KINDS).meta({ name: 'LedgerReason' }),
        amount: credits.description(
          'The number of credits. Negative only for an adjustment that takes credits away.',
        ),
        balance_after: credits.description('Credits available after this entry.'),
        request_id: requestId
          .allow(null)
          .description('The request, or null for grants and adjustments.'),
        batch_id: batchId
          .allow(null)
          .description('The batch of the request, or null without a request.'),
        npi: npi.allow(null).description('The NPI of the request, or null without one.'),
        requested_type: requestedType.required().allow(null),
      }).meta({ name: 'LedgerEntry' }),
    )
    .max(PAGE.most)
    .required()
    .description('Newest first.'),
  next_cursor: nextCursor(LEDGER_PAGE),
}).meta({ name: 'Ledger' });

const usageSums = {
  found: credits.min(0).description('Requests with an email that was charged.'),
  replayed: credits.min(0).description('Requests with an email that was free.'),
  not_found: credits.min(0),
  failed: credits.min(0),
  credits_charged: credits.min(0),
};

/** The 200 response of `GET /api/v1/usage`. */
export const usageResponse = Joi.object({
  since: timestamp.description('The start of the first UTC day.'),
  until: timestamp.description('The end of the last UTC day.'),
  by: text.valid('day', 'type').meta({ name: 'UsageBy' }),
  usage: Joi.array()
    .items(
      Joi.object({
        day: text
          .pattern(/^\d{4}-\d\d-\d\d$/)
          .allow(null)
          .description('The UTC day, or null with `by=type`.'),
        requested_type: requestedType.required().allow(null),
        ...usageSums,
      }).meta({ name: 'UsageItem' }),
    )
    .required()
    .description('One item per day or type with usage, in this order.'),
  total: Joi.object(usageSums).required().meta({ name: 'UsageTotal' }),
}).meta({ name: 'UsageReport' });

/** The body of every error except the 422 (RFC 9457). */
export const problemResponse = Joi.object({
  type: text.valid('about:blank'),
  title: text,
  status: credits,
  code: text,
  detail: text.description('The text for people.'),
});

/** The body of a 402 response. */
export const insufficientResponse = problemResponse.keys({
  required: credits.min(1),
  available: credits,
  held: credits.description('Credits held for requests that are not final.'),
  shortfall: credits.min(1),
});

/**
 * Returns the schema of the body for one kind of problem. Its field `code` allows only the codes of
 * this kind.
 */
export function problemSchema(
  name: string,
  { status, description, codes, hasMembers }: ProblemKind,
): Joi.Schema {
  return (hasMembers ? insufficientResponse : problemResponse)
    .keys({
      status: credits.valid(status).meta({ jsonSchema: { type: 'integer' } }),
      code: text.valid(...Object.keys(codes)).description('Stable, for programs.'),
    })
    .description(description)
    .meta({ name: `${name}Problem` });
}

/** The body of a 422 response. It lists all problems, in the order of the fields. */
export const invalidResponse = Joi.object({
  detail: Joi.array()
    .items(
      Joi.object({
        loc: Joi.array()
          .items(Joi.string().allow(''), Joi.number().integer())
          .min(1)
          .required()
          .description(
            '`body`, `path`, `query`, or `header`, then the field, then the position in a list.',
          ),
        msg: text,
        type: text.description('Stable, for programs.'),
      }).meta({ name: 'InvalidField' }),
    )
    .min(1)
    .required(),
}).meta({ name: 'Invalid' });

/** The bodies of `/healthz` and `/readyz`. */
export const healthResponse = Joi.object({ status: text }).meta({ name: 'Health' });
