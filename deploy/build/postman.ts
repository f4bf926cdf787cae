import { writeFile } from 'node:fs/promises';
import { convertV2 } from 'openapi-to-postmanv2';
import { openapiDocument } from '../../api/openapi/document.ts';
import { EXAMPLE_URL, SUPPORT } from '../../api/site.ts';

// Converts the OpenAPI document to a Postman collection, which other tools import too. The API
// serves it. The converter is a development package, because it brings 60 others.

/** The parts of a collection that we change. */
interface Collection {
  auth: unknown;
  event: unknown;
  item: Folder[];
  readonly info: { description: unknown };
  readonly variable: { readonly key: string; readonly value: string }[];
}
interface Folder {
  readonly item: { readonly request: CollectionRequest }[];
}
interface CollectionRequest {
  readonly url: {
    readonly host: string[];
    readonly path: string[];
    readonly variable: Field[];
    raw?: string;
  };
  readonly header: Field[];
}
interface Field {
  readonly key: string;
  readonly disabled?: boolean;
  value: string;
}

/** Variables of the collection in addition to `baseUrl`. The ids are those of paths. */
const VARIABLES = ['apiKey', 'batch_id', 'request_id', 'delivery_id'];

/** Runs after each response. Keeps the ids of a submit for the requests that need them. */
const KEEP_IDS = `const { batch_id, requests, deliveries = [] } = pm.response.code < 300 ? pm.response.json() : {};
if (requests) {
  pm.collectionVariables.set('batch_id', batch_id);
  pm.collectionVariables.set('request_id', requests[0].request_id);
}
if (deliveries.length > 0) pm.collectionVariables.set('delivery_id', deliveries[0].id);`;

const openapi = openapiDocument({ publicUrl: EXAMPLE_URL, support: SUPPORT });
const collection = await convert();
collection.info.description = (openapi.info as { description: string }).description;
collection.auth = {
  type: 'bearer',
  bearer: [{ key: 'token', type: 'string', value: '{{apiKey}}' }],
};
for (const key of VARIABLES) collection.variable.push({ key, value: '' });
const script = { type: 'text/javascript', exec: KEEP_IDS.split('\n') };
collection.event = [{ listen: 'test', script }];
// The folder of webhooks is empty.
collection.item = collection.item.filter(({ item }) => item.length > 0);
for (const { item } of collection.item) {
  for (const { request } of item) fillIn(request);
}
// Ids differ in each build. Each request would have a dozen examples of errors.
const LEFT_OUT = ['id', '_postman_id', 'response'];
const text = JSON.stringify(
  collection,
  (key, value) => (LEFT_OUT.includes(key) ? undefined : value),
  1,
);
await writeFile(new URL('../../api/docs/postman.json', import.meta.url), text);

function convert(): Promise<Collection> {
  const input = { type: 'json', data: openapi } as const;
  const options = {
    folderStrategy: 'Tags',
    parametersResolution: 'Example',
    enableOptionalParameters: false,
  } as const;
  return new Promise((resolve, reject) => {
    convertV2(input, options, (error, converted) => {
      const [output] = converted?.output ?? [];
      if (output) resolve(output.data as Collection);
      else reject(error ?? new Error(converted?.reason));
    });
  });
}

/** Replaces the values that the converter makes up for ids and for optional headers. */
function fillIn({ url, header }: CollectionRequest): void {
  // Without the whole URL, Bruno puts `http://` in front of the host.
  url.raw = [...url.host, ...url.path].join('/');
  for (const id of url.variable) id.value = `{{${id.key}}}`;
  for (const field of header) {
    if (field.disabled) field.value = field.key === 'Idempotency-Key' ? '{{$guid}}' : '';
  }
}
