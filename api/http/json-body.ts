import type { IncomingMessage } from 'node:http';
import { type Problem, problem } from './errors.ts';
import { jsonErrorOffset } from './json-error.ts';

/** A body as the text that was sent and as the value it means. */
export interface JsonBody {
  readonly text: string;
  readonly value: unknown;
}

/** The whole body; more is a 413. */
const MAX_BODY_BYTES = 64 * 1024;

/**
 * Payload options that leave a body to its handler: hapi answers 400 to a type it cannot read, and cuts the connection
 * without any answer where a body without a length is too large.
 */
export const UNREAD_BODY = {
  parse: false,
  output: 'stream',
  maxBytes: Number.MAX_SAFE_INTEGER,
  override: 'application/octet-stream',
} as const;

/**
 * Reads a body as JSON in UTF-8, a byte order mark allowed (RFC 8259, section 8.1).
 * @returns the body, or what keeps it from being one: nothing was sent, or no JSON
 * @throws {ApiError} 413 for more than 64 KiB; 415 where the headers announce something else
 */
export async function readJson(body: IncomingMessage): Promise<JsonBody | Problem> {
  const bytes = await readBytes(body);
  const { 'content-type': type, 'content-encoding': encoding = 'identity' } = body.headers;
  const isTyped = bytes.length > 0 || type !== undefined;
  if (isTyped && !isJson(type)) {
    throw problem(415, 'unsupported_media_type', 'Send the body as application/json.');
  }
  if (encoding.toLowerCase() !== 'identity') {
    throw problem(415, 'unsupported_media_type', 'Send the body without a Content-Encoding.');
  }
  if (bytes.length === 0) return { loc: ['body'], msg: 'Field required', type: 'missing' };
  return parse(bytes);
}

async function readBytes(body: IncomingMessage): Promise<Buffer> {
  const tooLarge = () => problem(413, 'body_too_large', 'The body may have 64 KiB at most.');
  if (Number(body.headers['content-length'] ?? 0) > MAX_BODY_BYTES) throw tooLarge();
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body.iterator({ destroyOnReturn: false })) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) throw tooLarge();
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function isJson(contentType = ''): boolean {
  return /^application\/(?:[\w.!#$&^-]+\+)?json *(?:;|$)/i.test(contentType.trim());
}

function parse(bytes: Buffer): JsonBody | Problem {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return broken(utf8ErrorOffset(bytes));
  }
  try {
    return { text, value: JSON.parse(text) };
  } catch {
    return broken(jsonErrorOffset(text));
  }
}

function broken(offset: number): Problem {
  return { loc: ['body', offset], msg: 'JSON decode error', type: 'json_invalid' };
}

/** How many characters stand before the first bytes that are no UTF-8. */
function utf8ErrorOffset(bytes: Buffer): number {
  // What had to be replaced is where the text, written again, differs from what was sent.
  const again = Buffer.from(bytes.toString('utf8'));
  let same = 0;
  while (bytes[same] === again[same]) same += 1;
  return new TextDecoder('utf-8').decode(bytes.subarray(0, same), { stream: true }).length;
}
