import { openapiDocument } from '../openapi/document.ts';
import type { JsonObject } from '../openapi/schemas.ts';
import { ROUTES } from '../routes.ts';

const openapi = openapiDocument({ publicUrl: '', support: 'support' });

/**
 * Headers that the reference leaves out, because most responses have them. Other pages describe
 * them.
 */
const USUAL =
  /^(?:X-Request-Id|Cache-Control|X-Content-Type-Options|(?:X-)?RateLimit.*)$/;

/**
 * Generates the Markdown of the reference page, which describes each operation, from the OpenAPI
 * document.
 */
export function reference(): string {
  const operations = ROUTES.map(({ method, path }) => {
    const operation = member(member(openapi.paths, path), method.toLowerCase());
    return [
      `## ${operation.summary}`,
      `\`${method} ${path}\``,
      String(operation.description),
      ...parameters(operation),
      ...fields('Body', operation.requestBody),
      ...answers(member(operation, 'responses')),
    ].join('\n\n');
  });
  const intro =
    'Every operation with its parameters, fields, and responses, generated from [openapi.json](/openapi.json).';
  return `# Reference\n\n${intro}\n\n${operations.join('\n\n')}\n`;
}

/**
 * Returns a member of an object, or an empty object if it is missing. If the member is a `$ref`,
 * returns the object that it refers to. If the member is an `anyOf` of a schema and null, returns
 * that schema with `isNullable: true`.
 */
function member(object: unknown, name: string): JsonObject {
  return plain((object as JsonObject | undefined)?.[name]);
}

function plain(value: unknown): JsonObject {
  const object = (value ?? {}) as JsonObject;
  if (typeof object.$ref === 'string') {
    return referenced(object.$ref);
  }
  const choices = (object.anyOf ?? []) as JsonObject[];
  const one = choices.find(({ type }) => type !== 'null');
  return one && !object.type ? { ...plain(one), isNullable: true } : object;
}

/**
 * Returns the part of the OpenAPI document that a reference such as `#/components/schemas/Batch`
 * points to.
 */
function referenced(reference: string): JsonObject {
  let at: unknown = openapi;
  for (const name of reference.slice(2).split('/')) at = (at as JsonObject)[name];
  return at as JsonObject;
}

function parameters({ parameters = [] }: JsonObject): string[] {
  const rows = (parameters as unknown[])
    .map(plain)
    .map(({ name, in: place, description }) => [`\`${name}\``, place, description]);
  return table(['parameter', 'in', 'meaning'], rows);
}

function fields(title: string, holder: unknown): string[] {
  const schema = member(Object.values(member(holder, 'content'))[0], 'schema');
  return table([title, 'type', 'meaning'], rowsOf(schema, ''));
}

/**
 * Returns a table row for each field of a schema, including nested fields. Paths look like
 * `batch.id` for a nested field, and `data[].npi` for a field of an array's items.
 */
function rowsOf(schema: JsonObject, prefix: string): unknown[][] {
  return Object.entries((schema.properties ?? {}) as JsonObject).flatMap(
    ([name, value]) => {
      const field = plain(value);
      const items = member(field, 'items');
      const path = `${prefix}${name}`;
      const row = [`\`${path}\``, typeOf(field), field.description];
      return [row, ...rowsOf(field, `${path}.`), ...rowsOf(items, `${path}[].`)];
    },
  );
}

function typeOf(field: JsonObject): string {
  const name = typeNameOf(field);
  return field.isNullable ? `${name} or null` : name;
}

function typeNameOf({ type, enum: values, const: only }: JsonObject): string {
  if (only !== undefined) return `\`${only}\``;
  if (Array.isArray(values)) {
    return values.map((word) => `\`${word}\``).join(', ');
  }
  return [type].flat().join(' or ');
}

function answers(responses: JsonObject): string[] {
  const rows = Object.entries(responses).map(([status, value]) => {
    const answer = plain(value);
    const names = Object.keys(member(answer, 'headers')).filter(
      (name) => !USUAL.test(name),
    );
    return [status, answer.description, names.map((name) => `\`${name}\``).join(', ')];
  });
  const success = Object.keys(responses).find((status) => status.startsWith('2'));
  return [
    ...table(['status', 'meaning', 'headers'], rows),
    ...fields(`Body of a ${success}`, success && responses[success]),
  ];
}

function table(head: readonly string[], rows: readonly (readonly unknown[])[]): string[] {
  if (rows.length === 0) return [];
  const written = (cell: unknown) =>
    String(cell ?? '')
      .replaceAll('|', '\\|')
      .replaceAll('\n', ' ');
  const line = (cells: readonly unknown[]) => `| ${cells.map(written).join(' | ')} |`;
  return [[line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n')];
}
