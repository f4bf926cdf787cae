export const MAX_URL_LENGTH = 2048;

export const URL_START = /^[Hh][Tt][Tt][Pp][Ss]:\/\/[^/\\]/;

/**
 * Returns what is wrong with the URL of a webhook receiver, as a key of faults.json, or
 * null if it can be used.
 * @param forbids returns true if deliveries to the URL are forbidden, because its host is a
 * forbidden IP address or an internal name
 */
export function faultOfUrl(text: string, forbids: (url: URL) => boolean): string | null {
  if (text.length > MAX_URL_LENGTH) return 'url.too_long';
  // `URL` removes white space and control characters before it parses a text. Such a text is
  // rejected, because we store the text and not the parsed URL.
  if (!URL.canParse(text) || !text.isWellFormed() || /[\s\p{Cc}]/u.test(text))
    return 'url.parsing';
  const url = new URL(text);
  if (url.protocol !== 'https:') return 'url.scheme';
  // `URL` also accepts `https:///x` as the host x.
  if (!URL_START.test(text)) return 'url.parsing';
  if (url.username !== '' || url.password !== '') return 'url.userinfo';
  if (forbids(url)) return 'url.forbidden';
  return null;
}
