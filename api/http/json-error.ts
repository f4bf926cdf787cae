// JSON.parse says that a text is no JSON, but not reliably where. This runs only after it has failed.

type Expected = 'value' | 'value or ]' | 'key' | 'key or }' | ':' | 'after value';

const SPACE = /[ \t\n\r]*/y;
// White space and control characters: none but escaped ones may stand in a string.
const STRING = /"(?:[^"\\\p{Cc}]|\x7f|[\x80-\x9f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/uy;
const SCALAR = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/y;

/**
 * The offset of the first token that is broken or may not stand where it is (RFC 8259); the text's length where a token
 * is missing at the end.
 */
export function jsonErrorOffset(text: string): number {
  const open: ('{' | '[')[] = [];
  let expected: Expected = 'value';
  let at = 0;
  const take = (pattern: RegExp): boolean => {
    pattern.lastIndex = at;
    const matched = pattern.test(text);
    if (matched) at = pattern.lastIndex;
    return matched;
  };
  for (;;) {
    take(SPACE);
    const char = text[at];
    if (char === undefined) return text.length;
    const closes = char === '}' ? '{' : char === ']' ? '[' : null;
    const mayClose = expected === 'after value' || expected === (closes === '{' ? 'key or }' : 'value or ]');
    if (closes !== null && mayClose && open.at(-1) === closes) {
      open.pop();
      at += 1;
      expected = 'after value';
    } else if (expected === 'after value') {
      if (char !== ',' || open.length === 0) return at;
      at += 1;
      expected = open.at(-1) === '{' ? 'key' : 'value';
    } else if (expected === ':') {
      if (char !== ':') return at;
      at += 1;
      expected = 'value';
    } else if (expected === 'key' || expected === 'key or }') {
      if (!take(STRING)) return at;
      expected = ':';
    } else if (char === '{' || char === '[') {
      open.push(char);
      at += 1;
      expected = char === '{' ? 'key or }' : 'value or ]';
    } else {
      if (!take(STRING) && !take(SCALAR)) return at;
      expected = 'after value';
    }
  }
}
