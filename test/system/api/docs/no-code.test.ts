import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { fresh, temporaryFolder } from '../../../support/database.ts';
import { examples, page, program } from '../../../support/documented/examples.ts';
import { eventually } from '../../../support/organization.ts';
import { SITE } from '../../../support/site.ts';
import { startStack } from '../../../support/stack.ts';

// Sends the requests that each no-code tool sends if a reader follows the page about it.

const stack = fresh(test, () => startStack({ allSources: true }));
const client = fresh(test, () => stack.organization(1000));

/** Fills in the address and the key, as a reader would. */
const filledIn = (recipe: string) =>
  recipe
    .replaceAll(SITE.publicUrl, stack.baseUrl)
    .replaceAll('npe_test_...', client.apiKey);

const jsonBlock = (start: string) => {
  const found = examples().find(
    (example) => example.page === 'no-code.md' && example.text.startsWith(start),
  );
  return filledIn(found?.text ?? '');
};

interface Envelope {
  readonly data: readonly { readonly status: string; readonly email: string | null }[];
}

test('the request that all tools send returns the email in one call', async (t) => {
  const rows = filledIn(page('no-code.md')).matchAll(/^\| ([^|]+?) \| `?(.*?)`? \|$/gm);
  const fields = new Map([...rows].map(([, name = '', value = '']) => [name, value]));
  const headers: Record<string, string> = {};
  for (const [name, value] of fields) {
    const header = /^Header `(.*)`$/.exec(name)?.[1];
    if (header) headers[header] = value;
  }
  t.is(Object.keys(headers).length, 3);
  const response = await fetch(fields.get('URL') ?? '', {
    method: fields.get('Method') ?? '',
    headers,
    body: fields.get('Body') ?? '',
  });
  t.is(response.status, 200);
  const { data } = (await response.json()) as Envelope;
  t.is(data[0]?.status, 'completed');
  t.regex(data[0]?.email ?? '', /@/);
});

interface HttpRequestNode {
  readonly method: string;
  readonly url: string;
  readonly headerParameters: {
    readonly parameters: readonly { readonly name: string; readonly value: string }[];
  };
  readonly jsonBody: string;
}

test('the n8n node returns the email, also if the NPI of an item is a number', async (t) => {
  const { nodes } = JSON.parse(jsonBlock('{"nodes":'));
  const { method, url, headerParameters, jsonBody } = nodes[0]
    .parameters as HttpRequestNode;
  const expression = /^=\{\{(.*)\}\}$/.exec(jsonBody)?.[1] ?? '';
  for (const npi of ['2000000010', 2000000010]) {
    const given = headerParameters.parameters.map(({ name, value }) => [name, value]);
    const response = await fetch(url, {
      method,
      headers: {
        Authorization: `Bearer ${client.apiKey}`,
        'Content-Type': 'application/json',
        ...Object.fromEntries(given),
      },
      body: String(new Function('$json', `return ${expression}`)({ npi })),
    });
    t.is(response.status, 200);
    t.regex(((await response.json()) as Envelope).data[0]?.email ?? '', /@/);
  }
});

test('the resume URL of n8n gets all results of a bulk submit', async (t) => {
  const body = jsonBlock('{"npis":').replace(
    '{{ $execution.resumeUrl }}',
    stack.receiver.url,
  );
  const { status, json } = await client.bulk(JSON.parse(body));
  t.is(status, 202);
  const delivery = await eventually(async () => {
    const found = stack.receiver.deliveries();
    return found.find(({ body }) => body.includes(json.batch_id)) ?? null;
  });
  const { data } = JSON.parse(String(delivery.body)) as Envelope;
  t.deepEqual(
    data.map((result) => result.status),
    ['completed', 'completed'],
  );
});

test('the Google Sheets script writes email and status next to each NPI', async (t) => {
  const folder = temporaryFolder(t.teardown);
  const script = join(folder, 'Code.gs');
  await writeFile(script, filledIn(program('Code.gs')));
  const runner = fileURLToPath(
    new URL('../../../support/documented/apps-script.cjs', import.meta.url),
  );
  const cells = ['NPI', '2000000010', '', ' 2000000044 '];
  const child = spawn(process.execPath, [runner, script, 'findEmails', ...cells], {
    env: { PATH: process.env.PATH, NPI_EMAIL_API_KEY: client.apiKey },
  });
  const [out, err] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    once(child, 'close'),
  ]);
  t.is(err, '');
  t.regex(out, /^\n1\|\S+@\S+\|completed\n\n1\|\|not_found\n$/);
});
