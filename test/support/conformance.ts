import { Ajv2020 } from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';
import type { JsonObject } from '../../api/openapi/json-schema.ts';
import { openapi } from './site.ts';

// Checks responses against the OpenAPI document.

const OPTIONS = { strict: false, allErrors: true, coerceTypes: false };
const ajv = new Ajv2020(OPTIONS);
addFormats.default(ajv);
ajv.addSchema(openapi, 'openapi:');

/**
 * Checks our own responses. They have no fields that the document does not name, although clients
 * must expect such fields, and their times are in UTC with milliseconds.
 */
const exact = new Ajv2020(OPTIONS);
addFormats.default(exact);
exact.addFormat('date-time', (time) => new Date(time).toISOString() === time);
exact.addSchema(withoutOtherFields(openapi), 'openapi:');

function withoutOtherFields(schema: JsonObject): JsonObject {
  const close = (_: string, value: unknown) => {
    const isObject = typeof value === 'object' && value !== null && 'properties' in value;
    return isObject ? { ...value, additionalProperties: false } : value;
  };
  return JSON.parse(JSON.stringify(schema, close)) as JsonObject;
}

/** A response as it was received. */
interface Received {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}
interface Media {
  readonly [type: string]: {
    readonly examples?: Readonly<Record<string, { readonly value: unknown }>>;
  };
}
interface Header {
  readonly required: boolean;
  readonly schema: { readonly type?: string };
}

/** Follows a JSON Pointer and resolves the references on its way. */
function resolve(pointer: string): { readonly at: string; readonly value: unknown } {
  let at = '#';
  let value: unknown = openapi;
  for (const token of pointer.split('/').slice(1)) {
    ({ at, value } = follow(at, value));
    value = (value as JsonObject | undefined)?.[
      token.replaceAll('~1', '/').replaceAll('~0', '~')
    ];
    at = `${at}/${token}`;
  }
  return follow(at, value);
}

function follow(
  at: string,
  value: unknown,
): { readonly at: string; readonly value: unknown } {
  const reference = (value as { $ref?: string } | undefined)?.$ref;
  return typeof reference === 'string' && Object.keys(value as object).length === 1
    ? resolve(reference)
    : { at, value };
}

const token = (name: string) => name.replaceAll('~', '~0').replaceAll('/', '~1');

/**
 * Returns the violations of the schema at a place of the document, or an empty list if the value
 * conforms.
 */
export function violations(pointer: string, value: unknown, validator = ajv): string[] {
  const validate = validator.getSchema(`openapi:${encodeURI(pointer)}`);
  if (!validate) return [`nothing at ${pointer}`];
  validate(value);
  return (validate.errors ?? []).map(
    ({ instancePath, message }) => `${instancePath} ${message}`,
  );
}

/**
 * Returns the differences between a response and its description: an undescribed status, a body or
 * header that doesn't match, or a missing required header.
 * @param operation as in the document: `GET /api/v1/email/{request_id}`
 */
export function misfits(
  operation: string,
  { status, headers, text }: Received,
): string[] {
  const [method = '', path = ''] = operation.split(' ');
  const response = resolve(
    `#/paths/${token(path)}/${method.toLowerCase()}/responses/${status}`,
  );
  if (response.value === undefined) return [`${operation} does not describe ${status}`];
  const described = response.value as { headers?: JsonObject; content?: Media };
  const wrong = Object.keys(described.headers ?? {}).flatMap((name) =>
    headerMisfits(
      name,
      resolve(`${response.at}/headers/${token(name)}`),
      headers.get(name),
    ),
  );
  const type = headers.get('content-type')?.split(';')[0] ?? '';
  if (!described.content)
    return text === '' ? wrong : [...wrong, 'a body where none is described'];
  if (!described.content[type]) return [...wrong, `content type ${type}`];
  const body: unknown = type === 'text/csv' ? text : JSON.parse(text);
  const schema = `${response.at}/content/${token(type)}/schema`;
  return [...wrong, ...violations(schema, body, exact)];
}

function headerMisfits(
  name: string,
  { at, value }: { readonly at: string; readonly value: unknown },
  sent: string | null,
): string[] {
  const { required, schema } = value as Header;
  if (sent === null) return required ? [`${name} is missing`] : [];
  const typed = schema.type === 'integer' ? Number(sent) : sent;
  return violations(`${at}/schema`, typed).map((wrong) => `${name}: ${wrong}`);
}

/**
 * Returns the differences between the response to a request and the document. The document does not
 * describe pages for people, unknown paths, HEAD, and the 500, which should never happen.
 * @param path with its query
 */
export function undescribed(method: string, path: string, response: Received): string[] {
  const pathname = path.split('?')[0]?.replace(/(?<=.)\/$/, '') ?? '';
  const at = operations().filter((operation) => isAt(operation, pathname));
  // Another method gets the 405 of the path.
  const operation = at.find((one) => one.startsWith(`${method} `)) ?? at[0];
  const isLeftOut = method === 'HEAD' || response.status === 500;
  return operation === undefined || isLeftOut ? [] : misfits(operation, response);
}

/** Returns true if a request with this path can reach the operation. */
function isAt(operation: string, pathname: string): boolean {
  const [, template = ''] = operation.split(' ');
  return new RegExp(`^${template.replaceAll(/\{\w+\}/g, '[^/]+')}$`).test(pathname);
}

/** Returns every operation of the document, in the form that `misfits` expects. */
export function operations(): string[] {
  return Object.entries(openapi.paths as Readonly<Record<string, JsonObject>>).flatMap(
    ([path, item]) =>
      Object.keys(item).map((method) => `${method.toUpperCase()} ${path}`),
  );
}

interface Example {
  readonly at: string;
  /** Pointer to the schema that the value must match. */
  readonly schema: string;
  readonly value: unknown;
}

/**
 * Returns all `example` and `examples` below a place, from media types, headers, parameters, and
 * schemas.
 */
export function examplesOf(value: unknown, at = '#'): Example[] {
  if (typeof value !== 'object' || value === null) return [];
  const { schema, example, examples } = value as Readonly<Record<string, unknown>>;
  const own: Example[] = [];
  if (schema && example !== undefined)
    own.push({ at, schema: `${at}/schema`, value: example });
  if (Array.isArray(examples))
    own.push(...examples.map((one) => ({ at, schema: at, value: one })));
  else if (schema && examples) {
    const named = Object.entries(
      examples as Readonly<Record<string, { value: unknown }>>,
    );
    own.push(
      ...named.map(([name, one]) => ({
        at: `${at} ${name}`,
        schema: `${at}/schema`,
        value: one.value,
      })),
    );
  }
  const nested = Object.entries(value).filter(
    ([name]) => name !== 'example' && name !== 'examples',
  );
  return [
    ...own,
    ...nested.flatMap(([name, child]) => examplesOf(child, `${at}/${token(name)}`)),
  ];
}
