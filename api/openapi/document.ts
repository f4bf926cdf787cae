import { createHash } from 'node:crypto';
import type { Server } from '@hapi/hapi';
import { bulkBody, singleBody } from '../routes/submit-body.ts';
import {
  creditsAnswer,
  deliveriesAnswer,
  deliveryAnswer,
  envelope,
  healthAnswer,
  insufficientAnswer,
  invalidAnswer,
  problemAnswer,
  submitAnswer,
} from './answers.ts';
import { delivery } from './callback.ts';
import { deliveryPaths } from './deliveries.ts';
import { invalidExamples } from './examples.ts';
import { headers, RATE, responseHeaders } from './headers.ts';
import { type JsonObject, jsonSchema } from './json-schema.ts';
import { json, paths } from './operations.ts';
import { parameters } from './parameters.ts';
import { problemResponses } from './problems.ts';

const DESCRIPTION = `Verified email addresses for US healthcare providers by NPI. A submit answers 202 at once; results \
come by polling, by signed webhook, or both, within about 15 minutes.

Credits are held at submit, charged only for emails found (1, or 3 for \`personal\`), and released otherwise. The same \
NPI for the same organization within 30 days of its charge is free (\`replayed: true\`).

Fields may be added to answers at any time. \`null\` for an optional field of a body means absent; unknown fields are \
ignored.`;

const components: JsonObject = {
  schemas: {
    SingleSubmit: jsonSchema(singleBody),
    BulkSubmit: jsonSchema(bulkBody),
    Accepted: jsonSchema(submitAnswer),
    Envelope: jsonSchema(envelope),
    Delivery: jsonSchema(deliveryAnswer),
    Deliveries: jsonSchema(deliveriesAnswer),
    Credits: jsonSchema(creditsAnswer),
    Problem: jsonSchema(problemAnswer),
    InsufficientCredits: jsonSchema(insufficientAnswer),
    Invalid: jsonSchema(invalidAnswer),
    Health: jsonSchema(healthAnswer),
  },
  headers,
  parameters,
  responses: {
    ...problemResponses(),
    Invalid: {
      description: 'Something in the request is not valid; every problem is named.',
      headers: responseHeaders(RATE),
      content: json('Invalid', invalidExamples),
    },
  },
  securitySchemes: {
    bearer: { type: 'http', scheme: 'bearer', description: 'Wins where both are sent.' },
    apiKey: { type: 'apiKey', in: 'header', name: 'X-API-Key' },
  },
  callbacks: {
    result: { '{$request.body#/webhook/url}': { $ref: '#/components/pathItems/delivery' } },
  },
  pathItems: { delivery },
};

/** The OpenAPI 3.1 document: bodies are the joi schemas that validate. */
export const openapi: JsonObject = {
  openapi: '3.1.1',
  info: { title: 'NPI email enrichment', version: '1.0.0', description: DESCRIPTION },
  servers: [{ url: '/' }],
  security: [{ bearer: [] }, { apiKey: [] }],
  tags: ['Submit', 'Results', 'Deliveries', 'Credits', 'Service', 'Webhooks'].map((name) => ({ name })),
  paths: { ...paths, ...deliveryPaths },
  webhooks: { result: { $ref: '#/components/pathItems/delivery' } },
  components,
};

/** `GET /openapi.json`, without a key and uncounted, as /healthz is. */
export function registerOpenapi(server: Server): void {
  const text = JSON.stringify(openapi, null, 1);
  const etag = createHash('sha256').update(text).digest('base64url').slice(0, 27);
  server.route({
    method: 'GET',
    path: '/openapi.json',
    options: { auth: false },
    // hapi answers If-None-Match by itself.
    handler: (_request, h) =>
      h.response(text).type('application/json').etag(etag).header('cache-control', 'public, max-age=300'),
  });
}
