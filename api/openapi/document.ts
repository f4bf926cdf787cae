import Joi from 'joi';
import { PRICES } from '../../db/accounts/credits.ts';
import manifest from '../../package.json' with { type: 'json' };
import { bulkBody, singleBody } from '../http/submit-body.ts';
import {
  PARAMETERS as CHECKED_PARAMETERS,
  checkBody,
  resendBody,
} from '../http/validation.ts';
import { PROBLEMS, type ProblemKind, problemBody } from '../problems.ts';
import { type OperationId, ROUTES } from '../routes.ts';
import { isEmail, type Site, SUPPORT } from '../site.ts';
import EXAMPLES from './examples.json' with { type: 'json' };
import { type Json, type JsonObject, jsonSchema } from './json-schema.ts';
import written from './operations.json' with { type: 'json' };
import * as bodies from './schemas.ts';

// Builds the OpenAPI document. Descriptions and examples are written by hand in operations.json and
// examples.json. The rest is generated from the routes, the problems, and the joi schemas that
// validate requests.

/**
 * A request or response body: the name of its schema in `components`, and of its examples in
 * examples.json.
 */
interface Body {
  readonly schema: string;
  readonly examples: string;
  /** If the body can also be a CSV file: the name of the file's examples. */
  readonly file?: string;
}

/** An operation in operations.json. Its parameters and headers are listed by name. */
interface Operation {
  readonly parameters?: readonly string[];
  readonly requestBody?: Body;
  /** The successful responses by their status. A text names a shared response. */
  readonly responses: Readonly<Record<string, DocumentedResponse | string>>;
  /** True if the request can name a webhook, which then receives the results. */
  readonly isDelivered?: boolean;
}

interface DocumentedResponse {
  readonly body?: Body;
  /**
   * Headers of this response in addition to those of every response. The headers in `always` are
   * sent each time. The headers in `sometimes` may be missing.
   */
  readonly always?: readonly string[];
  readonly sometimes?: readonly string[];
}

const OPERATIONS: Readonly<Record<OperationId, Operation>> = written.operations;
/** The successful responses that several operations share. Generators then make one type of each. */
const SHARED_RESPONSES: Readonly<Record<string, DocumentedResponse>> = written.responses;
const HEADERS: Readonly<Record<string, JsonObject>> = written.headers;
const PARAMETERS: Readonly<Record<string, JsonObject>> = written.parameters;

const DESCRIPTION = `Verified email addresses for US healthcare providers by NPI. A submit returns 202 at once. Results \
follow within 15 minutes, by polling, by signed webhook, or both.

Credits are held at submit, charged only for emails found (\`any\` ${PRICES.any}, \`professional\` ${PRICES.professional}, \`personal\` ${PRICES.personal}), \
and released otherwise. The same NPI for the same organization within 30 days of its charge is free (\`replayed: true\`).

Responses may gain fields at any time. \`null\` in an optional field of a body means absent. Unknown fields are ignored.`;

/**
 * Headers of every response. If a request counts toward the rate limit, its response also has the
 * rate limit headers (`COUNTED`), even if it is an error.
 */
const EVERY = ['X-Request-Id', 'Cache-Control', 'X-Content-Type-Options'];
const COUNTED = Object.keys(HEADERS).filter((name) => name.includes('RateLimit'));

/**
 * Returns the `headers` object of a response. It has the headers of every response, the headers in
 * `always`, and the headers in `some`, which are marked as not required.
 */
function responseHeaders(
  always: readonly string[],
  some: readonly string[] = [],
): JsonObject {
  const headers: Record<string, JsonObject> = {};
  for (const name of [...EVERY, ...always])
    headers[name] = { $ref: `#/components/headers/${name}` };
  for (const name of some) {
    headers[name] = { ...HEADERS[name], required: false };
  }
  return headers;
}

function content({ schema, examples, file }: Body): JsonObject {
  const types: Record<string, JsonObject> = {
    'application/json': {
      schema: { $ref: `#/components/schemas/${schema}` },
      examples: examplesNamed(examples),
    },
  };
  if (file) {
    types['text/csv'] = { schema: { type: 'string' }, examples: examplesNamed(file) };
  }
  return types;
}

function examplesNamed(name: string): JsonObject {
  return (EXAMPLES as Readonly<Record<string, JsonObject>>)[name] ?? {};
}

const CHECKED: Readonly<Record<string, Joi.Schema>> = {
  ...CHECKED_PARAMETERS,
  request_id: bodies.requestId,
  batch_id: bodies.batchId,
  delivery_id: bodies.deliveryId,
};

/** The schemas under `components`: those of all bodies, and all named schemas in them. */
const schemas: Record<string, JsonObject> = {};

function parameter(name: string): JsonObject {
  const checked = CHECKED[name];
  return {
    name,
    ...PARAMETERS[name],
    schema: checked ? jsonSchema(checked, schemas) : { type: 'string' },
  };
}

/**
 * Names of the parameters that are defined once, in `components`. Ids in paths are defined in each
 * operation instead.
 */
const SHARED = Object.keys(PARAMETERS).filter((name) => PARAMETERS[name]?.in !== 'path');

/** Names and kinds of the problems that the document describes. */
const DESCRIBED = Object.entries(PROBLEMS).filter(([, { at }]) => at !== 'unexpected');

/** Returns the error responses of an operation, except the 422. */
function failures({ id, role }: (typeof ROUTES)[number]): JsonObject {
  const own = DESCRIBED.filter(([, { at }]) => {
    if (at === 'all' || at.includes(id)) return true;
    return role !== null && at.includes('keyed');
  });
  return Object.fromEntries(
    own.map(([name, { status }]) => [
      String(status),
      { $ref: `#/components/responses/${name}` },
    ]),
  );
}

function problemResponse(name: string, kind: ProblemKind): JsonObject {
  const { description, headers: own = [], counted, codes, example } = kind;
  const always = ['Link', ...own];
  const sometimes: string[] = [];
  if (counted === 'always') always.push(...COUNTED);
  if (counted === 'sometimes') sometimes.push(...COUNTED);
  const examples: Record<string, JsonObject> = {};
  for (const code of Object.keys(codes))
    examples[code] = { value: problemBody(kind, code, example) };
  return {
    description,
    headers: responseHeaders(always, sometimes),
    content: {
      'application/problem+json': {
        schema: { $ref: `#/components/schemas/${name}Problem` },
        examples,
      },
    },
  };
}

/**
 * Returns an operation of the document. Starts with its entry in operations.json, and adds the
 * parts that depend on its route: error responses, security, and, if it needs a key, the rate limit
 * headers.
 */
function operationOf(route: (typeof ROUTES)[number]): JsonObject {
  const { id, role } = route;
  const {
    parameters = [],
    requestBody,
    responses: own,
    isDelivered,
    ...rest
  } = OPERATIONS[id];
  const responses: Record<string, JsonObject> = {};
  for (const [status, documented] of Object.entries(own)) {
    responses[status] =
      typeof documented === 'string'
        ? { $ref: `#/components/responses/${documented}` }
        : responseOf(documented, role !== null);
  }
  if ((parameters.length > 0 || requestBody) && role !== null)
    responses[422] = { $ref: '#/components/responses/Invalid' };
  Object.assign(responses, failures(route));
  const operation: Record<string, Json> = { operationId: id, ...rest, responses };
  if (role === null) operation.security = [];
  if (parameters.length > 0) {
    operation.parameters = parameters.map(parameterOrReference);
  }
  if (requestBody)
    operation.requestBody = { required: true, content: content(requestBody) };
  if (isDelivered) {
    const post = received(`${id}Result`, written.delivery, signatureVector);
    operation.callbacks = { result: { '{$request.body#/webhook/url}': { post } } };
  }
  return operation;
}

function responseOf(documented: DocumentedResponse, isKeyed: boolean): JsonObject {
  const { body, always = [], sometimes, ...rest } = documented;
  const counted = isKeyed ? COUNTED : [];
  const response = {
    ...rest,
    headers: responseHeaders([...counted, ...always], sometimes),
  };
  return body ? { ...response, content: content(body) } : response;
}

function parameterOrReference(name: string): JsonObject {
  return SHARED.includes(name)
    ? { $ref: `#/components/parameters/${name}` }
    : parameter(name);
}

/**
 * A signed example of a webhook with which users can test their signature check. It has the
 * headers, the body exactly as it was signed, and the secret. This secret is used nowhere else.
 */
type Vector = Readonly<Record<keyof typeof written.delivery.vector | 'body', string>>;

export const signatureVector: Vector = {
  ...written.delivery.vector,
  body: JSON.stringify(EXAMPLES.delivery['real-time'].value),
};

const { headers: deliveryHeaders, ...everyDelivery } = written.received;

/**
 * Describes a request that we send to a webhook receiver, and what the receiver's responses mean
 * (api/docs/webhooks.md, Webhooks).
 */
function received(
  operationId: string,
  { summary, description, requestBody }: Omit<typeof written.delivery, 'vector'>,
  vector: Vector,
): JsonObject {
  return {
    operationId,
    summary,
    description,
    ...everyDelivery,
    parameters: Object.entries(deliveryHeaders).map(([name, header]) => ({
      name,
      in: 'header',
      required: true,
      example: new Map(Object.entries(vector)).get(name) ?? '',
      ...header,
    })),
    requestBody: {
      required: true,
      description: requestBody.description,
      content: content(requestBody.body),
    },
    'x-test-vector': { ...vector },
  };
}

const PATHS: JsonObject = Object.fromEntries(
  ROUTES.map((route) => [
    route.path,
    { [route.method.toLowerCase()]: operationOf(route) },
  ]),
);
const RESPONSES: JsonObject = {
  ...Object.fromEntries(
    Object.entries(SHARED_RESPONSES).map(([name, documented]) => [
      name,
      responseOf(documented, true),
    ]),
  ),
  ...Object.fromEntries(
    DESCRIBED.map(([name, kind]) => [name, problemResponse(name, kind)]),
  ),
  Invalid: {
    description: 'The request is not valid. The body lists every problem.',
    headers: responseHeaders(['Link', ...COUNTED], ['Ignored-Fields']),
    content: content({ schema: 'Invalid', examples: 'invalid' }),
  },
};
const REFERRING = JSON.stringify([PATHS, RESPONSES]);

for (const body of [
  singleBody,
  bulkBody,
  checkBody,
  resendBody,
  ...Object.values(bodies),
]) {
  if (Joi.isSchema(body)) jsonSchema(body, schemas);
}
for (const [name, kind] of DESCRIBED)
  jsonSchema(bodies.problemSchema(name, kind), schemas);

const components: JsonObject = {
  schemas,
  // A header that is listed only under `sometimes` is defined in those responses, not here.
  headers: Object.fromEntries(
    Object.entries(HEADERS)
      .filter(([name]) => REFERRING.includes(`"#/components/headers/${name}"`))
      .map(([name, header]) => [name, { ...header, required: true }]),
  ),
  parameters: Object.fromEntries(SHARED.map((name) => [name, parameter(name)])),
  responses: RESPONSES,
  securitySchemes: {
    bearer: {
      type: 'http',
      scheme: 'bearer',
      description: 'Wins if both headers are sent.',
    },
    apiKey: { type: 'apiKey', in: 'header', name: 'X-API-Key' },
  },
};

const TAGS = Object.entries(written.tags).map(([name, description]) => ({
  name,
  description,
}));

/**
 * Returns the OpenAPI 3.1 document of a service. The schemas of request bodies come from the joi
 * schemas that validate them.
 */
export function openapiDocument({ publicUrl, support }: Site): JsonObject {
  const contact = isEmail(support) ? { email: support } : { url: support };
  const document = {
    openapi: '3.1.1',
    info: {
      title: 'NPI email enrichment',
      version: manifest.version,
      description: DESCRIPTION,
      contact: { name: 'Support', ...contact },
      license: { name: 'MIT', identifier: 'MIT' },
    },
    servers: [{ url: publicUrl }],
    security: [{ bearer: [] }, { apiKey: [] }],
    tags: TAGS,
    paths: PATHS,
    components,
  };
  return JSON.parse(JSON.stringify(document).replaceAll(SUPPORT, support)) as JsonObject;
}
