import type Joi from 'joi';

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };
export type JsonObject = { readonly [name: string]: Json };

/** What a joi schema may say of itself with `meta()`, where joi's own translation cannot know. */
interface Meta {
  /** Keywords for what a custom rule checks. */
  readonly jsonSchema?: JsonObject;
  /** For a schema that picks with `when` which problems to report: the schema of what passes. */
  readonly accepts?: Joi.Schema;
}

/**
 * A joi schema as JSON Schema 2020-12: joi's own translation (Standard JSON Schema), with four things set right:
 *
 * - `null` where joi takes it: joi's translation does not know `empty(null)`, and leaves `null` out of an `enum`;
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
