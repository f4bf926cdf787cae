import { mkdir, readFile, symlink } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import test, { type ExecutionContext } from 'ava';
import { PRICES } from '../../../../api/clients/typescript/index.ts';
import packageJson from '../../../../api/clients/typescript/package.json' with {
  type: 'json',
};
import rootPackage from '../../../../package.json' with { type: 'json' };
import { installCommand } from '../../../support/command.ts';
import { fresh } from '../../../support/database.ts';
import { examples } from '../../../support/documented/examples.ts';
import { startStack } from '../../../support/stack.ts';

// Tests the MCP server of the published client with the SDK's own client.

const SDK = 'node_modules/@modelcontextprotocol';
const ROOT = fileURLToPath(new URL('../../../..', import.meta.url));

const stack = fresh(test, () => startStack());
const { project, run } = installCommand(test, stack);

/** Starts the server as an assistant with our documented configuration does. */
async function connect(t: ExecutionContext, apiKey: string): Promise<Client> {
  const blocks = examples().filter(({ text }) => text.includes('mcpServers'));
  const { mcpServers } = JSON.parse(blocks[0]?.text ?? '');
  const { command, args, env } = mcpServers['npi-email-enrichment'];
  t.deepEqual(Object.keys(env), ['NPI_EMAIL_URL', 'NPI_EMAIL_API_KEY']);
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: [join(project, 'node_modules/.bin', command), ...args],
    env: { NPI_EMAIL_URL: stack.baseUrl, NPI_EMAIL_API_KEY: apiKey },
  });
  const client = new Client({ name: 'test', version: '1' });
  client.onerror = (error) => t.fail(error.message);
  await client.connect(transport);
  t.teardown(() => client.close());
  return client;
}

test.serial('without the MCP SDK, the server prints how to install it', async (t) => {
  const client = await stack.organization();
  const { code, stdout, stderr } = await run(project, ['mcp'], { client });
  const { '@modelcontextprotocol/sdk': version } = rootPackage.devDependencies;
  t.is(
    stderr,
    `npi-email-enrichment: The MCP SDK is missing. Run: npm install @modelcontextprotocol/sdk@${version}\n`,
  );
  t.deepEqual([code, stdout], [2, '']);
  t.is(packageJson.peerDependencies['@modelcontextprotocol/sdk'], `^${version}`);
  const page = await readFile(join(ROOT, 'api/clients/typescript/README.md'), 'utf8');
  t.true(page.includes(`@modelcontextprotocol/sdk@${version}\n`));
  await mkdir(join(project, SDK), { recursive: true });
  await symlink(join(ROOT, SDK, 'sdk'), join(project, SDK, 'sdk'));
});

test.serial('without an address, the server says which variables to set', async (t) => {
  const { code, stderr } = await run(project, ['mcp']);
  t.is(code, 2);
  t.regex(stderr, /Set NPI_EMAIL_URL and NPI_EMAIL_API_KEY/);
});

test.serial(
  'an assistant submits NPIs, waits for emails, and reads credits',
  async (t) => {
    const { apiKey } = await stack.sandboxOf(await stack.organization());
    const client = await connect(t, apiKey);
    const { tools } = await client.listTools();
    const names = ['submit_npis', 'wait_for_batch', 'get_credits', 'list_batches'];
    t.deepEqual(
      tools.map(({ name }) => name),
      names,
    );
    for (const [type, price] of Object.entries(PRICES))
      t.regex(
        tools[0]?.description ?? '',
        new RegExp(`\\b${price} with (?:type )?${type}\\b`),
      );
    // The client of the SDK checks each result against the schema of its tool.
    const use = async (name: string, args: Record<string, unknown> = {}) => {
      const { structuredContent } = await client.callTool({ name, arguments: args });
      return structuredContent as Record<string, unknown>;
    };
    const before = await use('get_credits');
    const npis = ['2000000010', '2000000044'];
    const { batch_id, total } = await use('submit_npis', { npis, type: 'professional' });
    t.is(total, 2);
    const found = await use('wait_for_batch', { batch_id });
    t.like(found, { status: 'completed', completed_count: 2, credits_used: 1 });
    const [first, second] = found.results as Record<string, unknown>[];
    t.like(first, { npi: npis[0], status: 'completed', email_type: 'professional' });
    t.regex(String(first?.email), /@/);
    t.like(second, { npi: npis[1], status: 'not_found', email: null });
    const after = await use('get_credits');
    t.is(Number(before.balance) - Number(after.balance), 1);
    const { batches } = await use('list_batches', { npi: npis[0] });
    t.like((batches as object[])[0], { id: batch_id, status: 'completed' });
    t.deepEqual(await use('list_batches', { npi: '1234567893' }), { batches: [] });
  },
);

test.serial('an assistant learns what is wrong with a call', async (t) => {
  const { apiKey } = await stack.sandboxOf(await stack.organization());
  const client = await connect(t, apiKey);
  const cases = [
    ['submit_npis', { npis: ['12'] }, /body\.npis\.0: .*\(request_invalid\)/],
    ['submit_npis', {}, /body\.npis: .*\(request_invalid\)/],
    ['wait_for_batch', { batch_id: 'bat_1' }, /batch_id|batch_not_found/],
  ] as const;
  for (const [name, args, message] of cases) {
    const { isError, content } = await client.callTool({ name, arguments: { ...args } });
    t.true(isError);
    t.regex(JSON.stringify(content), message);
  }
  await t.throwsAsync(client.callTool({ name: 'delete_all' }), {
    message: /There is no tool delete_all/,
  });
});
