import assert from 'node:assert/strict';
import { promisify } from 'node:util';
import converters from '@usebruno/converters';
import newman from 'newman';

// The Postman collection: newman sends its requests in their order, and Bruno imports it.

const { BASE_URL, API_KEY } = process.env;
const response = await fetch(`${BASE_URL}/docs/postman.json`);
const collection = await response.json();

// Without deliveries, because the example submits name no webhook.
const folders = ['Submit', 'Results', 'Credits', 'Service'];
const { run } = await promisify(newman.run)({
  collection,
  envVar: [
    { key: 'baseUrl', value: BASE_URL },
    { key: 'apiKey', value: API_KEY },
  ],
  folder: folders,
});
assert.deepEqual(run.failures, []);
const sent = collection.item.filter(({ name }) => folders.includes(name));
assert.equal(run.executions.length, sent.flatMap(({ item }) => item).length);
for (const { item, response } of run.executions)
  assert(response.code < 300, `${item.name}: ${response.code} ${response.text()}`);

const imported = await converters.postmanToBruno(collection);
assert.deepEqual(imported.issues, []);
const [submits] = imported.collection.items;
assert.equal(submits.items[0].request.url, '{{baseUrl}}/api/v1/email');
assert.match(imported.collection.root.request.script.res, /bru\.setCollectionVar\('batch_id'/);
