import { Readable } from 'node:stream';
import type { ReadableStream } from 'node:stream/web';
import type { Request, ResponseObject, ResponseToolkit, Server } from '@hapi/hapi';
import {
  type CallToolResult,
  createMcpHandler,
  type JSONObject,
  Server as McpServer,
  originValidationResponse,
  ProtocolError,
  ProtocolErrorCode,
  type ServerContext,
  type Tool,
} from '@modelcontextprotocol/server';
import type { Logger } from 'pino';
import { PRICES } from '../../db/accounts/credits.ts';
import { isSandbox } from '../../db/accounts/organizations.ts';
import packageJson from '../../package.json' with { type: 'json' };
import { CallFailed } from '../http/call-api.ts';
import { readBody, UNREAD_BODY } from '../http/json-body.ts';
import { whenOver } from '../http/overload.ts';
import { jsonSchema } from '../openapi/json-schema.ts';
import { problem } from '../problems.ts';
import type { Site } from '../site.ts';
import TEXTS from './descriptions.json' with { type: 'json' };
import { fillText, ToolCall, ToolFault, toolText } from './tool-call.ts';
import { TOOLS } from './tools.ts';

// The MCP server, with which AI assistants use the service (api/docs/assistants.md). Each request
// has the API key and is complete, so there are no sessions (DECISIONS.md, Assistants).

interface McpDeps {
  readonly site: Site;
  readonly log: Logger;
}

const PATH = '/mcp';

/** The headers of a request that the protocol defines. */
const HEADERS = [
  'accept',
  'content-type',
  'origin',
  'mcp-protocol-version',
  'mcp-method',
  'mcp-name',
];

/** Registers `POST /mcp`. Other methods get a 405. */
export function registerMcp(server: Server, deps: McpDeps): void {
  server.route({
    method: 'POST',
    path: PATH,
    options: { payload: UNREAD_BODY, app: { role: 'read' } },
    handler: (request, h) => handle(request, h, deps),
  });
  server.route({
    method: '*',
    path: PATH,
    options: { auth: false, payload: UNREAD_BODY },
    handler: () => {
      throw problem('method_not_allowed', { allow: 'POST' }, { allow: 'POST' });
    },
  });
}

async function handle(
  request: Request,
  h: ResponseToolkit,
  deps: McpDeps,
): Promise<ResponseObject> {
  // This place is for one submit. The calls of the API get their own places.
  request.app.place.leave();
  const parsedBody = parseMessage(await readBody(request.raw.req));
  const asked = webRequest(request, deps.site);
  // A page of another site must not use this server through a browser, even if the host name of the
  // page leads to us.
  const { hostname } = new URL(deps.site.publicUrl);
  const refused = originValidationResponse(asked, [hostname]) ?? refuseList(parsedBody);
  if (refused) return await convertResponse(refused, request, h);
  const failures: Error[] = [];
  const handler = createMcpHandler(() => createMcpServer(request, deps), {
    // The tools never change, so there is nothing to subscribe to.
    maxSubscriptions: 0,
    onerror: (error) => {
      failures.push(error);
    },
  });
  const response = await handler.fetch(asked, { parsedBody });
  const failure = failures.at(-1);
  if (response.status === 500 && failure) throw failure;
  return await convertResponse(response, request, h);
}

/** Returns a request in the form that the SDK reads. It is aborted when the client disconnects. */
function webRequest(request: Request, { publicUrl }: Site) {
  const headers = new Headers();
  for (const name of HEADERS) {
    const value: unknown = request.headers[name];
    if (typeof value === 'string') headers.set(name, value);
  }
  const over = new AbortController();
  whenOver(request, () => over.abort());
  const { signal } = over;
  return new globalThis.Request(`${publicUrl}${PATH}`, {
    method: 'POST',
    headers,
    signal,
  });
}

/**
 * Returns the message in a body, or undefined if it is not JSON. The SDK then returns the error. Some
 * clients send null as the arguments of a tool that needs none, which the SDK would reject.
 */
function parseMessage(body: Buffer): unknown {
  const isMissing = (name: string, value: unknown) =>
    name === 'arguments' && value === null;
  try {
    return JSON.parse(body.toString('utf8'), (name, value) =>
      isMissing(name, value) ? undefined : value,
    );
  } catch {
    return undefined;
  }
}

/**
 * Returns the error for a list of messages, or null. Old versions of the protocol allow lists, but a
 * list would count as one request toward the rate limit.
 */
function refuseList(parsedBody: unknown): Response | null {
  if (!Array.isArray(parsedBody)) return null;
  const error = {
    code: ProtocolErrorCode.InvalidRequest,
    message: TEXTS.oneMessage,
  };
  return Response.json({ jsonrpc: '2.0', id: null, error }, { status: 400 });
}

/** Converts a response of the SDK. A stream is passed on as it comes. */
async function convertResponse(
  response: Response,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const type = response.headers.get('content-type') ?? '';
  if (!type.startsWith('text/event-stream')) {
    const text = await response.text();
    if (text === '') return h.response().code(response.status);
    return h.response(text).code(response.status).type(type);
  }
  // Compression would hold events back.
  request.info.acceptEncoding = 'identity';
  const events = Readable.fromWeb(response.body as ReadableStream);
  // nginx does not buffer a response with this header.
  const sent = h.response(events).type(type).header('x-accel-buffering', 'no');
  sent.charset('');
  return sent;
}

function createMcpServer(request: Request, deps: McpDeps): McpServer {
  const { name, version } = packageJson;
  const { organizationId } = request.auth.credentials;
  const lines = [...TEXTS.instructions];
  if (isSandbox(organizationId)) lines.push(TEXTS.sandbox);
  const server = new McpServer(
    { name, version },
    { capabilities: { tools: {} }, instructions: lines.join('\n') },
  );
  server.setRequestHandler('tools/list', () => ({ tools: LISTED }));
  server.setRequestHandler('tools/call', (message, context) =>
    callTool(request, context, message.params, deps),
  );
  return server;
}

const LISTED: Tool[] = Object.entries(TOOLS).map(
  ([name, { title, input, output, isReadOnly }]) => ({
    name,
    title,
    description: descriptionOf(name),
    inputSchema: jsonSchema(input) as Tool['inputSchema'],
    outputSchema: jsonSchema(output) as NonNullable<Tool['outputSchema']>,
    annotations: {
      readOnlyHint: isReadOnly,
      destructiveHint: false,
      idempotentHint: true,
      openWorldHint: true,
    },
  }),
);

/** Returns the description of a tool, with the prices of emails. */
function descriptionOf(name: string): string {
  const texts: Readonly<Record<string, string>> = TEXTS.tools;
  return fillText(texts[name] ?? '', PRICES);
}

interface Asked {
  readonly name: string;
  readonly arguments?: Readonly<Record<string, unknown>> | undefined;
}

async function callTool(
  request: Request,
  context: ServerContext,
  { name, arguments: given = {} }: Asked,
  { log }: McpDeps,
): Promise<CallToolResult> {
  const tool = Object.hasOwn(TOOLS, name) ? TOOLS[name] : undefined;
  if (!tool) {
    const names = Object.keys(TOOLS).join(', ');
    const message = fillText(TEXTS.unknownTool, { names });
    throw new ProtocolError(ProtocolErrorCode.InvalidParams, message);
  }
  try {
    const call = new ToolCall(request, context);
    const input = checkArguments(tool.input, given);
    const structuredContent = await tool.run(call, input as never);
    const text = JSON.stringify(structuredContent);
    return {
      structuredContent: structuredContent as JSONObject,
      content: [{ type: 'text', text }],
    };
  } catch (error) {
    const text = faultText(error, request, log);
    return { isError: true, content: [{ type: 'text', text }] };
  }
}

/** The number of problems that an error names. A list can have a thousand. */
const MAX_PROBLEMS = 10;
/** More arguments than any tool has. To report thousands of unknown ones would block the process. */
const MAX_ARGUMENTS = 20;

/**
 * Returns the arguments with their defaults. Null and an empty text count as missing.
 * @throws {ToolFault} if they are not valid
 */
function checkArguments(
  schema: (typeof TOOLS)[string]['input'],
  given: Asked['arguments'],
) {
  const set = Object.entries(given ?? {}).filter(
    ([, value]) => value !== null && value !== '',
  );
  const some = set.slice(0, MAX_ARGUMENTS);
  const { value, error } = schema.validate(Object.fromEntries(some), {
    abortEarly: false,
  });
  if (!error) return value;
  const problems = error.details.map(({ message }) => `${message}.`);
  const lines = problems.slice(0, MAX_PROBLEMS);
  const more = problems.length - lines.length;
  if (more > 0) {
    lines.push(`And ${more} more problems.`);
  }
  lines.push(TEXTS.correct);
  throw new ToolFault(lines.join(' '));
}

/** Returns the text of an error for an assistant. Logs an unexpected error. */
function faultText(error: unknown, request: Request, log: Logger): string {
  if (error instanceof ToolFault) return error.message;
  if (error instanceof CallFailed) return toolText(error);
  const { requestId: http_request_id } = request.app;
  log.error({ err: error, http_request_id, route: PATH }, 'request failed');
  request.server.app.errors += 1;
  return TEXTS.faults.internal_error;
}
