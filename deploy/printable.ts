/**
 * Matches control characters (C0, C1), format characters such as bidi overrides, and separators of
 * lines and paragraphs.
 */
const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const UNPRINTABLE_IN_LINES = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/**
 * Escapes characters that a terminal would hide or treat as a command. The escapes are those of
 * JSON, such as `\u009b`, so escaped JSON text stays valid and keeps its value.
 * @param text a single line or a part of one, because line breaks are escaped too
 */
export function printable(text: string): string {
  return text.replace(UNPRINTABLE, escaped);
}

/** Escapes the same characters as `printable`, except line feeds, in text of several lines. */
export function printableLines(text: string): string {
  return text.replace(UNPRINTABLE_IN_LINES, escaped);
}

/** Escapes each UTF-16 unit, because JSON has no other escape for a character above U+FFFF. */
function escaped(character: string): string {
  return character
    .split('')
    .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
    .join('');
}
