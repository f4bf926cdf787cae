// JSON text handled as text, where parsing it would lose what has to be kept or cost what may not be spent.

/** Levels of objects and arrays, counted without recursion; strings are skipped. Meant for text before it is parsed. */
export function jsonDepth(text: string): number {
  let depth = 0;
  let deepest = 0;
  for (let i = 0; i < text.length; i += 1) {
    const char = text[i];
    if (char === '"') i = stringEnd(text, i);
    else if (char === '{' || char === '[') {
      depth += 1;
      deepest = Math.max(deepest, depth);
    } else if (char === '}' || char === ']') depth -= 1;
  }
  return deepest;
}

/**
 * The text of one member of a JSON object, exactly as it was sent; the last one, as JSON.parse has it, where the
 * name occurs twice.
 * @param text valid JSON whose value is an object
 */
export function memberText(text: string, name: string): string | null {
  let found: string | null = null;
  let i = text.indexOf('{') + 1;
  while (i < text.length) {
    const keyStart = text.indexOf('"', i);
    // No further string before the end of the object: an empty object, or the text after its last member.
    if (keyStart < 0) break;
    const keyEnd = stringEnd(text, keyStart);
    const valueStart = text.indexOf(':', keyEnd) + 1;
    const valueEnd = endOfValue(text, valueStart);
    if (JSON.parse(text.slice(keyStart, keyEnd + 1)) === name)
      found = text.slice(valueStart, valueEnd).trim();
    i = valueEnd + 1;
  }
  return found;
}

/** Where a string that begins at `start` has its closing quote; the text's end where it has none. */
function stringEnd(text: string, start: number): number {
  for (let i = start + 1; i < text.length; i += 1) {
    if (text[i] === '\\') i += 1;
    else if (text[i] === '"') return i;
  }
  return text.length;
}

/** The comma or the closing bracket after a value that begins at `start`. */
function endOfValue(text: string, start: number): number {
  let depth = 0;
  for (let i = start; i < text.length; i += 1) {
    const char = text[i];
    if (char === '"') i = stringEnd(text, i);
    else if (char === '{' || char === '[') depth += 1;
    else if (char === '}' || char === ']') {
      if (depth === 0) return i;
      depth -= 1;
    } else if (char === ',' && depth === 0) return i;
  }
  return text.length;
}

/**
 * JSON text in one canonical form: members sorted, no white space, escapes undone, numbers by their exact value.
 * Two texts have the same form if and only if they mean the same, also beyond double precision.
 *
 * Reads tokens, because JSON.parse with a reviver is not exact: V8 13.6 now and then takes a name of one escaped
 * character (`"\u0061"`) for a backslash, and then also loses the source text of the number behind it.
 * @param text valid JSON
 */
export function canonicalJson(text: string): string {
  const tokens = Array.from(text.matchAll(TOKEN), ([token]) => token);
  let at = 0;
  const value = (): string => {
    const token = tokens[at] ?? '';
    at += 1;
    if (token === '{') return object();
    if (token === '[') return array();
    if (token.startsWith('"')) return JSON.stringify(JSON.parse(token));
    return /^[-0-9]/.test(token) ? exactNumber(token) : token;
  };
  const array = (): string => {
    const items: string[] = [];
    while (tokens[at] !== ']') {
      items.push(value());
      if (tokens[at] === ',') at += 1;
    }
    at += 1;
    return `[${items.join(',')}]`;
  };
  const object = (): string => {
    const members = new Map<string, string>();
    while (tokens[at] !== '}') {
      const name = value();
      at += 1;
      members.set(name, value());
      if (tokens[at] === ',') at += 1;
    }
    at += 1;
    const sorted = [...members].sort(([a], [b]) => (a < b ? -1 : 1));
    return `{${sorted.map((member) => member.join(':')).join(',')}}`;
  };
  return value();
}

const TOKEN = /"(?:[^"\\]|\\.)*"|[[\]{}:,]|[^\s"[\]{}:,]+/g;

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
