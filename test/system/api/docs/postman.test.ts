import test from 'ava';
import { fresh } from '../../../support/database.ts';
import { eventually } from '../../../support/organization.ts';
import { startApi, startStack } from '../../../support/stack.ts';

// Tests the Postman collection at /docs/postman.json. `npm run clients` runs it with Postman's own
// runner, and imports it into Bruno.

/** A parameter, header, or variable of the collection. */
interface Field {
  readonly key: string;
  readonly value: string;
  readonly disabled?: boolean;
}
interface CollectionRequest {
  readonly method: string;
  readonly url: {
    readonly raw: string;
    readonly query: readonly Field[];
    readonly variable: readonly Field[];
  };
  readonly header: readonly Field[];
  readonly body: { readonly raw?: string };
}
interface Collection {
  readonly auth: { readonly bearer: readonly Field[] };
  readonly variable: readonly Field[];
  readonly item: readonly {
    readonly item: readonly {
      readonly name: string;
      readonly request: CollectionRequest;
    }[];
  }[];
}

const stack = fresh(test, startStack);

async function readCollection(baseUrl = stack.baseUrl): Promise<Collection> {
  const response = await fetch(`${baseUrl}/docs/postman.json`);
  return (await response.json()) as Collection;
}

const requestsOf = ({ item }: Collection) => item.flatMap((folder) => folder.item);

/** Returns the values of the variables that the collection needs after a submit with a webhook. */
async function variablesOfSandbox(): Promise<Record<string, string>> {
  const sandbox = await stack.sandboxOf(await stack.organization());
  const webhook = { url: stack.receiver.url };
  const { batch_id, requests } = (await sandbox.single({ npi: '2000000010', webhook }))
    .json;
  await eventually(async () => {
    const { webhook } = await sandbox.batch(batch_id);
    return webhook?.status === 'delivered' || null;
  });
  const path = `/api/v1/batch/${batch_id}/deliveries`;
  const page = await sandbox.get<{ deliveries: readonly { id: string }[] }>(path);
  return {
    baseUrl: stack.baseUrl,
    apiKey: sandbox.apiKey,
    batch_id,
    request_id: requests[0]?.request_id ?? '',
    delivery_id: page.json.deliveries[0]?.id ?? '',
  };
}

test('the collection names the URL of the service, and has no key', async (t) => {
  const publicUrl = 'https://npi.example.com';
  const api = await startApi({ publicUrl });
  t.teardown(api.stop);
  const { variable } = await readCollection(api.baseUrl);
  const [baseUrl, ...others] = variable;
  t.deepEqual(baseUrl, { key: 'baseUrl', value: publicUrl });
  t.true(others.every(({ value }) => value === ''));
  t.is(others[0]?.key, 'apiKey');
});

test('every request of the collection succeeds in the sandbox as it is', async (t) => {
  const collection = await readCollection();
  const variables = await variablesOfSandbox();
  t.deepEqual(
    collection.variable.map(({ key }) => key),
    Object.keys(variables),
  );
  const fill = (text: string) =>
    text.replaceAll(/\{\{(\w+)\}\}/g, (_, name: string) => variables[name] ?? '');
  const [token] = collection.auth.bearer;
  const authorization = `Bearer ${fill(token?.value ?? '')}`;
  for (const { name, request } of requestsOf(collection)) {
    const { method, url, body } = request;
    const ids = new Map(url.variable.map(({ key, value }) => [key, value]));
    const path = url.raw.replaceAll(/:(\w+)/g, (_, id: string) => ids.get(id) ?? '');
    const headers = new Headers({ authorization });
    for (const { key, value, disabled } of request.header) {
      if (!disabled) headers.set(key, value);
    }
    const response = await fetch(fill(path), { method, headers, body: body.raw ?? null });
    t.true(response.ok, `${name}: ${response.status} ${await response.text()}`);
  }
});

test('optional headers and parameters of the collection are disabled', async (t) => {
  const requests = requestsOf(await readCollection());
  t.is(requests.length, 16);
  for (const { name, request } of requests) {
    const { header, url } = request;
    t.true(
      url.query.every(({ disabled }) => disabled),
      name,
    );
    const enabled = header.filter(({ disabled }) => !disabled).map(({ key }) => key);
    t.deepEqual(
      enabled.filter((key) => !['Accept', 'Content-Type'].includes(key)),
      [],
    );
    const key = header.find((field) => field.key === 'Idempotency-Key');
    const isSubmit = request.method === 'POST' && url.raw.includes('/email');
    t.is(key?.value, isSubmit ? '{{$guid}}' : undefined, name);
  }
});
