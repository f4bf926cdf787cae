import { readdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { openapiDocument } from '../../api/openapi/document.ts';

// Generates the parts of the Python client that follow from others: its types from the schemas of
// the OpenAPI document, and its synchronous modules from the asynchronous ones. So each rule and each
// operation is written once. This script runs before each build.

interface Schema {
  readonly $ref?: string;
  readonly description?: string;
  readonly type?: string | readonly string[];
  readonly const?: unknown;
  readonly enum?: readonly unknown[];
  readonly anyOf?: readonly Schema[];
  readonly items?: Schema;
  readonly required?: readonly string[];
  readonly properties?: Readonly<Record<string, Schema>>;
}

const FOLDER = new URL('../../api/clients/python/npi_email_enrichment/', import.meta.url);
const TYPES: Readonly<Record<string, string>> = {
  string: 'str',
  integer: 'int',
  number: 'float',
  boolean: 'bool',
  null: 'None',
  object: 'Mapping[str, object]',
};
/** Replacements that make a synchronous module from an asynchronous one, in this order. */
const SYNCHRONOUS: readonly (readonly [RegExp, string])[] = [
  [/\bAsync(?=\w)/g, ''],
  [/\basync (?=def|with|for)/g, ''],
  [/\bawait /g, ''],
  [/\b__a(?=enter__|exit__)/g, '__'],
  [/\baclose\b/g, 'close'],
  [/\baiter_/g, 'iter_'],
  [/\basyncio\b/g, 'time'],
  [/\b_async_/g, '_sync_'],
  [/_async\b/g, '_sync'],
];

// The types are the same for every site.
const { components } = openapiDocument({ publicUrl: '/', support: '' }) as unknown as {
  components: { schemas: Record<string, Schema> };
};
write('types.py', typesOf(components.schemas));
for (const name of readdirSync(FOLDER)) {
  if (name.startsWith('_async_') && name.endsWith('.py')) {
    const text = readFileSync(new URL(name, FOLDER), 'utf8');
    write(name.replace('_async_', '_sync_'), synchronous(text));
  }
}

/** Renames a complete file, because an API that starts now reads the folder. */
function write(name: string, text: string): void {
  const unfinished = new URL(`${name}.${process.pid}`, FOLDER);
  writeFileSync(unfinished, text);
  renameSync(unfinished, new URL(name, FOLDER));
}

function synchronous(text: string): string {
  return SYNCHRONOUS.reduce(
    (made, [pattern, replacement]) => made.replaceAll(pattern, replacement),
    text,
  );
}

/**
 * Returns the module with a type for each schema. Only aliases need the names in them at once, so they
 * follow the classes.
 */
function typesOf(schemas: Readonly<Record<string, Schema>>): string {
  const all = Object.entries(schemas);
  const aliases = all.filter(([, schema]) => !schema.properties);
  const classes = all.filter(([, schema]) => schema.properties);
  const parts = [
    '"""The types of the API\'s JSON, generated from the OpenAPI document.',
    '',
    'The service may add fields and values at any time.',
    '"""',
    '',
    'from __future__ import annotations',
    '',
    'from collections.abc import Mapping',
    'from typing import Literal, TypedDict',
    '',
    ...classes.map(([name, schema]) => classOf(name, schema)),
    '',
    ...aliases.map(([name, schema]) => aliasOf(name, schema)),
  ];
  return parts.join('\n');
}

function aliasOf(name: string, schema: Schema): string {
  return `${name} = ${typeOf(schema)}\n${docstring(schema, '')}`;
}

/**
 * Returns a TypedDict. Python 3.10 cannot mark one field as optional, so the required fields of a
 * schema with optional fields are in a base class.
 */
function classOf(name: string, schema: Schema): string {
  const { properties = {}, required = [] } = schema;
  const fields = Object.entries(properties);
  const needed = fields.filter(([field]) => required.includes(field));
  const optional = fields.filter(([field]) => !required.includes(field));
  if (optional.length === 0) {
    return `\nclass ${name}(TypedDict):\n${docstring(schema)}${fieldsOf(needed)}`;
  }
  const base = `\nclass _${name}(TypedDict):\n${fieldsOf(needed)}`;
  return `${base}\n\nclass ${name}(_${name}, total=False):\n${docstring(schema)}${fieldsOf(optional)}`;
}

function fieldsOf(fields: readonly (readonly [string, Schema])[]): string {
  const lines = fields.map(
    ([name, schema]) => `    ${name}: ${typeOf(schema)}\n${docstring(schema)}`,
  );
  return lines.join('');
}

/** Returns the Python type of a schema. */
function typeOf(schema: Schema): string {
  const { $ref, anyOf, items, type = 'unknown' } = schema;
  if ($ref) {
    return $ref.slice($ref.lastIndexOf('/') + 1);
  }
  if (anyOf) {
    return anyOf.map(typeOf).join(' | ');
  }
  const values = schema.enum ?? (schema.const === undefined ? [] : [schema.const]);
  if (values.length > 0) {
    return `Literal[${values.map((value) => JSON.stringify(value)).join(', ')}]`;
  }
  if (items) {
    return `list[${typeOf(items)}]`;
  }
  const names = [type].flat();
  return names.map((name) => pythonNameOf(name)).join(' | ');
}

function pythonNameOf(type: string): string {
  const name = TYPES[type];
  if (!name) {
    throw new Error(`deploy/build/python-client.ts knows no Python type for ${type}`);
  }
  return name;
}

/** Returns the description of a schema as a docstring, or nothing. */
function docstring({ description }: Schema, indent = '    '): string {
  return description ? `${indent}"""${description.replaceAll('\\', '\\\\')}"""\n` : '';
}
