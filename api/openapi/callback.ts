import examples from './examples.json' with { type: 'json' };
import { json } from './operations.ts';
import type { JsonObject } from './schemas.ts';

// What a webhook's receiver gets, and what its answer means (api/README.md, Webhooks), for the OpenAPI document.

/**
 * One signed delivery, for who writes a verification: its headers, and the body as the bytes that were signed. The
 * secret belongs to nobody.
 */
export const signatureVector = {
  secret: 'whsec_YW4gZXhhbXBsZSBzZWNyZXQgZm9yIHRlc3RzIG9ubHk=',
  'webhook-id': 'msg_01jd9x6k2wf3r8t0z5q7w4m1hd',
  'webhook-timestamp': '1767607207',
  'webhook-signature': 'v1,QhrbHGXszxlM8JOl8BYhr++tEZIjrA5LHrgPMKE8AYM=',
  body: JSON.stringify(examples.delivery['real-time'].value),
} as const;

const DESCRIPTION = `\`real-time\`: one per NPI as it finishes. \`batch\`: one when all have finished. Deliveries may come \
more than once and in any order: deduplicate by \`data[].request_id\`.

Signed as [Standard Webhooks](https://www.standardwebhooks.com) 1.0 has it; its libraries check it. What is signed is \
\`{webhook-id}.{webhook-timestamp}.{body}\`, the body being the bytes that arrived, before any parser. Any one signature \
of the header suffices. Each is \`v1\`: HMAC-SHA256 with the bytes that the organization's \`whsec_…\` secret is the \
base64 of. For 24 hours after a rotation there is one with each secret.

Refuse a delivery whose \`webhook-timestamp\` is more than 5 minutes away from your clock. \`x-test-vector\` is one signed \
delivery to check a verification with; its headers and body are the examples here.`;

type HeaderOf = 'webhook-id' | 'webhook-timestamp' | 'webhook-signature';
const header = (name: HeaderOf, description: string, pattern: string) => ({
  name,
  in: 'header',
  required: true,
  description,
  schema: { type: 'string', pattern },
  example: signatureVector[name],
});

/** `components.pathItems.delivery`. */
export const delivery: JsonObject = {
  post: {
    operationId: 'receiveResult',
    tags: ['Webhooks'],
    summary: 'A result, sent to the webhook of a submit',
    description: DESCRIPTION,
    security: [],
    parameters: [
      header('webhook-id', 'The same over all attempts and resends of one delivery.', '^msg_[0-9a-z]{26}$'),
      header('webhook-timestamp', 'When this attempt was made, in epoch seconds.', '^[0-9]+$'),
      header(
        'webhook-signature',
        'One or more signatures with spaces between: version, comma, base64.',
        '^v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)?$',
      ),
      {
        name: 'user-agent',
        in: 'header',
        required: true,
        description: 'The service and the number of its interface.',
        schema: { type: 'string' },
        example: 'npi-email-enrichment/1',
      },
    ],
    requestBody: {
      required: true,
      description: 'The envelope of the polls. `webhook.status` in it is `pending`.',
      content: json('Envelope', examples.delivery),
    },
    responses: {
      '2XX': { description: 'Taken. Answer within 15 seconds.' },
      410: { description: 'Never wanted again: this delivery ends.' },
      default: {
        description:
          'Not taken: tried again, 10 times over about 75 hours; a `Retry-After` is honored up to twice the step. Redirects are not followed.',
      },
    },
    'x-test-vector': signatureVector,
  },
};
