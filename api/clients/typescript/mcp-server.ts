import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import {
  CallToolRequestSchema,
  type CallToolResult,
  ListToolsRequestSchema,
  type Tool,
} from '@modelcontextprotocol/sdk/types.js';
import type { BatchFilter, EnrichmentClient } from './client.ts';
import { EnrichmentError } from './errors.ts';
import { PRICES } from './index.ts';
import packageJson from './package.json' with { type: 'json' };
import tools from './tools.json' with { type: 'json' };
import type { Batch, BulkSubmit } from './types.ts';

/** Less than the 60 seconds after which many MCP clients give up. */
const WAIT_SECONDS = 45;
const MAX_BATCHES = 20;

/** The tools of tools.json, with the prices of emails in their descriptions. */
const TOOLS = tools.map((tool) => {
  const pairs = Object.entries(PRICES);
  const description = pairs.reduce(
    (text, [type, price]) => text.replace(`{${type}}`, String(price)),
    tool.description,
  );
  return { ...tool, description };
});

type Arguments = Readonly<Record<string, unknown>>;
type Content = Record<string, unknown>;

/**
 * Serves the tools of tools.json on standard input and output. The API validates the arguments.
 * This uses `Server`, because the schemas of `McpServer` need another package.
 */
export async function serve(client: EnrichmentClient): Promise<void> {
  const { name, version } = packageJson;
  const server = new Server({ name, version }, { capabilities: { tools: {} } });
  server.setRequestHandler(ListToolsRequestSchema, () => ({ tools: TOOLS as Tool[] }));
  server.setRequestHandler(CallToolRequestSchema, ({ params }) =>
    callTool(client, params.name, params.arguments ?? {}),
  );
  await server.connect(new StdioServerTransport());
}

async function callTool(
  client: EnrichmentClient,
  name: string,
  given: Arguments,
): Promise<CallToolResult> {
  try {
    const structuredContent = await run(client, name, given);
    const text = JSON.stringify(structuredContent);
    return { structuredContent, content: [{ type: 'text', text }] };
  } catch (error) {
    if (!(error instanceof EnrichmentError)) throw error;
    const text = `${error.message} (${error.code})`;
    return { isError: true, content: [{ type: 'text', text }] };
  }
}

async function run(
  client: EnrichmentClient,
  tool: string,
  given: Arguments,
): Promise<Content> {
  switch (tool) {
    case 'submit_npis':
      return await submit(client, given);
    case 'wait_for_batch':
      return await wait(client, given);
    case 'get_credits':
      return await credits(client);
    case 'list_batches':
      return await list(client, given);
    default:
      throw new Error(`There is no tool ${tool}.`);
  }
}

async function submit(client: EnrichmentClient, given: Arguments): Promise<Content> {
  const { npis, type: enrichment_email_type } = given;
  const body = { npis, enrichment_email_type } as BulkSubmit;
  const { batch_id, status, requests } = await client.submitBulk(body);
  return { batch_id, status, total: requests.length };
}

async function wait(client: EnrichmentClient, given: Arguments): Promise<Content> {
  const options = { waitSeconds: WAIT_SECONDS };
  const { batch, usage, data } = await client.getBatch(String(given.batch_id), options);
  const { status, total, completed_count } = batch;
  const credits_used = usage?.credits_used ?? null;
  return { status, total, completed_count, credits_used, results: data };
}

async function credits(client: EnrichmentClient): Promise<Content> {
  const { balance, total, used } = await client.getCredits();
  return { balance, total, used };
}

async function list(client: EnrichmentClient, given: Arguments): Promise<Content> {
  const batches: Batch[] = [];
  for await (const batch of client.getBatches(given as BatchFilter)) {
    batches.push(batch);
    if (batches.length === MAX_BATCHES) break;
  }
  return { batches };
}
