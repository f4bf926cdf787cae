import type Joi from 'joi';

export type Json =
  | string
  | number
  | boolean
  | null
  | readonly Json[]
  | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

/**
 * Metadata that our joi schemas set with `meta()`, for things that joi cannot translate to JSON
 * Schema.
 */
interface Meta {
  /**
   * The name of the schema under `components`. The document refers to the schema by this name
   * wherever it is used.
   */
  readonly name?: string;
  /** JSON Schema keywords that describe a `custom()` rule. */
  readonly jsonSchema?: JsonObject;
  /**
   * The schema to translate instead of this one. A schema needs it if its `when` only chooses which
   * problems are reported.
   */
  readonly accepts?: Joi.Schema;
}

/**
 * Translates a joi schema to JSON Schema 2020-12. Starts with joi's own translation (Standard JSON
 * Schema) and changes these points. The last three help generators of client code:
 *
 * - `null` is included if the schema accepts it, because joi's translation ignores `empty(null)`;
 * - the values of `meta()` and `example()` are included, because joi does not translate them;
 * - `additionalProperties: false` is left out, because responses may gain fields at any time
 *   (api/docs/limits.md, Versioning), so clients must accept unknown fields;
 * - a named schema becomes a reference. If `null` is allowed, the result is an `anyOf` of the
 *   reference and `null`, so that a reference never has keywords next to it;
 * - `default` is left out, because it makes the field required in generated code. The description
 *   of the field mentions its default;
 * - an enum with only one value becomes a `const`.
 *
 * @param named an object to which all named schemas are added
 */
export function jsonSchema(
  schema: Joi.Schema,
  named: Record<string, JsonObject> = {},
): JsonObject {
  const meta: Meta = Object.assign({}, ...(schema.$_terms.metas ?? []));
  if (meta.accepts) return jsonSchema(meta.accepts, named);
  const translated = schema['~standard'].jsonSchema.input({
    target: 'draft-2020-12',
  }) as JsonObject;
  const {
    type,
    enum: choices,
    properties,
    items,
    default: _,
    additionalProperties,
    ...kept
  } = translated;
  const { examples, items: itemSchemas = [] } = schema.$_terms;
  // A joi schema can accept `null` in several ways. Validating `null` covers all of them.
  const isNullable = schema.validate(null).error === undefined;
  const own: Record<string, Json> = { ...kept };
  if (type !== undefined) own.type = [type].flat()[0] ?? null;
  if (Array.isArray(choices) && choices.length === 1) own.const = choices[0];
  else if (choices) own.enum = choices;
  if (properties) {
    const names = Object.keys(properties);
    const members = names.map((name) => [name, jsonSchema(schema.extract(name), named)]);
    own.properties = Object.fromEntries(members);
  }
  if (items)
    own.items = itemSchemas.length === 1 ? jsonSchema(itemSchemas[0], named) : items;
  Object.assign(own, meta.jsonSchema);
  if (examples) own.examples = examples;
  if (meta.name === undefined) {
    return isNullable && own.type !== undefined
      ? { ...own, type: [own.type, 'null'] }
      : own;
  }
  named[meta.name] = own;
  const reference = { $ref: `#/components/schemas/${meta.name}` };
  return isNullable ? { anyOf: [reference, { type: 'null' }] } : reference;
}
