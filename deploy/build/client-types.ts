import { writeFile } from 'node:fs/promises';
import { compile, type JSONSchema } from 'json-schema-to-typescript';
import faults from '../../api/http/faults.json' with { type: 'json' };
import { openapiDocument } from '../../api/openapi/document.ts';

// Generates the types of the TypeScript client from the schemas of the OpenAPI document. This
// script runs before each type check and each build. We do not use openapi-typescript, because it
// needs the compiler of TypeScript 5 in addition to ours.

// The types are the same for every site.
const openapi = openapiDocument({ publicUrl: '/', support: '' });
const text = JSON.stringify(openapi).replaceAll(
  '#/components/schemas/',
  '#/definitions/',
);
const { components } = JSON.parse(text) as {
  components: { schemas: Record<string, JSONSchema> };
};
const { schemas } = components;
const types = await compile({ definitions: schemas }, 'Schemas', {
  additionalProperties: false,
  unreachableDefinitions: true,
  ignoreMinAndMaxItems: true,
  format: false,
});
const problems = Object.keys(schemas).filter((name) => schemas[name]?.properties?.code);
const anyProblem = `/** Every error except 422. */\nexport type AnyProblem = ${problems.join(' | ')};\n`;
const faultTypes = new Set<string>();
for (const { type } of Object.values(faults)) {
  faultTypes.add(`'${type}'`);
}
const names = [...faultTypes].join(' | ');
const faultType = `/** The types of the faults in a 422. */\nexport type FaultType = ${names};\n`;
const file = new URL('../../api/clients/typescript/types.ts', import.meta.url);
await writeFile(file, `${types}\n${anyProblem}\n${faultType}`);
