import type { IncomingMessage } from 'node:http';
import { createScanner, type Node, parseTree, visit } from 'jsonc-parser';
import { type Problem, problem } from '../problems.ts';

// Bodies: read as bytes, parsed by JSON.parse, and handled as text if parsing would lose what has to be kept.

/** The whole body; more is a 413. */
const MAX_BODY_BYTES = 64 * 1024;

/**
 * Payload options that leave a body to its handler: hapi answers 400 to a type it cannot read, and cuts the connection
 * without any answer if a body without a length is too large.
 */
export const UNREAD_BODY = {
  parse: false,
  output: 'stream',
  maxBytes: Number.MAX_SAFE_INTEGER,
  override: 'application/octet-stream',
} as const;

/** Reads a whole body. @throws {ApiError} 413 for more than 64 KiB; 415 if the headers announce something but JSON */
export async function readBody(body: IncomingMessage): Promise<Buffer> {
  const { 'content-type': type, 'content-encoding': encoding = 'identity' } = body.headers;
  if (Number(body.headers['content-length'] ?? 0) > MAX_BODY_BYTES) throw problem('body_too_large');
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of body.iterator({ destroyOnReturn: false })) {
    size += chunk.length;
    if (size > MAX_BODY_BYTES) throw problem('body_too_large');
    chunks.push(chunk);
  }
  const isTyped = size > 0 || type !== undefined;
  const isJson = /^application\/(?:[\w.!#$&^-]+\+)?json *(?:;|$)/i.test(type?.trim() ?? '');
  if ((isTyped && !isJson) || encoding.toLowerCase() !== 'identity') throw problem('unsupported_media_type');
  return Buffer.concat(chunks);
}

/**
 * JSON in UTF-8, a byte order mark allowed (RFC 8259, section 8.1).
 * @returns the text that was sent and the value it means, or what keeps it from being JSON
 */
export function parseJson(bytes: Buffer): { readonly text: string; readonly value: unknown } | Problem {
  if (bytes.length === 0) return { loc: ['body'], msg: 'Field required', type: 'missing' };
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

/** How many characters stand before the first bytes that aren't UTF-8. */
function utf8ErrorOffset(bytes: Buffer): number {
  // What had to be replaced is where the text, written again, differs from what was sent.
  const again = Buffer.from(bytes.toString('utf8'));
  let same = 0;
  while (bytes[same] === again[same]) same += 1;
  return new TextDecoder('utf-8').decode(bytes.subarray(0, same), { stream: true }).length;
}

/**
 * The offset of the first token that is broken or may not stand where it is (RFC 8259); the text's length if a token is
 * missing at the end, or if it is nested too deep to be walked by recursion. JSON.parse doesn't reliably say where.
 * @param text that isn't JSON
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
    // What is closed wrongly again and again is walked deeper than it is nested.
    if (!(error instanceof RangeError)) throw error;
  }
  return first ?? text.length;
}

const MAX_WALKED_DEPTH = 1000;

/** Levels of objects and arrays, counted without recursion. */
export function jsonDepth(text: string): number {
  let deepest = 0;
  for (const { level } of tokensOf(text)) deepest = Math.max(deepest, level);
  return deepest;
}

/**
 * The text of one member of a JSON object, exactly as it was sent; the last one, as JSON.parse has it, if the name
 * occurs twice; null if none has it.
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
 * Tokens one by one, without the white space between them: their first character, offset and meaning, and the level of
 * what they stand in; brackets stand in what they enclose.
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
 * JSON text in one canonical form: members sorted, no white space, escapes undone, numbers by their exact value.
 * Two texts have the same form if and only if they mean the same, also beyond double precision.
 * @param text valid JSON of few levels
 */
export function canonicalJson(text: string): string {
  const canonical = ({ type, children = [], offset, length, value }: Node): string => {
    switch (type) {
      case 'object': {
        // The last one counts if a name occurs twice, as JSON.parse has it.
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

/** `1.50e3` → `15e2`: sign, digits without outer zeros, exponent. */
function exactNumber(source: string): string {
  const [mantissa = '', exponent = '0'] = source.toLowerCase().split('e');
  const sign = mantissa.startsWith('-') ? '-' : '';
  const [whole = '', fraction = ''] = mantissa.replace('-', '').split('.');
  const digits = `${whole}${fraction}`.replace(/^0+/, '');
  // Not a pattern: /0+$/ tries anew at each zero of a run that is not the last, 0.2 s for 16 KiB.
  let end = digits.length;
  while (digits[end - 1] === '0') end -= 1;
  const trimmed = digits.slice(0, end);
  if (trimmed === '') return `${sign}0`;
  const power = BigInt(exponent) - BigInt(fraction.length) + BigInt(digits.length - trimmed.length);
  return `${sign}${trimmed}e${power}`;
}
