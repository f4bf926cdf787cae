import type { IncomingMessage } from 'node:http';
import type { Request } from '@hapi/hapi';
import type Joi from 'joi';
import { createScanner, type Node, parseTree, visit } from 'jsonc-parser';
import { invalid, type Problem, problem } from '../problems.ts';
import { check, ignoredFields, problemAt } from './validation.ts';

// Bodies are read as bytes and parsed by JSON.parse. Where JSON.parse would lose information, such
// as the digits of a long number, these functions work on the text instead.

/** Size limit of the whole body. A larger body is a 413. */
const MAX_BODY_BYTES = 64 * 1024;

/**
 * Payload options that make hapi leave the body to the route's handler. Otherwise, hapi would
 * respond 400 to a content type that it cannot read. It would also close the connection without a
 * response if a body without Content-Length is too large.
 */
export const UNREAD_BODY = {
  parse: false,
  output: 'stream',
  maxBytes: Number.MAX_SAFE_INTEGER,
  override: 'application/octet-stream',
} as const;

/**
 * Reads a whole body.
 * @throws {ApiError} 413 for more than 64 KiB; 415 if the headers say that the body is not JSON, or
 * is compressed
 */
export async function readBody(body: IncomingMessage): Promise<Buffer> {
  const { 'content-type': type, 'content-encoding': encoding = 'identity' } =
    body.headers;
  if (Number(body.headers['content-length'] ?? 0) > MAX_BODY_BYTES)
    throw problem('body_too_large');
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body.iterator({ destroyOnReturn: false })) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) throw problem('body_too_large');
    chunks.push(chunk);
  }
  const isTyped = size > 0 || type !== undefined;
  const isJson = /^application\/(?:[\w.!#$&^-]+\+)?json *(?:;|$)/i.test(
    type?.trim() ?? '',
  );
  if ((isTyped && !isJson) || encoding.toLowerCase() !== 'identity')
    throw problem('unsupported_media_type');
  return Buffer.concat(chunks);
}

/**
 * Parses JSON in UTF-8. A byte order mark is allowed (RFC 8259, section 8.1).
 * @returns the text as sent and its value, or the problem if it is not JSON
 */
export function parseJson(
  bytes: Buffer,
): { readonly text: string; readonly value: unknown } | Problem {
  if (bytes.length === 0) return problemAt(['body'], 'body missing');
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return problemAt(['body', utf8ErrorOffset(bytes)], 'json encoding');
  }
  try {
    return { text, value: JSON.parse(text) };
  } catch {
    return problemAt(['body', jsonErrorOffset(text)], 'json syntax');
  }
}

/**
 * Returns the valid body of a request. Also notes the unknown fields for the response.
 * @throws {ApiError} 422 with every problem at once
 */
export function validBody<T>(
  request: Request,
  bytes: Buffer,
  schema: Joi.ObjectSchema<T>,
): T {
  const body = parseJson(bytes);
  if ('loc' in body) throw invalid([body]);
  request.app.ignoredFields = ignoredFields(schema, body.value);
  const { value, problems } = check('body', schema, body.value);
  if (problems.length > 0) throw invalid(problems);
  return value;
}

/** Returns the number of characters before the first invalid UTF-8 byte. */
function utf8ErrorOffset(bytes: Buffer): number {
  // Decoding replaces invalid bytes, so the first difference after encoding again is the first
  // invalid byte.
  const again = Buffer.from(bytes.toString('utf8'));
  let same = 0;
  while (bytes[same] === again[same]) same += 1;
  return new TextDecoder('utf-8').decode(bytes.subarray(0, same), { stream: true })
    .length;
}

/**
 * Returns the offset of the first syntax error (RFC 8259). Returns the length of the text if the
 * text ends too early, or if it is nested too deeply for a recursive parser. JSON.parse doesn't
 * reliably report the offset.
 * @param text a text that isn't JSON
 */
export function jsonErrorOffset(text: string): number {
  if (jsonDepth(text) > MAX_WALKED_DEPTH) return text.length;
  let first: number | null = null;
  const onError = (_code: number, offset: number) => {
    first ??= offset;
  };
  try {
    visit(text, { onError }, { disallowComments: true });
  } catch (error) {
    // With many wrong closing brackets, the parser recurses deeper than the text is nested.
    if (!(error instanceof RangeError)) throw error;
  }
  return first ?? text.length;
}

const MAX_WALKED_DEPTH = 1000;

/** Returns the number of levels of objects and arrays, counted without recursion. */
export function jsonDepth(text: string): number {
  let deepest = 0;
  for (const { level } of tokensOf(text)) {
    deepest = Math.max(deepest, level);
  }
  return deepest;
}

/**
 * Returns the text of one member of a JSON object exactly as it was sent, or null if the object has
 * no such member. If several members have this name, the last one is returned, as in JSON.parse.
 * @param text valid JSON, of any depth
 */
export function memberText(text: string, name: string): string | null {
  let found: string | null = null;
  let key: string | null = null;
  let start: number | null = null;
  for (const { char, at, value, level } of tokensOf(text)) {
    if (level !== 1) continue;
    if (char === ':') start = at + 1;
    else if (start === null) key = value;
    else if (char === ',' || char === '}') {
      if (key === name) found = text.slice(start, at).trim();
      start = null;
    }
  }
  return found;
}

const STEP: Readonly<Record<string, number>> = { '{': 1, '[': 1, '}': -1, ']': -1 };

/**
 * Yields the tokens of a JSON text: the first character, the offset, the value, and the nesting
 * level of each token. White space is skipped. A bracket has the level that it opens or closes.
 */
function* tokensOf(text: string) {
  const scanner = createScanner(text, true);
  let depth = 0;
  for (scanner.scan(); scanner.getTokenOffset() < text.length; scanner.scan()) {
    const at = scanner.getTokenOffset();
    const char = text.charAt(at);
    const before = depth;
    depth += STEP[char] ?? 0;
    yield { char, at, value: scanner.getTokenValue(), level: Math.max(before, depth) };
  }
}

/**
 * Returns the canonical form of a JSON text: members are sorted, white space is removed, escapes
 * are decoded, and numbers are normalized. Two texts have the same canonical form if and only if
 * their values are equal. Numbers are compared exactly, not as doubles.
 * @param text valid JSON that is not nested too deeply for recursion
 */
export function canonicalJson(text: string): string {
  const canonical = ({ type, children = [], offset, length, value }: Node): string => {
    switch (type) {
      case 'object': {
        // If a name occurs twice, the last member is kept, as in JSON.parse.
        const members = new Map(
          children.map(({ children: [name, member] = [] }) => [
            JSON.stringify(name?.value),
            member ? canonical(member) : '',
          ]),
        );
        const sorted = [...members].sort(([a], [b]) => (a < b ? -1 : 1));
        return `{${sorted.map((member) => member.join(':')).join(',')}}`;
      }
      case 'array':
        return `[${children.map(canonical).join(',')}]`;
      case 'number':
        return exactNumber(text.slice(offset, offset + length));
      default:
        return JSON.stringify(value);
    }
  };
  const root = parseTree(text);
  return root ? canonical(root) : '';
}

/** Normalizes a number: sign, digits without outer zeros, exponent. `1.50e3` becomes `15e2`. */
function exactNumber(source: string): string {
  const [mantissa = '', exponent = '0'] = source.toLowerCase().split('e');
  const sign = mantissa.startsWith('-') ? '-' : '';
  const [whole = '', fraction = ''] = mantissa.replace('-', '').split('.');
  const digits = `${whole}${fraction}`.replace(/^0+/, '');
  // This is a loop because the regular expression /0+$/ takes quadratic time for long runs of
  // zeros, 0.2 seconds for 16 KiB.
  let end = digits.length;
  while (digits[end - 1] === '0') end -= 1;
  const trimmed = digits.slice(0, end);
  if (trimmed === '') return `${sign}0`;
  const power =
    BigInt(exponent) - BigInt(fraction.length) + BigInt(digits.length - trimmed.length);
  return `${sign}${trimmed}e${power}`;
}
