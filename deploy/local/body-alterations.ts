import type { Captured } from './signature-check.ts';

/** Undoes what frameworks, proxies and editors do to a body; null where there is nothing to undo. */
interface Undo {
  /** The rest of "the body …". */
  readonly how: string;
  readonly undo: (body: string) => string | null;
}

const UNDOS: readonly Undo[] = [
  // Before the next one, which would take it for white space.
  { how: 'got a byte order mark at its beginning', undo: (body) => body.replace(/^\u{feff}/u, '') },
  { how: 'got a line break or a space at an end', undo: (body) => body.trim() },
  { how: 'had its line breaks changed from LF to CRLF', undo: (body) => body.replaceAll('\r\n', '\n') },
  {
    how: 'had its line breaks changed from CRLF to LF',
    undo: (body) => body.replace(/(?<!\r)\n/g, '\r\n'),
  },
  {
    how: 'was parsed and written again: verify the bytes that arrived, before any JSON parser',
    undo: (body) => whenJson(body, (value) => JSON.stringify(value)),
  },
  {
    how: 'was written again as a JSON string: verify the text within',
    undo: (body) => whenJson(body, (value) => (typeof value === 'string' ? value : null)),
  },
  {
    how: 'was decoded as Latin-1: it is UTF-8',
    undo: (body) => Buffer.from(body, 'latin1').toString('utf8'),
  },
  {
    how: 'is base64, as some gateways hand it on: decode it first',
    undo: (body) => Buffer.from(body, 'base64').toString('utf8'),
  },
];

/** Deliveries are written without white space, and begin so (api/README.md, The envelope). */
const BEGINNING = /^\{"batch":\{"id":"/;

/**
 * How a body differs from the one that was signed, as far as it can be found out.
 * @param isSigned whether a body is the one that was signed
 * @returns the rest of a sentence that begins with "the body"; null where it looks as it was sent
 */
export function alterationOf(
  { headers, body }: Captured,
  isSigned: (body: string) => boolean,
): string | null {
  const text = body.toString('utf8');
  for (const { how, undo } of UNDOS) {
    const before = undo(text);
    if (before !== null && before !== text && isSigned(before)) return how;
  }
  const length = headers['content-length'];
  if (length !== undefined && length !== String(body.length)) {
    return `has ${body.length} bytes, and content-length says that ${length} were sent`;
  }
  if (body.length === 0) return 'is empty';
  if (!Buffer.from(text, 'utf8').equals(body)) return 'is not UTF-8';
  if (whenJson(text, () => '') === null) return 'is not JSON: it was cut off, or changed otherwise';
  return BEGINNING.test(text) ? null : 'does not begin as deliveries do: {"batch":{"id":"…';
}

function whenJson(text: string, use: (value: unknown) => string | null): string | null {
  try {
    return use(JSON.parse(text));
  } catch {
    return null;
  }
}
