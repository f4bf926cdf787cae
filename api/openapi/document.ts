import { PRICES } from '../../db/accounts/credits.ts';
import { PROBLEMS, type ProblemKind, problemBody } from '../problems.ts';
import { bulkBody, singleBody } from '../routes/submit.ts';
import { type OperationId, ROUTES } from '../routes.ts';
import { delivery } from './callback.ts';
import examples from './examples.json' with { type: 'json' };
import { headers, RATE, responseHeaders } from './headers.ts';
import { json, operations, parameters } from './operations.ts';
import {
  creditsAnswer,
  deliveriesAnswer,
  deliveryAnswer,
  envelope,
  healthAnswer,
  insufficientAnswer,
  invalidAnswer,
  type JsonObject,
  jsonSchema,
  problemAnswer,
  submitAnswer,
} from './schemas.ts';

const DESCRIPTION = `Verified email addresses for US healthcare providers by NPI. A submit answers 202 at once; results \
come by polling, by signed webhook, or both, within about 15 minutes.

Credits are held at submit, charged only for emails found (${PRICES.any}, or ${PRICES.personal} for \`personal\`), \
and released otherwise. The same NPI for the same organization within 30 days of its charge is free (\`replayed: true\`).

Fields may be added to answers at any time. \`null\` for an optional field of a body means absent; unknown fields are \
ignored.`;

/** Each problem that an answer is described for, under its name. */
const DESCRIBED = Object.entries<ProblemKind>(PROBLEMS).filter(([, { at }]) => at !== 'unexpected');

/** How an operation fails, beside the 422. */
function failures({ id, scope }: (typeof ROUTES)[number]): JsonObject {
  const own = DESCRIBED.filter(([, { at }]) => at === 'all' || at === scope || at.includes(id));
  return Object.fromEntries(
    own.map(([name, { status }]) => [String(status), { $ref: `#/components/responses/${name}` }]),
  );
}

function problemResponse(kind: ProblemKind): JsonObject {
  const { status, description, headers: own = [], counted, codes, example, hasMembers } = kind;
  return {
    description,
    headers:
      counted === 'always' ? responseHeaders([...RATE, ...own]) : responseHeaders(own, counted && RATE),
    content: {
      'application/problem+json': {
        schema: {
          $ref: `#/components/schemas/${hasMembers ? 'InsufficientCredits' : 'Problem'}`,
          type: 'object',
          properties: { status: { const: status }, code: { enum: Object.keys(codes) } },
        },
        examples: Object.fromEntries(
          Object.keys(codes).map((code) => [code, { value: problemBody(kind, code, example) }]),
        ),
      },
    },
  };
}

/** Every route with what is said of its operation; what needs no key says so. */
function paths(): JsonObject {
  const described: Readonly<Record<OperationId, { readonly responses: JsonObject } & JsonObject>> =
    operations;
  const items: Record<string, JsonObject> = {};
  for (const route of ROUTES) {
    const { id, method, path, scope } = route;
    const { responses, ...rest } = described[id];
    const operation = {
      operationId: id,
      ...(scope === 'open' ? { security: [] } : {}),
      ...rest,
      responses: { ...responses, ...failures(route) },
    };
    items[path] = { ...items[path], [method.toLowerCase()]: operation };
  }
  return items;
}

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
    ...Object.fromEntries(DESCRIBED.map(([name, kind]) => [name, problemResponse(kind)])),
    Invalid: {
      description: 'Something in the request is not valid; every problem is named.',
      headers: responseHeaders(RATE),
      content: json('Invalid', examples.invalid),
    },
  },
  securitySchemes: {
    bearer: { type: 'http', scheme: 'bearer', description: 'Wins if both are sent.' },
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
  paths: paths(),
  webhooks: { result: { $ref: '#/components/pathItems/delivery' } },
  components,
};
