/** A vendor's answer, as far as every adapter reads one. */
export interface HttpAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** The body's text; null where it was larger than is read. */
  readonly text: string | null;
}

/** Vendors' answers about one person are a few kilobytes; more than this is not an answer. */
const MAX_BODY = 1024 * 1024;
const MAX_RETRY_AFTER_MS = 86_400_000;

/**
 * One GET. Redirects are not followed: fetch would carry a vendor's own key header to wherever they point.
 * @returns null where no whole answer came back: refused, reset, cut off, no name, bad certificate
 * @throws whatever `signal` was aborted with
 */
export async function get(
  url: string,
  headers: Readonly<Record<string, string>>,
  signal: AbortSignal,
): Promise<HttpAnswer | null> {
  try {
    const response = await fetch(url, { headers, signal, redirect: 'manual' });
    return { status: response.status, headers: response.headers, text: await readText(response) };
  } catch {
    signal.throwIfAborted();
    return null;
  }
}

async function readText(response: Response): Promise<string | null> {
  const decoder = new TextDecoder();
  let size = 0;
  let text = '';
  // Leaving the loop early cancels the stream, and with it the connection.
  for await (const chunk of response.body ?? []) {
    size += chunk.byteLength;
    if (size > MAX_BODY) return null;
    text += decoder.decode(chunk, { stream: true });
  }
  return text + decoder.decode();
}

/**
 * `Retry-After` (RFC 9110 section 10.2.3) in milliseconds from now: seconds or an HTTP date, at most a day.
 * @returns null where it is absent or neither
 */
export function retryAfterMs(headers: Headers, now = Date.now()): number | null {
  const value = headers.get('retry-after')?.trim();
  if (!value) return null;
  const ms = /^[0-9]+$/.test(value) ? Number(value) * 1000 : parseHttpDate(value) - now;
  return Number.isNaN(ms) ? null : Math.min(Math.max(ms, 0), MAX_RETRY_AFTER_MS);
}

/** Date.parse alone takes `-5` and `1.5` for years. */
function parseHttpDate(value: string): number {
  return / GMT$/.test(value) ? Date.parse(value) : Number.NaN;
}
